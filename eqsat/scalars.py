"""The tables of dtypes, scalar operations and reductions: every fact about them is said here, once.

The e-graph's constructors, the evaluation, the cost classes and both printers are derived from these rows.
Adding a scalar operation is adding one row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax


@dataclass(frozen=True)
class DType:
    """A row of the dtype table; `compute` is the dtype in which one scalar operation on it is evaluated."""

    name: str
    nbytes: int
    kind: str  # "float" | "int" | "uint" | "bool"
    compute: str
    triton: str  # attribute of triton.language
    bit: int = field(default=0)  # one-hot number used by the e-graph


def _dtypes() -> dict[str, DType]:
    rows = [
        ("bool", 1, "bool", "bool", "int1"),
        ("int8", 1, "int", "int8", "int8"),
        ("int16", 2, "int", "int16", "int16"),
        ("int32", 4, "int", "int32", "int32"),
        ("int64", 8, "int", "int64", "int64"),
        ("uint8", 1, "uint", "uint8", "uint8"),
        ("uint16", 2, "uint", "uint16", "uint16"),
        ("uint32", 4, "uint", "uint32", "uint32"),
        ("uint64", 8, "uint", "uint64", "uint64"),
        ("float8_e4m3fn", 1, "float", "float32", "float8e4nv"),
        ("float8_e5m2", 1, "float", "float32", "float8e5"),
        ("float16", 2, "float", "float32", "float16"),
        ("bfloat16", 2, "float", "float32", "bfloat16"),
        ("float32", 4, "float", "float32", "float32"),
        ("float64", 8, "float", "float64", "float64"),
    ]
    return {row[0]: DType(*row, bit=1 << i) for i, row in enumerate(rows)}


DTYPES: dict[str, DType] = _dtypes()


WITHOUT_INFINITIES = ("float8_e4m3fn",)


def element_nbytes(dtype: str) -> int:
    """Bytes of one element, also of what only calls of JAX work on: complex numbers, four-bit integers, random keys."""
    if dtype in DTYPES:
        return DTYPES[dtype].nbytes
    return (8 if dtype == "key<fry>" else 16) if dtype.startswith("key<") else jnp.dtype(dtype).itemsize


def is_float(dtype: str) -> bool:
    return DTYPES[dtype].kind == "float"


def is_integer(dtype: str) -> bool:
    return DTYPES[dtype].kind in ("int", "uint")


# A float32 number is the sum of so many numbers of a narrow dtype, whose products are exact in float32: matrix instructions
# multiply by float32 in full precision where the other operand is narrow.
PART, PARTS = "bfloat16", 3


def widens_exactly(source: str, target: str) -> bool:
    """True if every value of `source` is a value of `target`, so that the cast rounds nothing."""
    if source == target:
        return True
    a, b = DTYPES[source], DTYPES[target]
    if a.kind == "bool":
        return True
    if a.kind == "float":
        return b.kind == "float" and b.nbytes > a.nbytes and not (a.nbytes == 1 and b.nbytes == 1)
    mantissa = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}
    bits = 8 * a.nbytes - (a.kind == "int")
    if b.kind == "float":
        return mantissa.get(target, 0) >= bits
    if b.kind == "bool" or (a.kind == "int" and b.kind == "uint"):
        return False
    return 8 * b.nbytes - (b.kind == "int") >= bits


@dataclass(frozen=True)
class ScalarOp:
    """One operation on scalars.

    `triton` and `jax` are format strings over the operands {0}, {1}, {2}; `jax` may use `jnp` and `lax`.
    `unit` is the pipe that executes it: "vector" or "special" (exp, log, ...); `weight` is its instruction count there.
    `kinds` are the dtype kinds it accepts; `result` is "same" (as the last operand) or "bool".
    """

    name: str
    arity: int
    jax: str
    triton: str
    unit: str = "vector"
    weight: float = 1.0
    kinds: tuple[str, ...] = ("float", "int", "uint")
    result: str = "same"
    commutative: bool = False
    associative: bool = False
    increasing: tuple[int, ...] = ()  # operands in which it is non-decreasing
    symbol: str = ""  # infix spelling for formulas

    @property
    def reference(self) -> Callable[..., Any]:
        """The operation on JAX arrays."""
        return _REFERENCES[self.name]


_FLOAT = ("float",)
_INT = ("int", "uint")
_BITS = ("bool", "int", "uint")
_ALL = ("float", "int", "uint", "bool")


def _special(name: str, jax: str, triton: str, weight: float = 1.0, increasing: bool = False) -> ScalarOp:
    return ScalarOp(name, 1, jax, triton, "special", weight, _FLOAT, increasing=(0,) if increasing else ())


def _compare(name: str, symbol: str) -> ScalarOp:
    template = f"({{0}} {symbol} {{1}})"
    return ScalarOp(name, 2, template, template, kinds=_ALL, result="bool", commutative=name in ("eq", "ne"), symbol=symbol)


SCALARS: dict[str, ScalarOp] = {
    op.name: op
    for op in [
        ScalarOp("add", 2, "({0} + {1})", "({0} + {1})", commutative=True, associative=True, increasing=(0, 1), symbol="+"),
        ScalarOp("sub", 2, "({0} - {1})", "({0} - {1})", increasing=(0,), symbol="-"),
        ScalarOp("mul", 2, "({0} * {1})", "({0} * {1})", commutative=True, associative=True, symbol="*"),
        ScalarOp("div", 2, "({0} / {1})", "({0} / {1})", "special", 2.0, _FLOAT, symbol="/"),
        ScalarOp("quot", 2, "lax.div({0}, {1})", "({0} // {1})", weight=20.0, kinds=_INT),
        ScalarOp("rem", 2, "lax.rem({0}, {1})", "({0} % {1})", weight=20.0, kinds=_INT),
        ScalarOp("fmod", 2, "lax.rem({0}, {1})", "libdevice.fmod({0}, {1})", weight=20.0, kinds=_FLOAT),
        ScalarOp("neg", 1, "(-{0})", "(-{0})"),
        ScalarOp(
            "max",
            2,
            "jnp.maximum({0}, {1})",
            "tl.maximum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
            kinds=_ALL,
            commutative=True,
            associative=True,
            increasing=(0, 1),
        ),
        ScalarOp(
            "min",
            2,
            "jnp.minimum({0}, {1})",
            "tl.minimum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
            kinds=_ALL,
            commutative=True,
            associative=True,
            increasing=(0, 1),
        ),
        _special("exp", "jnp.exp({0})", "tl.exp({0})", increasing=True),
        _special("exp2", "jnp.exp2({0})", "tl.exp2({0})", increasing=True),
        _special("expm1", "jnp.expm1({0})", "libdevice.expm1({0})", 4.0, increasing=True),
        _special("log", "jnp.log({0})", "tl.log({0})", 1.5, increasing=True),
        _special("log1p", "jnp.log1p({0})", "libdevice.log1p({0})", 4.0, increasing=True),
        _special("tanh", "jnp.tanh({0})", "libdevice.tanh({0})", 3.0, increasing=True),
        _special("logistic", "lax.logistic({0})", "tl.sigmoid({0})", 3.0, increasing=True),
        _special("rsqrt", "lax.rsqrt({0})", "tl.rsqrt({0})"),
        _special("sqrt", "jnp.sqrt({0})", "tl.sqrt({0})", 2.0, increasing=True),
        _special("sin", "jnp.sin({0})", "tl.sin({0})", 4.0),
        _special("cos", "jnp.cos({0})", "tl.cos({0})", 4.0),
        _special("tan", "jnp.tan({0})", "libdevice.tan({0})", 6.0),
        _special("asin", "lax.asin({0})", "libdevice.asin({0})", 8.0),
        _special("acos", "lax.acos({0})", "libdevice.acos({0})", 8.0),
        _special("atan", "lax.atan({0})", "libdevice.atan({0})", 8.0, increasing=True),
        ScalarOp("atan2", 2, "lax.atan2({0}, {1})", "libdevice.atan2({0}, {1})", "special", 10.0, _FLOAT),
        _special("sinh", "lax.sinh({0})", "libdevice.sinh({0})", 6.0, increasing=True),
        _special("cosh", "lax.cosh({0})", "libdevice.cosh({0})", 4.0),
        _special("asinh", "lax.asinh({0})", "libdevice.asinh({0})", 8.0, increasing=True),
        _special("acosh", "lax.acosh({0})", "libdevice.acosh({0})", 8.0),
        _special("atanh", "lax.atanh({0})", "libdevice.atanh({0})", 8.0),
        _special("lgamma", "lax.lgamma({0})", "libdevice.lgamma({0})", 20.0),
        _special("erf", "lax.erf({0})", "tl.erf({0})", 6.0, increasing=True),
        _special("erfc", "lax.erfc({0})", "libdevice.erfc({0})", 6.0),
        _special("erf_inv", "lax.erf_inv({0})", "libdevice.erfinv({0})", 8.0),
        ScalarOp("pow", 2, "lax.pow({0}, {1})", "libdevice.pow({0}, {1})", "special", 6.0, _FLOAT),
        ScalarOp("abs", 1, "jnp.abs({0})", "tl.abs({0})"),
        ScalarOp(
            "sign",
            1,
            "lax.sign({0})",
            "tl.where({0} > 0, 1.0, tl.where({0} < 0, -1.0, {0}))",
            weight=2.0,
            kinds=_FLOAT,
            increasing=(0,),
        ),
        ScalarOp("floor", 1, "jnp.floor({0})", "tl.floor({0})", kinds=_FLOAT, increasing=(0,)),
        ScalarOp("ceil", 1, "jnp.ceil({0})", "tl.ceil({0})", kinds=_FLOAT, increasing=(0,)),
        ScalarOp("rint", 1, "jnp.rint({0})", "libdevice.nearbyint({0})", kinds=_FLOAT, increasing=(0,)),
        ScalarOp("is_finite", 1, "jnp.isfinite({0})", "(tl.abs({0}) < float('inf'))", kinds=_FLOAT, result="bool"),
        _compare("eq", "=="),
        _compare("ne", "!="),
        _compare("lt", "<"),
        _compare("le", "<="),
        _compare("gt", ">"),
        _compare("ge", ">="),
        ScalarOp("and", 2, "({0} & {1})", "({0} & {1})", kinds=_BITS, commutative=True, associative=True, symbol="&"),
        ScalarOp("or", 2, "({0} | {1})", "({0} | {1})", kinds=_BITS, commutative=True, associative=True, symbol="|"),
        ScalarOp("xor", 2, "({0} ^ {1})", "({0} ^ {1})", kinds=_BITS, commutative=True, associative=True, symbol="^"),
        ScalarOp("not", 1, "(~{0})", "(~{0})", kinds=_BITS),
        ScalarOp("shift_left", 2, "lax.shift_left({0}, {1})", "({0} << {1})", kinds=_INT),
        ScalarOp("shift_right_logical", 2, "lax.shift_right_logical({0}, {1})", "({0} >> {1})", kinds=("uint",)),
        ScalarOp("shift_right_arithmetic", 2, "lax.shift_right_arithmetic({0}, {1})", "({0} >> {1})", kinds=("int",)),
        ScalarOp("where", 3, "jnp.where({0}, {1}, {2})", "tl.where({0}, {1}, {2})", kinds=_ALL, increasing=(1, 2)),
    ]
}


def _references() -> dict[str, Callable[..., Any]]:
    scope = {"jnp": jnp, "lax": lax}
    names = ("a", "b", "c")
    return {op.name: eval(f"lambda {', '.join(names[: op.arity])}: {op.jax.format(*names)}", scope) for op in SCALARS.values()}


_REFERENCES = _references()


@dataclass(frozen=True)
class Reduction:
    """A reduction: the scalar operation that combines, its identity by dtype kind, and NumPy's ufunc for it."""

    name: str
    combine: str
    numpy: str
    kinds: tuple[str, ...]

    def identity(self, dtype: str) -> float | int | bool:
        """The value that changes nothing, as a Python number."""
        kind = DTYPES[dtype].kind
        if self.name in ("sum", "or"):
            return False if kind == "bool" else 0.0 if kind == "float" else 0
        if self.name in ("prod", "and"):
            all_ones = int(np.iinfo(dtype).max) if kind == "uint" else -1
            return True if kind == "bool" else 1.0 if kind == "float" else 1 if self.name == "prod" else all_ones
        if kind == "float":
            most = float(jnp.finfo(dtype).max) if dtype in WITHOUT_INFINITIES else float("inf")
            return -most if self.name == "max" else most
        if kind == "bool":
            return self.name == "min"
        info = np.iinfo(dtype)
        return int(info.min if self.name == "max" else info.max)


REDUCTIONS: dict[str, Reduction] = {
    r.name: r
    for r in [
        Reduction("sum", "add", "add", ("float", "int", "uint")),
        Reduction("prod", "mul", "multiply", ("float", "int", "uint")),
        Reduction("max", "max", "maximum", ("float", "int", "uint", "bool")),
        Reduction("min", "min", "minimum", ("float", "int", "uint", "bool")),
        Reduction("and", "and", "bitwise_and", ("bool", "int", "uint")),
        Reduction("or", "or", "bitwise_or", ("bool", "int", "uint")),
    ]
}
