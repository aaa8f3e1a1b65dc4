"""What several models are built of: convolutions and pools, activations [batch, channels, height, width]."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Array = Any


def convolution(
    w: Any, x: Array, out: int, kernel: int | tuple[int, int], stride: int = 1, groups: int = 1, padding: str = "SAME"
):
    """A convolution without bias or activation."""
    kh, kw = (kernel, kernel) if isinstance(kernel, int) else kernel
    weight = w(out, x.shape[1] // groups, kh, kw)
    return lax.conv_general_dilated(x, weight, (stride, stride), padding, feature_group_count=groups)


def conv_relu(w: Any, x: Array, out: int, kernel: int | tuple[int, int], stride: int = 1, groups: int = 1, padding: str = "SAME"):
    return jax.nn.relu(convolution(w, x, out, kernel, stride, groups, padding))


def max_pool(x: Array, kernel: int, stride: int, padding: str = "SAME") -> Array:
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, kernel, kernel), (1, 1, stride, stride), padding)


def average_pool(x: Array, kernel: int, stride: int, padding: str = "SAME") -> Array:
    """The padding counts as zeros."""
    total = lax.reduce_window(x, 0.0, lax.add, (1, 1, kernel, kernel), (1, 1, stride, stride), padding)
    return total / (kernel * kernel)


def joined(*parts: Array) -> Array:
    return jnp.concatenate(parts, axis=1)
