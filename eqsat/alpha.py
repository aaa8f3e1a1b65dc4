"""Terms that are equal but for the names of their axes: exp(x[i, j]) and exp(x[i, r]) are one array."""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable
from functools import lru_cache
from typing import Any

from eqsat.index import Axis, Index, Quotient, Remainder
from eqsat.notation import Term


class Classes:
    """The classes of terms that are equal but for the names of their axes."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._known: dict[Term, tuple[int, tuple[Axis, ...]]] = {}

    def add(self, t: Term) -> tuple[int, tuple[Axis, ...]]:
        """The term's class, and its free axes in an order that the class shares; its operands were added before."""
        if t not in self._known:
            args = [self._known[arg] for arg in t.args]
            axes = tuple(dict.fromkeys((*_own_axes(t), *(a for _, inner in args for a in inner))))
            places = tuple((number, tuple(map(axes.index, inner))) for number, inner in args)
            key = (t.head, t.dtype, _own_data(t, axes), tuple(a.extent for a in axes), places)
            self._known[t] = self._numbers.setdefault(key, len(self._numbers)), tuple(a for a in axes if a != t.bound)
        return self._known[t]


def distinct(terms: Iterable[Term]) -> list[Term]:
    """The first of each class of terms; `terms` hold the operands of each, before it."""
    classes = Classes()
    first: dict[int, Term] = {}
    for t in terms:
        first.setdefault(classes.add(t)[0], t)
    return list(first.values())


class Twins:
    """Reductions that need be computed once, since they differ in the names of their axes only."""

    def __init__(self) -> None:
        self._classes = Classes()
        self._computed: dict[int, Term] = {}
        self.first: dict[Term, Term] = {}  # what is computed in a reduction's place

    def add(self, term: Term, wanted: Container[Axis], apart: Container[Term]) -> None:
        """Find those in `term`; what holds a term of `apart` is left alone.

        Of the first ones one over the `wanted` axes is computed, so that its result is laid out as the output is.
        """
        members: dict[int, list[Term]] = {}
        alone: set[Term] = set()
        for t in term.walk():
            number, _ = self._classes.add(t)
            if t in apart or not alone.isdisjoint(t.args):
                alone.add(t)
            elif t.head == "reduce":
                members.setdefault(number, []).append(t)
        for number, found in members.items():
            best = max(found, key=lambda t: all(a in wanted for a in t.axes))
            first = self._computed.setdefault(number, best)
            self.first |= {t: first for t in found if t is not first}

    def names(self, first: Term, term: Term) -> dict[Axis, Axis]:
        """What the axes of `first` are called in its twin."""
        return dict(zip(self._classes.add(first)[1], self._classes.add(term)[1], strict=True))


@lru_cache(maxsize=1 << 14)
def _own_axes(t: Term) -> tuple[Axis, ...]:
    """The axes that the term itself mentions, in order."""
    if t.head in ("load", "pos"):
        return tuple(dict.fromkeys(a for index in t.indices for a in _axes_in(index)))
    return (t.data[1],) if t.head == "scan" else ()


def _axes_in(index: Index) -> list[Axis]:
    found: list[Axis] = []
    for atom, _ in sorted(index.terms, key=lambda term: (-abs(term[1]), isinstance(term[0], Axis))):
        if isinstance(atom, Axis):
            found.append(atom)
        elif isinstance(atom, Quotient | Remainder):
            found.extend(_axes_in(atom.index))
    return found


@lru_cache(maxsize=1 << 14)
def _own_data(t: Term, axes: tuple[Axis, ...]) -> Any:
    """What the term holds beside its operands, with the places of axes instead of their names."""
    numbered = {a: Index.of(Axis(f"x{n}", a.extent)) for n, a in enumerate(axes)}
    if t.head == "load":
        return t.tensor, tuple(i.substitute(numbered) for i in t.indices)
    if t.head == "pos":
        return t.data.substitute(numbered)
    if isinstance(t.data, tuple) and t.head != "const":
        return tuple(axes.index(d) if isinstance(d, Axis) and d in axes else d for d in t.data)
    return t.data
