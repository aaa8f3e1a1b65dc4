"""Elementwise primitives: rows of `eqsat.scalars` under JAX's names, and the few that are compositions of rows.

Operands have the shape of the result or rank 0; either broadcasts by axis name, so the shapes play no part.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from eqsat.notation import Term, cast, const
from eqsat.primitives.fold import converted, scalar
from eqsat.primitives.table import Opaque, Out, View, reads
from eqsat.scalars import DTYPES, SCALARS, is_float

# Rows whose name is not a JAX primitive of the same meaning, and primitives with a reader of their own below.
_OWN_READER = ("where", "quot", "div", "rem", "pow", "sign", "shift_right_logical", "rint")


def _row(name: str) -> Callable[..., Term]:
    return lambda out, *xs, **_: scalar(name, *(x.term for x in xs))


for _name in SCALARS:
    if _name not in _OWN_READER:
        reads(_name)(_row(_name))

reads("add_any")(_row("add"))


@reads("div")
def div(out: Out, x: View, y: View, **_: Any) -> Term:
    return scalar("div" if is_float(out.dtype) else "quot", x.term, y.term)


@reads("rem")
def rem(out: Out, x: View, y: View, **_: Any) -> Term:
    if is_float(out.dtype):
        raise Opaque("remainder of floats")
    return scalar("rem", x.term, y.term)


@reads("pow")
def pow_(out: Out, x: View, y: View, **_: Any) -> Term:
    if not is_float(out.dtype):
        raise Opaque("power of integers")
    return scalar("pow", x.term, cast(out.dtype, y.term))


@reads("integer_pow")
def integer_pow(out: Out, x: View, y: int, **_: Any) -> Term:
    """Squarings and products in the order that JAX multiplies."""
    one = const(1, out.dtype)
    square, rest, product = x.term, abs(int(y)), None
    while rest:
        if rest & 1:
            product = square if product is None else scalar("mul", product, square)
        rest >>= 1
        square = scalar("mul", square, square) if rest else square
    power = one if product is None else product
    return scalar("div" if is_float(out.dtype) else "quot", one, power) if y < 0 else power


@reads("square")
def square(out: Out, x: View, **_: Any) -> Term:
    return scalar("mul", x.term, x.term)


@reads("one_minus_square")
def one_minus_square(out: Out, x: View, **_: Any) -> Term:
    """(1 - x) * (1 + x): near 1 it loses less than 1 - x * x, and JAX computes it so."""
    one = const(1, out.dtype)
    return scalar("mul", scalar("sub", one, x.term), scalar("add", one, x.term))


@reads("polynomial")
def polynomial(out: Out, x: View, *coefficients: View, **_: Any) -> Term:
    """Horner's scheme; the constant coefficient comes first."""
    term = coefficients[-1].term
    for coefficient in reversed(coefficients[:-1]):
        term = scalar("add", scalar("mul", term, x.term), coefficient.term)
    return term


@reads("sign")
def sign(out: Out, x: View, **_: Any) -> Term:
    if is_float(out.dtype):
        return scalar("sign", x.term)
    zero, one = const(0, out.dtype), const(1, out.dtype)
    below = zero if DTYPES[out.dtype].kind == "uint" else scalar("where", scalar("lt", x.term, zero), const(-1, out.dtype), zero)
    return scalar("where", scalar("gt", x.term, zero), one, below)


@reads("shift_right_logical")
def shift_right_logical(out: Out, x: View, y: View, **_: Any) -> Term:
    """On signed integers the bits are shifted as unsigned ones; the conversions keep the bits."""
    unsigned = out.dtype if out.dtype.startswith("u") else f"u{out.dtype}"
    return cast(out.dtype, scalar("shift_right_logical", cast(unsigned, x.term), cast(unsigned, y.term)))


@reads("round")
def round_(out: Out, x: View, rounding_method: Any, **_: Any) -> Term:
    if int(rounding_method) != 1:
        raise Opaque("rounding away from zero")
    return scalar("rint", x.term)


@reads("select_n")
def select_n(out: Out, which: View, *cases: View, **_: Any) -> Term:
    if which.dtype == "bool":
        cases = cases if len(cases) == 2 else cases * 2
        return scalar("where", which.term, cases[1].term, cases[0].term)
    term = cases[-1].term
    for number in reversed(range(len(cases) - 1)):
        term = scalar("where", scalar("eq", which.term, const(number, which.dtype)), cases[number].term, term)
    return term


@reads("clamp")
def clamp(out: Out, low: View, x: View, high: View, **_: Any) -> Term:
    return scalar("min", scalar("max", x.term, low.term), high.term)


@reads("convert_element_type")
def convert_element_type(out: Out, x: View, **_: Any) -> Term:
    """A conversion to bool is a test for non-zero."""
    if out.dtype == "bool" and x.dtype != "bool":
        return scalar("ne", x.term, const(0, x.dtype))
    return converted(out.dtype, x.term)
