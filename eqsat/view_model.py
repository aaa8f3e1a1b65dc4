"""What a picture of a program shows: its kernels before and after as points, and the boxes and arrows between them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite
from typing import TYPE_CHECKING, Any

from eqsat.cost import price
from eqsat.devices import Device, device
from eqsat.notation import Kernel, Stored, Tensor
from eqsat.program import PlannedKernel
from eqsat.read import Call, Reading, read
from eqsat.regions import Region
from eqsat.schedule import schedules
from eqsat.work import Work

if TYPE_CHECKING:
    from eqsat.program import Program

BOUNDS = {
    "dram": "device memory", "l2": "L2 cache", "tensor": "tensor cores", "vector": "arithmetic",
    "special": "special functions", "launch": "launch overhead", "": "nothing",
}  # fmt: skip


LABEL = 26  # characters of a pill's names


def percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.005 or share == 0 else "<1%"


@dataclass(frozen=True)
class Point:
    """A kernel as a dot: predicted seconds, traffic and operations of one launch, and how often it is launched."""

    name: str
    seconds: float
    nbytes: int
    flops: int
    bound: str
    count: int
    rate: float  # peak operations per second of the unit that its arithmetic needs
    dtype: str  # of its contractions' operands; "" where it has none

    @property
    def intensity(self) -> float:
        return self.flops / self.nbytes if self.nbytes else 0.0

    def share_of_roofline(self, card: Device) -> float:
        """The time that its traffic and arithmetic need at peak rates, over the predicted time."""
        ideal = max(self.nbytes / card.dram_bytes_per_second, self.flops / self.rate)
        return ideal / self.seconds if self.seconds else 1.0


def point(planned: PlannedKernel, card: Device, count: int = 1) -> Point:
    rates = [(card.contraction_flops(c.dtype), c.dtype) for c in Work(planned.kernel).contractions]
    rate, dtype = max(rates, default=(card.vector_flops, ""))
    cost = planned.cost
    return Point(planned.name, cost.seconds, cost.nbytes, cost.flops, cost.bound, count, rate, dtype)


@dataclass(eq=False)
class Box:
    """A step of the program: a kernel with all its equal launches, a call of JAX, or a pill of inputs or outputs."""

    kind: str  # kernel, once, call, input or output
    label: str
    number: int = 0  # of a kernel, as in the report
    point: Point | None = None
    planned: PlannedKernel | None = None
    reason: str = ""
    tensors: list[Tensor] = field(default_factory=list)  # of a pill
    count: int = 1


@dataclass
class Arrow:
    """Tensors that one box writes and another reads; `back` where an earlier box reads the next launch's."""

    source: Box
    target: Box
    tensors: list[Tensor]
    back: bool = False


