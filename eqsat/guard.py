"""Guards: when an equation is true, said in words, in egglog and in Python."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from eqsat import index
from eqsat.pattern import Pattern, dtype_, egglog_float, number_
from eqsat.ranges import Range
from eqsat.scalars import DTYPES

if TYPE_CHECKING:
    from eqsat.rule_lowering import Lowering


@dataclass(frozen=True)
class Guard:
    """A condition: its wording, the variables it is about, its egglog facts, and its value on a `Binding`.

    `dtypes` are the terms whose dtype it fixes, with that dtype; `bounded` are those whose values it limits.
    """

    text: str
    mentions: tuple[Pattern, ...]
    facts: Callable[[Lowering], list[str]]
    holds: Callable[[Binding], bool]
    dtypes: tuple[tuple[Pattern, Pattern], ...] = ()
    bounded: tuple[Pattern, ...] = ()


class Binding(Protocol):
    """What the variables of a rule stand for; `eqsat.check` evaluates guards on it."""

    def axis(self, pattern: Pattern) -> index.Axis: ...
    def axes(self, pattern: Pattern) -> frozenset[index.Axis]: ...
    def dtype(self, pattern: Pattern) -> str: ...
    def number(self, pattern: Pattern) -> float: ...
    def range(self, pattern: Pattern) -> Range: ...


def absent(k: Pattern, *terms: Pattern) -> Guard:
    """No term mentions the axis k."""
    words = f"{', '.join(map(str, terms))} {'does' if len(terms) == 1 else 'do'} not mention {k}"
    return Guard(
        words,
        (k, *terms),
        lambda low: [f"(= 0 (& {low.var(k)} {low.axes(t)}))" for t in terms],
        lambda at: all(at.axis(k) not in at.axes(t) for t in terms),
    )


def present(k: Pattern, *terms: Pattern) -> Guard:
    """Every term mentions the axis k."""
    words = f"{', '.join(map(str, terms))} mention{'s' if len(terms) == 1 else ''} {k}"
    return Guard(
        words,
        (k, *terms),
        lambda low: [f"(!= 0 (& {low.var(k)} {low.axes(t)}))" for t in terms],
        lambda at: all(at.axis(k) in at.axes(t) for t in terms),
    )


def varies(t: Pattern) -> Guard:
    """The term mentions some axis: it is no literal, nor one number for a whole array."""
    return Guard(f"{t} varies", (t,), lambda low: [f"(!= 0 {low.axes(t)})"], lambda at: bool(at.axes(t)))


def fewer_axes(a: Pattern, b: Pattern) -> Guard:
    """Every axis of a is one of b, which has more: what is computed from a alone is computed less often."""
    return Guard(
        f"{a} has some of the axes of {b}, not all",
        (a, b),
        lambda low: [f"(= {low.axes(a)} (& {low.axes(a)} {low.axes(b)}))", f"(!= {low.axes(a)} {low.axes(b)})"],
        lambda at: at.axes(a) < at.axes(b),
    )


def has_dtype(t: Pattern, dtype: Pattern | str) -> Guard:
    """The term has this dtype; a DType variable that no pattern binds is bound by it."""
    d = dtype_(dtype)
    return Guard(
        f"{t} is of dtype {d}",
        (t, d),
        lambda low: [f"(= {low.expression(d)} {low.dtype(t)})"],
        lambda at: at.dtype(t) == at.dtype(d),
        ((t, d),),
    )


def dtype_in(t: Pattern, *dtypes: str) -> Guard:
    """The term has one of these dtypes."""
    bits = sum(DTYPES[d].bit for d in dtypes)
    return Guard(
        f"{t} is of dtype {' or '.join(dtypes)}",
        (t,),
        lambda low: [f"(!= 0 (& {bits} {low.dtype(t)}))"],
        lambda at: at.dtype(t) in dtypes,
    )


def wide(t: Pattern) -> Guard:
    """The term has more than 8 bits: the 8-bit floats overflow at a few hundred, so that few literals fit."""
    dtypes = [d for d in DTYPES.values() if d.nbytes > 1]
    bits = sum(d.bit for d in dtypes)
    return Guard(
        f"{t} has more than 8 bits",
        (t,),
        lambda low: [f"(!= 0 (& {bits} {low.dtype(t)}))"],
        lambda at: DTYPES[at.dtype(t)].nbytes > 1,
    )


def between(low_bound: float, c: Pattern, high_bound: float) -> Guard:
    """The magnitude of a number lies between two positive bounds, so it is neither zero nor infinite."""
    return Guard(
        f"{low_bound:g} <= |{c}| <= {high_bound:g}",
        (c,),
        lambda low: [
            f"(>= (abs {low.expression(c)}) {float(low_bound)!r})",
            f"(<= (abs {low.expression(c)}) {egglog_float(high_bound)})",
        ],
        lambda at: low_bound <= abs(at.number(c)) <= high_bound,
    )


def at_least(low_bound: float, c: Pattern) -> Guard:
    """The number is no smaller than a bound."""
    return Guard(
        f"{c} >= {low_bound:g}",
        (c,),
        lambda low: [f"(>= {low.expression(c)} {egglog_float(low_bound)})"],
        lambda at: at.number(c) >= low_bound,
    )


# --- proved of values (see eqsat.ranges) ------------------------------------------------------------------------------


def values_above(t: Pattern, bound: Pattern | float) -> Guard:
    """Every value of the term that is not NaN is greater than a number."""
    return _compared(t, "low", ">", operator.gt, bound)


def values_at_least(t: Pattern, bound: Pattern | float) -> Guard:
    """No value of the term is less than a number."""
    return _compared(t, "low", ">=", operator.ge, bound)


def values_at_most(t: Pattern, bound: Pattern | float) -> Guard:
    """No value of the term is greater than a number."""
    return _compared(t, "high", "<=", operator.le, bound)


def values_below(t: Pattern, bound: Pattern | float) -> Guard:
    """Every value of the term that is not NaN is less than a number."""
    return _compared(t, "high", "<", operator.lt, bound)


def _compared(t: Pattern, end: str, sign: str, holds: Callable[[float, float], bool], bound: Pattern | float) -> Guard:
    """One end of a term's range ("low" or "high") compares so with a number."""
    c = number_(bound)
    return Guard(
        f"{t} {sign} {c} always",
        (t, c),
        lambda low: [f"({sign} {getattr(low, end)(t)} {low.expression(c)})"],
        lambda at: holds(getattr(at.range(t), end), at.number(c)),
        bounded=(t,),
    )


def finite(t: Pattern) -> Guard:
    """No value of the term is NaN or infinite."""
    return Guard(
        f"{t} is finite always", (t,), lambda low: [f"(finite {low.var(t)})"], lambda at: at.range(t).finite, bounded=(t,)
    )
