"""ONNX operators that work element by element: arithmetic, comparison, logic, casts."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

from eqsat.frontends.onnx.table import Array, Node, holds_symbols, op

# Operators that NumPy and jax.numpy have under one name.
_UNARY = {
    "Abs": "abs", "Acos": "arccos", "Acosh": "arccosh", "Asin": "arcsin", "Asinh": "arcsinh", "Atan": "arctan",
    "Atanh": "arctanh", "BitwiseNot": "bitwise_not", "Ceil": "ceil", "Cos": "cos", "Cosh": "cosh", "Exp": "exp",
    "Floor": "floor", "IsNaN": "isnan", "Log": "log", "Neg": "negative", "Not": "logical_not", "Reciprocal": "reciprocal",
    "Round": "round", "Sign": "sign", "Sin": "sin", "Sinh": "sinh", "Sqrt": "sqrt", "Tan": "tan", "Tanh": "tanh",
}  # fmt: skip
_BINARY = {
    "Add": "add", "Sub": "subtract", "Mul": "multiply", "And": "logical_and", "Or": "logical_or", "Xor": "logical_xor",
    "BitwiseAnd": "bitwise_and", "BitwiseOr": "bitwise_or", "BitwiseXor": "bitwise_xor", "Equal": "equal", "Less": "less",
    "LessOrEqual": "less_equal", "Greater": "greater", "GreaterOrEqual": "greater_equal",
}  # fmt: skip
_VARIADIC = {"Max": "maximum", "Min": "minimum", "Sum": "add"}


def aligned(node: Node, x: Array, y: Array) -> tuple[Array, Array]:
    """Operands that broadcast as NumPy's do; before opset 7 an attribute says where the second one starts."""
    axis = node.get("axis")
    if node.opset < 7 and axis is not None and node.get("broadcast", 0) and y.ndim:
        start = axis % x.ndim
        y = node.xp.reshape(y, (*y.shape, *(1,) * (x.ndim - start - y.ndim)))
    return x, y


def _unary(name: str) -> Callable[..., Any]:
    def unary(node: Node, x: Array) -> Array:
        if node.xp is jnp and name == "reciprocal":
            return jnp.divide(jnp.ones((), x.dtype), x)
        return getattr(node.xp, name)(x).astype(bool if name in ("isnan", "logical_not") else x.dtype)

    return unary


def _binary(name: str) -> Callable[..., Any]:
    def binary(node: Node, x: Array, y: Array) -> Array:
        return getattr(node.xp, name)(*aligned(node, x, y))

    return binary


def _variadic(name: str) -> Callable[..., Any]:
    def variadic(node: Node, *operands: Array) -> Array:
        return reduce(getattr(node.xp, name), operands)

    return variadic


for _op, _name in _UNARY.items():
    op(_op, folds=True)(_unary(_name))
for _op, _name in _BINARY.items():
    op(_op, folds=True)(_binary(_name))
for _op, _name in _VARIADIC.items():
    op(_op, folds=True)(_variadic(_name))


@op("Mean", folds=True)
def mean(node: Node, *operands: Array) -> Array:
    total = reduce(node.xp.add, operands)
    return total / np.asarray(len(operands), total.dtype)


