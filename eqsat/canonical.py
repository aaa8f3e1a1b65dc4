"""Canonical names of bound axes: the lowest that capture nothing, so that terms that differ in such names alone are one."""

from __future__ import annotations

import itertools

from eqsat.index import Axis, Index
from eqsat.notation import Stored, Tensor, Term, bound_level, load, rebuild, substitute


class Canonical:
    """Rebuilds the definitions of a region over new leaves, with the lowest bound axes that capture nothing."""

    def __init__(self, tensors: dict[Tensor, Tensor]) -> None:
        self.tensors = tensors  # old -> new
        self._levels: dict[tuple[Term, frozenset[Axis]], int] = {}
        self._fresh = itertools.count()

    def define(self, stored: Stored) -> Stored:
        """The definition in canonical form; later definitions load it in place of the old one."""
        new = Stored(stored.name, stored.shape, stored.dtype, self._visit(stored.term, {}), stored.axes)
        self.tensors[stored] = new
        return new

    def _visit(self, term: Term, memo: dict[Term, Term]) -> Term:
        if term in memo:
            return memo[term]
        if (axis := term.bound) is not None:
            result = self._bind(term, axis)
        else:
            args = tuple(self._visit(a, memo) for a in term.args)
            result = load(self.tensors[term.tensor], term.indices, args) if term.head == "load" else rebuild(term, args)
        memo[term] = result
        return result

    def _bind(self, term: Term, axis: Axis) -> Term:
        """Give the bound axis the lowest name that no binder below it would capture."""
        placeholder = Axis(f"_{next(self._fresh)}", axis.extent)
        opened = [substitute(a, {axis: Index.of(placeholder)}) for a in term.args]
        args = [self._visit(a, {}) for a in opened]
        level = max(self.level(a, frozenset([placeholder])) for a in args)
        name = Axis(f"r{level}", axis.extent)
        closed = tuple(substitute(a, {placeholder: Index.of(name)}) for a in args)
        data = (term.data[0], name, *term.data[2:])
        return Term(term.head, closed, data, term.dtype)

    def level(self, term: Term, wanted: frozenset[Axis]) -> int:
        """As notation.level_of, looking through the definitions of loaded tensors."""
        key = (term, wanted)
        if key not in self._levels:
            self._levels[key] = self._level(term, wanted)
        return self._levels[key]

    def _level(self, term: Term, wanted: frozenset[Axis]) -> int:
        if not (term.axes & wanted):
            return 0
        if term.head == "load":
            below = max((self.level(a, wanted) for a in term.args), default=0)
            if not isinstance(term.tensor, Stored):
                return below
            dims = zip(axis_per_dimension(term.tensor), term.indices, strict=True)
            inner = frozenset(axis for axis, index in dims if axis is not None and index.axes & wanted)
            return max(below, self.level(term.tensor.term, inner))
        below = max((self.level(a, wanted) for a in term.args), default=0)
        bound = term.bound
        return below if bound is None else max(below, bound_level(bound) + 1)


def axis_per_dimension(tensor: Stored) -> list[Axis | None]:
    axes = iter(tensor.axes)
    return [next(axes) if n != 1 else None for n in tensor.shape]
