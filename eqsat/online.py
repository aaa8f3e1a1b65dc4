"""Online reductions: what depends on another reduction over the same axis shares its pass.

An element g(s, r) depends on what s has been reduced to, its leader r. While r is known only of the positions seen so far, the
fold is relative to that; when r changes to r', what was folded is corrected for it: a sum of exponentials by the factor
exp(r - r') (Milakov and Gimelshein, 2018), the place of a maximum by starting again at a greater one, a sum of squared
deviations by n*(r - r')^2 of the n positions seen (Welford, 1962; Chan, Golub and LeVeque, 1979). A row says all of that once;
several such reductions over one axis are a loop that carries a tuple.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import e, frexp, inf, log2, nan

from ml_dtypes import finfo

from eqsat.notation import Term, cast, const, const_value, reduce, scalar
from eqsat.scalars import DTYPES, REDUCTIONS, is_float

LOG2E = log2(e)
SHRINKS, LARGEST = 0.5, 1e38  # factors, and literals, that times log2(e) are no overflow of float32
Seen = tuple[Term, ...]  # the leaders of the positions seen so far, in the order of `leaders`


@dataclass(frozen=True)
class Online:
    """One way to depend on a leader; every function takes the online term first, of whose operands it makes terms.

    `element` is what is folded, given the leaders; `kept` corrects a fold that was relative to older ones; `result` is made of
    the whole fold. `kinds` are the dtype kinds of both operands; `vector` and `special` count the operations for each element.
    """

    name: str
    leader: str
    fold: str
    symbol: str  # in formulas
    kinds: tuple[tuple[str, ...], tuple[str, ...]]
    element: Callable[[Term, Seen], Term]
    kept: Callable[[Term, Term, Seen, Seen], Term]
    result: Callable[[Term, Term], Term]
    vector: float
    special: float = 0.0
    counts: bool = False  # the number of positions is a leader too

    @property
    def rounds(self) -> bool:
        """True if elements are computed, and not only compared."""
        return self.fold == "sum"


def leaders(t: Term) -> Seen:
    """The reductions that an online term depends on."""
    row, axis, s = ONLINE[t.data[0]], t.data[1], t.args[0]
    first = reduce(row.leader, axis, s)
    return (first, reduce("sum", axis, const(1, s.dtype))) if row.counts else (first,)


def spelled(t: Term) -> Term:
    """An online term as a fold that waits for its leaders; then it is known how many positions there are."""
    row, axis, seen = ONLINE[t.data[0]], t.data[1], leaders(t)
    seen = (seen[0], const(axis.extent, seen[0].dtype)) if row.counts else seen
    return row.result(t, reduce(row.fold, axis, row.element(t, seen)))


def numerator(term: Term) -> tuple[Term, bool] | None:
    """The leader of the softmax that a term is the numerator exp(s - max s) of, and whether it is written as that of a product.

    That is exp((x - max x) * c), for x * c, which rounds nothing where c is 1 over a power of two.
    """
    exponent, factor = term.args[0] if term.head == "exp" else term, None
    if exponent.head == "mul" and exponent.args[1].head == "const":
        exponent, factor = exponent.args
    if term.head != "exp" or exponent.head != "sub" or (factor is not None and not only_scales(const_value(factor))):
        return None
    largest = exponent.args[1]
    if largest.head != "reduce" or largest.data[0] != "max":
        return None
    return (
        largest if factor is None else reduce("max", largest.data[1], scalar("mul", largest.args[0], factor))
    ), factor is not None


def only_scales(factor: float) -> bool:
    """True for 1/2**n: a product by it rounds nothing but what is far too small for an exponential to show."""
    return 0 < factor <= 1 and frexp(factor)[0] == 0.5


def plainly(t: Term, scaled: bool) -> Term:
    """The sum of a softmax as it is defined, by the exponentials that its numerator has; `scaled` are those of a product."""
    s, v = t.args
    x, factor = s.args if scaled else (s, None)
    exponent = scalar("sub", x, reduce("max", t.data[1], x))
    p = scalar("exp", exponent if factor is None else scalar("mul", exponent, factor))
    p = cast(v.dtype, cast(t.data[2], p))
    return reduce("sum", t.data[1], p if v.head == "const" and const_value(v) == 1 else scalar("mul", p, v))


# --- exponentials relative to a maximum ----------------------------------------------------------------------------------


def settled(m: Term) -> Term:
    """A running maximum, with the lowest number for -inf: -inf - -inf would be NaN."""
    return scalar("max", m, const(float(finfo(m.dtype).min), m.dtype))


def _exp(less: Term) -> Term:
    """exp, at most 1, as a power of two: one instruction on a GPU where what is below 1e-38 may be 0, as it may here."""
    return scalar("exp2", scalar("mul", less, const(LOG2E, less.dtype))) if less.dtype == "float32" else scalar("exp", less)


_POWER: dict[str, Callable[[Term], Term]] = {"softmax": _exp, "powers": lambda less: scalar("exp2", less)}


def exponential(t: Term, seen: Seen) -> Term:
    """exp(s - m), or the power of two; a maximum of -inf counts as the lowest number, so that all weights are 0 there."""
    return _POWER[t.data[0]](scalar("sub", t.args[0], settled(seen[0])))


def rescaling(old: Seen, new: Seen, name: str = "softmax") -> Term:
    """The factor by which a greater maximum shrinks what was summed."""
    return _POWER[name](scalar("sub", old[0], settled(new[0])))


def scaled(term: Term) -> tuple[Term, Term] | None:
    """A positive literal and what it multiplies: a maximum may be taken before the product."""
    for factor, rest in (term.args, term.args[::-1]) if term.head == "mul" else ():
        if factor.head == "const" and 0 < const_value(factor) < inf and DTYPES[term.dtype].compute == term.dtype:
            return factor, rest
    return None


def in_base_two(t: Term) -> Term | None:
    """A softmax's sum by powers of two, where scores times log2(e) take no more operations, and are as finite as they were.

    A multiply-add then makes the exponent of each score from what the factor multiplies. Without a factor that shrinks them by
    more, finite scores that are as large as masks have them would overflow, so their difference to the maximum is what is
    multiplied.
    """
    if t.data[0] != "softmax" or t.args[0].dtype != "float32" or (s := _times_log2e(t.args[0])) is None:
        return None
    return Term("online", (s, t.args[1]), ("powers", *t.data[1:]), t.dtype)


def _times_log2e(s: Term) -> Term | None:
    if s.head == "where":
        chosen = [_times_log2e(a) for a in s.args[1:]]
        return None if None in chosen else scalar("where", s.args[0], *filter(None, chosen))
    if s.head == "const":
        value = LOG2E * const_value(s)
        return None if LARGEST < abs(value) < inf else const(value, s.dtype)
    factor, x = scaled(s) or (None, s)
    return scalar("mul", const(LOG2E * const_value(factor), s.dtype), x) if factor and const_value(factor) <= SHRINKS else None


def _weighted(t: Term, seen: Seen) -> Term:
    v, weight = t.args[1], t.data[2]
    p = cast(v.dtype, cast(weight, exponential(t, seen)))
    return p if v.head == "const" and const_value(v) == 1 else scalar("mul", p, v)


def _rescaled(t: Term, state: Term, old: Seen, new: Seen) -> Term:
    return scalar("mul", state, cast(state.dtype, rescaling(old, new, t.data[0])))


def _unless_masked(t: Term, total: Term) -> Term:
    """-inf - -inf is NaN in every weight of a row that is masked altogether."""
    (largest,) = leaders(t)
    nothing = scalar("eq", largest, const(-inf, largest.dtype))
    return scalar("where", nothing, const(nan, total.dtype), total)


# --- the place of an extreme ---------------------------------------------------------------------------------------------


def nowhere(dtype: str) -> Term:
    """The identity of a minimum of places."""
    return const(REDUCTIONS["min"].identity(dtype), dtype)


def _place(t: Term, seen: Seen) -> Term:
    s, v = t.args
    return scalar("where", scalar("eq", s, seen[0]), v, nowhere(v.dtype))


def _place_kept(t: Term, state: Term, old: Seen, new: Seen) -> Term:
    return scalar("where", scalar("eq", old[0], new[0]), state, nowhere(state.dtype))


def _unless_nan(t: Term, place: Term) -> Term:
    """The first NaN is the extreme of all, and nothing equals it."""
    s, v = t.args
    if not is_float(s.dtype):
        return place
    nothing = nowhere(v.dtype)
    first = reduce("min", t.data[1], scalar("where", scalar("ne", s, s), v, nothing))
    return scalar("where", scalar("ne", first, nothing), first, place)


def finds_place(t: Term) -> bool:
    """True for the place of an extreme."""
    return t.head == "online" and not ONLINE[t.data[0]].rounds


# --- squared deviations from the mean ------------------------------------------------------------------------------------


def _mean(seen: Seen) -> Term:
    """By a product where the number of positions is known, as programs that multiply by its reciprocal have it already."""
    total, count = seen
    return scalar("mul", total, const(1 / const_value(count), total.dtype)) if count.head == "const" else scalar("div", *seen)


def _deviation(t: Term, seen: Seen) -> Term:
    distance = scalar("sub", t.args[0], _mean(seen))
    return scalar("mul", distance, distance)


def _moved(t: Term, state: Term, old: Seen, new: Seen) -> Term:
    """A mean that stays, of nothing or of what is infinite, corrects nothing: no NaN comes of 0/0 or of inf - inf."""
    before, after, zero = _mean(old), _mean(new), const(0, old[0].dtype)
    same = scalar("or", scalar("eq", old[1], zero), scalar("eq", before, after))
    distance = scalar("where", same, zero, scalar("sub", before, after))
    return scalar("add", state, scalar("mul", old[1], scalar("mul", distance, distance)))


_ANY = ("float", "int", "uint", "bool")
_FLOAT, _INT = ("float",), ("int", "uint")

ONLINE: dict[str, Online] = {
    row.name: row
    for row in [
        Online("softmax", "max", "sum", "softsum", (_FLOAT, _FLOAT), _weighted, _rescaled, _unless_masked, 4.0, 1.0),
        Online("powers", "max", "sum", "softsum2", (_FLOAT, _FLOAT), _weighted, _rescaled, _unless_masked, 3.0, 1.0),
        Online("argmax", "max", "min", "argmax", (_ANY, _INT), _place, _place_kept, _unless_nan, 6.0),
        Online("argmin", "min", "min", "argmin", (_ANY, _INT), _place, _place_kept, _unless_nan, 6.0),
        Online("deviations", "sum", "sum", "deviations", (_FLOAT, _FLOAT), _deviation, _moved, lambda t, x: x, 3.0, counts=True),
    ]
}
