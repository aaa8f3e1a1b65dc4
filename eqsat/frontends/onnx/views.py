"""ONNX operators that move elements without computing: reshapes, slices, joins, pads; and constants made from shapes."""

from __future__ import annotations

from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from eqsat.frontends.onnx.table import Array, Node, axis_of, holds_symbols, ints, op, sizes


@op("Identity", folds=True)
def identity(node: Node, x: Array) -> Array:
    return x


@op("Constant", folds=True)
def constant(node: Node) -> Array:
    (name, value), *rest = node.attributes.items()
    if rest:
        raise node.error(f"one value required, got attributes {sorted(node.attributes)}")
    if name in ("value", "sparse_value"):
        return value
    kind = {"value_int": np.int64, "value_ints": np.int64, "value_float": np.float32, "value_floats": np.float32}.get(
        name, object
    )
    return np.asarray(value, kind)


@op("ConstantOfShape", folds=True, static=(0,))
def constant_of_shape(node: Node, shape: np.ndarray) -> Array:
    value = node.get("value", np.zeros(1, np.float32)).reshape(())
    return node.xp.broadcast_to(node.cast(value, value.dtype), node.shape(shape, value.dtype))


@op("Shape", folds=True)
def shape(node: Node, x: Array) -> np.ndarray:
    return sizes(x.shape[node.get("start", 0) : node.get("end")])


@op("Size", folds=True)
def size(node: Node, x: Array) -> np.ndarray:
    return sizes([prod(x.shape)]).reshape(())


@op("Reshape", folds=True, static=(1,), since=5)
def reshape(node: Node, x: Array, target: np.ndarray) -> Array:
    wanted = list(ints(target))
    if not node.get("allowzero", 0):
        wanted = [x.shape[n] if size == 0 and n < x.ndim else size for n, size in enumerate(wanted)]
    elif -1 in wanted and 0 in wanted:
        raise node.error(f"either -1 or 0 with allowzero required, got {wanted}")
    known = prod(n for n in wanted if n != -1)
    count = prod(x.shape)
    if wanted.count(-1) == 1 and known != 0:
        wanted[wanted.index(-1)] = count // known
    if min((n for n in wanted if isinstance(n, int)), default=0) < 0 or prod(wanted) != count:
        raise node.error(f"a shape of {count} elements required for {list(x.shape)}, got {list(ints(target))}")
    return node.xp.reshape(x, tuple(wanted))


@op("Reshape", folds=True)
def reshape_by_attribute(node: Node, x: Array) -> Array:
    return reshape(node, x, np.asarray(node.get("shape", ())))


@op("Flatten", folds=True)
def flatten(node: Node, x: Array) -> Array:
    axis = node.get("axis", 1)
    axis = axis + x.ndim if axis < 0 else axis
    return node.xp.reshape(x, (prod(x.shape[:axis]), prod(x.shape[axis:])))


@op("Squeeze", folds=True, static=(1,))
def squeeze(node: Node, x: Array, axes: np.ndarray | None = None) -> Array:
    given = node.get("axes") if axes is None else ints(axes)
    if given is None:
        given = [n for n, size in enumerate(x.shape) if size == 1]
    dropped = {axis_of(node, axis, x.ndim) for axis in given}
    if wrong := [n for n in dropped if x.shape[n] != 1]:
        raise node.error(f"axes of size 1 required, got axis {wrong[0]} of {list(x.shape)}")
    return node.xp.reshape(x, tuple(size for n, size in enumerate(x.shape) if n not in dropped))


@op("Unsqueeze", folds=True, static=(1,))
def unsqueeze(node: Node, x: Array, axes: np.ndarray | None = None) -> Array:
    given = node.get("axes") if axes is None else ints(axes)
    rank = x.ndim + len(given)
    added = {axis_of(node, axis, rank) for axis in given}
    if len(added) != len(given):
        raise node.error(f"distinct axes required, got {list(given)}")
    kept = iter(x.shape)
    return node.xp.reshape(x, tuple(1 if n in added else next(kept) for n in range(rank)))


@op("Transpose", folds=True)
def transpose(node: Node, x: Array) -> Array:
    return node.xp.transpose(x, node.get("perm"))


@op("Concat", folds=True)
def concat(node: Node, *operands: Array) -> Array:
    axis = axis_of(node, node.get("axis"), operands[0].ndim, 1 if node.opset < 4 else None)
    return operands[0] if len(operands) == 1 else node.xp.concatenate(operands, axis)


