"""ATen's Fourier transforms over several axes; `normalization` is 0 for none, 1 for the root of the size, 2 for the size."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod, sqrt
from typing import Any

import jax.numpy as jnp

from eqsat.frontends.torch.table import Array, Node, axes_of, cast, op


def _scaled(node: Node, y: Array, size: int, normalization: int, done: int = 1) -> Array:
    """A transform, in which a factor of 1 / `done` is already, with its own."""
    factor = done / {0: 1, 1: sqrt(size), 2: size}[normalization]
    return cast(y if factor == 1 else y * factor, node.dtype)


def _size(x: Array, axes: Sequence[int]) -> int:
    return prod(x.shape[a] for a in axes)


@op("_fft_c2c")
def complex_to_complex(node: Node, self: Array, dim: Sequence[int], normalization: int, forward: bool) -> Array:
    axes = axes_of(dim, self.ndim)
    size = _size(self, axes)
    y = (jnp.fft.fftn if forward else jnp.fft.ifftn)(self, axes=axes)
    return _scaled(node, y, size, normalization, 1 if forward else size)


@op("_fft_r2c")
def real_to_complex(node: Node, self: Array, dim: Sequence[int], normalization: int, onesided: bool) -> Array:
    """One-sided: only half of the last of the axes, whose other half is the conjugate."""
    axes = axes_of(dim, self.ndim)
    return _scaled(node, (jnp.fft.rfftn if onesided else jnp.fft.fftn)(self, axes=axes), _size(self, axes), normalization)


@op("_fft_c2r")
def complex_to_real(node: Node, self: Array, dim: Sequence[int], normalization: int, last_dim_size: Any) -> Array:
    axes = axes_of(dim, self.ndim)
    sizes = [*(self.shape[a] for a in axes[:-1]), int(last_dim_size)]
    return _scaled(node, jnp.fft.irfftn(self, sizes, axes=axes), prod(sizes), normalization, prod(sizes))
