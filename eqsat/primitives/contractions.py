"""Dot products and convolutions: a sum of products, held in an accumulator dtype and rounded once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from eqsat.index import Axis, Index
from eqsat.notation import Term, cast, scalar
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
    (x_sum, y_sum), (x_batch, y_batch) = dimension_numbers
    bound = fold_axes(x.shape[d] for d in x_sum)
    free = iter(out.indices)
    batch = [next(free) for _ in x_batch]

    def places(rank: int, sums: Sequence[int], batches: Sequence[int]) -> list[Index]:
        known = dict(zip(batches, batch, strict=True)) | {d: Index.of(a) for d, a in zip(sums, bound, strict=True)}
        return [known[d] if d in known else next(free) for d in range(rank)]

    x_term = x.at(places(len(x.shape), x_sum, x_batch))
    y_term = y.at(places(len(y.shape), y_sum, y_batch))
    return contraction(out, x, y, x_term, y_term, bound)


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
