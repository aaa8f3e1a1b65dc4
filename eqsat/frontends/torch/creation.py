"""ATen operators that make tensors of numbers known while importing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from eqsat.frontends.torch.table import Array, Node, cast, op


def filled(shape: Sequence[int], value: Any, dtype: Any) -> Array:
    number = np.asarray(value).astype(jnp.dtype(dtype)) if isinstance(value, bool | int | float | complex) else cast(value, dtype)
    return jnp.broadcast_to(number, tuple(shape)) if shape else number


@op("full")
def full(node: Node, size: Sequence[int], fill_value: Any, *, dtype: Any = None) -> Array:
    return filled(size, fill_value, node.dtype)


@op("full_like")
def full_like(node: Node, self: Array, fill_value: Any, *, dtype: Any = None) -> Array:
    return filled(self.shape, fill_value, node.dtype)


@op("fill.Scalar", "fill.Tensor")
def fill(node: Node, self: Array, value: Any) -> Array:
    return filled(self.shape, value, node.dtype)


@op("scalar_tensor")
def scalar_tensor(node: Node, s: Any, *, dtype: Any = None) -> Array:
    return filled((), s, node.dtype)


@op("zeros", "empty.memory_format", "empty_strided")
def zeros(node: Node, size: Sequence[int], *_: Any, dtype: Any = None) -> Array:
    """Memory that torch leaves as it finds it is zero here."""
    return filled(size, 0, node.dtype)


@op("ones")
def ones(node: Node, size: Sequence[int], *, dtype: Any = None) -> Array:
    return filled(size, 1, node.dtype)


@op("new_zeros", "new_empty", "new_empty_strided")
def new_zeros(node: Node, self: Array, size: Sequence[int], *_: Any, dtype: Any = None) -> Array:
    return filled(size, 0, node.dtype)


@op("zeros_like", "empty_like")
def zeros_like(node: Node, self: Array, *, dtype: Any = None) -> Array:
    return filled(self.shape, 0, node.dtype)


@op("arange.start_step")
def arange(node: Node, start: Any, end: Any = None, step: Any = 1, *, dtype: Any = None) -> Array:
    """start + n * step, computed in float64 or int64 as torch does."""
    if jax.export.is_symbolic_dim(end - start) and step == 1:
        return lax.iota(node.dtype, end - start) + jnp.asarray(start, node.dtype)
    count = max(0, math.ceil((end - start) / step))
    if (
        jnp.issubdtype(node.dtype, jnp.integer)
        and isinstance(start, int)
        and isinstance(step, int)
        and start + count * step < 2**31
    ):
        n = lax.iota(node.dtype, count)
        n = n if step == 1 else n * cast(step, node.dtype)
        return n if start == 0 else n + cast(start, node.dtype)
    return np.asarray(start + np.arange(count) * step).astype(node.dtype)


@op("eye", "eye.m")
def eye(node: Node, n: int, m: int | None = None, *, dtype: Any = None) -> Array:
    return jnp.eye(n, m, dtype=node.dtype)