class Picture:
    """Everything that a page draws, computed once."""

    def __init__(self, program: Program) -> None:
        self.program, self.card = program, device(program.target)
        self.reading: Reading = read(program.graph)
        self.boxes: list[Box] = []
        self.arrows: list[Arrow] = []
        self._between: dict[tuple[int, int], Arrow] = {}
        self._place: dict[int, int] = {}  # of each step's box in the order of boxes
        self._kernels = 0
        self._draw()

    # --- dots

    @cached_property
    def after(self) -> list[Point]:
        return [b.point for b in self.boxes if b.kind == "kernel" and b.point]

    @cached_property
    def before(self) -> list[Point]:
        """A kernel for each computing equation of the original; equal ones are one point."""
        known: dict[Hashable, list[Any]] = {}
        for step in self.reading.steps:
            if isinstance(step, Stored):
                leaves = tuple(dict.fromkeys(t.tensor for t in step.term.walk() if t.head == "load"))
                known.setdefault(Region(leaves, (step,), (step,)).key, []).append(step)
        points = [self._original(steps[0], len(steps)) for steps in known.values()]
        return [p for p in points if isfinite(p.seconds)]

    def _original(self, step: Stored, count: int) -> Point:
        kernel = Kernel(step.name, (step,))
        work = Work(kernel)
        cost, schedule = price(work, schedules(work), self.card)
        return point(PlannedKernel(kernel, schedule, cost), self.card, count)

    # --- boxes and arrows

    def _draw(self) -> None:
        """Boxes for inputs, distinct steps and outputs; an arrow for each pair that a tensor joins."""
        box_of_kernel: dict[Any, Box] = {}
        writer: dict[Tensor, Box] = {}
        readers: dict[Tensor, list[Box]] = {}
        for step in self.program.steps:
            box = self._box(step, box_of_kernel)
            for t in dict.fromkeys(t for t in step.inputs if isinstance(t, Tensor)):
                if t in writer:
                    self._join(writer[t], box, t)
                else:
                    readers.setdefault(t, []).append(box)
            writer.update(dict.fromkeys(step.outputs, box))
        self._inputs(readers)
        results = [t for t in dict.fromkeys(self.program.outputs) if t in writer]
        for source, tensors in _grouped((writer[t], t) for t in results):
            self._pill("output", tensors, source)

    def _box(self, step: PlannedKernel | Call, known: dict[Any, Box]) -> Box:
        key: Hashable
        if isinstance(step, Call):
            key, box = step, Box("call", step.name, reason=step.reason)
        else:
            key, box = (step.kernel, step.constant), Box("once" if step.constant else "kernel", step.name, planned=step)
        if key in known:
            known[key].count += 1
        else:
            known[key] = box
            self._place[id(box)] = len(self.boxes)
            self.boxes.append(box)
            self._kernels += box.kind == "kernel"
            box.number = self._kernels if box.kind == "kernel" else 0
        found = known[key]
        if found.planned is not None:
            found.point = point(found.planned, self.card, found.count)
        return found

    def _inputs(self, readers: dict[Tensor, list[Box]]) -> None:
        """A pill for the inputs of one box alone, and one for each input that several boxes read."""
        alone: list[tuple[Box, Tensor]] = []
        for tensor, boxes in readers.items():
            distinct = list(dict.fromkeys(boxes))
            if len(distinct) == 1:
                alone.append((distinct[0], tensor))
            else:
                pill = self._pill("input", [tensor])
                for box in distinct:
                    self._join(pill, box, tensor)
        for box, tensors in _grouped(alone):
            pill = self._pill("input", tensors)
            for tensor in tensors:
                self._join(pill, box, tensor)

    def _pill(self, kind: str, tensors: list[Tensor], source: Box | None = None) -> Box:
        pill = Box(kind, _label([t.name for t in tensors]), tensors=tensors)
        self.boxes.append(pill)
        for tensor in tensors if source else ():
            self._join(source, pill, tensor)  # type: ignore[arg-type]
        return pill

    def _join(self, source: Box, target: Box, tensor: Tensor) -> None:
        key = (id(source), id(target))
        if key not in self._between:
            place, last = self._place, len(self.boxes)
            back = source is target or place.get(id(source), -1) > place.get(id(target), last)
            self._between[key] = Arrow(source, target, [], back)
            self.arrows.append(self._between[key])
        self._between[key].tensors.append(tensor)


def _label(names: list[str]) -> str:
    """As many names as there is room for, and how many more there are."""
    count = max((n for n in range(1, len(names) + 1) if len(", ".join(names[:n])) <= LABEL - 4), default=1)
    more = f" +{len(names) - count}" if count < len(names) else ""
    return ", ".join(names[:count]) + more


def _grouped(pairs: Iterable[tuple[Box, Tensor]]) -> Iterator[tuple[Box, list[Tensor]]]:
    found: dict[int, tuple[Box, list[Tensor]]] = {}
    for box, tensor in pairs:
        found.setdefault(id(box), (box, []))[1].append(tensor)
    yield from found.values()
