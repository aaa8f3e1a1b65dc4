"""Products, convolutions, reductions, sorts."""

from __future__ import annotations

from math import prod

import numpy as np

from eqsat.graph import Equation
from eqsat.writers.onnx.graph import Builder, Lacking, Value, result, writes
from eqsat.writers.onnx.views import spread


@writes("dot_general")
def dot_general(b: Builder, e: Equation, x: Value, y: Value) -> Value:
    """MatMul of [batch, rows, summed] and [batch, summed, columns], in the dtype of the result."""
    (sx, sy), (bx, by) = e.params["dimension_numbers"]
    shape, dtype = result(e)
    free_x = [d for d in range(len(x.shape)) if d not in (*sx, *bx)]
    free_y = [d for d in range(len(y.shape)) if d not in (*sy, *by)]
    x, y = b.cast(x, dtype), b.cast(y, dtype)
    batch = [x.shape[d] for d in bx]
    rows, columns = [x.shape[d] for d in free_x], [y.shape[d] for d in free_y]
    summed = prod(x.shape[d] for d in sx)
    left = b.reshape(b.transpose(x, [*bx, *free_x, *sx]), [*batch, prod(rows), summed])
    right = b.reshape(b.transpose(y, [*by, *sy, *free_y]), [*batch, summed, prod(columns)])
    product = b.node("MatMul", [left, right], [*batch, prod(rows), prod(columns)], dtype)
    return b.reshape(product, shape)


@writes("conv_general_dilated")
def convolution(b: Builder, e: Equation, x: Value, kernel: Value) -> Value:
    p = e.params
    numbers, (shape, dtype) = p["dimension_numbers"], result(e)
    if p.get("batch_group_count", 1) != 1:
        raise Lacking("a convolution with groups of the batch")
    x, kernel = b.cast(x, dtype), b.cast(kernel, dtype)
    x, kernel = b.transpose(x, numbers.lhs_spec), b.transpose(kernel, numbers.rhs_spec)
    for d, n in enumerate(p["lhs_dilation"]):
        x = spread(b, x, d + 2, n - 1, b.like(x, 0)) if n > 1 else x
    low, high = zip(*p["padding"], strict=True) if p["padding"] else ((), ())
    if min((*low, *high), default=0) < 0:
        cut_low, cut_high = ([0, 0, *(max(-n, 0) for n in edge)] for edge in (low, high))
        x = b.slice(x, cut_low, [n - c for n, c in zip(x.shape, cut_high, strict=True)], [1] * len(x.shape))
    made = b.node(
        "Conv",
        [x, kernel],
        [shape[d] for d in numbers.out_spec],
        dtype,
        strides=list(p["window_strides"]),
        pads=[max(n, 0) for n in (*low, *high)],
        dilations=list(p["rhs_dilation"]),
        group=p["feature_group_count"],
    )
    return b.transpose(made, list(np.argsort(numbers.out_spec)))


REDUCED = {"reduce_sum": "ReduceSum", "reduce_max": "ReduceMax", "reduce_min": "ReduceMin", "reduce_prod": "ReduceProd"}


@writes(*REDUCED)
def reduce(b: Builder, e: Equation, x: Value) -> Value:
    axes = e.params["axes"]
    if not axes:
        return x
    return b.node(REDUCED[e.name], [x, b.integers(axes)], *result(e), keepdims=0)


@writes("reduce_and", "reduce_or")
def reduce_bits(b: Builder, e: Equation, x: Value) -> Value:
    if x.dtype != np.bool_:
        raise Lacking(f"{e.name} of {x.dtype}")
    if not e.params["axes"]:
        return x
    kind = "ReduceMin" if e.name == "reduce_and" else "ReduceMax"
    numbers = b.node(kind, [b.cast(x, np.int32), b.integers(e.params["axes"])], result(e)[0], np.int32, keepdims=0)
    return b.cast(numbers, np.bool_)


@writes("reduce_window_max", "reduce_window_sum")
def pool(b: Builder, e: Equation, x: Value) -> Value:
    """A pool over the dimensions with windows, which come last; the others are a batch. A sum is a mean times its count."""
    p = e.params
    window, low, high = p["window_dimensions"], *zip(*p["padding"], strict=True)
    if max(p["base_dilation"]) > 1 or min(*low, *high) < 0 or x.dtype not in (np.float16, np.float32, np.float64):
        raise Lacking(f"{e.name} with base dilation, negative padding, or of {x.dtype}")
    moved = zip(window, p["window_strides"], low, high, strict=True)
    pooled = [d for d, steps in enumerate(moved) if steps != (1, 1, 0, 0)] or [len(x.shape) - 1]
    order = [*(d for d in range(len(x.shape)) if d not in pooled), *pooled]
    (shape, dtype), batch = result(e), [x.shape[d] for d in order[: -len(pooled)]]
    options = {
        "kernel_shape": [window[d] for d in pooled],
        "strides": [p["window_strides"][d] for d in pooled],
        "dilations": [p["window_dilation"][d] for d in pooled],
        "pads": [edge[d] for edge in (low, high) for d in pooled],
    }
    flat = b.reshape(b.transpose(x, order), [prod(batch), 1, *(x.shape[d] for d in pooled)])
    target = [prod(batch), 1, *(shape[d] for d in pooled)]
    if e.name == "reduce_window_max":
        made = b.node("MaxPool", [flat], target, dtype, **options)
    else:
        mean = b.node("AveragePool", [flat], target, dtype, count_include_pad=1, **options)
        made = b.binary("Mul", mean, b.like(mean, prod(options["kernel_shape"])))
    return b.transpose(b.reshape(made, [shape[d] for d in order]), list(np.argsort(order)))


@writes("argmax", "argmin")
def argmax(b: Builder, e: Equation, x: Value) -> Value:
    (axis,) = e.params["axes"]
    shape, dtype = result(e)
    kind = "ArgMax" if e.name == "argmax" else "ArgMin"
    return b.cast(b.node(kind, [x], shape, np.int64, axis=axis, keepdims=0), dtype)


@writes("cumsum")
def cumsum(b: Builder, e: Equation, x: Value) -> Value:
    axis = b.constant(np.asarray(e.params["axis"], np.int64))
    return b.node("CumSum", [x, axis], x.shape, x.dtype, reverse=int(e.params["reverse"]))


@writes("top_k")
def top_k(b: Builder, e: Equation, x: Value) -> list[Value]:
    axis = e.params.get("axis", -1)
    shape, dtype = result(e, 1)
    values, places = b.several(
        "TopK", [x, b.integers([e.params["k"]])], [(shape, x.dtype), (shape, np.int64)], axis=axis, largest=1, sorted=1
    )
    return [values, b.cast(places, dtype)]


@writes("sort")
def sort(b: Builder, e: Equation, *operands: Value) -> list[Value]:
    """TopK of everything, smallest first: among equals ONNX too keeps the order."""
    if e.params["num_keys"] != 1:
        raise Lacking("a sort by several keys")
    axis, key = e.params["dimension"], operands[0]
    size = b.integers([key.shape[axis]])
    values, places = b.several(
        "TopK", [key, size], [(key.shape, key.dtype), (key.shape, np.int64)], axis=axis, largest=0, sorted=1
    )
    return [values, *(b.node("GatherElements", [x, places], x.shape, x.dtype, axis=axis) for x in operands[1:])]
