"""Maxima that may lose a NaN, because everything computed from them shows it anyway.

XLA:CPU loses NaN in the fastest of its maxima; to find it again takes another pass, or a slower one. A softmax needs none: where
one score is NaN, so is the sum of exponentials, whatever was subtracted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from eqsat.index import Axis, Index
from eqsat.notation import Term, const_value, substitute
from eqsat.online import finds_place
from eqsat.scalars import SCALARS, WITHOUT_INFINITIES, is_float

HIDING = ("pow", "where")  # NaN to the power of 0 is 1
KEEPS_NAN = ("neg", "abs", "exp", "exp2", "tanh", "mul", "add", "sub", "max", "min")  # with literals; and makes none of a number


class Fate(NamedTuple):
    """A term in a row with a NaN: the `same` whatever the maximum is, NaN `everywhere`, or where an axis of `along` meets it."""

    same: bool
    everywhere: bool = False
    along: frozenset[Axis] = frozenset()


def source_of_nan(term: Term) -> Term:
    """What `term` is made from that is NaN exactly where it is: x for -2 * x + 1, whatever overflows on the way."""
    while term.head in KEEPS_NAN and term.dtype not in WITHOUT_INFINITIES:  # where an overflow is NaN
        literals = [const_value(a) for a in term.args if a.head == "const"]
        whole = all(abs(n) < math.inf for n in literals) and (term.head != "mul" or all(literals))
        if len(literals) + 1 != len(term.args) or not whole:
            break
        term = next(a for a in term.args if a.head != "const")
    return term


def replaceable(outputs: Iterable[Term]) -> frozenset[Term]:
    """The maxima and minima of which any number may take the place of NaN, and the outputs stay as they are."""
    outputs = tuple(outputs)
    terms = tuple(dict.fromkeys(t for output in outputs for t in output.walk()))
    found: set[Term] = set()
    for top in terms:
        extreme = top.head == "reduce" and top.data[0] in ("max", "min") and is_float(top.dtype)
        if extreme and found.isdisjoint(top.args[0].walk()) and _comes_out(top, terms, outputs):
            found.add(top)
    return frozenset(found)


def _comes_out(top: Term, terms: tuple[Term, ...], outputs: tuple[Term, ...]) -> bool:
    scores = _renamed(top, terms)
    fate: dict[Term, Fate] = {top: Fate(False)}
    for t in terms:
        if t is not top:
            fate[t] = _fate(t, fate, scores.get(t))
    return all(fate[o].same for o in outputs)


def _renamed(top: Term, terms: tuple[Term, ...]) -> dict[Term, Axis]:
    """What `top` folds, also with another axis in place of the one that is folded."""
    arg, axis = top.args[0], top.data[1]
    others = {a for t in terms if t.head in ("load", "pos") for a in t.axes if a.extent == axis.extent} - top.axes
    found = {arg: axis}
    for other in others - {axis}:
        try:
            found[substitute(arg, {axis: Index.of(other)})] = other
        except ValueError:  # the other axis is bound inside
            continue
    return found


def _fate(t: Term, fate: dict[Term, Fate], score: Axis | None) -> Fate:
    args = [fate[a] for a in t.args]
    along: frozenset[Axis] = frozenset() if score is None else frozenset({score})
    everywhere = False
    if t.head in ("reduce", "online") and t.bound is not None and t.data[0] not in ("max", "min") and not finds_place(t):
        everywhere = is_float(t.dtype) and any(a.everywhere or t.bound in a.along for a in args)
    elif t.head == "cast" or (t.head in SCALARS and t.head not in HIDING):
        everywhere = is_float(t.dtype) and any(a.everywhere for a in args)
        along |= frozenset().union(*(a.along for a in args)) if is_float(t.dtype) else frozenset()
    return Fate(everywhere or all(a.same for a in args), everywhere, along)
