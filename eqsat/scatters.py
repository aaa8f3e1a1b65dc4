"""Scatters: a sum of which each term goes to one element is computed in one pass over the terms, not over the elements.

``sum[r](where(place[r] == x0, a[r, x1], 0))`` adds row r of `a` to row place[r] of the result: the gradient of an embedding,
a sum of segments, a histogram, or a product with one-hot rows. The language has no other word for it, so that every law of
sums and masks holds for it. A kernel's terms take the form of a `Window` that adds when it is priced and lowered (as scans
do, see `eqsat.scans`), and evaluation runs it as one. Floats are added in no fixed order, as by any scatter on a GPU, so the
last bits may differ from run to run. An `exact` kernel has none of them: reading leaves them to JAX (`is_unordered`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from eqsat.index import Axis, Index
from eqsat.limits import is_identity
from eqsat.notation import Kernel, Stored, Tensor, Term, Window, const, dimension_indices, scalar, substitute
from eqsat.ranges import range_of
from eqsat.scalars import DTYPES, is_float, is_integer
from eqsat.updates import conjuncts

FEW_POINTS = 1 << 16  # terms times elements; so few are summed in one launch, in a fixed order


@dataclass(frozen=True)
class Scatter:
    """The sum of `arg` over `bound`, each term where its `places` are; none is, where one of them lies outside of its axis."""

    bound: tuple[Axis, ...]
    places: dict[Axis, Term]
    arg: Term


def scatter(term: Term) -> Scatter | None:
    """A sum as a scatter; None if it is none, or of numbers that memory does not add to."""
    bound, body = [], term
    while body.head == "reduce" and body.data[0] == "sum":
        bound.append(body.data[1])
        body = body.args[0]
    if not bound or body.head != "where" or not is_identity(body.args[2], "sum") or not _adds(term.dtype):
        return None
    tests, arg, _ = body.args
    places: dict[Axis, Term] = {}
    others: list[Term] = []
    for test in conjuncts(tests):
        found = _place(test, bound)
        if found is None or found[0] in places:
            others.append(test)
        else:
            places[found[0]] = found[1]
    if not places or any(t.axes & places.keys() for t in (arg, *others, *places.values())):
        return None
    for axis, place in places.items():
        for test in others:
            place = scalar("where", test, place, const(axis.extent, place.dtype))
        places[axis], others = place, []  # outside along one axis is enough
    return Scatter(tuple(bound), places, arg)


def _adds(dtype: str) -> bool:
    return DTYPES[dtype].nbytes >= 4 and DTYPES[dtype].compute == dtype


def _place(test: Term, bound: Sequence[Axis]) -> tuple[Axis, Term] | None:
    """The axis of which a test takes one position, and the loaded number that says which."""
    for position, place in (test.args, test.args[::-1]) if test.head == "eq" else ():
        if position.head == "pos" and is_integer(place.dtype) and place.tensors:
            axis = next(iter(position.axes), None)
            held = axis is not None and axis.extent <= np.iinfo(place.dtype).max
            if axis is not None and axis not in bound and held and position.data == Index.of(axis):
                return axis, place
    return None


def _is_small(found: Scatter, axes: Sequence[Axis]) -> bool:
    return prod(a.extent for a in (*axes, *found.bound)) <= FEW_POINTS


def is_unordered(term: Term, axes: Sequence[Axis]) -> bool:
    """True for a tensor over `axes` that takes sums of floats by their places, too large to be summed for each element anew."""
    found = (scatter(t) for t in term.walk() if is_float(t.dtype))
    return any(s is not None and not _is_small(s, axes) for s in found)


def is_added(term: Term) -> bool:
    """True for floats to which a sum by places is added: of those that no place is of, -0 would become 0."""
    return term.head == "add" and is_float(term.dtype) and any(scatter(a) is not None for a in term.args)


def scattered(kernel: Kernel) -> Kernel:
    """The kernel with a window that adds for the scatter that it is; the same one if it is none."""
    if len(kernel.outputs) != 1 or isinstance(kernel.outputs[0], Window):
        return kernel
    made = window(kernel.outputs[0], kernel.donated, kernel.exact)
    return kernel if made is None else replace(kernel, outputs=(made,))


def window(stored: Stored, donated: frozenset[Tensor], exact: bool) -> Window | None:
    """The window form of an output that is a scatter, alone or into a donated array; None if it is not."""
    if exact and is_float(stored.dtype):
        return None
    total, base = stored.term, None
    whole = dimension_indices(stored.shape, stored.axes)
    if total.head == "add":
        for start, rest in (total.args, total.args[::-1]):
            if start.head == "load" and start.tensor in donated and start.indices == whole and start.tensor not in rest.tensors:
                total, base = rest, start.tensor
                break
    found = scatter(total)
    if found is None or not found.places.keys() <= set(stored.axes) or (base is not None and base.shape != stored.shape):
        return None
    if _is_small(found, stored.axes):
        return None
    own = {axis: Axis(f"n{number}", axis.extent) for number, axis in enumerate(found.bound)}
    named = {axis: Index.of(n) for axis, n in own.items()}
    places: dict[Axis, Index] = {}
    operands: list[Term] = []
    try:
        term = substitute(found.arg, named)
        for axis, place in found.places.items():
            low, high, _ = range_of(place)
            places[axis] = Index.dynamic(len(operands), int(low), int(high))
            operands.append(substitute(place, named))
    except ValueError:  # one of the axes is bound inside, too
        return None
    axes = (*own.values(), *(a for a in stored.axes if a not in places))
    at = tuple(i.substitute(places) for i in whole)
    return Window(stored.name, stored.shape, stored.dtype, term, axes, base, at, tuple(operands), adds=True)
