"""Reductions over an axis that its operand's selects cut at fixed positions: of each part on its own.

A concatenation reads as a select by position, so that a sum over a joined axis is the sum of two sums: [a c]·[b d] = a·b + c·d.
A sum of which all terms but one are zero, because a select passes one position, is that term: the trace needs no matrix.
Both keep every bit, up to the order of summation inside one reduction; they need new axes and indices, which rules cannot make.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

from eqsat.index import Axis, Index
from eqsat.notation import Term, const, const_value, rebuild, reduce, substitute
from eqsat.notation import scalar as operation
from eqsat.primitives.fold import index_of, refolded
from eqsat.scalars import REDUCTIONS

PARTS = 3  # most parts of an axis
_BEFORE = {"lt": 0, "ge": 0, "le": 1, "gt": 1}  # k < c and k >= c part at c, k <= c and k > c behind it


def split(term: Term, definition: Callable[[Term], Term | None]) -> Iterator[Term]:
    """Terms equal to a reduction; `definition` gives the term that a load stands for, where it is known."""
    name, axis = term.data
    body = _opened(term.args[0], axis, definition)
    try:
        if name == "sum" and (single := _single(body, axis)) is not None:
            yield operation("add", single, const(0, term.dtype))  # -0 among zeros is +0
        cuts = sorted({c for t in body.walk() if (c := _cut(t, axis)) is not None and 0 < c < axis.extent})
        if 0 < len(cuts) < PARTS:
            parts = [_part(name, axis, body, low, high) for low, high in pairwise((0, *cuts, axis.extent))]
            total = parts[0]
            for part in parts[1:]:
                total = operation(REDUCTIONS[name].combine, total, part)
            yield total
    except ValueError:  # an axis would be captured
        return


def masked(term: Term, definition: Callable[[Term], Term | None]) -> tuple[Term, Term] | None:
    """The sum that a sum of a*(b where k = i, else 0) is if a is finite, and what that is: one term. None for other sums.

    Both are equal in every tier; only a rule that takes a into the select makes the given sum equal to them.
    """
    (name, axis), body = term.data, term.args[0]
    if name != "sum" or body.head != "mul":
        return None
    for a, b in (body.args, body.args[::-1]):
        if (select := b if b.head == "where" else definition(b)) is not None and select.head == "where":
            p, b, zero = select.args
            moved = operation("where", p, operation("mul", a, b), zero)
            if (single := _single(moved, axis)) is not None:
                return reduce("sum", axis, moved), operation("add", single, const(0, term.dtype))
    return None


def levelled(term: Term, definition: Callable[[Term], Term | None]) -> Iterator[tuple[Term, Term]]:
    """Where a sum or difference is of reductions over as many elements: the one whose axis is bound lower, over the other's too.

    Axes are named by how deep reductions nest, so that terms of one sum that nest differently would never be merged.
    """
    sums = [(t, found) for t in term.args if (found := t if t.head == "reduce" else definition(t)) and found.head == "reduce"]
    if term.head not in ("add", "sub") or len(sums) < 2:
        return
    (_, a), (_, b) = sums
    if a.data[1] == b.data[1] or a.data[1].extent != b.data[1].extent or a.data[0] != b.data[0]:
        return
    (own, lower), (_, higher) = sorted(sums, key=lambda found: (len(found[1].data[1].name), found[1].data[1].name))  # r2, r10
    axis = higher.data[1]
    if axis not in lower.axes and all(t.bound != axis for t in lower.walk()):
        yield own, reduce(lower.data[0], axis, substitute(lower.args[0], {lower.data[1]: Index.of(axis)}))


def _opened(term: Term, axis: Axis, definition: Callable[[Term], Term | None]) -> Term:
    """The term with what a select cuts in place of its loads."""
    done: dict[Term, Term] = {}
    for t in term.walk():
        done[t] = rebuild(t, tuple(done[a] for a in t.args))
        if t.head == "load" and axis in t.axes and (found := definition(done[t])) is not None:
            if any(_cut(inner, axis) is not None for inner in found.walk()):
                done[t] = found
    return done[term]


def _cut(t: Term, axis: Axis) -> int | None:
    """The first position of the second part, if a comparison changes along this axis alone."""
    if t.head not in _BEFORE or (distance := _distance(t)) is None or len(distance.terms) != 1:
        return None
    (atom, factor), shift = distance.terms[0], distance.constant
    if atom != axis or abs(factor) != 1:
        return None
    return -shift + _BEFORE[t.head] if factor == 1 else shift + 1 - _BEFORE[t.head]


def _distance(t: Term) -> Index | None:
    """How far the first position of a comparison lies behind the second."""
    x, y = map(index_of, t.args)
    return None if x is None or y is None else x - y


def _part(name: str, axis: Axis, body: Term, low: int, high: int) -> Term:
    if high - low == 1:
        return refolded(substitute(body, {axis: Index.of(low)}))
    own = Axis(axis.name, high - low)
    return reduce(name, own, refolded(substitute(body, {axis: Index.of(own) + low})))


def _single(body: Term, axis: Axis) -> Term | None:
    """The one term of a sum that is not zero."""
    if body.head != "where" or body.args[0].head != "eq" or body.args[2].head != "const" or const_value(body.args[2]) != 0:
        return None
    distance = _distance(body.args[0])
    factor = dict(distance.terms).get(axis, 0) if distance is not None else 0
    if distance is None or abs(factor) != 1:
        return None
    place = (distance - Index.of(axis) * factor) * -factor
    if axis in place.axes or place.slots or not (place.range[0] >= 0 and place.range[1] < axis.extent):
        return None
    return refolded(substitute(body.args[1], {axis: place}))
