"""Axes as numbers of several digits: where they occur under // and %, each digit alone says what is read."""

from __future__ import annotations

from collections.abc import Container, Iterable

from eqsat.index import Axis, Index, Quotient, Remainder
from eqsat.notation import Term, rebuild, reduce, substitute
from eqsat.scans import restarting, running


def breakpoints(terms: Iterable[Term]) -> dict[Axis, set[int]]:
    """For each axis the divisors at which it falls into digits, in any of the terms."""
    breaks: dict[Axis, set[int]] = {}
    for t in dict.fromkeys(t for term in terms for t in term.walk()):
        _ = t.axes  # operands come first in a walk, so that this cached fact never recurses deeply
        for index in t.indices if t.head in ("load", "pos") else ():
            index_breakpoints(index, breaks)
    return breaks


def digits_of(breaks: dict[Axis, set[int]], padded: Container[Axis] = ()) -> dict[Axis, tuple[Axis, ...]]:
    """The digits of each axis that its breakpoints split, outermost first; breakpoints must divide one another.

    They must divide the extent, too, but of axes that are `padded`, whose digits count a little further.
    """
    digits: dict[Axis, tuple[Axis, ...]] = {}
    for axis, found in breaks.items():
        marks = [1, *sorted(b for b in found if 1 < b < axis.extent)]
        marks.append(-(-axis.extent // marks[-1]) * marks[-1] if axis in padded else axis.extent)
        steps = list(zip(marks, marks[1:], strict=False))
        if len(steps) > 1 and not any(b % a for a, b in steps):
            digits[axis] = tuple(Axis(f"{axis.name}.{m}", n // m) for m, n in reversed(steps))
    return digits


def number_of(digits: tuple[Axis, ...]) -> Index:
    total = Index()
    for digit in digits:
        total = total * digit.extent + digit
    return total


def index_breakpoints(index: Index, breaks: dict[Axis, set[int]]) -> None:
    for atom, _ in index.terms:
        if isinstance(atom, Quotient | Remainder):
            _breakpoints(atom.index, atom.divisor, breaks)


def _breakpoints(index: Index, divisor: int, breaks: dict[Axis, set[int]]) -> None:
    """Collect the divisors at which the axes of ``index // divisor`` and ``index % divisor`` fall into digits."""
    for atom, coefficient in index.terms:
        below = divisor // abs(coefficient) if divisor % coefficient == 0 else 1
        if isinstance(atom, Axis):
            breaks.setdefault(atom, set()).add(below)
        elif isinstance(atom, Quotient | Remainder):
            _breakpoints(atom.index, atom.divisor, breaks)
            _breakpoints(atom.index, below * (atom.divisor if isinstance(atom, Quotient) else 1), breaks)


def folded_by_digits(term: Term, breaks: dict[Axis, set[int]]) -> Term:
    """The term with folds over the digits of axes that occur under // and %: a sum over a group's channels and over groups."""
    digits = digits_of({t.data[1]: breaks[t.data[1]] for t in term.walk() if _folds_in_any_order(t) and t.data[1] in breaks})
    if not digits:
        return term
    done: dict[Term, Term] = {}
    for t in term.walk():
        done[t] = rebuild(t, tuple(done[a] for a in t.args))
        if _folds_in_any_order(t) and t.data[1] in digits:
            name, axis = t.data
            folded = substitute(done[t].args[0], {axis: number_of(digits[axis])})
            for digit in reversed(digits[axis]):
                folded = reduce(name, digit, folded)
            done[t] = folded
    return done[term]


def _folds_in_any_order(term: Term) -> bool:
    return term.head == "reduce" and term.data[0] != "prod" and running(term) is None and restarting(term) is None
