"""Dot products and convolutions: a sum of products, held in an accumulator dtype and rounded once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax.numpy as jnp

from eqsat.index import Axis, Index
from eqsat.notation import Term, cast, pos, scalar
from eqsat.primitives.reductions import window_places
from eqsat.primitives.table import Opaque, Out, View, choose, fold_axes, folded, reads, zero
from eqsat.scalars import DTYPES


def product_accumulator(out: Out, x: View, y: View) -> str:
    """float32 for narrow floats, 32 bits for narrow integers, otherwise the widest dtype of operands and result."""
    wide = [DTYPES[v.dtype].compute for v in (x, y, out)]  # 8-bit floats do not promote
    dtype = str(jnp.promote_types(jnp.promote_types(wide[0], wide[1]), wide[2]))
    row = DTYPES[dtype]
    return f"{row.kind}32" if row.kind in ("int", "uint") and row.nbytes < 4 else dtype


def contraction(out: Out, x: View, y: View, xt: Term, yt: Term, axes: tuple[Axis, ...]) -> Term:
    """The sum over `axes` of the products of two elements."""
    axes = tuple(a for a in axes if a.extent > 1)
    if out.dtype == "bool":
        return folded("or", axes, scalar("and", xt, yt))
    wide = product_accumulator(out, x, y)
    return cast(out.dtype, folded("sum", axes, scalar("mul", cast(wide, xt), cast(wide, yt))))


@reads("dot_general")
def dot_general(out: Out, x: View, y: View, dimension_numbers: Any, **_: Any) -> Term:
    """Dimensions of the result: batch, then the free ones of x, then those of y."""
    bound, x_places, y_places = _product_places(x, y, dimension_numbers, iter(out.indices))
    return contraction(out, x, y, x.at(x_places), y.at(y_places), bound)


def _product_places(
    x: View, y: View, dimension_numbers: Any, free: Iterator[Index]
) -> tuple[tuple[Axis, ...], list[Index], list[Index]]:
    """The axes of the sum of a product, and the places in x and y that meet there."""
    (x_sum, y_sum), (x_batch, y_batch) = dimension_numbers
    bound = fold_axes(x.shape[d] for d in x_sum)
    batch = [next(free) for _ in x_batch]

    def places(rank: int, sums: Sequence[int], batches: Sequence[int]) -> list[Index]:
        known = dict(zip(batches, batch, strict=True)) | {d: Index.of(a) for d, a in zip(sums, bound, strict=True)}
        return [known[d] if d in known else next(free) for d in range(rank)]

    return bound, places(len(x.shape), x_sum, x_batch), places(len(y.shape), y_sum, y_batch)


@reads("ragged_dot_general")
def ragged_dot_general(
    out: Out, x: View, y: View, sizes: View, ragged_dot_dimension_numbers: Any, group_offset: Any = None, **_: Any
) -> Term:
    """x: [m, k], y: [g, k, n], sizes: [g]; out[m, n] = sum over g, k of (x[m, k] where m is in group g, else 0) * y[g, k, n].

    The rows of the groups follow one another; behind the last of them the result is 0 (`jax.lax.ragged_dot_general`).
    """
    numbers = ragged_dot_dimension_numbers
    (x_sum, y_sum), (x_batch, y_batch) = numbers.dot_dimension_numbers
    (ragged,) = numbers.lhs_ragged_dimensions
    if ragged in x_batch:  # JAX takes every element of a batch, whatever its group
        return dot_general(out, x, y, numbers.dot_dimension_numbers)
    if group_offset is not None or sizes.dtype not in ("int32", "int64"):
        raise Opaque("groups from an offset on, or of sizes in few bits")
    if ragged in x_sum:
        return _summed_in_groups(out, x, y, sizes, numbers)
    (grouped,) = numbers.rhs_group_dimensions
    group, *bound = fold_axes(y.shape[d] for d in (grouped, *y_sum))
    free = iter(out.indices)
    batch = [next(free) for _ in x_batch]
    x_places = dict(zip(x_batch, batch, strict=True)) | {d: Index.of(a) for d, a in zip(x_sum, bound, strict=True)}
    y_places = dict(zip(y_batch, batch, strict=True)) | {d: Index.of(a) for d, a in zip(y_sum, bound, strict=True)}
    x_places |= {d: next(free) for d in range(len(x.shape)) if d not in x_places}
    y_places |= {grouped: Index.of(group)}
    y_places |= {d: next(free) for d in range(len(y.shape)) if d not in y_places}
    outer = [d for d in range(ragged) if d not in (*x_sum, *x_batch)]
    own = [x_places[d] for d in (*x_batch, *outer)] if len(sizes.shape) > 1 else []
    rows = _of_group(x_places[ragged], sizes, own, Index.of(group), group.extent)
    x_term = choose(rows, x.at([x_places[d] for d in range(len(x.shape))]), zero(x.dtype))
    return contraction(out, x, y, x_term, y.at([y_places[d] for d in range(len(y.shape))]), (group, *bound))


def _summed_in_groups(out: Out, x: View, y: View, sizes: View, numbers: Any) -> Term:
    """x: [m, k], y: [m, n], sizes: [g]; out[g, k, n] = sum over m of x[m, k] * y[m, n], both 0 where m is not in group g."""
    (x_sum, _), (x_batch, _) = numbers.dot_dimension_numbers
    n = list(x_sum).index(*numbers.lhs_ragged_dimensions)
    group, *free = out.indices
    bound, x_places, y_places = _product_places(x, y, numbers.dot_dimension_numbers, iter(free))
    own = [x_places[d] for d in (*x_batch, *x_sum[:n])] if len(sizes.shape) > 1 else []
    rows = _of_group(x_places[x_sum[n]], sizes, own, group, out.shape[0])
    x_term, y_term = (choose(rows, v.at(places), zero(v.dtype)) for v, places in ((x, x_places), (y, y_places)))
    return contraction(out, x, y, x_term, y_term, bound)


def _of_group(row: Index, sizes: View, own: list[Index], group: Index, groups: int) -> list[Term]:
    """The tests that a row is one of a group: it is not before the end of the groups before, but before that of the group."""
    before = Axis("before", groups)

    def end(test: str) -> Term:
        passed = scalar(test, pos(Index.of(before), "int32"), pos(group, "int32"))
        size = sizes.at([*own, Index.of(before)])
        return folded("sum", (before,), choose([passed], size, zero(size.dtype))) if groups > 1 else size

    at = pos(row, sizes.dtype)
    first = [scalar("ge", at, end("lt") if groups > 1 else zero(sizes.dtype))]
    return [*first, scalar("lt", at, end("le"))]


@reads("conv_general_dilated")
def conv_general_dilated(out: Out, x: View, w: View, dimension_numbers: Any, **params: Any) -> Term:
    """out[n, f, o] = sum over c, k of x[n, c, o*stride + k*dilation - padding] * w[f, c, k], groups apart."""
    x_spec, w_spec, out_spec = dimension_numbers
    groups, batch_groups = int(params["feature_group_count"]), int(params["batch_group_count"])
    if groups > 1 and batch_groups > 1:
        raise Opaque("groups of channels and of batch together")
    channels, *kernel = fold_axes(w.shape[d] for d in w_spec[1:])
    n, f, *spots = (out.indices[d] for d in out_spec)
    per_group = out.shape[out_spec[1]] // max(groups, batch_groups)
    places, tests = window_places(
        spots, kernel, params["window_strides"], params["padding"], params["lhs_dilation"], params["rhs_dilation"]
    )
    x_channel = (f // per_group) * channels.extent + channels if groups > 1 else Index.of(channels)
    x_batch = (f // per_group) * out.shape[out_spec[0]] + n if batch_groups > 1 else n
    x_term = choose(tests, x.padded(_placed(x_spec, [x_batch, x_channel, *places])), zero(x.dtype))
    w_term = w.at(_placed(w_spec, [f, Index.of(channels), *(Index.of(k) for k in kernel)]))
    return contraction(out, x, w, x_term, w_term, (channels, *kernel))


def _placed(spec: Sequence[int], indices: Sequence[Index]) -> list[Index]:
    """Indices given in the order of a dimension specification, put in the order of dimensions."""
    return [index for _, index in sorted(zip(spec, indices, strict=True), key=lambda pair: pair[0])]
