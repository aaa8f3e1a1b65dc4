"""ATen interpolation: every axis is resized by itself, as a choice of positions or a contraction with its weights."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from eqsat.frontends.torch.table import Array, Node, cast, op, opmath


def _targets(x: Array, output_size: Any, scales: Any) -> list[tuple[int, int, float]]:
    """For each of the last axes: its number, its new size, and the step between outputs in inputs."""
    count = x.ndim - 2
    factors = [None] * count if scales is None else list(scales)
    sizes = (
        [int(np.floor(n * f)) for n, f in zip(x.shape[2:], factors, strict=True)] if output_size is None else list(output_size)
    )
    return [(a + 2, m, x.shape[a + 2] / m if f is None else 1 / f) for a, (m, f) in enumerate(zip(sizes, factors, strict=True))]


def _float32(step: float) -> np.ndarray:
    """torch works out positions in float32."""
    return np.asarray(step, np.float32)


@op("upsample_nearest1d.vec", "upsample_nearest2d.vec", "upsample_nearest3d.vec")
def nearest(node: Node, input: Array, output_size: Any, scale_factors: Any) -> Array:
    for axis, size, step in _targets(input, output_size, scale_factors):
        places = np.floor(np.arange(size, dtype=np.float32) * _float32(step)).astype(np.int32)
        input = jnp.take(input, np.minimum(places, input.shape[axis] - 1), axis=axis, mode="clip")
    return input


@op("upsample_linear1d.vec", "upsample_bilinear2d.vec", "upsample_trilinear3d.vec")
def linear(node: Node, input: Array, output_size: Any, align_corners: bool, scale_factors: Any) -> Array:
    x = cast(input, opmath(node.dtype))
    for axis, size, step in _targets(x, output_size, scale_factors):
        x = _mixed(x, axis, _positions(x, axis, size, step, align_corners))
    return cast(x, node.dtype)


def _positions(x: Array, axis: int, size: int, step: float, align_corners: bool) -> np.ndarray:
    """Where in the input each output lies, in the dtype in which torch works it out."""
    real: Any = np.float64 if x.dtype == np.float64 else np.float32
    out: Any = np.arange(size, dtype=real)
    if align_corners:
        return out * real((x.shape[axis] - 1) / (size - 1) if size > 1 else 0)
    return np.maximum((out + real(0.5)) * real(step) - real(0.5), real(0))


def _mixed(x: Array, axis: int, places: np.ndarray) -> Array:
    """Each output is a mixture of the two elements about its place."""
    last = x.shape[axis] - 1
    first = np.minimum(np.floor(places).astype(np.int32), last)
    share = (np.clip(places - first, 0, 1)).astype(x.dtype).reshape([-1 if a == axis else 1 for a in range(x.ndim)])
    low = jnp.take(x, first, axis=axis, mode="clip")
    high = jnp.take(x, np.minimum(first + 1, last), axis=axis, mode="clip")
    return low * (1 - share) + high * share
