"""Operations that move elements: shapes, slices, gathers and scatters."""

from __future__ import annotations

from typing import Any

import jax.extend.mlir.ir as ir
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.mlir.dialects import stablehlo

from eqsat.frontends.stablehlo.bodies import single
from eqsat.frontends.stablehlo.table import Array, Node, Unsupported, op


@op("stablehlo.iota")
def iota(node: Node) -> Array:
    out = node.out()
    return lax.broadcasted_iota(out.dtype, out.shape, node.integer("iota_dimension"))


@op("stablehlo.broadcast_in_dim")
def broadcast_in_dim(node: Node, x: Array) -> Array:
    shape = node.out().shape
    return lax.broadcast_in_dim(x, shape, node.integers("broadcast_dimensions")) if shape else x  # a known scalar stays known


@op("stablehlo.broadcast")
def broadcast(node: Node, x: Array) -> Array:
    return lax.broadcast(x, node.integers("broadcast_sizes"))


@op("stablehlo.reshape")
def reshape(node: Node, x: Array) -> Array:
    return lax.reshape(x, node.out().shape)


@op("stablehlo.transpose")
def transpose(node: Node, x: Array) -> Array:
    return lax.transpose(x, node.integers("permutation"))


@op("stablehlo.reverse")
def reverse(node: Node, x: Array) -> Array:
    return lax.rev(x, node.integers("dimensions"))


@op("stablehlo.slice")
def slice_(node: Node, x: Array) -> Array:
    strides = node.integers("strides")
    return lax.slice(
        x, node.integers("start_indices"), node.integers("limit_indices"), None if all(s == 1 for s in strides) else strides
    )


@op("stablehlo.concatenate")
def concatenate(node: Node, *parts: Array) -> Array:
    return lax.concatenate(parts, node.integer("dimension"))


@op("stablehlo.pad")
def pad(node: Node, x: Array, value: Array) -> Array:
    edges = (node.integers(name) for name in ("edge_padding_low", "edge_padding_high", "interior_padding"))
    return lax.pad(x, value, tuple(zip(*edges, strict=True)))


@op("stablehlo.dynamic_slice")
def dynamic_slice(node: Node, x: Array, *starts: Array) -> Array:
    return lax.dynamic_slice(x, starts, node.integers("slice_sizes"), allow_negative_indices=False)


@op("stablehlo.dynamic_update_slice")
def dynamic_update_slice(node: Node, x: Array, update: Array, *starts: Array) -> Array:
    return lax.dynamic_update_slice(x, update, starts, allow_negative_indices=False)


@op("stablehlo.set_dimension_size")
def set_dimension_size(node: Node, x: Array, size: Array) -> Array:
    if not isinstance(size, np.ndarray | np.generic) or int(size) != x.shape[node.integer("dimension")]:
        raise node.error("the whole size of the dimension required, got a computed or a smaller one", Unsupported)
    return x


@op("stablehlo.tuple")
def tuple_(node: Node, *parts: Array) -> tuple[Array, ...]:
    return (parts,)


@op("stablehlo.get_tuple_element")
def get_tuple_element(node: Node, parts: Any) -> Array:
    return parts[node.integer("index")]


# --- gather and scatter -----------------------------------------------------------------------------------------


def _indices(x: Array, place: int) -> Array:
    """Indices whose vectors lie along the last dimension, as `lax` wants them."""
    rank = jnp.ndim(x)
    return lax.expand_dims(x, (rank,)) if place == rank else x if place == rank - 1 else jnp.moveaxis(x, place, -1)


@op("stablehlo.gather")
def gather(node: Node, x: Array, indices: Array) -> Array:
    d = stablehlo.GatherDimensionNumbers(node.attribute("dimension_numbers"))
    numbers = lax.GatherDimensionNumbers(
        offset_dims=tuple(d.offset_dims),
        collapsed_slice_dims=tuple(d.collapsed_slice_dims),
        start_index_map=tuple(d.start_index_map),
        operand_batching_dims=tuple(d.operand_batching_dims),
        start_indices_batching_dims=_shifted(d.start_indices_batching_dims, d.index_vector_dim),
    )
    return lax.gather(
        x,
        _indices(indices, d.index_vector_dim),
        numbers,
        node.integers("slice_sizes"),
        indices_are_sorted=node.flag("indices_are_sorted"),
        mode=lax.GatherScatterMode.CLIP,
    )


def _shifted(dims: Any, place: int) -> tuple[int, ...]:
    """Dimensions after the one of index vectors has gone to the end."""
    return tuple(n - (n > place) for n in dims)


SCATTERS = {"add": lax.scatter_add, "multiply": lax.scatter_mul, "maximum": lax.scatter_max, "minimum": lax.scatter_min}


@op("stablehlo.scatter")
def scatter(node: Node, *operands: Array) -> Array:
    if len(operands) != 3:
        raise node.error(f"one operand required, got {len(operands) // 2}; scatter each by itself", Unsupported)
    x, indices, updates = operands
    body = single(node)
    function = lax.scatter if body == "second" else SCATTERS.get(body or "")
    if function is None or (jnp.result_type(x) == np.bool_ and function is not lax.scatter):
        raise node.error(f"a body that replaces, or one of {', '.join(SCATTERS)}, required, got another", Unsupported)
    d = stablehlo.ScatterDimensionNumbers(node.attribute("scatter_dimension_numbers"))
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=tuple(d.update_window_dims),
        inserted_window_dims=tuple(d.inserted_window_dims),
        scatter_dims_to_operand_dims=tuple(d.scattered_dims_to_operand_dims),
        operand_batching_dims=tuple(d.input_batching_dims),
        scatter_indices_batching_dims=_shifted(d.scatter_indices_batching_dims, d.index_vector_dim),
    )
    return function(
        x,
        _indices(indices, d.index_vector_dim),
        updates,
        numbers,
        indices_are_sorted=node.flag("indices_are_sorted"),
        unique_indices=node.flag("unique_indices"),
        mode=lax.GatherScatterMode.FILL_OR_DROP,
    )


def is_iota(operation: Any, dimension: int) -> bool:
    """True for the positions along a dimension."""
    if operation is None or operation.name != "stablehlo.iota":
        return False
    return ir.IntegerAttr(operation.attributes["iota_dimension"]).value == dimension
