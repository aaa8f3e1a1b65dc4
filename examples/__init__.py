"""Programs to optimise: each module holds functions, and tables of functions with example arguments.

``PROGRAMS`` has the shapes a GPU sees, ``RAGGED`` the same functions at small, awkward sizes for interpreters.
The tables drive the tests and the benchmarks: a new entry is tested by being there.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

Table = dict[str, tuple[Callable[..., Any], tuple[jax.ShapeDtypeStruct, ...]]]

MODULES = ("attention", "linear_attention", "lora", "matrix_chain", "mlp", "norms", "softmax")


def tables(kind: str = "PROGRAMS", modules: tuple[str, ...] = MODULES) -> Table:
    """All entries of the modules' tables; `kind` is PROGRAMS or RAGGED."""
    found: Table = {}
    for module in modules:
        found |= getattr(importlib.import_module(f"examples.{module}"), kind)
    return found


def draw(specs: tuple[jax.ShapeDtypeStruct, ...], seed: int = 0) -> tuple[jax.Array, ...]:
    """Random arrays of these shapes: normal numbers, booleans, or integers in 0..7."""
    keys = jax.random.split(jax.random.key(seed), max(len(specs), 1))
    return tuple(_draw(spec, key) for spec, key in zip(specs, keys, strict=False))


def _draw(spec: jax.ShapeDtypeStruct, key: jax.Array) -> jax.Array:
    if spec.dtype == jnp.bool_:
        return jax.random.bernoulli(key, shape=spec.shape)
    if jnp.issubdtype(spec.dtype, jnp.integer):
        return jax.random.randint(key, spec.shape, 0, 8, spec.dtype)
    return jax.random.normal(key, spec.shape, jnp.float32).astype(spec.dtype)


def report(table: Mapping[str, tuple[Callable[..., Any], tuple[jax.ShapeDtypeStruct, ...]]], target: str = "h100") -> None:
    """Optimise every entry and print what became of it."""
    import eqsat

    for name, (function, args) in table.items():
        print(f"\n===== {name}\n")
        print(eqsat.optimize(function, *args, target=target).report())
