"""Programs made by hand for tests: a kernel for each tensor of the reading, without any search."""

from eqsat.cost import Cost
from eqsat.graph import Graph
from eqsat.notation import Kernel, Stored
from eqsat.program import PlannedKernel, Program
from eqsat.read import read
from eqsat.schedule import schedules
from eqsat.work import Work

COST = Cost(3e-6, 1, 1000, 2000, "dram")


def planned(stored, constant=False):
    kernel = Kernel(stored.name, (stored,))
    return PlannedKernel(kernel, schedules(Work(kernel))[0], COST, kernel.inputs, (stored,), constant)


def program_of(fn, *args, numerics="reassociate", constant=(), **kwargs):
    """A kernel for each tensor; those that depend on the arguments `constant` alone run once."""
    graph = Graph.from_jax(fn, *args, **kwargs)
    reading = read(graph)
    fixed = {reading.inputs[leaf] for n in constant for leaf in graph.argument_leaves[n]} | set(reading.constants)
    steps = []
    for step in reading.steps:
        if isinstance(step, Stored):
            loaded = {t.tensor for t in step.term.walk() if t.head == "load"}
            once = bool(constant) and bool(loaded) and loaded <= fixed
            fixed |= {step} if once else set()
            steps.append(planned(step, once))
        else:
            steps.append(step)
    launches = sum(isinstance(s, PlannedKernel) for s in steps)
    cost = Cost(3e-6 * launches, launches, 1000 * launches, 2000 * launches, "dram")
    notes = {
        "equations": len(graph.equations),
        "views": reading.views,
        "opaque": reading.opaque,
        "rules": ("a_law",),
        "tiers": {"a_law": "exact"},
    }
    return Program(graph, reading.inputs, reading.constants, steps, reading.outputs, "h100", numerics, cost, cost, notes)
