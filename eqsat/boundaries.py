"""Why two neighbouring kernels are two: the kernel that would do both is built, and priced beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import prod

from eqsat.cost import Cost, price
from eqsat.definitions import definition_at
from eqsat.devices import Device, device
from eqsat.index import Axis, Index
from eqsat.notation import Kernel, Stored, Tensor, Term, load, output_axes, rebuild, substitute
from eqsat.program import PlannedKernel, Program
from eqsat.read import Call
from eqsat.regions import Region, loads_in, local, retarget
from eqsat.scalars import DTYPES
from eqsat.schedule import Schedule, schedules
from eqsat.work import Work

RECOMPUTED = 1.05  # more operations than this many times those of both kernels are worth a word


@dataclass(frozen=True)
class Boundary:
    """A tensor that one step writes and the next reads, why it is stored, and what one kernel for both would cost more."""

    writer: str
    reader: str
    tensor: str
    reason: str
    seconds: float | None = None  # None: there is no such kernel


def boundaries(program: Program, part_of: Mapping[str, int]) -> tuple[Boundary, ...]:
    """Every distinct pair of neighbouring steps. `part_of` says by a tensor's name in which region it is made."""
    card = device(program.target)
    found: dict[tuple[object, object, int], Boundary] = {}
    for writer, reader, tensor, position in _neighbours(program):
        key = (_identity(writer), _identity(reader), position)
        if key not in found:
            reason, seconds = _why(program, card, writer, reader, tensor, part_of)
            found[key] = Boundary(writer.name, reader.name, str(tensor), reason, seconds)
    return tuple(found.values())


def _identity(step: PlannedKernel | Call) -> object:
    return step.kernel if isinstance(step, PlannedKernel) else step.name


def _neighbours(program: Program) -> Iterator[tuple[PlannedKernel | Call, PlannedKernel | Call, Tensor, int]]:
    made: dict[Tensor, PlannedKernel | Call] = {}
    for step in program.steps:
        for position, tensor in enumerate(step.inputs):
            if isinstance(tensor, Tensor) and tensor in made:
                yield made[tensor], step, tensor, position
        made.update(dict.fromkeys(step.outputs, step))


def _why(
    program: Program,
    card: Device,
    writer: PlannedKernel | Call,
    reader: PlannedKernel | Call,
    tensor: Tensor,
    part_of: Mapping[str, int],
) -> tuple[str, float | None]:
    for step in (writer, reader):
        if isinstance(step, Call):
            what = "holds a program of its own" if step.programs else f"is a call of JAX ({step.reason})"
            return f"{step.name} {what}", None
    assert isinstance(writer, PlannedKernel) and isinstance(reader, PlannedKernel)
    if writer.constant != reader.constant:
        return f"{writer.name} depends on constants only and runs once", None
    both = fused(writer, reader, tensor)
    if both is None:
        return f"{reader.name} reads {tensor.name} at positions that it loads, which cannot be computed in place", None
    work = Work(both.kernel)
    cost, schedule = price(work, schedules(work), card)
    stays = _stays(program, writer, reader)
    apart = reader.cost if stays else writer.cost + reader.cost
    more = cost.seconds - apart.seconds
    also = f"; {stays} needs {tensor.name} stored anyway" if stays else ""
    if schedule is None:
        return f"one kernel would not fit the registers or the shared memory of {card.name}{also}", None
    if more > 0:
        because = _because(cost, apart, both.repeats(schedule), tensor) + _rounding(writer, tensor) + also
        return f"one kernel would take {more * 1e6:.1f} us longer: {because}", more
    first, second = (next((part_of[o.name] for o in s.outputs if o.name in part_of), None) for s in (writer, reader))
    if first is not None and first != second:
        return (
            f"a region ends at {tensor.name}, so that no search looked at both; one kernel would save {-more * 1e6:.1f} us",
            more,
        )
    return f"the search did not meet one kernel for both in a cheaper plan; alone it would save {-more * 1e6:.1f} us{also}", more


def _stays(program: Program, writer: PlannedKernel, reader: PlannedKernel) -> str:
    """What else needs the writer's results, so that the writer would stay."""
    if set(writer.outputs) & set(program.outputs):
        return "an output of the program"
    others = (s for s in program.steps if s is not reader and any(t in writer.outputs for t in s.inputs if isinstance(t, Tensor)))
    return next((s.name for s in others), "")


