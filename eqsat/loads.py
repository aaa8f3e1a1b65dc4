"""Loads as array operations: slices, reshapes and transposes where the index allows, gathers elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from eqsat.arrays import Value, shape_of
from eqsat.digits import digits_of, index_breakpoints, number_of
from eqsat.index import Axis, Index
from eqsat.notation import Tensor, Term, is_box

if TYPE_CHECKING:
    from eqsat.evaluate import Evaluator

Array = Any


@dataclass(frozen=True)
class Box:
    """How one dimension is read as a slice: start, stop, step, then the digits of a mixed-radix number.

    `radices` are the extents after the reshape; each digit keeps its axis' extent of its radix, and may be reversed.
    """

    start: int
    stop: int
    step: int
    axes: tuple[Axis, ...]
    radices: tuple[int, ...]
    reverse: tuple[bool, ...]


def load_value(run: Evaluator, term: Term) -> Value:
    """A load: dimensions that are slices first, then one gather for each set of dimensions that share axes."""
    tensor, indices = term.data
    array = run.source(tensor)
    slots = tuple(run.values[a] for a in term.args)
    indices, digits = _split_axes(indices, frozenset(a for s in slots for a in s.axes))
    varies = [i.axes | {a for n in i.slots for a in slots[n].axes} for i in indices]
    if 0 in tensor.shape:
        axes = tuple(dict.fromkeys(a for v in varies for a in sorted(v)))
        zeros = Value(run.ops.apply("fill", shape_of(axes), 0, run.dtype(tensor.dtype)), axes)
        return _join_digits(run, zeros, digits)
    boxes, gathers = [], []
    for dims in _components(varies):
        found = box(indices[dims[0]]) if len(dims) == 1 else None
        if found is None:
            gathers.append(dims)
        boxes += [(d, found or _whole(d, tensor.shape[d])) for d in dims]
    value = _slice(run, array, tensor.shape, [b for _, b in sorted(boxes, key=lambda x: x[0])])
    for dims in gathers:
        value = _gather(run, value, tensor, dims, indices, slots)
    return _join_digits(run, value, digits)


def _components(varies: list[set[Axis]] | list[frozenset[Axis]]) -> list[list[int]]:
    """Dimensions in groups that share axes, in order of their first dimension."""
    groups: list[tuple[list[int], set[Axis]]] = []
    for d, axes in enumerate(varies):
        touching = [g for g in groups if g[1] & axes]
        merged = (sorted([d, *(n for g in touching for n in g[0])]), set(axes).union(*(g[1] for g in touching)))
        groups = [g for g in groups if g not in touching] + [merged]
    return sorted(g[0] for g in groups)


def _whole(dim: int, extent: int) -> Box:
    return Box(0, extent, 1, (Axis(f"dim {dim}", extent),), (extent,), (False,))


def box(index: Index) -> Box | None:
    """The slice that an affine index reads, if its axes are the digits of a mixed-radix number (gaps allowed)."""
    if not is_box(index):
        return None
    terms = sorted(((abs(c), a, c < 0) for a, c in index.terms), key=lambda t: -t[0])  # type: ignore[misc]
    start = index.range[0]
    if not terms:
        return Box(start, start + 1, 1, (), (), ())
    for (outer, _, _), (inner, axis, _) in zip(terms, terms[1:], strict=False):
        if outer % inner or outer < inner * axis.extent:  # type: ignore[union-attr]
            return None
    step = terms[-1][0]
    axes: tuple[Axis, ...] = tuple(a for _, a, _ in terms)  # type: ignore[misc]
    radices = (axes[0].extent, *(o // i for (o, _, _), (i, _, _) in zip(terms, terms[1:], strict=False)))
    count = prod(radices)
    return Box(start, start + (count - 1) * step + 1, step, axes, radices, tuple(r for _, _, r in terms))


def _slice(run: Evaluator, array: Array, shape: tuple[int, ...], boxes: list[Box]) -> Value:
    """Read all dimensions as boxes: pad, slice, reshape, drop gaps, reverse; only the steps that do something."""
    ops = run.ops
    pads = tuple((max(0, -b.start), max(0, b.stop - n)) for b, n in zip(boxes, shape, strict=True))
    if any(p != (0, 0) for p in pads):
        array = ops.apply("pad", array, pads)
        shape = tuple(n + lo + hi for n, (lo, hi) in zip(shape, pads, strict=True))
    starts = tuple(b.start + lo for b, (lo, _) in zip(boxes, pads, strict=True))
    stops = tuple(b.stop + lo for b, (lo, _) in zip(boxes, pads, strict=True))
    steps = tuple(b.step for b in boxes)
    if any(starts) or stops != shape or any(s != 1 for s in steps):
        array = ops.apply("slice", array, starts, stops, steps)
        shape = tuple(-(-(hi - lo) // s) for lo, hi, s in zip(starts, stops, steps, strict=True))
    radices = tuple(r for b in boxes for r in b.radices)
    axes = tuple(a for b in boxes for a in b.axes)
    if radices != shape:
        array = ops.apply("reshape", array, radices)
    if radices != shape_of(axes):
        array = ops.apply("slice", array, (0,) * len(axes), shape_of(axes), (1,) * len(axes))
    reverse = tuple(i for i, r in enumerate(r for b in boxes for r in b.reverse) if r)
    return Value(ops.apply("flip", array, reverse) if reverse else array, axes)


def _gather(
    run: Evaluator, value: Value, tensor: Tensor, dims: list[int], indices: tuple[Index, ...], slots: tuple[Value, ...]
) -> Value:
    """Replace the dimensions `dims` by the axes of their indices; out of bounds reads 0."""
    shape = tensor.shape
    places = tuple(_whole(d, shape[d]).axes[0] for d in dims)
    first = min(value.axes.index(p) for p in places)
    others = [a for a in value.axes if a not in places]
    order = (*others[:first], *places, *others[first:])
    array = run.ordered(value, order)
    if len(dims) > 1:
        merged = (*shape_of(order[:first]), prod(shape_of(places)), *shape_of(order[first + len(dims) :]))
        array = run.ops.apply("reshape", array, merged)
    offset, inside = _offset(run, shape, dims, indices, slots)
    array = run.ops.apply("take", array, offset.array, first)
    result = Value(array, (*others[:first], *offset.axes, *others[first:]))
    if inside is None:
        return result
    return run.scalar("where", inside, result, Value(run.ops.literal(0, run.dtype(tensor.dtype)), ()))


def _offset(
    run: Evaluator, shape: tuple[int, ...], dims: list[int], indices: tuple[Index, ...], slots: tuple[Value, ...]
) -> tuple[Value, Value | None]:
    """Row-major offset within `dims`, and where it is inside the bounds (None: everywhere)."""
    offset: Value | None = None
    inside: Value | None = None
    for d in dims:
        value = run.index(indices[d], slots)
        low, high = indices[d].range
        unsure = bool(indices[d].slots)  # the range of a dynamic index is a promise, not a bound
        dtype = jnp.dtype(index_dtype(indices[d]))
        for op, bound, needed in (("ge", 0, low < 0), ("lt", shape[d], high >= shape[d])):
            if not (needed or unsure):
                continue
            test = run.scalar(op, value, Value(run.ops.literal(bound, dtype), ()))
            inside = test if inside is None else run.scalar("and", inside, test)
        if offset is None:
            offset = value
        else:
            extent = Value(run.ops.literal(shape[d], dtype), ())
            offset = run.scalar("add", run.scalar("mul", offset, extent), value)
    assert offset is not None
    return offset, inside


# --- quotients and remainders of an axis: read the axis as digits -----------------------------------------------------


def _split_axes(indices: tuple[Index, ...], keep: frozenset[Axis]) -> tuple[tuple[Index, ...], dict[Axis, tuple[Axis, ...]]]:
    """Rewrite axes that occur under // and % as numbers of digits, so that such indices become affine where they can."""
    breaks: dict[Axis, set[int]] = {}
    for index in indices:
        index_breakpoints(index, breaks)
    digits = digits_of({a: marks for a, marks in breaks.items() if a not in keep})
    values = {a: number_of(ds) for a, ds in digits.items()}
    return tuple(i.substitute(values) for i in indices), digits


def _join_digits(run: Evaluator, value: Value, digits: dict[Axis, tuple[Axis, ...]]) -> Value:
    """Undo `_split_axes` on a loaded value."""
    home = {d: axis for axis, ds in digits.items() for d in ds}
    present = [a for a, ds in digits.items() if any(d in value.axes for d in ds)]
    if not present:
        return value
    joined = tuple(dict.fromkeys(home.get(a, a) for a in value.axes))
    spread = tuple(d for a in joined for d in digits.get(a, (a,)) if d.extent > 1)
    return Value(run.ops.apply("reshape", run.broadcast(value, spread), shape_of(joined)), joined)


def index_dtype(index: Index) -> str:
    """The integer dtype in which an index is computed."""
    low, high = index.range
    return "int32" if -(2**31) <= low and high < 2**31 else "int64"
