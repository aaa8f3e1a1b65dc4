"""What a picture of a program shows: its kernels before and after as points, and the boxes and arrows between them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from eqsat import original
from eqsat.devices import device
from eqsat.notation import Tensor
from eqsat.program import PlannedKernel
from eqsat.read import Call, Reading, read
from eqsat.report import loop_text
from eqsat.roofline import Point, point

if TYPE_CHECKING:
    from eqsat.program import Program

LABEL = 26  # characters of a pill's names


def percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.005 or share == 0 else "<1%"


@dataclass(eq=False)
class Box:
    """A step of the program: a kernel with all its equal launches, a call of JAX, or a pill of inputs or outputs."""

    kind: str  # kernel, once, loop, call, input or output
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
        written = original.kernels(original.computed(self.program.graph, self.reading), self.card)
        return [point(kernel, self.card, count) for kernel, count in written]

    # --- boxes and arrows

    def _draw(self) -> None:
        """Boxes for inputs, distinct steps and outputs; an arrow for each pair that a tensor joins."""
        box_of_kernel: dict[Any, Box] = {}
        writer: dict[Tensor, Box] = {}
        readers: dict[Tensor, list[Box]] = {}
        self._steps(self.program, box_of_kernel, writer, readers)
        self._inputs(readers)
        results = [t for t in dict.fromkeys(self.program.outputs) if t in writer]
        for source, tensors in _grouped((writer[t], t) for t in results):
            self._pill("output", tensors, source)

    def _steps(
        self, program: Program, known: dict[Any, Box], writer: dict[Tensor, Box], readers: dict[Tensor, list[Box]]
    ) -> None:
        """The boxes of a program's steps; a loop's gives its body what it reads, and takes back what it computes."""
        for step in program.steps:
            box = self._box(step, known)
            for t in dict.fromkeys(t for t in step.inputs if isinstance(t, Tensor)):
                if t in writer:
                    self._join(writer[t], box, t)
                else:
                    readers.setdefault(t, []).append(box)
            for body in step.programs if isinstance(step, Call) else ():
                writer.update(dict.fromkeys(body.inputs, box))
                self._steps(body, known, writer, readers)
                for t in dict.fromkeys(t for t in body.outputs if t in writer and writer[t] is not box):
                    self._join(writer[t], box, t)
            writer.update(dict.fromkeys(step.outputs, box))

    def _box(self, step: PlannedKernel | Call, known: dict[Any, Box]) -> Box:
        key: Hashable
        if isinstance(step, Call):
            text = loop_text(step) if step.programs else f"call of JAX: {step.reason}"
            key, box = step, Box("loop" if step.programs else "call", step.name, reason=text)
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
            found.count = self.program.uses[found.planned.kernel].count if found.kind == "kernel" else found.count
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
