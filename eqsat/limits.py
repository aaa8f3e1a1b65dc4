"""Limits of a reduction: positions at which a mask leaves nothing to add, so that a loop need not visit them.

A mask that compares positions, as causal attention and sliding windows have, hides whole tiles. What is left out is exactly
what changes no fold: a score of -inf in a maximum, a 0 in a sum. Where a kernel is not `exact`, so is a product with a masked
weight of 0, which could only add the NaN of a NaN or an infinity that it weighs; an online sum always is. Nothing here knows
attention: the limits follow from the comparison. What positions are compared with may be loaded, as lengths of sequences or the
rows of a group are; a product of two factors that one mask makes 0 is 0, so an `exact` kernel need not visit it either.

A mask that gives each group a range of rows, whose ends are loaded, hides what a product does for the rows of a tile of other
groups. It does not vary along the summed axis, so a loop over that axis asks once whether it has anything to add.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any

import numpy as np

from eqsat.index import Axis, Index
from eqsat.notation import Term, cast, const, const_value, operands_of, scalar
from eqsat.scalars import REDUCTIONS, is_integer

COMPARISONS = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt", "eq": "ne", "ne": "eq"}


@dataclass(frozen=True)
class Limits:
    """Only positions r with low <= r < high and start <= r < end matter, for each of the bounds.

    `low` and `high` are indices over other axes; `start` and `end` are terms of loaded integers, of int32 and within the axis.
    """

    low: tuple[Index, ...] = ()
    high: tuple[Index, ...] = ()
    start: tuple[Term, ...] = ()
    end: tuple[Term, ...] = ()

    def __add__(self, other: Limits) -> Limits:
        return Limits(*(tuple(dict.fromkeys(a + b)) for a, b in zip(self.all, other.all, strict=True)))

    def __and__(self, other: Limits) -> Limits:
        """Those that both have."""
        return Limits(*(tuple(bound for bound in a if bound in b) for a, b in zip(self.all, other.all, strict=True)))

    @property
    def all(self) -> tuple[tuple[Any, ...], ...]:
        return self.low, self.high, self.start, self.end

    def within(self, axes: frozenset[Axis]) -> Limits:
        """Those that depend on these axes and no others."""
        return Limits(*(tuple(bound for bound in bounds if bound.axes <= axes) for bounds in self.all))


def limits_of(reductions: Iterable[Term], exact: bool = True) -> Limits:
    """The limits that all of these reductions over one axis have; `exact` as in `Kernel`."""
    return reduce(and_, (_of_reduction(t, exact) for t in reductions))


def _of_reduction(t: Term, exact: bool) -> Limits:
    axis = t.bound
    assert axis is not None
    if t.head == "online":  # the first place is one even if all are masked
        return _hidden(t.args[0], axis, "max") if t.data[0] in ("softmax", "powers") else Limits()
    name, body = t.data[0], t.args[0]
    if name == "or" and body.head == "ne" and body.args[0] is body.args[1]:  # is there a NaN?
        return _hidden(body.args[0], axis, "a number")
    return _weightless(body, axis) if name == "sum" and not exact else _hidden(body, axis, name)


def _weightless(term: Term, axis: Axis) -> Limits:
    """Where a term is not 0, as far as the masks around its factors say and what they are multiplied with is finite."""
    match term.head:
        case "cast" | "neg" | "div":
            return _weightless(term.args[0], axis)
        case "mul":
            return _weightless(term.args[0], axis) + _weightless(term.args[1], axis)
        case "exp":
            exponent = term.args[0]  # of -inf, less a finite maximum if it is a softmax
            return _hidden(exponent.args[0] if exponent.head == "sub" else exponent, axis, "max")
        case "where":
            predicate, then, otherwise = term.args
            for holds, kept, other in ((True, then, otherwise), (False, otherwise, then)):
                if is_identity(other, "sum"):
                    return positions_where(predicate, axis, holds) + _weightless(kept, axis)
    return Limits()


def ranges_of(reductions: Iterable[Term], exact: bool = True) -> tuple[Term, ...]:
    """Tests of positions against loaded ends of ranges, the same all along the axis; where one fails, these sums add nothing."""
    found = [
        () if exact or t.head != "reduce" or t.data[0] != "sum" else tuple(_ranges(t.args[0], t.data[1])) for t in reductions
    ]
    return tuple(test for test in found[0] if all(test in others for others in found))


def _ranges(term: Term, axis: Axis) -> Iterator[Term]:
    """The tests around the factors of a term, as in `_weightless`."""
    if term.head in ("cast", "neg", "mul"):
        for arg in term.args:
            yield from _ranges(arg, axis)
    elif term.head == "where" and is_identity(term.args[2], "sum"):
        yield from (t for t in operands_of(term.args[0], "and") if axis not in t.axes and ranged(t) is not None)
        yield from _ranges(term.args[1], axis)


def ranged(test: Term) -> tuple[Index, Term, bool] | None:
    """The position of a test against a loaded end of a range, that end, and whether it is the low one; None for other tests."""
    if test.head not in ("lt", "le", "gt", "ge"):
        return None
    for (position, end), low in ((test.args, ("ge", "gt")), (test.args[::-1], ("le", "lt"))):
        if position.head == "pos" and position.axes and end.tensors and is_integer(end.dtype):
            return position.data, end, test.head in low
    return None


def _hidden(term: Term, axis: Axis, name: str, casts: tuple[str, ...] = ()) -> Limits:
    """Where a term, converted to the dtypes of `casts`, is not the identity of a reduction, as far as the masks around it say."""
    if term.head == "cast":
        return _hidden(term.args[0], axis, name, (term.dtype, *casts))
    if term.head == "mul" and name == "sum":  # where one factor alone is 0, the other may be no number
        return _hidden(term.args[0], axis, name) & _hidden(term.args[1], axis, name)
    if term.head != "where":
        return Limits()
    predicate, then, otherwise = term.args
    if is_identity(otherwise, name, casts):
        return positions_where(predicate, axis, True) + _hidden(then, axis, name, casts)
    if is_identity(then, name, casts):
        return positions_where(predicate, axis, False) + _hidden(otherwise, axis, name, casts)
    return Limits()


def is_identity(term: Term, name: str, casts: tuple[str, ...] = ()) -> bool:
    """True for a literal that, converted to the dtypes of `casts` one after the other, is the identity of a reduction."""
    if term.head != "const":
        return False
    value, dtype = const_value(term), term.dtype
    for narrow in casts:
        value, dtype = np.asarray(value, dtype).astype(narrow).item(), narrow
    return value == value if name == "a number" else value == REDUCTIONS[name].identity(dtype)


def positions_where(predicate: Term, axis: Axis, holds: bool) -> Limits:
    """Limits of the positions at which a predicate is true, or false."""
    if predicate.head == "not":
        return positions_where(predicate.args[0], axis, not holds)
    if predicate.head == ("and" if holds else "or"):
        return positions_where(predicate.args[0], axis, holds) + positions_where(predicate.args[1], axis, holds)
    if predicate.head not in COMPARISONS:
        return Limits()
    comparison = predicate.head if holds else COMPARISONS[predicate.head]
    a, b = map(_affine, predicate.args)
    if a is None or b is None:
        return _loaded(comparison, predicate.args[0], predicate.args[1], axis)
    match comparison:
        case "ge":
            return _positive(a - b, axis)
        case "gt":
            return _positive(a - b - 1, axis)
        case "le":
            return _positive(b - a, axis)
        case "lt":
            return _positive(b - a - 1, axis)
        case "eq":
            return _positive(a - b, axis) + _positive(b - a, axis)
    return Limits()


def _loaded(comparison: str, a: Term, b: Term, axis: Axis) -> Limits:
    """The limits of r from its comparison with a loaded integer that is the same all along the axis."""
    here = Index.of(axis)
    if b.head == "pos" and b.data == here:
        a, b, comparison = b, a, {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}.get(comparison, comparison)
    if a.head != "pos" or a.data != here or not b.tensors or axis in b.axes:
        return Limits()
    if b.dtype not in ("int32", "int64") or axis.extent >= 2**31:  # positions in fewer bits begin anew
        return Limits()
    behind = 1 if comparison in ("gt", "le") else 0
    low, high, step = (const(n, b.dtype) for n in (-behind, axis.extent - behind, behind))
    bound = scalar("min", scalar("max", b, low), high)
    bound = cast("int32", scalar("add", bound, step) if behind else bound)
    if comparison in ("ge", "gt"):
        return Limits(start=(bound,))
    return Limits(end=(bound,)) if comparison in ("lt", "le") else Limits()


def _positive(index: Index, axis: Axis) -> Limits:
    """The limits of r from ``index >= 0``, where r has a coefficient of one in it."""
    coefficient = dict(index.terms).get(axis, 0)
    rest = index - Index.of(axis) * coefficient
    if axis in rest.axes or any(not isinstance(atom, Axis) for atom, _ in rest.terms):
        return Limits()
    if coefficient == 1:
        return Limits(low=(rest * -1,))
    return Limits(high=(rest + 1,)) if coefficient == -1 else Limits()


def _affine(term: Term) -> Index | None:
    """An integer term as an index expression; one whose dtype holds all of its values, or they would begin anew."""
    index = _computed(term)
    if index is None or not is_integer(term.dtype):
        return None
    (low, high), info = index.range, np.iinfo(term.dtype)
    return index if info.min <= low and high <= info.max else None


def _computed(term: Term) -> Index | None:
    match term.head:
        case "pos":
            return term.data if not term.data.slots else None
        case "const" if is_integer(term.dtype):
            return Index.of(int(const_value(term)))
        case "cast" if is_integer(term.dtype):
            return _affine(term.args[0])
        case "add" | "sub":
            a, b = map(_affine, term.args)
            return None if a is None or b is None else a + b if term.head == "add" else a - b
    return None


def visited(limits: Limits, axis: Axis) -> float:
    """The share of an axis that lies within limits, on average over the other axes."""
    low = max((_mean(b) for b in limits.low), default=0.0)
    high = min((_mean(b) for b in limits.high), default=float(axis.extent))
    return min(1.0, max(0.0, (min(high, axis.extent) - max(low, 0.0)) / axis.extent))


def _mean(index: Index) -> float:
    return sum(index.range) / 2
