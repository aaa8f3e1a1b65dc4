"""The array operations that evaluation uses, each a row, in three readings: JAX, NumPy, and (in a backend) text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from eqsat import numpy_lax
from eqsat.index import Axis
from eqsat.notation import Tensor
from eqsat.scalars import SCALARS

Array = Any

_KEEPS_NAN = (
    "lax.convert_element_type(jnp.where(jnp.isnan(jnp.sum(lax.square(lax.convert_element_type({3}, {4})), axis={1}, dtype={4})), "
    "jnp.nan, jnp.?({0}, axis={1})), {2})"
)

_MARKED = (
    "(lambda found: jnp.where(found[1], jnp.nan, found[0]))(lax.reduce(({{0}}, {{0}} != {{0}}), ({{2}}, False), "
    "lambda a, b: (lax.{}(a[0], b[0]), a[1] | b[1]), {{1}}))"
)

# Spelled for JAX; NumPy runs the same rows with its own `jnp` and `lax` (`eqsat.numpy_lax`).
OPERATIONS: dict[str, str] = {
    "arange": "jnp.arange({0}, dtype={1})",
    "fill": "jnp.full({0}, {1}, dtype={2})",
    "reshape": "jnp.reshape({0}, {1})",
    "transpose": "jnp.transpose({0}, {1})",
    "broadcast": "jnp.broadcast_to({0}, {1})",
    "pad": "jnp.pad({0}, {1})",
    "pad_with": "jnp.pad({0}, {1}, constant_values={2})",
    "slice": "lax.slice({0}, {1}, {2}, {3})",
    "concatenate": "jnp.concatenate({0}, axis={1})",
    "flip": "jnp.flip({0}, {1})",
    "take": "jnp.take({0}, {1}, axis={2}, mode='clip')",
    "cast": "lax.convert_element_type({0}, {1})",
    "rounded": "jnp.where({0} != {0}, jnp.nan, {0})",  # nothing, but keeps a product out of a fused multiply-add
    "kept": "lax.optimization_barrier({0})",  # the square of an integer, which may wrap to a negative one
    "floor_divide": "({0} // {1})",
    "remainder": "({0} % {1})",
    "dot": "lax.dot_general({0}, {1}, {2}, precision='highest', preferred_element_type={3})",
    "convolve": (
        "lax.conv_general_dilated({0}, {1}, {2}, {3}, rhs_dilation={4}, dimension_numbers={5}, feature_group_count={6}, "
        "precision='highest', preferred_element_type={7})"
    ),
    "reduce_sum": "jnp.sum({0}, axis={1}, dtype={2})",
    "reduce_prod": "jnp.prod({0}, axis={1}, dtype={2})",
    "reduce_max": "jnp.max({0}, axis={1})",
    "reduce_min": "jnp.min({0}, axis={1})",
    # XLA:CPU loses NaN in most of the maxima that it reduces to (seen in jaxlib 0.10.2 and 0.12), in none of two operands.
    # Squares add up to NaN only where one of them is NaN. Along rows, what finds NaN shares the pass of the maximum.
    "reduce_max_float": _KEEPS_NAN.replace("?", "max"),
    "reduce_min_float": _KEEPS_NAN.replace("?", "min"),
    "reduce_max_row": _MARKED.format("max"),
    "reduce_min_row": _MARKED.format("min"),
    "scan_sum": "lax.cumsum({0}, axis={1}, reverse={2})",
    "scan_prod": "lax.cumprod({0}, axis={1}, reverse={2})",
    "scan_max": "lax.cummax({0}, axis={1}, reverse={2})",
    "scan_min": "lax.cummin({0}, axis={1}, reverse={2})",
    "scan_softsum": (
        "lax.associative_scan(lambda a, b: (jnp.maximum(a[0], b[0]),"
        " a[1] * jnp.exp(jnp.where(a[0] == b[0], 0, jnp.minimum(a[0] - b[0], 0)))"
        " + b[1] * jnp.exp(jnp.where(a[0] == b[0], 0, jnp.minimum(b[0] - a[0], 0)))), ({0}, {1}), axis={2}, reverse={3})[1]"
    ),
    "scatter_sum": "jnp.zeros({0}, {1}).at[{2}].add({3}, mode='drop')",
    "reduce_all": "jnp.all({0}, axis={1})",
    "reduce_any": "jnp.any({0}, axis={1})",
    "reduce_and": "lax.reduce({0}, {2}, lax.bitwise_and, {1})",
    "reduce_or": "lax.reduce({0}, {2}, lax.bitwise_or, {1})",
}


class Arrays:
    """Runs rows of OPERATIONS (`others` instead, where given) and SCALARS in one array library.

    Where that has no convolution, windows are gathered.
    """

    def __init__(self, library: Any, lax_like: Any, convolves: bool = True, others: Mapping[str, str] | None = None) -> None:
        self.convolves = convolves
        scope = {"jnp": library, "lax": lax_like}
        self._table = {name: _compiled(template, scope) for name, template in (OPERATIONS | dict(others or {})).items()}
        self._table |= {op.name: _compiled(op.jax, scope) for op in SCALARS.values()}

    def apply(self, name: str, *operands: Any) -> Array:
        return self._table[name](*operands)

    def input(self, tensor: Tensor, array: Array) -> Array:
        """The array to load from."""
        return array

    def literal(self, value: float | int | bool, dtype: np.dtype) -> Array:
        return np.asarray(value, dtype)


def _compiled(template: str, scope: dict[str, Any]) -> Callable[..., Any]:
    """A row as a function; one in another's place may take fewer operands."""
    names = "abcdefgh"[: 1 + max(i for i in range(8) if f"{{{i}}}" in template)]
    return eval(f"lambda {', '.join(names)}, *_: {template.format(*names)}", scope)


_OWN = {name: f"lax.{name}({{0}}, {{1}}, {{2}}, {{3}})" for name in ("scatter_sum", "scan_softsum")}
_OWN |= {f"reduce_{name}_row": f"jnp.{name}({{0}}, axis={{1}})" for name in ("max", "min")}
JAX = Arrays(jnp, lax)
NUMPY = Arrays(numpy_lax.jnp, numpy_lax.lax, convolves=False, others=_OWN)


class Value(NamedTuple):
    """An array with a dimension for each of `axes`."""

    array: Array
    axes: tuple[Axis, ...]


def union(values: Iterable[Value]) -> tuple[Axis, ...]:
    """All axes, those of the operand with most axes first, so that the largest array is not transposed."""
    ranked = sorted(values, key=lambda v: -len(v.axes))
    return tuple(dict.fromkeys(a for v in ranked for a in v.axes))


def shape_of(axes: Iterable[Axis]) -> tuple[int, ...]:
    return tuple(a.extent for a in axes)


def names_of(axes: Iterable[Axis]) -> str:
    return f"({', '.join(sorted(a.name for a in axes))})"