@op("Split", folds=True, static=(1,))
def split(node: Node, x: Array, lengths: np.ndarray | None = None) -> tuple[Array, ...]:
    axis = axis_of(node, node.get("axis", 0), x.ndim)
    given = node.get("split") if lengths is None else ints(lengths)
    if given is None:
        count = node.get("num_outputs", len(node.outputs))
        each = -(-x.shape[axis] // count)
        given = [max(0, min(each, x.shape[axis] - each * n)) for n in range(count)]
    if sum(given) != x.shape[axis]:
        raise node.error(f"sizes that sum to {x.shape[axis]} required, got {list(given)}")
    ends = np.cumsum(given)
    return tuple(_cut(x, axis, slice(int(end - size), int(end))) for end, size in zip(ends, given, strict=True))


def _cut(x: Array, axis: int, part: slice) -> Array:
    return x[(slice(None),) * axis + (part,)]


@op("Slice", folds=True, static=(1, 2, 3, 4), since=10)
def slice_(node: Node, x: Array, starts: Array, ends: Array, axes: Array | None = None, steps: Array | None = None) -> Array:
    first, last = ints(starts), ints(ends)
    over = range(len(first)) if axes is None else ints(axes)
    stride = (1,) * len(first) if steps is None else ints(steps)
    parts = [slice(None)] * x.ndim
    for axis, start, end, step in zip(over, first, last, stride, strict=True):
        axis = axis_of(node, axis, x.ndim)
        if step == 0:
            raise node.error("steps other than 0 required, got 0")
        parts[axis] = _clamped(start, end, step, x.shape[axis])
    return x[tuple(parts)]


def _clamped(start: int, end: int, step: int, size: int) -> slice:
    """ONNX's bounds: negative ones count from the end, then all are clamped; a slice may end before the first element."""
    if any(map(jax.export.is_symbolic_dim, (start, end, size))) and step > 0:  # as Python's, which JAX clamps
        return slice(start, None if isinstance(end, int) and end >= 2**31 - 1 else end, step)
    start = start + size if start < 0 else start
    end = end + size if end < 0 else end
    if step > 0:
        return slice(min(max(start, 0), size), min(max(end, 0), size), step)
    start, end = min(max(start, 0), size - 1), min(max(end, -1), size - 1)
    return slice(start, None if end < 0 else end, step)


@op("Slice", folds=True)
def slice_by_attributes(node: Node, x: Array) -> Array:
    return slice_(node, x, node.get("starts"), node.get("ends"), node.get("axes"))


@op("Expand", folds=True, static=(1,))
def expand(node: Node, x: Array, target: np.ndarray) -> Array:
    try:
        wanted = jnp.broadcast_shapes(x.shape, ints(target))
    except ValueError:
        raise node.error(f"a shape that {list(x.shape)} broadcasts to required, got {list(ints(target))}") from None
    return node.xp.broadcast_to(x, node.shape(wanted, x.dtype))


@op("Tile", folds=True, static=(1,), since=6)
def tile(node: Node, x: Array, repeats: np.ndarray) -> Array:
    counts = ints(repeats)
    node.shape([n * c for n, c in zip(x.shape, counts, strict=True)], x.dtype)
    return node.xp.tile(x, counts)


@op("Tile", static=(1, 2))
def tile_axis(node: Node, x: Array, tiles: np.ndarray, axis: np.ndarray) -> Array:
    counts = [1] * x.ndim
    counts[int(axis.item())] = int(tiles.item())
    return jnp.tile(x, counts)


@op("Pad", static=(1, 3), since=11, folds=True)
def pad(node: Node, x: Array, pads: np.ndarray, value: Array | None = None, axes: np.ndarray | None = None) -> Array:
    value = np.zeros((), x.dtype) if value is None else value
    return padded(node, x, ints(pads), value, None if axes is None else ints(axes))


@op("Pad")
def pad_by_attributes(node: Node, x: Array) -> Array:
    pads = node.get("pads", node.get("paddings"))
    return padded(node, x, pads, np.asarray(node.get("value", 0.0), x.dtype), None)


def padded(node: Node, x: Array, pads: Any, value: Array, axes: tuple[int, ...] | None) -> Array:
    over = range(x.ndim) if axes is None else [axis_of(node, a, x.ndim) for a in axes]
    if len(pads) != 2 * len(over):
        raise node.error(f"{2 * len(over)} pads required, got {len(pads)}")
    widths = [(0, 0)] * x.ndim
    for n, axis in enumerate(over):
        widths[axis] = (int(pads[n]), int(pads[n + len(over)]))
    node.shape([max(0, n + low + high) for n, (low, high) in zip(x.shape, widths, strict=True)], x.dtype)
    cropped = tuple(slice(max(0, -low), n - max(0, -high)) for n, (low, high) in zip(x.shape, widths, strict=True))
    x = x[cropped]
    widths = [(max(0, low), max(0, high)) for low, high in widths]
    mode = node.get("mode", "constant")
    if mode == "constant":
        fill = value.reshape(())
        return node.xp.pad(x, widths, constant_values=fill if node.xp is np else fill.astype(x.dtype))
    return node.xp.pad(x, widths, mode={"reflect": "reflect", "edge": "edge", "wrap": "wrap"}[mode])


@op("DepthToSpace")
def depth_to_space(node: Node, x: Array) -> Array:
    batch, depth, *spatial = x.shape
    block = node.get("blocksize")
    height, width = spatial
    if node.get("mode", "DCR") == "DCR":
        parts = jnp.reshape(x, (batch, block, block, depth // block**2, height, width)).transpose(0, 3, 4, 1, 5, 2)
    else:
        parts = jnp.reshape(x, (batch, depth // block**2, block, block, height, width)).transpose(0, 1, 4, 2, 5, 3)
    return jnp.reshape(parts, (batch, depth // block**2, height * block, width * block))


@op("SpaceToDepth")
def space_to_depth(node: Node, x: Array) -> Array:
    batch, depth, height, width = x.shape
    block = node.get("blocksize")
    order = (0, 3, 5, 1, 2, 4) if node.get("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    parts = jnp.reshape(x, (batch, depth, height // block, block, width // block, block)).transpose(order)
    return jnp.reshape(parts, (batch, depth * block**2, height // block, width // block))


@op("Range", folds=True, static=(0, 1, 2))
def range_(node: Node, start: np.ndarray, limit: np.ndarray, delta: np.ndarray) -> Array:
    first, step = start.item(), delta.item()
    if holds_symbols(limit) and step == 1:
        (count,) = node.shape((limit.item() - first,), np.int64)
        return jnp.arange(count, dtype=node.dtype(np.int64)) + np.asarray(first, node.dtype(np.int64))
    count = max(0, int(np.ceil((limit.item() - first) / step)))
    node.shape((count,), start.dtype)
    dtype = node.dtype(start.dtype)
    return (node.xp.arange(count) * np.asarray(step, dtype) + np.asarray(first, dtype)).astype(dtype)


@op("EyeLike", folds=True)
def eye_like(node: Node, x: Array) -> Array:
    import onnx

    to = node.get("dtype")
    dtype = node.dtype(onnx.helper.tensor_dtype_to_np_dtype(to) if to else x.dtype)
    node.shape(x.shape, dtype)
    return node.xp.eye(*x.shape, k=node.get("k", 0), dtype=dtype)


@op("Trilu", folds=True)
def trilu(node: Node, x: Array, k: Array | None = None) -> Array:
    xp = node.xp
    rows, columns = np.arange(x.shape[-2])[:, None], np.arange(x.shape[-1])
    offset = np.asarray(0) if k is None else k.reshape(())
    distance = (columns - rows).astype(np.int32)
    keep = distance >= offset if node.get("upper", 1) else distance <= offset
    return xp.where(keep, x, xp.zeros((), x.dtype))


@op("Dropout", static=(1, 2))
def dropout(node: Node, x: Array, ratio: np.ndarray | None = None, training: np.ndarray | None = None) -> tuple[Array, ...]:
    if training is not None and bool(training) and (ratio is None or float(ratio) != 0):
        chance = 0.5 if ratio is None else float(ratio)
        mask = jax.random.bernoulli(jax.random.key(node.get("seed", 0)), 1 - chance, x.shape)
        return jnp.where(mask, x / np.asarray(1 - chance, x.dtype), np.asarray(0, x.dtype)), mask
    return x, jnp.ones(x.shape, bool if node.opset >= 7 else x.dtype)
