"""Primitives that work element by element."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np

from eqsat.graph import Equation
from eqsat.writers.onnx.graph import TABLE, Builder, Lacking, Value, result, writes

UNARY = {
    "neg": "Neg", "exp": "Exp", "log": "Log", "tanh": "Tanh", "logistic": "Sigmoid", "sqrt": "Sqrt", "abs": "Abs", "sign": "Sign",
    "floor": "Floor", "ceil": "Ceil", "sin": "Sin", "cos": "Cos", "tan": "Tan", "asin": "Asin", "acos": "Acos", "atan": "Atan",
    "sinh": "Sinh", "cosh": "Cosh", "asinh": "Asinh", "acosh": "Acosh", "atanh": "Atanh", "erf": "Erf", "copy": "Identity",
    "copy_p": "Identity", "stop_gradient": "Identity", "optimization_barrier": "Identity",
}  # fmt: skip
BINARY = {"add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "pow": "Pow", "add_any": "Add", "max": "Max", "min": "Min"}
COMPARED = {"eq": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual"}
BITS = {"and": "And", "or": "Or", "xor": "Xor"}


def _unary(kind: str) -> Callable[..., Value]:
    return lambda b, e, x: b.unary(kind, x)


def _binary(kind: str) -> Callable[..., Value]:
    def write(b: Builder, e: Equation, x: Value, y: Value) -> Value:
        if x.dtype == np.bool_:
            if e.name not in ("max", "min"):
                raise Lacking(f"{kind} of booleans")
            return b.binary("Or" if e.name == "max" else "And", x, y)
        return b.binary(kind, x, y)

    return write


TABLE.update({name: _unary(kind) for name, kind in UNARY.items()})
TABLE.update({name: _binary(kind) for name, kind in BINARY.items()})
TABLE.update({name: lambda b, e, x, y, kind=kind: b.binary(kind, x, y, np.bool_) for name, kind in COMPARED.items()})


@writes("optimization_barrier")
def barrier(b: Builder, e: Equation, *operands: Value) -> list[Value]:
    return list(operands)


@writes("ne")
def ne(b: Builder, e: Equation, x: Value, y: Value) -> Value:
    return b.unary("Not", b.binary("Equal", x, y, np.bool_))


@writes("and", "or", "xor")
def bits(b: Builder, e: Equation, x: Value, y: Value) -> Value:
    return b.binary(BITS[e.name] if x.dtype == np.bool_ else f"Bitwise{BITS[e.name]}", x, y)


@writes("not")
def not_(b: Builder, e: Equation, x: Value) -> Value:
    return b.unary("Not" if x.dtype == np.bool_ else "BitwiseNot", x)


@writes("shift_left", "shift_right_logical")
def shift(b: Builder, e: Equation, x: Value, y: Value) -> Value:
    if x.dtype.kind != "u":
        raise Lacking(f"{e.name} of {x.dtype}, where ONNX shifts unsigned integers only")
    bound = b.like(x, 8 * x.dtype.itemsize)
    shifted = b.node(
        "BitShift",
        [x, y],
        np.broadcast_shapes(x.shape, y.shape),
        x.dtype,
        direction="LEFT" if e.name == "shift_left" else "RIGHT",
    )
    return b.where(b.binary("Less", y, bound, np.bool_), shifted, b.like(x, 0))


@writes("rem")
def rem(b: Builder, e: Equation, x: Value, y: Value) -> Value:
    return b.node("Mod", [x, y], np.broadcast_shapes(x.shape, y.shape), x.dtype, fmod=1)


@writes("rsqrt")
def rsqrt(b: Builder, e: Equation, x: Value) -> Value:
    return b.unary("Reciprocal", b.unary("Sqrt", x))


@writes("square")
def square(b: Builder, e: Equation, x: Value) -> Value:
    return b.binary("Mul", x, x)


@writes("integer_pow")
def integer_pow(b: Builder, e: Equation, x: Value) -> Value:
    """By repeated squares, as XLA does."""
    exponent, power, made = abs(int(e.params["y"])), x, None
    while exponent:
        if exponent & 1:
            made = power if made is None else b.binary("Mul", made, power)
        exponent >>= 1
        power = b.binary("Mul", power, power) if exponent else power
    made = made or b.expand(b.like(x, 1), x.shape)
    if e.params["y"] >= 0:
        return made
    return b.unary("Reciprocal", made) if jnp.issubdtype(x.dtype, jnp.floating) else b.binary("Div", b.like(x, 1), made)


@writes("exp2")
def exp2(b: Builder, e: Equation, x: Value) -> Value:
    return b.node("Pow", [b.like(x, 2), x], x.shape, x.dtype)


@writes("log1p")
def log1p(b: Builder, e: Equation, x: Value) -> Value:
    """log u - correction, where u = 1 + x rounds: (log u) x / (u - 1) is exact to rounding (Kahan)."""
    one = b.like(x, 1)
    u = b.binary("Add", x, one)
    less = b.binary("Sub", u, one)
    precise = b.binary("Mul", b.unary("Log", u), b.binary("Div", x, less))
    small = b.binary("Equal", less, b.like(x, 0), np.bool_)
    infinite = b.binary("Equal", u, b.like(x, np.inf), np.bool_)
    return b.where(small, x, b.where(infinite, x, precise))


@writes("expm1")
def expm1(b: Builder, e: Equation, x: Value) -> Value:
    """(u - 1) x / log u, where u = exp x rounds (Kahan)."""
    one, zero = b.like(x, 1), b.like(x, 0)
    u = b.unary("Exp", x)
    less = b.binary("Sub", u, one)
    precise = b.binary("Mul", less, b.binary("Div", x, b.unary("Log", u)))
    ends = b.binary("Or", b.binary("Equal", u, zero, np.bool_), b.binary("Equal", u, b.like(x, np.inf), np.bool_))
    return b.where(b.binary("Equal", u, one, np.bool_), x, b.where(ends, less, precise))


@writes("round")
def round_(b: Builder, e: Equation, x: Value) -> Value:
    if "EVEN" in str(e.params["rounding_method"]):
        return b.unary("Round", x)
    whole = b.unary("Floor", b.unary("Abs", x))
    rest = b.binary("Sub", b.unary("Abs", x), whole)
    up = b.cast(b.binary("GreaterOrEqual", rest, b.like(x, 0.5), np.bool_), x.dtype)
    return b.binary("Mul", b.unary("Sign", x), b.binary("Add", whole, up))


@writes("is_finite")
def is_finite(b: Builder, e: Equation, x: Value) -> Value:
    return b.binary("Less", b.unary("Abs", x), b.like(x, np.inf), np.bool_)


@writes("clamp")
def clamp(b: Builder, e: Equation, low: Value, x: Value, high: Value) -> Value:
    return b.binary("Min", b.binary("Max", x, low), high)


@writes("select_n")
def select_n(b: Builder, e: Equation, which: Value, *cases: Value) -> Value:
    if which.dtype != np.bool_:
        raise Lacking("a selection among more than two")
    return b.where(which, cases[-1], cases[0])


@writes("convert_element_type")
def cast(b: Builder, e: Equation, x: Value) -> Value:
    return b.cast(x, result(e)[1])
