"""Terms that are equal but for the names of their axes: exp(x[i, j]) and exp(x[i, r]) are one array."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from functools import lru_cache
from typing import Any

from eqsat.index import Axis, Index, Quotient, Remainder
from eqsat.notation import Term


def distinct(terms: Iterable[Term]) -> list[Term]:
    """The first of each class of terms; `terms` hold the operands of each, before it."""
    numbers: dict[Hashable, int] = {}  # of classes
    known: dict[Term, tuple[int, tuple[Axis, ...]]] = {}  # the class, and the term's axes in an order that the class shares
    first: list[Term] = []
    for t in terms:
        axes = tuple(dict.fromkeys((*_own_axes(t), *(a for arg in t.args for a in known[arg][1]))))
        places = tuple((known[arg][0], tuple(map(axes.index, known[arg][1]))) for arg in t.args)
        key = (t.head, t.dtype, _own_data(t, axes), tuple(a.extent for a in axes), places)
        if key not in numbers:
            first.append(t)
        known[t] = numbers.setdefault(key, len(numbers)), tuple(a for a in axes if a != t.bound)
    return first


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
