"""Lookups: elements at indices that are themselves values of the program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from eqsat.index import Index
from eqsat.notation import Term, cast, const, const_value, pos
from eqsat.primitives.fold import converted, index_of, scalar
from eqsat.primitives.table import Opaque, Out, View, choose, fold_axes, folded, reads
from eqsat.scalars import DTYPES, is_float


class Lookup:
    """Collects the computed indices of one load: each is an operand, held inside its range first."""

    def __init__(self) -> None:
        self._operands: list[Term] = []

    @property
    def operands(self) -> tuple[Term, ...]:
        return tuple(self._operands)

    def index(self, value: Term, high: int) -> Index:
        """`value` clamped to 0 .. high; a position that lies there already is used as it is."""
        if high == 0:
            return Index()
        known = index_of(value)
        if known is not None and 0 <= known.range[0] and known.range[1] <= high:
            return known
        self._operands.append(clamped(value, high))
        return Index.dynamic(len(self._operands) - 1, 0, high)


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
    element = x.loaded(places, lookup.operands)
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
    return x.loaded(places, lookup.operands)


@reads("dynamic_update_slice", loads=(1,))
def dynamic_update_slice(out: Out, x: View, update: View, *starts: View, **_: Any) -> Term:
    """The update where its (clamped) place is, the operand elsewhere."""
    window = Window()
    for i, start, n, m in zip(out.indices, starts, out.shape, update.shape, strict=True):
        window.dimension(i, start.term, n, m)
    return window.choose(update.loaded(window.places, window.operands), x.term)


class Window(Lookup):
    """Where the element of an array lies in an update that covers a part of it: a place, and the tests that it lies there."""

    def __init__(self) -> None:
        super().__init__()
        self.places: list[Index] = []
        self.tests: list[Term] = []

    def dimension(self, index: Index, start: Term | None, extent: int, size: int) -> None:
        """The update covers start .. start+size-1 of a dimension; its start is clamped so that it lies inside."""
        if size == 1 != extent and start is not None:
            self.element(index, clamped(start, extent - 1), extent)
            return
        first = const(0, "int32") if start is None else converted("int32", clamped(start, extent - size))
        offset = scalar("sub", pos(index, "int32"), first)
        if extent != size:
            self.tests += in_range(offset, size - 1)
        known = index_of(offset)
        self.places.append(index if extent == size else self.index(offset, size - 1) if known is None else known)

    def element(self, index: Index, place: Term, extent: int) -> None:
        """The update covers one element of a dimension, or none where its place lies outside."""
        self.tests.append(is_at(place, index, extent))
        self.places.append(Index())

    def choose(self, inside: Term, outside: Term) -> Term:
        return choose(self.tests, inside, outside)


def is_at(place: Term, index: Index, extent: int) -> Term:
    """The test that a computed place is this one of a dimension."""
    place = place if DTYPES[place.dtype].nbytes >= 4 else converted("int32", place)
    if extent - 1 > np.iinfo(place.dtype).max:
        raise Opaque("more elements than an index can say")
    return scalar("eq", place, pos(index, place.dtype))


@reads("scatter", "scatter-add", loads=(2,))
def scatter(out: Out, x: View, indices: View, updates: View, dimension_numbers: Any, mode: Any, **params: Any) -> Term:
    """One update per element at most: its place is computed, as in dynamic_update_slice. Several are summed by their places."""
    numbers = dimension_numbers
    batch = dict(zip(map(int, numbers.scatter_indices_batching_dims), map(int, numbers.operand_batching_dims), strict=True))
    adds = params.get("update_jaxpr") is not None
    if any(n != 1 and d not in batch for d, n in enumerate(indices.shape[:-1])):
        if not adds:
            raise Opaque("several updates may meet in one element")
        return _scattered_sum(out, x, indices, updates, numbers, batch, str(mode))
    rows = [out.indices[batch[d]] if d in batch else Index() for d in range(len(indices.shape) - 1)]
    starts = {int(d): indices.at([*rows, Index.of(k)]) for k, d in enumerate(numbers.scatter_dims_to_operand_dims)}
    skipped = {int(d) for d in (*numbers.inserted_window_dims, *numbers.operand_batching_dims)}
    sizes = iter(updates.shape[d] for d in numbers.update_window_dims)
    window = Window()
    for d, (i, n) in enumerate(zip(out.indices, out.shape, strict=True)):
        if d in skipped and d not in starts:
            continue
        size = 1 if d in skipped else next(sizes)
        dropped = d in starts and "CLIP" not in str(mode)  # an update that does not fit
        if dropped and size == 1 != n:
            window.element(i, starts[d], n)
        else:
            window.dimension(i, starts.get(d), n, size)
            window.tests += in_range(starts[d], n - size) if dropped else []
        if d in skipped:
            window.places.pop()
    inner, outer = iter(window.places), iter(rows)
    places = [next(inner) if d in numbers.update_window_dims else next(outer) for d in range(len(updates.shape))]
    update = updates.loaded(places, window.operands)
    return window.choose(scalar("add", x.term, update) if adds else update, x.term)


def _scattered_sum(out: Out, x: View, indices: View, updates: View, numbers: Any, batch: dict[int, int], mode: str) -> Term:
    """For each element the sum of all updates, of which those with other places count 0 (see `eqsat.scatters`)."""
    counts, row = indices.shape[:-1], DTYPES[out.dtype]
    if 0 in (*counts, *updates.shape):
        raise Opaque("no updates")
    if row.kind == "bool" or row.compute != out.dtype:  # a sum in float32 would move several times the bytes
        raise Opaque("a narrow sum is rounded at each update")
    folds = fold_axes(counts)
    own = [Index.of(axis) if axis.extent > 1 else Index() for axis in folds]
    rows = [out.indices[batch[d]] if d in batch else index for d, index in enumerate(own)]
    starts = {int(d): indices.at([*rows, Index.of(k)]) for k, d in enumerate(numbers.scatter_dims_to_operand_dims)}
    skipped = {int(d) for d in (*numbers.inserted_window_dims, *numbers.operand_batching_dims)}
    sizes, places, tests = iter(updates.shape[d] for d in numbers.update_window_dims), [], list[Term]()
    for d, (i, n) in enumerate(zip(out.indices, out.shape, strict=True)):
        size = 1 if d in skipped else next(sizes)
        if size not in (1, n):
            raise Opaque("updates of several elements may meet in one")
        if d in starts:
            start = clamped(starts[d], n - size) if "CLIP" in mode else starts[d]
            tests.append(is_at(start, i if size == 1 else Index(), n))
        if d not in skipped:
            places.append(i if size == n else Index())
    inner, outer = iter(places), iter(rows)
    update = updates.at([next(inner) if d in numbers.update_window_dims else next(outer) for d in range(len(updates.shape))])
    wide = out.dtype if row.nbytes >= 4 else f"{row.kind}32"  # that memory can add to
    bound = tuple(axis for d, axis in enumerate(folds) if d not in batch and axis.extent > 1)
    total = folded("sum", bound, choose(tests, cast(wide, update), const(0, wide)))
    fresh = x.term.head == "const" and const_value(x.term) == 0
    return cast(out.dtype, total if fresh else scalar("add", cast(wide, x.term), total))
