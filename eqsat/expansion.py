"""Primitives that are programs over others: a table of JAX functions that are traced in their place.

Random bits are integer arithmetic on positions and the gradient of pooling is a choice by positions, so that both fuse like any
other arithmetic. Values are those of the primitive; a sum may be taken in another order.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.random import threefry2x32_p

from eqsat.scalars import DTYPES, REDUCTIONS

Array = Any
LARGEST_WINDOW = 64  # elements; the program holds a choice for each
MOST_ROUNDS = 8  # of a top-k, one after the other over a row
LONGEST_ROW = 4096  # that a block holds beside others, so that its rounds read it once


def expansion(equation: Any) -> Callable[..., Any] | None:
    """A function of the operands of JAX's equation that gives its results, if the table has one for its parameters."""
    find = EXPANSIONS.get(equation.primitive.name)
    return None if find is None else find([v.aval for v in equation.invars], equation.params)


def _random_bits(operands: Sequence[Any], params: Any) -> Callable[..., Any] | None:
    """Threefry of the number of each element, where JAX counts so; other generators and older ways of counting stay calls."""
    (key,), shape, width = operands, tuple(params["shape"]), int(params["bit_width"])
    counted = jax.config.jax_threefry_partitionable  # type: ignore[attr-defined]
    if not all(isinstance(n, int) for n in shape):  # symbolic
        return None
    if key.shape or str(key.dtype) != "key<fry>" or not counted or not 0 < prod(shape) < 1 << 31:
        return None

    def bits(key: Array) -> Array:
        data = jax.random.key_data(key)
        strides = [prod(shape[d + 1 :]) for d in range(len(shape))]
        number = jnp.zeros(shape, jnp.int32)
        for d, stride in enumerate(strides):
            number = number + stride * lax.broadcasted_iota(jnp.int32, shape, d)
        low = lax.convert_element_type(number, jnp.uint32)
        first, second = threefry2x32_p.bind(data[0], data[1], jnp.zeros(shape, jnp.uint32), low)
        if width == 64:
            return lax.shift_left(first.astype(jnp.uint64), np.uint64(32)) | second.astype(jnp.uint64)
        return (first ^ second).astype(f"uint{width}")

    return bits


def _select_and_scatter_add(operands: Sequence[Any], params: Any) -> Callable[..., Any] | None:
    """Each element of the source goes to the place in its window that XLA selects: the first that no later one beats."""
    source, operand = operands
    window, strides, padding = (tuple(params[n]) for n in ("window_dimensions", "window_strides", "padding"))
    if prod(window) > LARGEST_WINDOW or 0 in (*source.shape, *operand.shape):
        return None
    better = {"ge": lax.ge, "gt": lax.gt, "le": lax.le, "lt": lax.lt}.get(params["select_prim"].name)
    if better is None:
        return None
    wide = jnp.promote_types(operand.dtype, jnp.float32) if jnp.issubdtype(operand.dtype, jnp.floating) else operand.dtype
    places = list(itertools.product(*map(range, window)))
    ends = [(n - 1) * s + 1 for n, s in zip(source.shape, strides, strict=True)]  # of the windows' first places

    def scattered(source: Array, operand: Array) -> Array:
        framed = _framed(operand, 0, padding)
        inside = _framed(jnp.ones(operand.shape, bool), False, padding)

        def at(array: Array, place: Sequence[int]) -> Array:
            return lax.slice(array, place, [p + e for p, e in zip(place, ends, strict=True)], strides)

        best, chosen = at(framed, places[0]), jnp.where(at(inside, places[0]), 0, -1)
        for number, place in enumerate(places[1:], 1):
            here = at(framed, place)
            beats = at(inside, place) & ((chosen < 0) | ~better(best, here))
            best, chosen = jnp.where(beats, here, best), jnp.where(beats, number, chosen)
        total = jnp.zeros(operand.shape, wide)
        for number, place in enumerate(places):
            part = jnp.where(chosen == number, source, 0).astype(wide)
            moved = lax.pad(
                part,
                jnp.zeros((), wide),
                [_config(*each) for each in zip(place, padding, strides, ends, operand.shape, strict=True)],
            )
            total = total + moved
        return total.astype(source.dtype)

    return scattered


def _top_k(operands: Sequence[Any], params: Any) -> Callable[..., Any] | None:
    """Rounds of a maximum and its first place, each over what comes after the last one found; NaN is the largest number.

    Equal elements come in the order of their places, as JAX documents it; so do zeros of both signs (XLA:CPU takes +0 first).
    """
    (operand,), k = operands, int(params["k"])
    axis = int(params.get("axis", -1)) % max(1, len(operand.shape))
    known = all(isinstance(n, int) for n in operand.shape)
    if not known or not 0 < k <= MOST_ROUNDS or not 0 < operand.shape[axis] <= LONGEST_ROW or str(operand.dtype) not in DTYPES:
        return None
    row = DTYPES[str(operand.dtype)]
    if row.kind == "bool":
        return None
    least = REDUCTIONS["max"].identity(row.name)

    def largest(x: Array) -> list[Array]:
        place = lax.broadcasted_iota(jnp.int32, x.shape, axis)
        last = jnp.int32(x.shape[axis] - 1)
        left: Array = None
        found: list[tuple[Array, Array]] = []
        for _ in range(k):
            value = jnp.max(x if left is None else jnp.where(left, x, jnp.asarray(least, x.dtype)), axis, keepdims=True)
            here = _same(x, value) if left is None else left & _same(x, value)
            at = jnp.min(jnp.where(here, place, last), axis, keepdims=True)
            found.append((value, at))
            behind = _same(x, value) & (place > at)
            left = behind | (x < value) | ((x == x) & (value != value)) if row.kind == "float" else behind | (x < value)
        return [jnp.concatenate(parts, axis) for parts in zip(*found, strict=True)]

    return largest


def _concatenate(operands: Sequence[Any], params: Any) -> Callable[..., Any] | None:
    """Without the parts that are empty, of which no kernel reads anything."""
    kept = [n for n, x in enumerate(operands) if x.shape[params["dimension"]] != 0]
    if not kept or len(kept) == len(operands):
        return None
    return lambda *parts: lax.concatenate([parts[n] for n in kept], params["dimension"])


def _same(x: Array, value: Array) -> Array:
    """True where x is the value, of which a NaN is one."""
    return (x == value) | ((x != x) & (value != value)) if jnp.issubdtype(x.dtype, jnp.floating) else x == value


def _framed(array: Array, fill: Any, padding: Sequence[tuple[int, int]]) -> Array:
    return lax.pad(array, jnp.asarray(fill, array.dtype), [(low, high, 0) for low, high in padding])


def _config(place: int, padding: tuple[int, int], stride: int, end: int, extent: int) -> tuple[int, int, int]:
    """Padding that puts the windows' elements at `place` where they lie in the operand."""
    low = place - padding[0]
    return low, extent - low - end, stride - 1


EXPANSIONS: dict[str, Callable[[Sequence[Any], Any], Callable[..., Any] | None]] = {
    "random_bits": _random_bits,
    "select_and_scatter_add": _select_and_scatter_add,
    "top_k": _top_k,
    "concatenate": _concatenate,
}
