"""Elementwise primitives: rows of `eqsat.scalars` under JAX's names, and the few that are compositions of rows.

Operands have the shape of the result or rank 0; either broadcasts by axis name, so the shapes play no part.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from eqsat.notation import Stored, Term, cast, const, const_value
from eqsat.primitives.fold import converted, scalar
from eqsat.primitives.table import Opaque, Out, View, identity_load, reads
from eqsat.scalars import DTYPES, SCALARS, is_float

# Rows whose name is not a JAX primitive of the same meaning, and primitives with a reader of their own below.
_OWN_READER = (
    "where", "quot", "div", "rem", "fmod", "pow", "sign", "shift_right_logical", "shift_right_arithmetic", "rint",
)  # fmt: skip


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
    return scalar("fmod" if is_float(out.dtype) else "rem", x.term, y.term)


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


@reads("shift_right_arithmetic")
def shift_right_arithmetic(out: Out, x: View, y: View, **_: Any) -> Term:
    """Of unsigned integers the highest bit is taken for a sign too."""
    signed = out.dtype.removeprefix("u")
    return cast(out.dtype, scalar("shift_right_arithmetic", cast(signed, x.term), cast(signed, y.term)))


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


@reads("reduce_precision")
def reduce_precision(out: Out, x: View, exponent_bits: int, mantissa_bits: int, **_: Any) -> Term:
    """To its own format or a wider one, as rematerialisation marks what it keeps; of float32 also to bfloat16."""
    own, narrow = jnp.finfo(out.dtype), jnp.finfo("bfloat16")
    if exponent_bits >= own.nexp and mantissa_bits >= own.nmant:
        return x.term
    if out.dtype == "float32" and (exponent_bits, mantissa_bits) == (narrow.nexp, narrow.nmant):
        return cast(out.dtype, cast("bfloat16", x.term))
    raise Opaque("rounds to a format that no dtype has")


@reads("threefry2x32", results=True)
def threefry2x32(outs: tuple[Out, ...], key1: View, key2: View, x1: View, x2: View, **_: Any) -> tuple[Term, ...]:
    """Threefry-2x32 of 20 rounds (Salmon et al. 2011): a key is added in every four."""

    def number(value: int) -> Term:
        return const(value, "uint32")

    keys = (key1.term, key2.term, scalar("xor", scalar("xor", key1.term, key2.term), number(0x1BD11BDA)))
    left, right = scalar("add", x1.term, keys[0]), scalar("add", x2.term, keys[1])
    for block in range(5):
        for turn in ((13, 15, 26, 6), (17, 29, 16, 24))[block % 2]:
            left = scalar("add", left, right)
            turned = (scalar("shift_left", right, number(turn)), scalar("shift_right_logical", right, number(32 - turn)))
            right = scalar("xor", left, scalar("or", *turned))
        left = scalar("add", left, keys[(block + 1) % 3])
        right = scalar("add", scalar("add", right, keys[(block + 2) % 3]), number(block + 1))
    return left, right


@reads("bitcast_convert_type")
def bitcast_convert_type(out: Out, x: View, **_: Any) -> Term:
    """Integers of one size keep their bits in a conversion; bits with the exponent of 1 are 1 and a fraction."""
    if x.dtype == out.dtype:
        return x.term
    if DTYPES[x.dtype].nbytes != DTYPES[out.dtype].nbytes or is_float(x.dtype):
        raise Opaque("looks at the bits of a float")
    if not is_float(out.dtype):
        return cast(out.dtype, x.term)
    format = jnp.finfo(out.dtype)
    fraction = _beside(definition(x.term), int(np.ones((), format.dtype).view(x.dtype)))
    if fraction is None or not below(fraction, format.nmant):
        raise Opaque("makes a float of bits")
    return scalar("add", const(1, out.dtype), scalar("mul", cast(out.dtype, fraction), const(2.0**-format.nmant, out.dtype)))


def definition(term: Term) -> Term:
    """The term of what is loaded, where that is an element of the same place."""
    if term.head == "load" and isinstance(term.tensor, Stored) and term is identity_load(term.tensor):
        return definition(term.tensor.term)
    return term


def _beside(term: Term, bits: int) -> Term | None:
    """The other operand of ``x | bits``."""
    if term.head == "or":
        for this, other in (term.args, term.args[::-1]):
            if this is const(bits, term.dtype):
                return other
    return None


def below(term: Term, bits: int) -> bool:
    """True if an unsigned value surely is less than 2**bits."""
    term = definition(term)
    row = DTYPES[term.dtype]
    if row.kind != "uint" or 8 * row.nbytes <= bits:
        return row.kind == "uint"
    if term.head == "shift_right_logical" and term.args[1].head == "const":
        return below(term.args[0], bits + int(const_value(term.args[1])))
    return term.head == "cast" and below(term.args[0], bits)
