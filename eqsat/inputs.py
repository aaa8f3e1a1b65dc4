"""Random inputs for programs and kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from eqsat.scalars import DTYPES

Array = Any


def draw(inputs: Sequence[Any], seed: int, scale: float | None) -> list[Array]:
    """A random array for each variable or tensor (anything with a shape and a dtype)."""
    rng = np.random.default_rng(seed)
    return [_drawn(rng, tuple(v.shape), str(v.dtype), scale) for v in inputs]


def _drawn(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, scale: float | None) -> Array:
    if dtype not in DTYPES:
        return _exotic(rng, shape, dtype)
    kind = DTYPES[dtype].kind
    if kind == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if kind != "float":
        return rng.integers(0, 8, shape).astype(dtype)
    fan_in = shape[-2] if len(shape) > 1 and shape[-2] else 1
    factor = scale if scale is not None else min(1.0, 2.0 / np.sqrt(fan_in))
    values = rng.standard_normal(shape, np.float32) if dtype != "float64" else rng.standard_normal(shape)
    return np.asarray(values * factor, values.dtype).astype(jnp.dtype(dtype))


def _exotic(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    if dtype.startswith("key"):
        keys = jax.random.split(jax.random.key(int(rng.integers(1 << 30))), int(np.prod(shape, dtype=int)))
        return keys.reshape(shape)
    if dtype.startswith("complex"):
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)
    raise ValueError(f"validate: inputs of dtype {dtype} cannot be drawn; call validate with arguments")
