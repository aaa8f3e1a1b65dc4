"""Primitives that move elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from eqsat.graph import Equation
from eqsat.writers.onnx.graph import Builder, Lacking, Value, result, writes


@writes("reshape", "squeeze", "expand_dims")
def reshape(b: Builder, e: Equation, x: Value) -> Value:
    return b.reshape(x, result(e)[0])


@writes("transpose")
def transpose(b: Builder, e: Equation, x: Value) -> Value:
    return b.transpose(x, e.params["permutation"])


@writes("broadcast_in_dim")
def broadcast_in_dim(b: Builder, e: Equation, x: Value) -> Value:
    shape, places = e.params["shape"], e.params["broadcast_dimensions"]
    kept = [1] * len(shape)
    for place, n in zip(places, x.shape, strict=True):
        kept[place] = n
    return b.expand(b.reshape(x, kept), shape)


@writes("iota")
def iota(b: Builder, e: Equation) -> Value:
    """Positions are computed, not stored."""
    shape, dtype = result(e)
    dimension = e.params["dimension"]
    ends = [b.constant(np.asarray(n, np.int64)) for n in (0, shape[dimension], 1)]
    line = b.cast(b.node("Range", ends, [shape[dimension]], np.int64), dtype)
    return b.expand(b.reshape(line, [n if d == dimension else 1 for d, n in enumerate(shape)]), shape)


@writes("slice")
def slice_(b: Builder, e: Equation, x: Value) -> Value:
    strides = e.params["strides"] or (1,) * len(x.shape)
    return b.slice(x, e.params["start_indices"], e.params["limit_indices"], strides)


@writes("split")
def split(b: Builder, e: Equation, x: Value) -> list[Value]:
    sizes, axis = [int(n) for n in e.params["sizes"]], e.params["axis"]
    return b.several("Split", [x, b.integers(sizes)], [result(e, n) for n in range(len(sizes))], axis=axis)


@writes("rev")
def rev(b: Builder, e: Equation, x: Value) -> Value:
    dims = [d for d in e.params["dimensions"] if x.shape[d] > 1]
    if not dims:
        return x
    starts, ends, steps = ([n] * len(dims) for n in (-1, np.iinfo(np.int64).min, -1))
    return b.node("Slice", [x, b.integers(starts), b.integers(ends), b.integers(dims), b.integers(steps)], x.shape, x.dtype)


@writes("concatenate")
def concatenate(b: Builder, e: Equation, *parts: Value) -> Value:
    return b.node("Concat", parts, *result(e), axis=e.params["dimension"])


@writes("pad")
def pad(b: Builder, e: Equation, x: Value, value: Value) -> Value:
    low, high, inner = zip(*e.params["padding_config"], strict=True) if x.shape else ((), (), ())
    for d, gap in enumerate(inner):
        if gap and x.shape[d] > 1:
            x = spread(b, x, d, gap, value)
    before, after = ([max(n, 0) for n in edge] for edge in (low, high))
    if any((*before, *after)):
        shape = [n + lo + hi for n, lo, hi in zip(x.shape, before, after, strict=True)]
        x = b.node("Pad", [x, b.integers([*before, *after]), value], shape, x.dtype, mode="constant")
    return b.slice(
        x, [max(-n, 0) for n in low], [size + min(n, 0) for size, n in zip(x.shape, high, strict=True)], [1] * len(x.shape)
    )


def spread(b: Builder, x: Value, d: int, gap: int, value: Value) -> Value:
    """`gap` copies of a value between neighbours along one dimension."""
    opened = b.reshape(x, [*x.shape[: d + 1], 1, *x.shape[d + 1 :]])
    edge = [0] * len(opened.shape)
    edge[d + 1] = gap
    shape = [n + g for n, g in zip(opened.shape, edge, strict=True)]
    wide = b.node("Pad", [opened, b.integers([0] * len(edge) + edge), value], shape, x.dtype, mode="constant")
    long = b.reshape(wide, [*x.shape[:d], x.shape[d] * (gap + 1), *x.shape[d + 1 :]])
    return b.slice(long, [0] * len(long.shape), [n - gap * (k == d) for k, n in enumerate(long.shape)], [1] * len(long.shape))


# --- positions that are computed --------------------------------------------------------------------------------


@writes("dynamic_slice")
def dynamic_slice(b: Builder, e: Equation, x: Value, *starts: Value) -> Value:
    sizes = e.params["slice_sizes"]
    if len(starts) != len(sizes):
        raise Lacking("a slice of dynamic sizes")
    first = _starts(b, x.shape, sizes, starts)
    last = b.binary("Add", first, b.integers(sizes))
    return b.node("Slice", [x, first, last, b.integers(range(len(sizes)))], sizes, x.dtype)


def _starts(b: Builder, shape: tuple[int, ...], sizes: Any, starts: tuple[Value, ...]) -> Value:
    """The starts as one vector, moved so that the slice lies inside."""
    whole = b.node("Concat", [b.reshape(b.cast(s, np.int64), [1]) for s in starts], [len(starts)], np.int64, axis=0)
    most = b.integers([n - s for n, s in zip(shape, sizes, strict=True)])
    return b.binary("Min", b.binary("Max", whole, b.integers([0] * len(shape))), most)


@writes("dynamic_update_slice")
def dynamic_update_slice(b: Builder, e: Equation, x: Value, update: Value, *starts: Value) -> Value:
    """Positions of the update, offset by the starts, scattered."""
    first = _starts(b, x.shape, update.shape, starts)
    grid = np.stack(np.meshgrid(*map(np.arange, update.shape), indexing="ij"), -1).astype(np.int64) if update.shape else None
    if grid is None or grid.size > 1 << 16:
        raise Lacking("an update of many elements at a computed place")
    places = b.binary("Add", b.constant(grid), first)
    return b.node("ScatterND", [x, places, update], x.shape, x.dtype)


def _mode(e: Equation) -> str:
    return getattr(e.params.get("mode"), "name", str(e.params.get("mode")))


@writes("gather")
def gather(b: Builder, e: Equation, x: Value, indices: Value) -> Value:
    """Rows of x, where each slice takes one position or all of every dimension."""
    d, sizes = e.params["dimension_numbers"], e.params["slice_sizes"]
    indexed = list(d.start_index_map)
    if d.operand_batching_dims or any(sizes[k] != 1 for k in indexed):
        raise Lacking("a gather of windows or of a batch")
    if any(sizes[k] != n for k, n in enumerate(x.shape) if k not in indexed):
        raise Lacking("a gather of parts of slices")
    rest = [k for k in range(len(x.shape)) if k not in indexed]
    moved = b.transpose(x, [*indexed, *rest])
    places = b.cast(indices, np.int64)
    most = b.integers([x.shape[k] - 1 for k in indexed])
    inside = b.binary("Min", b.binary("Max", places, b.integers([0] * len(indexed))), most)
    batch = list(indices.shape[:-1])
    taken = b.node("GatherND", [moved, inside], [*batch, *(x.shape[k] for k in rest)], x.dtype)
    if _mode(e) == "FILL_OR_DROP":
        taken = _filled(b, e, taken, places, inside, len(rest))
    kept = [k for k in range(len(x.shape)) if k not in d.collapsed_slice_dims]  # in the order of offset_dims
    order = [k for k in kept if k in rest]
    out = result(e)[0]
    places_out = dict(zip(kept, d.offset_dims, strict=True))
    batch_out = [n for n in range(len(out)) if n not in d.offset_dims]
    target = [*batch_out, *(places_out[k] for k in order)]  # where each dimension of `taken` goes; those of extent 1 are left out
    return b.reshape(b.transpose(taken, list(np.argsort(target))), out)


def _filled(b: Builder, e: Equation, taken: Value, places: Value, inside: Value, rank: int) -> Value:
    """Another value where an index lay outside."""
    same = b.cast(b.binary("Equal", places, inside, np.bool_), np.int32)
    every = b.node("ReduceMin", [same, b.integers([len(places.shape) - 1])], places.shape[:-1], np.int32, keepdims=0)
    valid = b.reshape(b.cast(every, np.bool_), [*places.shape[:-1], *[1] * rank])
    fill = e.params.get("fill_value")
    if fill is None:
        ends = {"b": lambda: False, "i": lambda: np.iinfo(taken.dtype).min, "u": lambda: np.iinfo(taken.dtype).max}
        fill = ends.get(taken.dtype.kind, lambda: np.nan)()
    return b.where(valid, taken, b.like(taken, fill))


SCATTERS = {"scatter": "none", "scatter-add": "add", "scatter-mul": "mul", "scatter-min": "min", "scatter-max": "max"}


@writes(*SCATTERS, *(name.replace("-", "_") for name in SCATTERS))
def scatter(b: Builder, e: Equation, x: Value, indices: Value, updates: Value) -> Value:
    """Whole rows at computed places; places outside go to a row that is cut off again."""
    d = e.params["dimension_numbers"]
    indexed = list(d.scatter_dims_to_operand_dims)
    rest = [k for k in range(len(x.shape)) if k not in indexed]
    batch = [n for n in range(len(updates.shape)) if n not in d.update_window_dims]
    whole = [x.shape[k] for k in rest] == [updates.shape[n] for n in d.update_window_dims]
    if d.operand_batching_dims or sorted(d.inserted_window_dims) != sorted(indexed) or not whole or len(indexed) != 1:
        raise Lacking("a scatter of windows, of a batch, or to several dimensions")
    rows = b.transpose(updates, [*batch, *d.update_window_dims])
    moved = b.transpose(x, [*indexed, *rest])
    size = moved.shape[0]
    wide_shape = [size + 1, *moved.shape[1:]]
    edge = b.integers([*[0] * (len(wide_shape)), 1, *[0] * (len(wide_shape) - 1)])
    wide = b.node("Pad", [moved, edge, b.like(x, 0)], wide_shape, x.dtype, mode="constant")
    places = b.cast(indices, np.int64)
    lost = b.constant(np.asarray(size, np.int64))
    low = b.binary("Less", places, b.constant(np.asarray(0, np.int64)), np.bool_)
    if _mode(e) == "CLIP":
        places = b.binary("Min", b.binary("Max", places, b.integers([0])), b.integers([size - 1]))
    else:
        places = b.where(low, lost, b.binary("Min", places, lost))
    name = SCATTERS[e.name.replace("_", "-")]
    done = b.node("ScatterND", [wide, places, rows], wide_shape, x.dtype, reduction=name)
    cut = b.slice(done, [0] * len(wide_shape), [size, *wide_shape[1:]], [1] * len(wide_shape))
    return b.transpose(cut, list(np.argsort([*indexed, *rest])))
