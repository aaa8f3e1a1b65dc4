"""Reductions, windows, sorts: regions are recognised where `lax` has a name for them, and applied as they are elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.extend.core.primitives as primitives
import jax.numpy as jnp
import numpy as np
from jax import lax

from eqsat.frontends.stablehlo.bodies import Key, arg_extreme, keys, single, trees
from eqsat.frontends.stablehlo.elementwise import BINARY, binary, total_order
from eqsat.frontends.stablehlo.table import Array, Node, Unsupported, op
from eqsat.frontends.stablehlo.views import is_iota

REDUCTIONS: dict[str, Callable[..., Array]] = {
    "add": lax.reduce_sum, "multiply": lax.reduce_prod, "maximum": lax.reduce_max, "minimum": lax.reduce_min,
    "and": lax.reduce_and, "or": lax.reduce_or, "xor": lax.reduce_xor,
}  # fmt: skip
CUMULATIVE: dict[str, Callable[..., Array]] = {
    "add": lax.cumsum, "multiply": lax.cumprod, "maximum": lax.cummax, "minimum": lax.cummin,
}  # fmt: skip
OF_BOOLEANS = {"add": "or", "multiply": "and", "maximum": "or", "minimum": "and"}


def is_identity(name: str, value: Any) -> bool:
    """True for a known initial value that changes nothing."""
    if not isinstance(value, np.ndarray | np.generic) or np.ndim(value) or np.iscomplexobj(value):
        return False
    dtype = np.asarray(value).dtype
    if dtype == np.bool_:
        return bool(value) == (name in ("multiply", "and", "minimum"))
    if name in ("add", "or", "xor"):
        return bool(value == 0)
    if name == "multiply":
        return bool(value == 1)
    if name == "and":
        return bool(value == ~dtype.type(0))
    if name not in ("maximum", "minimum"):
        return False
    sign = -1 if name == "maximum" else 1
    if jnp.issubdtype(dtype, jnp.floating):
        return bool(float(value) == sign * np.inf)
    info = jnp.iinfo(dtype)
    return int(value) == (info.min if sign < 0 else info.max)


@op("stablehlo.reduce")
def reduce(node: Node, *operands: Array) -> Any:
    count = len(operands) // 2
    values, initial = operands[:count], operands[count:]
    dimensions = node.integers("dimensions")
    dtypes = [node.out(n).dtype for n in range(count)]
    values = tuple(lax.convert_element_type(v, d) for v, d in zip(values, dtypes, strict=True))
    name = single(node) if count == 1 else None
    if name in REDUCTIONS:
        if dtypes[0] == np.bool_:
            name = OF_BOOLEANS.get(name, name)
        result = REDUCTIONS[name](values[0], dimensions)
        return result if is_identity(name, initial[0]) else binary(name)(jnp.broadcast_to(initial[0], result.shape), result)
    if count == 2 and (found := _positions(node, values[0], dimensions, initial)) is not None:
        return found
    body = node.body()
    return lax.reduce(values, initial, lambda a, b: tuple(body(*a, *b)), dimensions)


def _positions(node: Node, x: Array, dimensions: tuple[int, ...], initial: tuple[Array, ...]) -> tuple[Array, ...] | None:
    """argmax and argmin, of which only the position is used."""
    if len(dimensions) != 1 or not is_iota(node.owner(1), dimensions[0]) or any(node.operation.results[0].uses):
        return None
    name = arg_extreme(node)
    order = {"argmax": "maximum", "argmin": "minimum"}.get(name or "")
    if order is None or not is_identity(order, initial[0]) or not is_identity("add", initial[1]) or not x.shape[dimensions[0]]:
        return None
    position = (lax.argmax if name == "argmax" else lax.argmin)(x, dimensions[0], node.out(1).dtype)
    return jnp.zeros(node.out().shape, node.out().dtype), position


@op("stablehlo.reduce_window")
def reduce_window(node: Node, *operands: Array) -> Any:
    count = len(operands) // 2
    values, initial = operands[:count], operands[count:]
    rank = jnp.ndim(values[0])
    window = node.integers("window_dimensions")
    strides = node.integers("window_strides", (1,) * rank)
    base, dilation = (node.integers(n, (1,) * rank) for n in ("base_dilations", "window_dilations"))
    padding = node.pairs("padding", rank)
    name = single(node) if count == 1 else None
    if name is not None and is_identity(name, initial[0]) and jnp.result_type(values[0]) == node.out().dtype != np.bool_:
        plain = set((*strides, *base, *dilation)) == {1}
        if plain and name in CUMULATIVE and (found := _cumulative(name, values[0], window, padding)) is not None:
            return found
        if name in ("add", "maximum", "minimum"):
            return lax.reduce_window(values[0], initial[0], BINARY[name], window, strides, padding, base, dilation)
    values = tuple(lax.convert_element_type(v, node.out(n).dtype) for n, v in enumerate(values))
    body = node.body()
    return lax.reduce_window(
        values, initial, lambda a, b: tuple(body(*a, *b)), window, strides, padding, base_dilation=base, window_dilation=dilation
    )


def _cumulative(name: str, x: Array, window: tuple[int, ...], padding: tuple[tuple[int, int], ...]) -> Array | None:
    """A window over everything before (or behind) is a cumulative operation."""
    wide = [d for d, n in enumerate(window) if n != 1 or padding[d] != (0, 0)]
    if len(wide) != 1:
        return None
    size = x.shape[wide[0]]
    if window[wide[0]] != size or sorted(padding[wide[0]]) != [0, size - 1]:
        return None
    return CUMULATIVE[name](x, axis=wide[0], reverse=padding[wide[0]][0] == 0)


@op("stablehlo.select_and_scatter")
def select_and_scatter(node: Node, x: Array, source: Array, initial: Array) -> Array:
    rank = jnp.ndim(x)
    select = {"GE": primitives.ge_p, "LE": primitives.le_p}.get(_comparison(node) or "")
    if select is None or single_of(node, 1) != "add" or not is_identity("add", initial):
        raise node.error("selection by GE or LE, sums, and 0 as initial value required, got another body", Unsupported)
    return primitives.select_and_scatter_add_p.bind(
        source,
        x,
        select_prim=select,
        window_dimensions=node.integers("window_dimensions", (1,) * rank),
        window_strides=node.integers("window_strides", (1,) * rank),
        padding=node.pairs("padding", rank),
    )


def _comparison(node: Node) -> str | None:
    found = trees(node)
    straight = found is not None and len(found) == 1 and found[0][1:] == (("argument", 0), ("argument", 1))
    return found[0][0][1] if found and straight and found[0][0][0] == "compare" else None


def single_of(node: Node, number: int) -> str | None:
    found = trees(node, number)
    arguments = {("argument", 0), ("argument", 1)}
    return found[0][0] if found is not None and len(found) == 1 and set(found[0][1:]) == arguments else None


# --- sorting ----------------------------------------------------------------------------------------------------


@op("stablehlo.sort")
def sort(node: Node, *operands: Array) -> Any:
    found = keys(node)
    if found is None:
        raise node.error("a comparator that compares operands one after the other required, got another", Unsupported)
    dimension = node.integer("dimension", -1) % max(jnp.ndim(operands[0]), 1)
    stable = node.flag("is_stable")
    if [k.operand for k in found] == list(range(len(found))) and not any(_needs_key(k, operands) for k in found):
        return lax.sort(operands, dimension=dimension, is_stable=stable, num_keys=len(found))
    made = [_key(k, operands[k.operand]) for k in found]
    results = lax.sort((*made, *operands), dimension=dimension, is_stable=stable, num_keys=len(made))
    return tuple(results[len(made) :])


def _needs_key(key: Key, operands: tuple[Array, ...]) -> bool:
    return key.descending or (key.order == "total" and jnp.issubdtype(operands[key.operand].dtype, jnp.floating))


def _key(key: Key, x: Array) -> Array:
    """Integers, or booleans, that ascend as the key wants."""
    if jnp.issubdtype(x.dtype, jnp.floating):
        if key.order != "total":
            x = jnp.where(x == 0, jnp.zeros_like(x), jnp.where(x != x, jnp.full_like(x, jnp.nan), x))
        x = total_order(x)
    return lax.bitwise_not(x) if key.descending else x


@op("chlo.top_k")
def top_k(node: Node, x: Array) -> Any:
    return lax.top_k(x, node.integer("k"))
