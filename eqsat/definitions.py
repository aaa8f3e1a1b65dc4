"""What a stored tensor is at an index: its term there, so that a load of it can be computed instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from eqsat.canonical import Canonical, axis_per_dimension
from eqsat.index import Axis, Dynamic, Index
from eqsat.notation import Stored, Term, bound_level, const, const_value, load, pos, raised, rebuild, substitute
from eqsat.primitives.fold import refolded, scalar


def definition_at(
    tensor: Stored, indices: Sequence[Index], operands: tuple[Term, ...] = (), folds: dict[Term, Term] | None = None
) -> Term | None:
    """The term of a stored tensor at an index, or None where it cannot be written.

    Outside of the tensor a load reads 0, and so does what is returned. An index may use loaded values (operands), if these surely
    lie in the tensor. What was folded for other definitions is looked up in `folds`.
    """
    bounds = ((0, n - 1) for n in tensor.shape)
    if operands and any(not (low <= i.range[0] and i.range[1] <= high) for i, (low, high) in zip(indices, bounds, strict=True)):
        return None
    places = zip(axis_per_dimension(tensor), indices, strict=True)
    values = {axis: index for axis, index in places if axis is not None and index != Index.of(axis)}
    try:
        term = refolded(_apart(tensor.term, values, operands), folds)
    except ValueError:
        if not operands:
            raise
        return None
    for index, extent in zip(indices, tensor.shape, strict=True):
        term = zero_outside(term, index, extent)
    return term


def _apart(term: Term, values: Mapping[Axis, Index], operands: tuple[Term, ...]) -> Term:
    """`substitute`, with the term's reductions at higher levels where they would capture an axis of what is put in.

    A reduction's level is chosen by what is seen of its operand: of a load, nothing of what the tensor is defined as.
    """
    try:
        return substitute(term, values, None, operands)
    except ValueError:
        axes = frozenset().union(*(v.axes for v in values.values()), *(o.axes for o in operands))
        if axes.isdisjoint(t.bound for t in term.walk()):
            raise
        above = max(bound_level(a) for a in axes if a.name.startswith("r")) + 1
        return substitute(raised(term, above), values, None, operands)


def picked(tensor: Stored, indices: Sequence[Index], operands: tuple[Term, ...]) -> Term | None:
    """A gathered element of a sum as a masked sum over the dimension gathered from, or None if another form."""
    gathered = [d for d, i in enumerate(indices) if i.slots]
    body = tensor.term
    while body.head == "cast":
        body = body.args[0]
    if len(gathered) != 1 or len(operands) != 1 or body.head != "reduce" or body.data[0] != "sum":
        return None
    (d,), (operand,) = gathered, operands
    (((atom, coefficient), *more), offset) = indices[d].terms, indices[d].constant
    if not isinstance(atom, Dynamic) or coefficient != 1 or more or offset:
        return None
    place = Axis("_", tensor.shape[d])
    level = Canonical({}).level(
        load(tensor, [Index.of(place) if i == d else x for i, x in enumerate(indices)]), frozenset([place])
    )
    axis = Axis(f"r{level}", tensor.shape[d])
    if axis in operand.axes or any(axis in i.axes for i in indices):
        return None
    element = definition_at(tensor, [Index.of(axis) if i == d else x for i, x in enumerate(indices)])
    assert element is not None
    here = scalar("eq", pos(Index.of(axis), operand.dtype), operand)
    return Term("reduce", (scalar("where", here, element, const(0, tensor.dtype)),), ("sum", axis), tensor.dtype)


def computed_inside(term: Term, tensor: Stored, memo: dict[Term, Term]) -> Term | None:
    """The term with a defined tensor's elements computed in place of loaded, gathered ones by a mask; None if that cannot be.

    Where the dimension gathered from is traversed anyway, as by the softmax of which it takes the label's element, the tensor
    need not be stored for the gather.
    """
    for t in term.walk():
        args = tuple(memo[a] for a in t.args)
        memo[t] = rebuild(t, args)
        if t.head == "load" and t.tensor is tensor:
            inside = picked(tensor, t.indices, args) if args else definition_at(tensor, t.indices)
            if inside is None:
                return None
            memo[t] = inside
    return memo[term]


def zero_outside(term: Term, index: Index, extent: int) -> Term:
    """The term where an index lies in 0 .. extent-1, and 0 elsewhere."""
    low, high = index.range
    if (low >= 0 and high < extent) or _vanishes(term, index, extent):
        return term
    zero, place = const(0, term.dtype), pos(index - index.constant, "int32")
    if low < 0:
        term = scalar("where", scalar("lt", place, const(-index.constant, "int32")), zero, term)
    if high >= extent:
        term = scalar("where", scalar("lt", place, const(extent - index.constant, "int32")), term, zero)
    return term


_KEEP_ZERO = ("neg", "abs", "sign", "sqrt", "tanh", "sin", "erf", "expm1", "log1p", "floor", "ceil", "rint")
_OF_ZEROS = ("add", "sub", "mul", "max", "min")


def _vanishes(term: Term, index: Index, extent: int) -> bool:
    """True if the term is 0 where the index leaves 0 .. extent-1, because its loads leave their tensors there too."""
    if term.head == "load":
        return any(i == index and n == extent for i, n in zip(term.indices, term.tensor.shape, strict=True))
    if term.head == "const":
        return const_value(term) == 0
    if term.head in _KEEP_ZERO or term.head in _OF_ZEROS or term.head == "cast":
        return all(_vanishes(a, index, extent) for a in term.args)
    if term.head == "where":
        return all(_vanishes(a, index, extent) for a in term.args[1:])
    return term.head == "reduce" and term.data[0] in ("sum", "max", "min") and _vanishes(term.args[0], index, extent)
