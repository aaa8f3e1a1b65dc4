"""Choices by position that array libraries do better than element by element: paddings and concatenations.

Read element by element, what is not chosen is read outside of its bounds, made up, and thrown away.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eqsat.arrays import Value, union
from eqsat.index import Axis, Index
from eqsat.notation import Term, const_value, substitute
from eqsat.primitives.fold import limit_of
from eqsat.updates import conjuncts, mirrored

if TYPE_CHECKING:
    from eqsat.evaluate import Evaluator

PIECES = 64  # of a concatenation; what is cut finer than that is chosen element by element
Box = dict[Axis, tuple[int, int]]  # first and last position


@dataclass(frozen=True)
class Padded:
    """A choice between what lies in a box of positions and a literal: the box, with the literal around it."""

    inside: Term
    within: tuple[tuple[Axis, Axis], ...]  # an axis of the choice, and that of the box
    starts: tuple[int, ...]
    around: Term  # the literal

    @property
    def operands(self) -> tuple[Term, ...]:
        return (self.inside,)

    def value(self, run: Evaluator) -> Value:
        found = run.values[self.inside]
        cut = dict(self.within)
        outer = {inner: axis for axis, inner in self.within}
        axes = (*found.axes, *(a for a in outer if a not in found.axes))  # those of extent 1 have no dimension yet
        before = dict(zip(cut, self.starts, strict=True))
        whole = tuple(outer.get(a, a) for a in axes)
        pads = tuple((before.get(w, 0), w.extent - a.extent - before.get(w, 0)) for w, a in zip(whole, axes, strict=True))
        fill = run.ops.literal(const_value(self.around), run.dtype(self.around.dtype))
        return Value(run.ops.apply("pad_with", run.broadcast(found, axes), pads, fill), whole)


@dataclass(frozen=True)
class Joined:
    """Pieces along one axis, one after the other."""

    axis: Axis
    operands: tuple[Term, ...]
    along: tuple[Axis, ...]  # the axis of each

    def value(self, run: Evaluator) -> Value:
        found = [run.values[t] for t in self.operands]
        home = dict.fromkeys(self.along, self.axis)
        axes = union([Value(v.array, tuple(home.get(a, a) for a in v.axes)) for v in found])
        axes = axes if self.axis in axes else (*axes, self.axis)  # pieces of extent 1 have no dimension yet
        orders = [tuple(own if a == self.axis else a for a in axes) for own in self.along]
        arrays = [run.broadcast(v, order) for v, order in zip(found, orders, strict=True)]
        return Value(run.ops.apply("concatenate", arrays, axes.index(self.axis)), axes)


def choice(term: Term) -> Padded | Joined | None:
    """A choice as a padding or a concatenation, if it is one and less is read outside of tensors then."""
    return _padded(term) or _joined(term)


def _padded(term: Term) -> Padded | None:
    """A choice as a box with a literal around it, if it is one and less would be read outside of tensors in the box alone."""
    mask, inner, around = term.args
    box = _box_of(mask) if around.head == "const" and mask.axes <= inner.axes else None
    if not box or any(low > high for low, high in box.values()):
        return None
    within = {axis: Axis(f"{axis.name}'", high - low + 1) for axis, (low, high) in box.items()}
    try:
        inside = substitute(inner, {axis: Index.of(within[axis]) + low for axis, (low, _) in box.items()})
    except ValueError:  # a scan along one of them
        return None
    if _reads_outside(inside) >= _reads_outside(inner):
        return None
    return Padded(inside, tuple(within.items()), tuple(low for low, _ in box.values()), around)


def _box_of(mask: Term) -> Box | None:
    """First and last position of each axis at which a conjunction of comparisons of positions holds."""
    box: Box = {}
    for test in conjuncts(mask):
        found = limit_of(test) or limit_of(mirrored(test))
        if found is None:
            return None
        axis, (low, high), _ = found
        first, last = box.get(axis, (0, axis.extent - 1))
        box[axis] = (max(first, low), min(last, high))
    return box


def _reads_outside(term: Term) -> int:
    """Dimensions of loads that are read outside of their bounds."""
    loads = [t for t in term.walk() if t.head == "load"]
    return sum(i.range[0] < 0 or i.range[1] >= n for t in loads for i, n in zip(t.indices, t.tensor.shape, strict=True))


def _joined(term: Term) -> Joined | None:
    box = _box_of(term.args[0])
    if box is None or len(box) != 1:
        return None
    (axis,) = box
    pieces = list(_pieces(term, axis, 0, axis.extent - 1))
    if not 1 < len(pieces) <= PIECES:
        return None
    along = tuple(Axis(f"{axis.name}'{n}", high - low + 1) for n, (low, high, _) in enumerate(pieces))
    try:
        parts = [substitute(t, {axis: Index.of(own) + low}) for own, (low, _, t) in zip(along, pieces, strict=True)]
    except ValueError:  # a scan along it
        return None
    if sum(map(_reads_outside, parts)) >= _reads_outside(term):
        return None
    return Joined(axis, tuple(parts), along)


def _pieces(term: Term, axis: Axis, low: int, high: int) -> Iterator[tuple[int, int, Term]]:
    """What choices by position along the axis leave of a term between two positions, from left to right."""
    box = _box_of(term.args[0]) if term.head == "where" else None
    if low > high or box is None or set(box) != {axis}:
        if low <= high:
            yield low, high, term
        return
    _, chosen, other = term.args
    first, last = max(low, box[axis][0]), min(high, box[axis][1])
    if first > last:
        yield from _pieces(other, axis, low, high)
        return
    yield from _pieces(other, axis, low, first - 1)
    yield from _pieces(chosen, axis, first, last)
    yield from _pieces(other, axis, last + 1, high)
