"""The program as it was written: a kernel for each equation that computes."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence

from eqsat.control import CONTROL
from eqsat.cost import FREE, Cost, price
from eqsat.devices import Device
from eqsat.graph import Equation, Graph
from eqsat.notation import Kernel, Stored
from eqsat.program import PlannedKernel
from eqsat.read import Reading, read
from eqsat.regions import Region, loads_in
from eqsat.schedule import schedules
from eqsat.work import Work


def as_written(graph: Graph, card: Device) -> Cost:
    """The cost of a graph and its loops."""
    loops = [looped(e, [as_written(body, card) for body in e.bodies]) for e in graph.equations if e.bodies]
    return sum(loops, baseline(read(graph), card))


def baseline(reading: Reading, card: Device) -> Cost:
    """The cost of what was read, without its loops."""
    steps = ((step, 1) for step in reading.steps if isinstance(step, Stored))
    return sum((kernel.cost * count for kernel, count in kernels(steps, card)), FREE)


def kernels(steps: Iterable[tuple[Stored, int]], card: Device) -> list[tuple[PlannedKernel, int]]:
    """The distinct kernels of definitions, and how often each is launched, given how often each definition is computed."""
    first: dict[Hashable, Stored] = {}
    counts: dict[Hashable, int] = {}
    for step, count in steps:
        key = Region(loads_in(step.term), (step,), (step,)).key
        first.setdefault(key, step)
        counts[key] = counts.get(key, 0) + count
    return [(kernel_of(step, card), counts[key]) for key, step in first.items()]


def computed(graph: Graph, reading: Reading, times: int = 1) -> Iterator[tuple[Stored, int]]:
    """Each computing equation with how often it runs; those of loops whose trips the values decide count once."""
    yield from ((step, times) for step in reading.steps if isinstance(step, Stored))
    for equation in graph.equations:
        for body in equation.bodies:
            yield from computed(body, read(body), times * (1 if equation.trips is None else equation.trips))


def kernel_of(step: Stored, card: Device, exact: bool = False) -> PlannedKernel:
    """A definition as its own kernel. Raises ValueError where none of its schedules fits the device."""
    kernel = Kernel(step.name, (step,), exact)
    work = Work(kernel)
    cost, schedule = price(work, schedules(work), card)
    if schedule is None:
        raise ValueError(f"kernel {step.name}: a schedule that fits {card.name} required, got none for {kernel.formula}")
    return PlannedKernel(kernel, schedule, cost, kernel.inputs, (step,))


def looped(equation: Equation, costs: Sequence[Cost]) -> Cost:
    """The cost of a loop or branch: of all trips, of one where values decide how many there are, of the dearest branch.

    What JAX does to slice and stack the arrays of a scan is left out.
    """
    if CONTROL[equation.name].chooses:
        return max(costs, key=lambda c: c.seconds)
    return sum(costs, FREE) * (1 if equation.trips is None else equation.trips)