def _because(cost: Cost, apart: Cost, repeats: int, tensor: Tensor) -> str:
    if repeats > 1:
        return f"{tensor.name} would be computed {repeats} times over, once by each program that reads it"
    if apart.flops and cost.flops > RECOMPUTED * apart.flops:
        return f"{cost.flops / apart.flops:.3g} times the operations, since {tensor.name} would be computed again for each use"
    if cost.nbytes > RECOMPUTED * apart.nbytes:
        return f"{cost.nbytes / apart.nbytes:.3g} times the traffic"
    return f"what both hold at once leaves smaller tiles or fewer programs (bound by {cost.bound})"


def _rounding(writer: PlannedKernel, tensor: Tensor) -> str:
    term = next(o.term for o, t in zip(writer.kernel.outputs, writer.outputs, strict=True) if t is tensor)
    if term.head == "cast" and DTYPES[term.args[0].dtype].nbytes > DTYPES[term.dtype].nbytes:
        return f"; the rounding to {term.dtype} between them is kept"
    return ""


@dataclass(frozen=True)
class Fused:
    """A kernel that does the work of two, and the axes over which it computes what the first one stored."""

    kernel: Kernel
    axes: frozenset[Axis]

    def repeats(self, schedule: Schedule) -> int:
        """How often each value of the first kernel is computed: by every program along a grid axis that it does not have."""
        along = (t for t in schedule.axes if t.role == "grid" and t.axis not in self.axes)
        return prod(-(-t.axis.extent // t.tile) for t in along)


def fused(writer: PlannedKernel, reader: PlannedKernel, tensor: Tensor) -> Fused | None:
    """The reader with the writer's term in place of its loads of a tensor; None where that cannot be written."""
    leaves = {t: Tensor(t.name, t.shape, t.dtype) for t in dict.fromkeys((*_tensors(writer.inputs), *_tensors(reader.inputs)))}
    made = next(o for o, t in zip(writer.kernel.outputs, writer.outputs, strict=True) if t is tensor)
    inner = _bound(made, dict(zip(writer.kernel.inputs, map(leaves.get, writer.inputs), strict=True)))
    leaves[tensor] = inner
    own = dict(zip(reader.kernel.inputs, map(leaves.get, reader.inputs), strict=True))
    outer = [_bound(o, own) for o in reader.kernel.outputs]
    loaded = dict.fromkeys(chain.from_iterable(loads_in(s.term) for s in (inner, *outer)))
    region = local(Region(tuple(t for t in loaded if t is not inner), (inner, *outer), tuple(outer)))
    first, *rest = region.definitions
    inlined: list[Term] = []
    try:
        terms = [_inlined(o.term, first, {}, inlined) for o in rest]
    except ValueError:
        return None
    outputs = tuple(Stored(o.name, o.shape, o.dtype, t, o.axes) for o, t in zip(rest, terms, strict=True))
    return Fused(Kernel(reader.name, outputs, reader.kernel.exact), frozenset[Axis]().union(*(t.axes for t in inlined)))


def _tensors(inputs: Sequence[object]) -> list[Tensor]:
    return [t for t in inputs if isinstance(t, Tensor)]


def _bound(stored: Stored, tensors: dict[Tensor, Tensor | None]) -> Stored:
    """A definition of a kernel, over other tensors, with axes named by position: what only the rules made has others."""
    named = {t: new for t, new in tensors.items() if new is not None}
    axes = output_axes(stored.shape)
    values = {old: Index.of(new) for old, new in zip(stored.axes, axes, strict=True)}
    return Stored(stored.name, stored.shape, stored.dtype, substitute(retarget(stored.term, named), values), axes)


def _inlined(term: Term, stored: Stored, memo: dict[Term, Term], found: list[Term]) -> Term:
    """The term with a definition in place of its loads, which go to `found`; raises ValueError where it cannot be written."""
    if term not in memo:
        args = tuple(_inlined(a, stored, memo, found) for a in term.args)
        if term.head != "load":
            memo[term] = rebuild(term, args)
        elif term.tensor is stored:
            inlined = definition_at(stored, term.indices, args)
            if inlined is None:
                raise ValueError("read at loaded positions")
            found.append(inlined)
            memo[term] = inlined
        else:
            memo[term] = load(term.tensor, term.indices, args)
    return memo[term]
