"""The table of ATen operators: for each, a function over JAX arrays that says what it computes.

A row has the name of an overload of `torch.ops.aten` and the parameters of its schema, after a `Node`; layouts, devices and
memory formats are left out, dtypes are NumPy's. An operator that has a row is kept whole; torch decomposes the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

Array = Any


class TorchError(ValueError):
    """A module that cannot be imported, and why."""


class Unsupported(TorchError):
    """A module that is valid but uses what this importer lacks."""

    node: str | None = None  # the node of the graph that uses it, where there is one


@dataclass(frozen=True, eq=False)
class Node:
    """One operator application while it is imported."""

    op: str  # "add.Tensor"
    name: str
    dtypes: tuple[Any, ...]  # of the results, as torch has them
    shapes: tuple[Any, ...]  # likewise; None where symbolic
    promoted: Any = None  # the dtype to which torch promotes the first two operands
    contiguous: bool = True  # the first operand lies in memory in the order of its indices

    @property
    def dtype(self) -> Any:
        return self.dtypes[0]

    def error(self, text: str, kind: type[TorchError] = Unsupported) -> TorchError:
        return kind(f"torch node {self.name!r} (aten.{self.op}): {text}")


TABLE: dict[str, Callable[..., Any]] = {}


def op(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare what operators compute. A name without an overload stands for its default."""

    def declare(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            TABLE[name if "." in name else f"{name}.default"] = function
        return function

    return declare


def opmath(dtype: Any) -> Any:
    """The dtype in which torch computes: floats narrower than 32 bits are widened, and rounded once at the end."""
    return jnp.dtype("float32") if jnp.issubdtype(dtype, jnp.floating) and jnp.dtype(dtype).itemsize < 4 else jnp.dtype(dtype)


def cast(x: Any, dtype: Any) -> Array:
    """An array or a number as an array of a dtype."""
    return np.asarray(x, dtype) if isinstance(x, bool | int | float | complex) else jnp.asarray(x).astype(dtype)


def is_number(x: Any) -> bool:
    return isinstance(x, bool | int | float | complex)


def axis_of(axis: int, rank: int) -> int:
    """An axis counted from the front."""
    return axis % rank if rank else 0


def axes_of(axes: Any, rank: int) -> tuple[int, ...]:
    """Axes counted from the front; all of them where none is named."""
    if axes is None or (isinstance(axes, Sequence) and not axes):
        return tuple(range(rank))
    named = [axes] if isinstance(axes, int) else axes
    return tuple(axis_of(a, rank) for a in named) if rank else ()


def repeated(value: Any, count: int) -> list[int]:
    """One number for each of `count` dimensions, where the schema lets one stand for all."""
    values = [value] if isinstance(value, int) else list(value)
    return values * count if len(values) == 1 else values
