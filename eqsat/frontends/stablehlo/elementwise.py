"""Operations that work element by element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.mlir.dialects import stablehlo

from eqsat.frontends.stablehlo.table import TABLE, Array, Node, op

UNARY: dict[str, Callable[..., Array]] = {
    "abs": lax.abs, "negate": lax.neg, "exponential": lax.exp, "exponential_minus_one": lax.expm1, "log": lax.log,
    "log_plus_one": lax.log1p, "logistic": lax.logistic, "tanh": lax.tanh, "sine": lax.sin, "cosine": lax.cos, "tan": lax.tan,
    "sqrt": lax.sqrt, "rsqrt": lax.rsqrt, "cbrt": lax.cbrt, "floor": lax.floor, "ceil": lax.ceil, "sign": lax.sign,
    "not": lax.bitwise_not, "popcnt": lax.population_count, "count_leading_zeros": lax.clz, "is_finite": lax.is_finite,
    "real": lambda x: lax.real(x) if jnp.iscomplexobj(x) else x,
    "imag": lambda x: lax.imag(x) if jnp.iscomplexobj(x) else lax.full_like(x, 0),
    "round_nearest_even": lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN),
    "round_nearest_afz": lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO),
}  # fmt: skip
CHLO: dict[str, Callable[..., Array]] = {
    "erf": lax.erf, "erfc": lax.erfc, "erf_inv": lax.erf_inv, "lgamma": lax.lgamma, "digamma": lax.digamma, "acos": lax.acos,
    "acosh": lax.acosh, "asin": lax.asin, "asinh": lax.asinh, "atan": lax.atan, "atanh": lax.atanh, "cosh": lax.cosh,
    "sinh": lax.sinh, "tan": lax.tan, "square": lax.square, "conj": lambda x: lax.conj(x) if jnp.iscomplexobj(x) else x,
    "bessel_i1e": lax.bessel_i1e, "next_after": lax.nextafter, "zeta": lax.zeta, "polygamma": lax.polygamma,
    "is_inf": jnp.isinf, "is_pos_inf": jnp.isposinf, "is_neg_inf": jnp.isneginf,
}  # fmt: skip
BINARY: dict[str, Callable[..., Array]] = {
    "add": lax.add, "subtract": lax.sub, "multiply": lax.mul, "divide": lax.div, "remainder": lax.rem, "maximum": lax.max,
    "minimum": lax.min, "power": lax.pow, "atan2": lax.atan2, "and": lax.bitwise_and, "or": lax.bitwise_or,
    "xor": lax.bitwise_xor, "shift_left": lax.shift_left, "shift_right_arithmetic": lax.shift_right_arithmetic,
    "shift_right_logical": lax.shift_right_logical, "complex": lax.complex,
}  # fmt: skip
OF_BOOLEANS = {"add": lax.bitwise_or, "multiply": lax.bitwise_and, "maximum": lax.bitwise_or, "minimum": lax.bitwise_and}
COMPARISONS = {"EQ": lax.eq, "NE": lax.ne, "LT": lax.lt, "LE": lax.le, "GT": lax.gt, "GE": lax.ge}


def _elementwise(function: Callable[..., Array]) -> Callable[..., Array]:
    return lambda node, *operands: function(*operands)


def binary(name: str) -> Callable[..., Array]:
    """The function of a binary operation; sums and products of booleans are "or" and "and"."""

    def apply(a: Array, b: Array) -> Array:
        of_booleans = jnp.result_type(a) == np.bool_ and name in OF_BOOLEANS
        return (OF_BOOLEANS if of_booleans else BINARY)[name](a, b)

    return apply


TABLE.update({f"stablehlo.{name}": _elementwise(function) for name, function in UNARY.items()})
TABLE.update({f"{dialect}.{name}": _elementwise(f) for dialect in ("chlo", "mhlo") for name, f in CHLO.items()})
TABLE.update({f"stablehlo.{name}": _elementwise(binary(name)) for name in BINARY})


def total_order(x: Array) -> Array:
    """Integers in the order -NaN < -inf < ... < -0 < +0 < ... < inf < NaN of floats."""
    bits = jnp.finfo(x.dtype).bits
    number = lax.bitcast_convert_type(x, f"int{bits}")
    flip = lax.shift_right_logical(lax.shift_right_arithmetic(number, number.dtype.type(bits - 1)), number.dtype.type(1))
    return lax.bitwise_xor(number, flip)


def direction(node: Any) -> str:
    return str(stablehlo.ComparisonDirectionAttr(node.attributes["comparison_direction"]).value)


def is_total(operation: Any) -> bool:
    return "compare_type" in operation.attributes and "TOTALORDER" in str(operation.attributes["compare_type"])


@op("stablehlo.compare")
def compare(node: Node, a: Array, b: Array) -> Array:
    if is_total(node.operation):
        a, b = total_order(jnp.asarray(a)), total_order(jnp.asarray(b))
    return COMPARISONS[direction(node.operation)](a, b)


@op("stablehlo.select", "chlo.broadcast_select")
def select(node: Node, which: Array, yes: Array, no: Array) -> Array:
    shape = node.out().shape
    yes, no = (jnp.broadcast_to(x, shape) if jnp.shape(x) != shape else x for x in (yes, no))
    if jnp.shape(which) not in ((), shape):
        which = jnp.broadcast_to(which, shape)
    return lax.select_n(which, no, yes)


@op("stablehlo.clamp")
def clamp(node: Node, low: Array, x: Array, high: Array) -> Array:
    return lax.clamp(low, x, high)


@op("stablehlo.convert")
def convert(node: Node, x: Array) -> Array:
    dtype = node.out().dtype
    if jnp.iscomplexobj(x) and not jnp.issubdtype(dtype, jnp.complexfloating):
        x = lax.real(x)
    return lax.convert_element_type(x, dtype)


@op("stablehlo.bitcast_convert")
def bitcast_convert(node: Node, x: Array) -> Array:
    return lax.bitcast_convert_type(x, node.out().dtype)


@op("stablehlo.reduce_precision")
def reduce_precision(node: Node, x: Array) -> Array:
    return lax.reduce_precision(x, node.integer("exponent_bits"), node.integer("mantissa_bits"))


@op("chlo.constant_like")
def constant_like(node: Node, x: Array) -> Array:
    out = node.out()
    return lax.full(out.shape, node.operation.attributes["value"].value, out.dtype)


@op("stablehlo.map")
def mapped(node: Node, *operands: Array) -> tuple[Array, ...]:
    function = node.body()
    for _ in node.out().shape:
        function = jax.vmap(function)
    return function(*operands)


@op("stablehlo.optimization_barrier")
def optimization_barrier(node: Node, *operands: Array) -> tuple[Array, ...]:
    return tuple(lax.optimization_barrier(operands))


@op("mhlo.copy", "sdy.sharding_constraint")
def identity(node: Node, x: Array) -> Array:
    return x


# --- numpy's broadcasting, in CHLO ------------------------------------------------------------------------------


def _broadcasting(function: Callable[..., Array]) -> Callable[..., Array]:
    def apply(node: Node, a: Array, b: Array) -> Array:
        shape = node.out().shape
        given = node.integers("broadcast_dimensions") if node.attribute("broadcast_dimensions") is not None else None

        def widened(x: Array) -> Array:
            rank = jnp.ndim(x)
            places = given if given is not None and rank < len(shape) else tuple(range(len(shape) - rank, len(shape)))
            return lax.broadcast_in_dim(x, shape, places)

        return function(node, widened(a), widened(b))

    return apply


TABLE.update({f"chlo.broadcast_{name}": _broadcasting(_elementwise(binary(name))) for name in BINARY})
TABLE.update({f"chlo.broadcast_{name}": _broadcasting(_elementwise(CHLO[name])) for name in ("next_after", "zeta", "polygamma")})
TABLE["chlo.broadcast_compare"] = _broadcasting(compare)
