"""Index expressions: integer-affine forms over named axes, with one normal form, ranges and substitution.

Views (reshape, transpose, slice, ...) are nothing but these expressions, composed while a graph is read.
The normal form is a sum of ``coefficient * atom`` plus a constant, where an atom is an axis, a floor
quotient, a remainder, or the value of a term (a gather). Equal functions of bounded axes that the simplifier
recognises have equal forms, so indices can be compared and hashed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import gcd, prod
from typing import NamedTuple


class Axis(NamedTuple):
    """A named axis with values 0 .. extent-1."""

    name: str
    extent: int

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Quotient:
    """Floor division of an index by a positive integer."""

    index: Index
    divisor: int

    def __str__(self) -> str:
        return f"({_operand(self.index)}//{self.divisor})"


@dataclass(frozen=True, slots=True)
class Remainder:
    """Non-negative remainder of an index by a positive integer."""

    index: Index
    divisor: int

    def __str__(self) -> str:
        return f"({_operand(self.index)}%{self.divisor})"


class Dynamic(NamedTuple):
    """The value of an integer term: operand number `slot` of the load that uses it; it lies in low..high."""

    slot: int
    low: int
    high: int

    def __str__(self) -> str:
        return f"${self.slot}"


Atom = Axis | Quotient | Remainder | Dynamic


def _order(atom: Atom) -> tuple[int, str]:
    return (isinstance(atom, Axis), str(atom))


@dataclass(frozen=True, slots=True)
class Index:
    """``sum(coefficient * atom) + constant`` with atoms in a fixed order and no zero coefficient."""

    terms: tuple[tuple[Atom, int], ...] = ()
    constant: int = 0

    @staticmethod
    def of(value: Index | Axis | int) -> Index:
        if isinstance(value, Index):
            return value
        if isinstance(value, Axis):
            return Index(((value, 1),)) if value.extent > 1 else ZERO
        return Index((), int(value))

    @staticmethod
    def dynamic(slot: int, low: int, high: int) -> Index:
        return Index(((Dynamic(slot, low, high), 1),))

    def __add__(self, other: Index | Axis | int) -> Index:
        other = Index.of(other)
        total: dict[Atom, int] = dict(self.terms)
        for atom, coefficient in other.terms:
            total[atom] = total.get(atom, 0) + coefficient
        return _rejoined(total, self.constant + other.constant)

    __radd__ = __add__

    def __mul__(self, factor: int) -> Index:
        if factor == 0:
            return ZERO
        return Index(tuple((a, c * factor) for a, c in self.terms), self.constant * factor)

    __rmul__ = __mul__

    def __sub__(self, other: Index | Axis | int) -> Index:
        return self + Index.of(other) * -1

    def __floordiv__(self, divisor: int) -> Index:
        if divisor == 1:
            return self
        whole = tuple((a, c // divisor) for a, c in self.terms if c % divisor == 0)
        rest = Index(tuple((a, c) for a, c in self.terms if c % divisor), self.constant % divisor)
        quotient = Index(whole, self.constant // divisor)
        low, high = rest.range
        if low // divisor == high // divisor:
            return quotient + low // divisor
        return quotient + _quotient_of_rest(rest, divisor)

    def __mod__(self, divisor: int) -> Index:
        rest = Index(tuple((a, c % divisor) for a, c in self.terms if c % divisor), self.constant % divisor)
        low, high = rest.range
        if low // divisor == high // divisor:
            return rest - low // divisor * divisor
        for factor, coarse, fine in _splits(rest, divisor):
            return (coarse % (divisor // factor)) * factor + fine
        if len(rest.terms) == 1 and rest.constant == 0:
            ((atom, coefficient),) = rest.terms
            if coefficient == 1 and isinstance(atom, Remainder) and atom.divisor % divisor == 0:
                return atom.index % divisor
        return Index(((Remainder(rest, divisor), 1),))

    @property
    def range(self) -> tuple[int, int]:
        """Smallest and largest value, both included (bounds: exact for affine forms)."""
        return _range(self)

    @property
    def axes(self) -> frozenset[Axis]:
        return _axes(self)

    @property
    def slots(self) -> frozenset[int]:
        """The operands of the enclosing load that this index uses."""
        found: set[int] = set()
        for atom, _ in self.terms:
            if isinstance(atom, Dynamic):
                found.add(atom.slot)
            elif not isinstance(atom, Axis):
                found |= atom.index.slots
        return frozenset(found)

    def substitute(self, values: Mapping[Axis, Index]) -> Index:
        """Replace axes by indices."""
        if not values or not (self.axes & values.keys()):
            return self
        return _evaluate(self, lambda atom: values.get(atom, Index.of(atom)) if isinstance(atom, Axis) else None)

    def within(self, axis: Axis, low: int, high: int) -> Index:
        """This index where the axis lies in low .. high; quotients and remainders that are affine there are gone."""

        def affine(atom: Atom) -> Index | None:
            if not isinstance(atom, Quotient | Remainder) or axis not in atom.index.axes:
                return Index(((atom, 1),))
            part = Axis(f"{axis.name}'", high - low + 1)
            made = Index(((atom, 1),)).substitute({axis: Index.of(part) + low})
            if any(isinstance(a, Quotient | Remainder) for a, _ in made.terms):
                return None
            return made.substitute({part: Index.of(axis) - low})

        return self if low > high else _evaluate(self, affine)

    def renumber(self, slots: Mapping[int, int]) -> Index:
        """Renumber the operands that this index uses."""
        if not self.slots:
            return self

        def moved(atom: Atom) -> Index | None:
            return Index(((atom._replace(slot=slots[atom.slot]), 1),)) if isinstance(atom, Dynamic) else None

        return _evaluate(self, moved)

    def __str__(self) -> str:
        parts = [str(a) if c == 1 else f"{c}*{a}" for a, c in self.terms]
        if self.constant or not parts:
            parts.append(str(self.constant))
        text = "+".join(parts).replace("+-", "-")
        alone = (
            len(self.terms) == 1
            and self.terms[0][1] == 1
            and not self.constant
            and not isinstance(self.terms[0][0], Axis | Dynamic)
        )
        return text[1:-1] if alone else text  # x//2 by itself needs no parentheses

    def __repr__(self) -> str:
        return f"Index({self})"


ZERO = Index()


def _operand(index: Index) -> str:
    """An index as the operand of // or %."""
    plain = len(index.terms) == 1 and index.terms[0][1] == 1 and not index.constant
    return str(index) if plain else f"({index})"


