"""The table of StableHLO and CHLO operations: for each, a function over JAX values that says what it computes.

A function takes a `Node` and the operands and returns its result, or a tuple of results. A rank-0 constant arrives as a NumPy
scalar, so that an initial value or a bound can be recognised; everything else is traced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.extend.mlir.ir as ir
import jax.numpy as jnp
import numpy as np

Array = Any

LARGEST = 1 << 40  # elements


class StablehloError(ValueError):
    """A module that cannot be imported, and why."""


class Unsupported(StablehloError):
    """A module that is valid but uses what this importer lacks."""


@dataclass(frozen=True, eq=False)
class Node:
    """One operation while it is imported."""

    operation: Any
    importer: Any
    scope: Any  # the values around it, which its regions may read

    @property
    def name(self) -> str:
        return self.operation.name

    def error(self, text: str, kind: type[StablehloError] = StablehloError) -> StablehloError:
        return kind(f"{self.importer.name}: {self.name} at {self.operation.location}: {text}")

    def attribute(self, name: str) -> Any:
        return self.operation.attributes[name] if name in self.operation.attributes else None

    def integer(self, name: str, default: int = 0) -> int:
        value = self.attribute(name)
        return default if value is None else int(value.value if hasattr(value, "value") else value)

    def flag(self, name: str) -> bool:
        value = self.attribute(name)
        return False if value is None else bool(getattr(value, "value", True))

    def integers(self, name: str, default: Sequence[int] = ()) -> tuple[int, ...]:
        """A list of numbers, however it is written."""
        value = self.attribute(name)
        return tuple(default) if value is None else numbers(value)

    def pairs(self, name: str, count: int) -> tuple[tuple[int, int], ...]:
        """Padding: low and high for each of `count` dimensions."""
        flat = self.integers(name, (0,) * (2 * count))
        return tuple(zip(flat[::2], flat[1::2], strict=True))

    def out(self, number: int = 0) -> jax.ShapeDtypeStruct:
        return structure(self.operation.results[number].type)

    def body(self, number: int = 0) -> Callable[..., tuple[Array, ...]]:
        return self.importer.body(self.operation.regions[number], self.scope)

    def owner(self, number: int) -> Any:
        """The operation that computes an operand; None for an argument of a block."""
        return owner(self.operation.operands[number])


def owner(value: Any) -> Any:
    found = value.owner
    return None if isinstance(found, ir.Block) else found.operation


def operations(block: Any) -> list[Any]:
    """A block's operations in their generic form: an accessor of a special form may be called `name` as well."""
    return [o.operation for o in block.operations]


def numbers(value: Any) -> tuple[int, ...]:
    return tuple(int(n) for n in (np.asarray(value).reshape(-1) if isinstance(value, ir.DenseElementsAttr) else value))


# --- types ------------------------------------------------------------------------------------------------------

DTYPES = {
    "i1": "bool", "i2": "int2", "i4": "int4", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64",
    "ui2": "uint2", "ui4": "uint4", "ui8": "uint8", "ui16": "uint16", "ui32": "uint32", "ui64": "uint64",
    "bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64",
    "f8E4M3FN": "float8_e4m3fn", "f8E5M2": "float8_e5m2", "f8E4M3B11FNUZ": "float8_e4m3b11fnuz", "f8E4M3": "float8_e4m3",
    "f8E3M4": "float8_e3m4", "f8E4M3FNUZ": "float8_e4m3fnuz", "f8E5M2FNUZ": "float8_e5m2fnuz",
    "f8E8M0FNU": "float8_e8m0fnu", "f4E2M1FN": "float4_e2m1fn",
    "complex<f32>": "complex64", "complex<f64>": "complex128",
}  # fmt: skip


def problem(kind: Any, dynamic: bool = False) -> str | None:
    """Why values of a type cannot be imported, if so."""
    if not isinstance(kind, ir.RankedTensorType):
        return f"a tensor required, got {kind}"
    element = str(kind.element_type)
    if element not in DTYPES:
        quantised = "; dequantise it first" if "quant" in element else ""
        return f"an element type among {', '.join(DTYPES)} required, got {element}{quantised}"
    dtype = jnp.dtype(DTYPES[element])
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        return f"{dtype} needs 64-bit JAX; call jax.config.update('jax_enable_x64', True) first"
    if not kind.has_static_shape:
        return None if dynamic else f"a static shape required, got {kind}; bind it with shapes="
    count = 1
    for n in kind.shape:
        count *= n
    return f"a shape of at most {LARGEST} elements required, got {kind}" if count > LARGEST else None


def structure(kind: Any) -> jax.ShapeDtypeStruct:
    """Shape and dtype of a static tensor type; raises StablehloError."""
    if (wrong := problem(kind)) is not None:
        raise StablehloError(f"stablehlo type: {wrong}")
    return jax.ShapeDtypeStruct(tuple(kind.shape), DTYPES[str(kind.element_type)])


# --- the table --------------------------------------------------------------------------------------------------

TABLE: dict[str, Callable[..., Any]] = {}


def op(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare what operations compute."""

    def declare(function: Callable[..., Any]) -> Callable[..., Any]:
        TABLE.update(dict.fromkeys(names, function))
        return function

    return declare
