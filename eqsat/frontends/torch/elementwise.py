"""ATen operators on elements. Operands are promoted as torch promotes them; narrow floats are computed in float32."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from eqsat.frontends.torch.table import Array, Node, cast, is_number, op, opmath


def _unary(function: Callable[..., Array]) -> Callable[..., Array]:
    def apply(node: Node, self: Array) -> Array:
        return cast(function(cast(self, node.dtype)), node.dtype)

    return apply


_UNARY: dict[str, Callable[..., Array]] = {
    "acos": jnp.arccos, "acosh": jnp.arccosh, "asin": jnp.arcsin, "asinh": jnp.arcsinh, "atan": jnp.arctan, "atanh": jnp.arctanh,
    "ceil": jnp.ceil, "cos": jnp.cos, "cosh": jnp.cosh, "erf": lax.erf, "erfc": lax.erfc, "exp": jnp.exp, "expm1": jnp.expm1,
    "floor": jnp.floor, "log": jnp.log, "log10": jnp.log10, "log1p": jnp.log1p, "log2": jnp.log2, "neg": jnp.negative,
    "sin": jnp.sin, "sinh": jnp.sinh, "sqrt": jnp.sqrt, "tan": jnp.tan, "tanh": jnp.tanh, "trunc": jnp.trunc,
    "sign": jnp.sign, "erfinv": lax.erf_inv, "lgamma": lax.lgamma, "digamma": lax.digamma, "exp2": jnp.exp2,
}  # fmt: skip
for _name, _function in _UNARY.items():
    op(_name)(_unary(_function))


def _wide(function: Callable[..., Array]) -> Callable[..., Array]:
    """Several operations, rounded once."""

    def apply(node: Node, self: Array, *args: Any, **kwargs: Any) -> Array:
        return cast(function(cast(self, opmath(node.dtype)), *args, **kwargs), node.dtype)

    return apply


@op("abs")
def absolute(node: Node, self: Array) -> Array:
    return cast(jnp.abs(self), node.dtype)


@op("round")
def round_(node: Node, self: Array) -> Array:
    return lax.round(self, lax.RoundingMethod.TO_NEAREST_EVEN) if jnp.issubdtype(self.dtype, jnp.floating) else self


@op("round.decimals")
@_wide
def round_decimals(x: Array, decimals: int = 0) -> Array:
    unit = cast(10.0 ** abs(decimals), x.dtype)
    return jnp.round(x * unit) / unit if decimals >= 0 else jnp.round(x / unit) * unit


@op("_conj", "_conj_physical")
def conj(node: Node, self: Array) -> Array:
    return jnp.conj(self)


@op("complex")
def complex_(node: Node, real: Array, imag: Array) -> Array:
    return lax.complex(*jnp.broadcast_arrays(real, imag))


@op("polar")
def polar(node: Node, abs: Array, angle: Array) -> Array:
    return complex_(node, abs * jnp.cos(angle), abs * jnp.sin(angle))


@op("signbit")
def signbit(node: Node, self: Array) -> Array:
    return jnp.signbit(self) if jnp.issubdtype(self.dtype, jnp.floating) else self < 0


@op("relu")
def relu(node: Node, self: Array) -> Array:
    return jnp.maximum(self, np.asarray(0, self.dtype))


@op("isnan")
def isnan(node: Node, self: Array) -> Array:
    return jnp.isnan(self)


@op("isinf")
def isinf(node: Node, self: Array) -> Array:
    return jnp.isinf(self)


@op("bitwise_not")
def bitwise_not(node: Node, self: Array) -> Array:
    return jnp.bitwise_not(self)


@op("logical_not")
def logical_not(node: Node, self: Array) -> Array:
    return jnp.logical_not(cast(self, bool))


@op("rsqrt")
@_wide
def rsqrt(x: Array) -> Array:
    return lax.rsqrt(x)


@op("reciprocal")
@_wide
def reciprocal(x: Array) -> Array:
    return cast(1, x.dtype) / x


@op("sigmoid")
@_wide
def sigmoid(x: Array) -> Array:
    return jax.nn.sigmoid(x)


@op("gelu")
@_wide
def gelu(x: Array, *, approximate: str = "none") -> Array:
    if approximate == "tanh":
        inner = cast(math.sqrt(2 / math.pi), x.dtype) * (x + cast(0.044715, x.dtype) * x * x * x)
        return cast(0.5, x.dtype) * x * (cast(1, x.dtype) + jnp.tanh(inner))
    return cast(0.5, x.dtype) * x * (cast(1, x.dtype) + lax.erf(x * cast(math.sqrt(0.5), x.dtype)))


@op("elu")
@_wide
def elu(x: Array, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Array:
    negative = jnp.expm1(x * cast(input_scale, x.dtype)) * cast(alpha * scale, x.dtype)
    return jnp.where(x <= 0, negative, x * cast(scale, x.dtype))


@op("leaky_relu")
@_wide
def leaky_relu(x: Array, negative_slope: float = 0.01) -> Array:
    return jnp.where(x > 0, x, x * cast(negative_slope, x.dtype))


@op("hardtanh")
@_wide
def hardtanh(x: Array, min_val: float = -1, max_val: float = 1) -> Array:
    return jnp.minimum(jnp.maximum(x, cast(min_val, x.dtype)), cast(max_val, x.dtype))


# --- two operands -----------------------------------------------------------------------------------------------


def _binary(function: Callable[..., Array]) -> Callable[..., Array]:
    """In the dtype of the result. A Python number beside a narrow float is not rounded to it first."""

    def apply(node: Node, self: Any, other: Any, *, alpha: Any = 1) -> Array:
        dtype = opmath(node.dtype) if is_number(self) or is_number(other) or alpha != 1 else node.dtype
        x, y = cast(self, dtype), cast(other, dtype)
        return cast(function(x, y if alpha == 1 else cast(alpha, dtype) * y), node.dtype)

    return apply


def _plus(x: Array, y: Array) -> Array:
    return jnp.logical_or(x, y) if x.dtype == bool else x + y


def _times(x: Array, y: Array) -> Array:
    return jnp.logical_and(x, y) if x.dtype == bool else x * y


_BINARY: dict[tuple[str, ...], Callable[..., Array]] = {
    ("add.Tensor", "add.Scalar"): _plus,
    ("sub.Tensor", "sub.Scalar"): jnp.subtract,
    ("mul.Tensor", "mul.Scalar"): _times,
    ("div.Tensor", "div.Scalar"): jnp.divide,
    ("maximum",): jnp.maximum,
    ("minimum",): jnp.minimum,
    ("atan2",): jnp.arctan2,
    ("copysign.Tensor", "copysign.Scalar"): jnp.copysign,
    ("fmax",): jnp.fmax,
    ("fmin",): jnp.fmin,
    ("hypot",): jnp.hypot,
    ("prims.gcd.default",): jnp.gcd,
    ("fmod.Tensor", "fmod.Scalar"): lambda x, y: lax.rem(*jnp.broadcast_arrays(x, y)),
    ("bitwise_and.Tensor", "bitwise_and.Scalar"): jnp.bitwise_and,
    ("bitwise_or.Tensor", "bitwise_or.Scalar"): jnp.bitwise_or,
    ("bitwise_xor.Tensor", "bitwise_xor.Scalar"): jnp.bitwise_xor,
    ("bitwise_left_shift.Tensor", "bitwise_left_shift.Tensor_Scalar", "__lshift__.Scalar", "__lshift__.Tensor"): jnp.left_shift,
    (
        "bitwise_right_shift.Tensor",
        "bitwise_right_shift.Tensor_Scalar",
        "__rshift__.Scalar",
        "__rshift__.Tensor",
    ): jnp.right_shift,
}
for _names, _function in _BINARY.items():
    op(*_names)(_binary(_function))


@op("rsub.Tensor", "rsub.Scalar")
def rsub(node: Node, self: Array, other: Any, alpha: Any = 1) -> Array:
    return _binary(lambda x, y: y - x)(node, _scaled(node, self, alpha), other)


def _scaled(node: Node, x: Array, alpha: Any) -> Array:
    return x if alpha == 1 else cast(x, opmath(node.dtype)) * cast(alpha, opmath(node.dtype))


@op("div.Tensor_mode", "div.Scalar_mode")
def div_mode(node: Node, self: Array, other: Any, *, rounding_mode: str | None) -> Array:
    if rounding_mode is None:
        return _binary(jnp.divide)(node, self, other)
    return _binary(_floor_divide if rounding_mode == "floor" else _truncated)(node, self, other)


def _truncated(x: Array, y: Array) -> Array:
    return lax.div(*jnp.broadcast_arrays(x, y)) if jnp.issubdtype(x.dtype, jnp.integer) else jnp.trunc(x / y)


def _floor_divide(x: Array, y: Array) -> Array:
    if jnp.issubdtype(x.dtype, jnp.integer):
        return jnp.floor_divide(x, y)
    return jnp.where(y == 0, x / y, jnp.floor_divide(x, y))


@op("prims.div.default")
def prims_div(node: Node, self: Array, other: Array) -> Array:
    """Of integers it is truncated."""
    return _binary(_truncated if jnp.issubdtype(node.dtype, jnp.integer) else jnp.divide)(node, self, other)


@op("floor_divide", "floor_divide.Scalar")
def floor_divide(node: Node, self: Array, other: Any) -> Array:
    return _binary(_floor_divide)(node, self, other)


@op("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor")
def remainder(node: Node, self: Any, other: Any) -> Array:
    """With the sign of the divisor."""
    return _binary(jnp.remainder)(node, self, other)


@op("pow.Tensor_Tensor", "pow.Tensor_Scalar", "pow.Scalar")
def power(node: Node, self: Any, exponent: Any) -> Array:
    if is_number(exponent) and float(exponent).is_integer() and 0 <= exponent <= 8:
        return cast(lax.integer_pow(cast(self, opmath(node.dtype)), int(exponent)), node.dtype)
    if is_number(exponent) and exponent in (0.5, -0.5, -1):
        x = cast(self, opmath(node.dtype))
        return cast({0.5: jnp.sqrt, -0.5: lax.rsqrt, -1: lambda v: cast(1, v.dtype) / v}[exponent](x), node.dtype)
    return _binary(jnp.power)(node, self, exponent)


# --- comparisons and choices ------------------------------------------------------------------------------------


def _comparison(function: Callable[..., Array]) -> Callable[..., Array]:
    def apply(node: Node, self: Any, other: Any) -> Array:
        return function(cast(self, node.promoted), cast(other, node.promoted))

    return apply


_COMPARISONS: dict[str, Callable[..., Array]] = {
    "eq": jnp.equal, "ne": jnp.not_equal, "lt": jnp.less, "le": jnp.less_equal, "gt": jnp.greater, "ge": jnp.greater_equal,
}  # fmt: skip
for _name, _function in _COMPARISONS.items():
    op(f"{_name}.Tensor", f"{_name}.Scalar")(_comparison(_function))


@op("logical_and", "logical_or", "logical_xor")
def logical(node: Node, self: Array, other: Array) -> Array:
    return getattr(jnp, node.op.removesuffix(".default"))(cast(self, bool), cast(other, bool))


@op("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def where(node: Node, condition: Array, self: Any, other: Any) -> Array:
    return jnp.where(condition, cast(self, node.dtype), cast(other, node.dtype))


@op("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(node: Node, self: Array, mask: Array, value: Any) -> Array:
    return jnp.where(mask, cast(value, self.dtype), self)


@op("clamp", "clamp.Tensor")
def clamp(node: Node, self: Array, min: Any = None, max: Any = None) -> Array:
    """The upper bound wins; NaN stays, also that of a bound."""
    x = cast(self, node.dtype)
    x = x if min is None else jnp.maximum(x, cast(min, node.dtype))
    return x if max is None else jnp.minimum(x, cast(max, node.dtype))


@op("clamp_min", "clamp_min.Tensor")
def clamp_min(node: Node, self: Array, min: Any) -> Array:
    return clamp(node, self, min=min)


@op("clamp_max", "clamp_max.Tensor")
def clamp_max(node: Node, self: Array, max: Any) -> Array:
    return clamp(node, self, max=max)


# --- copies and casts -------------------------------------------------------------------------------------------


@op(
    "alias", "clone", "detach", "lift_fresh_copy", "lift_fresh", "contiguous", "_assert_tensor_metadata",
    "resolve_conj", "resolve_neg", "detach_copy",
)  # fmt: skip
def same(node: Node, self: Array, *_: Any, **__: Any) -> Array:
    return self


@op("_to_copy", "to.dtype", "to.dtype_layout", "to.device", "type_as", "prims.convert_element_type.default")
def to_copy(node: Node, self: Array, *_: Any, **__: Any) -> Array:
    return cast(self, node.dtype)


@op("copy")
def copy(node: Node, self: Array, src: Array) -> Array:
    return jnp.broadcast_to(cast(src, node.dtype), self.shape)