def _evaluate(index: Index, leaf: object) -> Index:
    """Rebuild an index bottom-up; `leaf(atom)` gives an atom's new value, or None to descend into it."""
    result: Index | None = None if index.terms and not index.constant else Index((), index.constant)
    for atom, coefficient in index.terms:
        value = leaf(atom)  # type: ignore[operator]
        if value is None:
            if isinstance(atom, Quotient):
                value = _evaluate(atom.index, leaf) // atom.divisor
            elif isinstance(atom, Remainder):
                value = _evaluate(atom.index, leaf) % atom.divisor
            else:
                value = Index(((atom, 1),))
        part = value if coefficient == 1 else value * coefficient
        result = part if result is None else result + part
    assert result is not None
    return result


def _rejoined(total: dict[Atom, int], constant: int) -> Index:
    """Sum in normal form; ``x//n*n + x%n`` becomes ``x`` again, also where the remainder has less: ``(5*x)//3*3 + (2*x)%3``."""
    for atom, coefficient in list(total.items()):
        if isinstance(atom, Remainder) and coefficient:
            for over in total:
                if isinstance(over, Quotient) and over.divisor == atom.divisor and total[over] == coefficient * atom.divisor:
                    less = Index(tuple((a, c % atom.divisor) for a, c in over.index.terms if c % atom.divisor))
                    if less.terms == atom.index.terms and (over.index.constant - atom.index.constant) % atom.divisor == 0:
                        rest = {a: c for a, c in total.items() if a not in (atom, over)}
                        return _rejoined(rest, constant) + over.index * coefficient
            quotient = atom.index // atom.divisor  # as it would be spelled: (x//2)//5 is x//10
            whole = quotient.terms[0] if len(quotient.terms) == 1 and not quotient.constant else None
            if whole and total.get(whole[0]) == coefficient * atom.divisor * whole[1] and whole[0] != atom:
                rest = {a: c for a, c in total.items() if a not in (atom, whole[0])}
                return _rejoined(rest, constant) + atom.index * coefficient
    return Index(tuple(sorted(((a, c) for a, c in total.items() if c), key=lambda t: _order(t[0]))), constant)


