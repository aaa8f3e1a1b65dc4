"""Lookups: elements at indices that are themselves values of the program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from eqsat.index import Index
from eqsat.notation import Term, cast, const, pos
from eqsat.primitives.fold import index_of, scalar
from eqsat.primitives.table import Opaque, Out, View, choose, reads
from eqsat.scalars import DTYPES, is_float


class Lookup:
    """Collects the computed indices of one load: each is an operand, held inside its range first."""

    def __init__(self) -> None:
        self.operands: list[Term] = []

    def index(self, value: Term, high: int) -> Index:
        """`value` clamped to 0 .. high; a position that lies there already is used as it is."""
        if high == 0:
            return Index()
        known = index_of(value)
        if known is not None and 0 <= known.range[0] and known.range[1] <= high:
            return known
        self.operands.append(clamped(value, high))
        return Index.dynamic(len(self.operands) - 1, 0, high)


def clamped(value: Term, high: int) -> Term:
    limit = min(high, int(np.iinfo(value.dtype).max))
    low = value if DTYPES[value.dtype].kind == "uint" else scalar("max", value, const(0, value.dtype))
    return low if limit < high else scalar("min", low, const(limit, value.dtype))


def in_range(value: Term, high: int) -> list[Term]:
    """The tests that a computed index lies in 0 .. high."""
    tests = []
    if DTYPES[value.dtype].kind != "uint":
        tests.append(scalar("ge", value, const(0, value.dtype)))
    if high <= int(np.iinfo(value.dtype).max):
        tests.append(scalar("le", value, const(high, value.dtype)))
    return [t for t in tests if t is not const(True, "bool")]


@reads("gather", loads=(0,))
def gather(
    out: Out, x: View, indices: View, dimension_numbers: Any, slice_sizes: Sequence[int], mode: Any, **params: Any
) -> Term:
    """A slice of x for each row of indices: starts are computed, offsets inside a slice are axes of the result."""
    numbers = dimension_numbers
    kind = str(getattr(mode, "name", mode))
    if kind not in ("CLIP", "FILL_OR_DROP", "PROMISE_IN_BOUNDS"):
        raise Opaque(f"gather in mode {kind}")
    batch = [i for d, i in enumerate(out.indices) if d not in numbers.offset_dims]
    offsets = iter(out.indices[d] for d in numbers.offset_dims)
    index_batch = dict(zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True))
    starts = {d: indices.at([*batch, Index.of(k)]) for k, d in enumerate(numbers.start_index_map)}
    lookup, places, tests = Lookup(), [], []
    for d, (extent, size) in enumerate(zip(x.shape, slice_sizes, strict=True)):
        whole = d in numbers.collapsed_slice_dims or d in index_batch
        place = batch[index_batch[d]] if d in index_batch else Index()
        if not whole:
            place = place + next(offsets)
        if d in starts:
            place = place + lookup.index(starts[d], extent - int(size))
            tests += in_range(starts[d], extent - int(size))
        places.append(place)
    element = x.loaded(places, tuple(lookup.operands))
    return choose(tests, element, fill_value(out.dtype, params.get("fill_value"))) if kind == "FILL_OR_DROP" else element


def fill_value(dtype: str, given: Any) -> Term:
    """What JAX returns for an index out of bounds: NaN, the least signed, or the largest unsigned number."""
    if given is not None:
        return const(np.asarray(given).item(), dtype)
    if is_float(dtype):
        return const(float("nan"), dtype)
    kind = DTYPES[dtype].kind
    return const(True if kind == "bool" else int(np.iinfo(dtype).min if kind == "int" else np.iinfo(dtype).max), dtype)


@reads("dynamic_slice", loads=(0,))
def dynamic_slice(out: Out, x: View, *starts: View, **_: Any) -> Term:
    """Starts are clamped so that the slice lies inside."""
    lookup = Lookup()
    starts = starts[: len(x.shape)]
    places = [i + lookup.index(s.term, n - m) for i, s, n, m in zip(out.indices, starts, x.shape, out.shape, strict=True)]
    return x.loaded(places, tuple(lookup.operands))


@reads("dynamic_update_slice", loads=(1,))
def dynamic_update_slice(out: Out, x: View, update: View, *starts: View, **_: Any) -> Term:
    """The update where its (clamped) place is, the operand elsewhere."""
    lookup, places, tests = Lookup(), [], []
    for i, start, n, m in zip(out.indices, starts, out.shape, update.shape, strict=True):
        if n == m:
            places.append(i)
            continue
        first = clamped(start.term, n - m)
        first = cast("int32", first) if DTYPES[first.dtype].nbytes < 4 else first
        position = cast(first.dtype, pos(i, "int32"))
        offset = scalar("sub", position, first)
        tests += [scalar("ge", offset, const(0, offset.dtype)), scalar("lt", offset, const(m, offset.dtype))]
        places.append(lookup.index(offset, m - 1))
    return choose(tests, update.loaded(places, tuple(lookup.operands)), x.term)