@op("Div", folds=True)
def div(node: Node, x: Array, y: Array) -> Array:
    x, y = aligned(node, x, y)
    if holds_symbols(x) or holds_symbols(y):
        return np.floor_divide(x, y)  # of sizes
    if not np.issubdtype(x.dtype, np.integer):
        return node.xp.divide(x, y)
    if node.xp is jnp:
        shape = np.broadcast_shapes(x.shape, y.shape)
        return lax.div(jnp.broadcast_to(x, shape), jnp.broadcast_to(y, shape))
    return np.where((x < 0) != (y < 0), -(np.abs(x) // np.abs(y)), np.abs(x) // np.abs(y)).astype(x.dtype)


@op("Mod", folds=True)
def mod(node: Node, x: Array, y: Array) -> Array:
    return (node.xp.fmod if node.get("fmod", 0) else node.xp.mod)(x, y)


@op("Pow", folds=True)
def power(node: Node, x: Array, y: Array) -> Array:
    x, y = aligned(node, x, y)
    if isinstance(y, np.ndarray) and y.ndim == 0 and y == 2:
        return x * x
    return node.xp.power(x, y).astype(x.dtype)


@op("BitShift", folds=True)
def bit_shift(node: Node, x: Array, y: Array) -> Array:
    if node.xp is np:
        return (np.left_shift if node.get("direction") == "LEFT" else np.right_shift)(x, y)
    shape = np.broadcast_shapes(x.shape, y.shape)
    right = lax.shift_right_arithmetic if np.issubdtype(x.dtype, np.signedinteger) else lax.shift_right_logical
    shift = lax.shift_left if node.get("direction") == "LEFT" else right
    return shift(jnp.broadcast_to(x, shape), jnp.broadcast_to(y, shape))


@op("IsInf", folds=True)
def is_inf(node: Node, x: Array) -> Array:
    found = node.xp.isinf(x)
    if not node.get("detect_negative", 1):
        found = found & (x > 0)
    return found & (x < 0) if not node.get("detect_positive", 1) else found


@op("Where", folds=True)
def where(node: Node, condition: Array, x: Array, y: Array) -> Array:
    return node.xp.where(condition, x, y)


@op("Erf")
def erf(node: Node, x: Array) -> Array:
    return lax.erf(x) if np.issubdtype(x.dtype, np.floating) or x.dtype == jnp.bfloat16 else _wide(lax.erf, x)


def _wide(function: Callable[[Array], Array], x: Array) -> Array:
    return function(x.astype(np.float32)).astype(x.dtype)


@op("Clip", folds=True, since=11)
def clip(node: Node, x: Array, low: Array | None = None, high: Array | None = None) -> Array:
    x = x if low is None else node.xp.maximum(x, low)
    return x if high is None else node.xp.minimum(x, high)


@op("Clip", folds=True)
def clip_by_attributes(node: Node, x: Array) -> Array:
    low, high = node.get("min"), node.get("max")
    x = x if low is None else node.xp.maximum(x, np.asarray(low, x.dtype))
    return x if high is None else node.xp.minimum(x, np.asarray(high, x.dtype))


# --- casts ------------------------------------------------------------------------------------------------------


@op("Cast", folds=True)
def cast(node: Node, x: Array) -> Array:
    import onnx

    to = node.get("to")
    if isinstance(to, str):  # opset 1 names the type
        to = onnx.TensorProto.DataType.Value(to)
    if to == onnx.TensorProto.STRING:
        raise node.error("a cast to numbers required, got to=STRING; strings do not run on an accelerator")
    return converted(node, x, onnx.helper.tensor_dtype_to_np_dtype(to))


@op("CastLike", folds=True)
def cast_like(node: Node, x: Array, like: Array) -> Array:
    return converted(node, x, like.dtype)


def converted(node: Node, x: Array, dtype: Any) -> Array:
    """ONNX's cast: numbers to bool by `!= 0`, floats to ints by truncation, to float8 saturating unless told otherwise."""
    dtype = node.dtype(dtype)
    if holds_symbols(x):
        return x if np.issubdtype(dtype, np.integer) else jnp.reshape(jnp.stack([jnp.asarray(n, dtype) for n in x.flat]), x.shape)
    if x.dtype.kind == "O":
        return np.asarray([_number(text, dtype) for text in x.reshape(-1)], dtype).reshape(x.shape)
    if x.dtype == dtype:
        return x
    if dtype == np.dtype(bool):
        return x != np.zeros((), x.dtype)
    if np.issubdtype(dtype, np.integer) and dtype.itemsize < 4 and _is_float(x.dtype):
        return x.astype(np.int32).astype(dtype)
    if _is_small_float(dtype):
        return _to_small_float(node, x, dtype)
    if dtype.name in _NIBBLES and _is_float(x.dtype):
        whole = x.astype(np.int32)
        low, high = _NIBBLES[dtype.name]  # what lies outside is undefined in ONNX, and 0 in its reference
        return node.xp.where((whole >= low) & (whole <= high), whole, 0).astype(np.int8).astype(dtype)
    return x.astype(dtype)


_NIBBLES = {"int4": (-8, 7), "uint4": (0, 15), "int2": (-2, 1), "uint2": (0, 3)}


def _number(text: Any, dtype: np.dtype) -> Any:
    text = text.decode() if isinstance(text, bytes) else str(text)
    return float(text) if _is_float(dtype) else int(text)


def _is_float(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, np.floating))


def _is_small_float(dtype: np.dtype) -> bool:
    return _is_float(dtype) and dtype.itemsize == 1


def _to_small_float(node: Node, x: Array, dtype: np.dtype) -> Array:
    if dtype.name == "float8_e8m0fnu":
        return _to_scale(node, x, dtype)
    wide = x if _is_float(x.dtype) and np.dtype(x.dtype).itemsize >= 4 else x.astype(np.float32)
    if dtype.name != "float4_e2m1fn" and not node.get("saturate", 1):
        return wide.astype(dtype)
    top = np.asarray(float(ml_dtypes.finfo(dtype).max), wide.dtype)
    xp = node.xp
    return xp.where(xp.isnan(wide), wide, xp.clip(wide, -top, top)).astype(dtype)


def _to_scale(node: Node, x: Array, dtype: np.dtype) -> Array:
    """A power of two, rounded as attribute round_mode says, made from its exponent's bits: float32 has it as a denormal."""
    xp = node.xp
    wide = x.astype(np.float32)
    mantissa, exponent = xp.frexp(xp.abs(wide))  # |x| = mantissa 2^exponent, mantissa in [1/2, 1)
    mode = node.get("round_mode", "up")
    up = (mantissa > 0.5) if mode == "up" else (mantissa >= 0.75) if mode == "nearest" else xp.zeros(x.shape, bool)
    power = xp.where(mantissa == 0, -127, xp.clip(exponent - 1 + up, -127, 127 if node.get("saturate", 1) else 128))
    power = xp.where(xp.isinf(wide), 127 if node.get("saturate", 1) else 128, xp.where(xp.isnan(wide), 128, power))
    bits = (power + 127).astype(np.uint8)
    return bits.view(dtype) if xp is np else lax.bitcast_convert_type(bits, dtype)


@op("BitCast", folds=True)
def bit_cast(node: Node, x: Array) -> Array:
    import onnx

    dtype = node.dtype(onnx.helper.tensor_dtype_to_np_dtype(node.get("to")))
    if node.xp is np:
        return np.ascontiguousarray(x).view(dtype)
    if x.dtype == np.dtype(bool):
        return x.astype(dtype)
    return x.astype(bool) if dtype == np.dtype(bool) else lax.bitcast_convert_type(x, dtype)


# --- activations ------------------------------------------------------------------------------------------------


def _constant(x: Array, value: float) -> np.ndarray:
    return np.asarray(value, x.dtype)


@op("Relu", folds=True)
def relu(node: Node, x: Array) -> Array:
    return node.xp.maximum(x, _constant(x, 0))


@op("LeakyRelu")
def leaky_relu(node: Node, x: Array) -> Array:
    return jnp.where(x < 0, x * _constant(x, node.get("alpha", 0.01)), x)


@op("PRelu")
def prelu(node: Node, x: Array, slope: Array) -> Array:
    if node.opset < 7 and slope.ndim == 1 and x.ndim > 1:
        slope = jnp.reshape(slope, (-1, *(1,) * (x.ndim - 2)))
    return jnp.where(x < 0, x * slope, x)


@op("ThresholdedRelu")
def thresholded_relu(node: Node, x: Array) -> Array:
    return jnp.where(x > _constant(x, node.get("alpha", 1.0)), x, _constant(x, 0))


@op("Elu")
def elu(node: Node, x: Array) -> Array:
    return jnp.where(x < 0, _constant(x, node.get("alpha", 1.0)) * jnp.expm1(jnp.minimum(x, 0)), x)


@op("Celu")
def celu(node: Node, x: Array) -> Array:
    alpha = _constant(x, node.get("alpha", 1.0))
    return jnp.maximum(x, 0) + jnp.minimum(alpha * jnp.expm1(jnp.minimum(x, 0) / alpha), 0)


@op("Selu")
def selu(node: Node, x: Array) -> Array:
    alpha, gamma = node.get("alpha", 1.6732632423543772), node.get("gamma", 1.0507009873554805)
    return _constant(x, gamma) * jnp.where(x > 0, x, _constant(x, alpha) * jnp.expm1(jnp.minimum(x, 0)))


@op("Sigmoid")
def sigmoid(node: Node, x: Array) -> Array:
    return lax.logistic(x)


@op("HardSigmoid")
def hard_sigmoid(node: Node, x: Array) -> Array:
    slope, offset = _constant(x, node.get("alpha", 0.2)), _constant(x, node.get("beta", 0.5))
    return jnp.minimum(jnp.maximum(x * slope + offset, _constant(x, 0)), _constant(x, 1))


@op("HardSwish")
def hard_swish(node: Node, x: Array) -> Array:
    return x * jnp.minimum(jnp.maximum(x / _constant(x, 6) + _constant(x, 0.5), _constant(x, 0)), _constant(x, 1))


@op("Softplus")
def softplus(node: Node, x: Array) -> Array:
    return jnp.maximum(x, _constant(x, 0)) + jnp.log1p(jnp.exp(-jnp.abs(x)))


@op("Softsign")
def softsign(node: Node, x: Array) -> Array:
    return x / (_constant(x, 1) + jnp.abs(x))


@op("Mish")
def mish(node: Node, x: Array) -> Array:
    return x * jnp.tanh(softplus(node, x))


@op("Swish")
def swish(node: Node, x: Array) -> Array:
    return x * lax.logistic(_constant(x, node.get("alpha", 1.0)) * x)


@op("Gelu")
@op("Gelu", domain="com.microsoft")
def gelu(node: Node, x: Array) -> Array:
    half = _constant(x, 0.5)
    if node.get("approximate", "none") == "tanh":
        inner = _constant(x, np.sqrt(2 / np.pi)) * (x + _constant(x, 0.044715) * x * x * x)
        return half * x * (_constant(x, 1) + jnp.tanh(inner))
    return half * x * (_constant(x, 1) + lax.erf(x * _constant(x, np.sqrt(0.5))))


@op("Shrink", folds=True)
def shrink(node: Node, x: Array) -> Array:
    bias, bound = _constant(x, node.get("bias", 0.0)), _constant(x, node.get("lambd", 0.5))
    zero = _constant(x, 0)
    return node.xp.where(x < -bound, x + bias, node.xp.where(x > bound, x - bias, zero)).astype(x.dtype)


@op("Bernoulli", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial")
def random(node: Node, *operands: Array) -> Array:
    """Seeded draws; ONNX leaves the generator open."""
    import onnx

    key = jax.random.key(int(node.get("seed", 0.0)))
    shape = tuple(node.get("shape", operands[0].shape if operands else ()))
    to = node.get("dtype")
    dtype = node.dtype(onnx.helper.tensor_dtype_to_np_dtype(to) if to else operands[0].dtype if operands else np.float32)
    if node.op == "Bernoulli":
        return jax.random.bernoulli(key, operands[0].astype(np.float32)).astype(dtype)
    if node.op == "Multinomial":
        draws = jax.random.categorical(key, operands[0], shape=(node.get("sample_size", 1), operands[0].shape[0]))
        return jnp.transpose(draws).astype(node.dtype(np.int64) if to == onnx.TensorProto.INT64 else np.int32)
    if node.op.startswith("RandomNormal"):
        return jax.random.normal(key, shape, dtype) * _scalar(dtype, node.get("scale", 1.0)) + _scalar(
            dtype, node.get("mean", 0.0)
        )
    return jax.random.uniform(key, shape, dtype, node.get("low", 0.0), node.get("high", 1.0))


def _scalar(dtype: np.dtype, value: float) -> np.ndarray:
    return np.asarray(value, dtype)
