"""The table of ONNX operators: for each, a function over arrays that says what it computes, by the opset that introduced it.

A function takes a `Node` and the operands (None for an omitted one) and returns its result, or a tuple of results. Where it
`folds` it is written over ``node.xp``, which is NumPy while every operand is known and `jax.numpy` otherwise: shape arithmetic
is then done while importing. Operands at `static` positions are always NumPy arrays. A size may be a symbol of
`jax.export.symbolic_shape`: shape arithmetic on it is that of NumPy arrays of objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

Array = Any


class OnnxError(ValueError):
    """A model that cannot be imported, and why."""


class Unsupported(OnnxError):
    """A model that is valid but uses what this importer lacks."""


class Unknown(Unsupported):
    """A value that must be known while importing is computed from the inputs. `names` are the values in question."""

    def __init__(self, message: str, names: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.names = names


class TooLarge(Exception):
    """A result that is not worth folding."""


class Defined(Exception):
    """An operator that, as it is used, takes ONNX's own definition."""


FOLD_BYTES = 1 << 20  # larger operands or results are computed by the program, not while importing
LARGEST = 1 << 40  # elements


@dataclass(frozen=True, eq=False)
class Node:
    """One operator application while it is imported."""

    op: str
    domain: str
    name: str
    opset: int
    attributes: Mapping[str, Any]
    outputs: tuple[str, ...]  # names; "" where unused
    inputs: tuple[str, ...] = ()
    xp: Any = jnp
    scope: Any = None  # the names around it, for bodies of control flow
    importer: Any = None

    def get(self, name: str, default: Any = None) -> Any:
        return self.attributes.get(name, default)

    def wants(self, number: int) -> bool:
        """True if the result of this number is used."""
        return number < len(self.outputs) and bool(self.outputs[number])

    def error(self, text: str, kind: type[OnnxError] = OnnxError) -> OnnxError:
        return kind(f"onnx node {self.name!r} ({self.op}): {text}")

    def shape(self, shape: Iterable[int], dtype: Any) -> tuple[int, ...]:
        """A result's shape, checked for sense and, where it would be folded, for size."""
        sizes = tuple(map(size_of, shape))
        known = [n for n in sizes if isinstance(n, int)]
        count = prod(known)
        if min(known, default=0) < 0 or count > LARGEST:
            raise self.error(f"a shape of at most {LARGEST} elements required, got {list(sizes)}")
        if self.xp is np and (len(known) < len(sizes) or count * np.dtype(dtype).itemsize > FOLD_BYTES):
            raise TooLarge
        return sizes

    def dtype(self, dtype: Any) -> np.dtype:
        """The dtype that stands for an ONNX dtype here: int64 is int32 in JAX without x64, float64 is refused there."""
        dtype = np.dtype(dtype)
        if self.xp is np or is_wide():
            return dtype
        return narrow(dtype, f"onnx node {self.name!r} ({self.op})")

    def cast(self, x: Array, dtype: Any) -> Array:
        return x.astype(self.dtype(dtype))


def is_wide() -> bool:
    """True where JAX has 64-bit numbers."""
    return bool(jax.dtypes.canonicalize_dtype(np.float64) == np.float64)


def narrow(dtype: np.dtype, subject: str) -> np.dtype:
    if dtype in (np.dtype("float64"), np.dtype("complex128")):
        raise OnnxError(f"{subject}: {dtype} needs 64-bit JAX; call jax.config.update('jax_enable_x64', True) first")
    return {np.dtype("int64"): np.dtype("int32"), np.dtype("uint64"): np.dtype("uint32")}.get(dtype, dtype)


class Row(NamedTuple):
    """What an operator computes from an opset on."""

    function: Callable[..., Any]
    since: int
    folds: bool
    static: tuple[int, ...]


TABLE: dict[tuple[str, str], list[Row]] = {}


def op(
    *names: str, since: int = 1, folds: bool = False, static: tuple[int, ...] = (), domain: str = ""
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare what operators compute from opset `since` on."""

    def declare(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            rows = TABLE.setdefault((domain, name), [])
            rows.append(Row(function, since, folds, static))
            rows.sort(key=lambda row: row.since)
        return function

    return declare


def find(domain: str, name: str, opset: int) -> Row | None:
    """The row for an operator at an opset."""
    rows = [row for row in TABLE.get((domain, name), ()) if row.since <= opset]
    return rows[-1] if rows else None


def axis_of(node: Node, axis: Any, rank: int, default: int | None = None) -> int:
    """An axis counted from the front."""
    number = default if axis is None else int(axis)
    if number is None or not -rank <= number < max(rank, 1):
        raise node.error(f"an axis of {rank} dimensions required, got {number}")
    return number % rank if rank else 0


def size_of(n: Any) -> Any:
    """A number as an int; a symbol as it is."""
    return n if jax.export.is_symbolic_dim(n) else int(n)


def ints(value: Any) -> tuple[Any, ...]:
    """Numbers, or sizes with symbols among them."""
    return tuple(map(size_of, np.asarray(value).reshape(-1)))


def sizes(shape: Iterable[Any]) -> np.ndarray:
    """A shape as a tensor: int64, or objects where a size is a symbol."""
    values = tuple(shape)
    return np.asarray(values, np.int64 if all(isinstance(n, int | np.integer) for n in values) else object)


def holds_symbols(value: Any) -> bool:
    """True for a known tensor of sizes, of which one is a symbol."""
    return isinstance(value, np.ndarray) and value.dtype.kind == "O" and any(map(jax.export.is_symbolic_dim, value.flat))