def _quotient_of_rest(rest: Index, divisor: int) -> Index:
    for factor, coarse, _ in _splits(rest, divisor):
        return coarse // (divisor // factor)
    if len(rest.terms) == 1 and rest.constant == 0:
        ((atom, coefficient),) = rest.terms
        if coefficient == 1 and isinstance(atom, Quotient):
            return atom.index // (atom.divisor * divisor)
        if coefficient == 1 and isinstance(atom, Remainder) and atom.divisor % divisor == 0:
            return (atom.index // divisor) % (atom.divisor // divisor)
    return Index(((Quotient(rest, divisor), 1),))


def _splits(rest: Index, divisor: int) -> Iterator[tuple[int, Index, Index]]:
    """Ways to write rest as factor * coarse + fine with 0 <= fine < factor and factor a divisor of `divisor`, largest first."""
    for factor in sorted({gcd(divisor, c) for _, c in rest.terms} - {1}, reverse=True):
        coarse = tuple((a, c // factor) for a, c in rest.terms if c % factor == 0)
        fine = Index(tuple((a, c) for a, c in rest.terms if c % factor), rest.constant % factor)
        low, high = fine.range
        if 0 <= low and high < factor:
            yield factor, Index(coarse, rest.constant // factor), fine


@lru_cache(maxsize=1 << 16)
def _range(index: Index) -> tuple[int, int]:
    low = high = index.constant
    for atom, coefficient in index.terms:
        a, b = _atom_range(atom)
        low += coefficient * (a if coefficient > 0 else b)
        high += coefficient * (b if coefficient > 0 else a)
    return low, high


def _atom_range(atom: Atom) -> tuple[int, int]:
    if isinstance(atom, Axis):
        return 0, max(atom.extent - 1, 0)
    if isinstance(atom, Dynamic):
        return atom.low, atom.high
    low, high = atom.index.range
    if isinstance(atom, Quotient):
        return low // atom.divisor, high // atom.divisor
    if low // atom.divisor == high // atom.divisor:
        return low % atom.divisor, high % atom.divisor
    return 0, atom.divisor - 1


@lru_cache(maxsize=1 << 16)
def _axes(index: Index) -> frozenset[Axis]:
    found: set[Axis] = set()
    for atom, _ in index.terms:
        if isinstance(atom, Axis):
            found.add(atom)
        elif not isinstance(atom, Dynamic):
            found |= atom.index.axes
    return frozenset(found)


def flatten(indices: Iterable[Index], shape: Iterable[int]) -> Index:
    """Row-major offset of a multi-index."""
    offset = ZERO
    for index, extent in zip(indices, shape, strict=True):
        offset = offset * extent + index
    return offset


def unflatten(offset: Index, shape: tuple[int, ...]) -> tuple[Index, ...]:
    """Multi-index of a row-major offset that lies inside `shape`."""
    indices = []
    for d, extent in enumerate(shape):
        quotient = offset // prod(shape[d + 1 :])
        indices.append(quotient if d == 0 else quotient % extent)
    return tuple(indices)
