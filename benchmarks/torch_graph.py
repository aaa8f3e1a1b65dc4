"""A graph of JAX equations as a torch function, for torch.compile and for Inductor's plans.

Products of narrow floats that accumulate in a wide one are written as torch users write them: a product, then a cast.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from eqsat.graph import Equation, Graph, Variable

Tensor = Any
DTYPES = {
    "bool": torch.bool, "int8": torch.int8, "int16": torch.int16, "int32": torch.int32, "int64": torch.int64,
    "uint8": torch.uint8, "float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32,
    "float64": torch.float64,
}  # fmt: skip


def torch_function(graph: Graph, device: str = "cpu") -> Callable[..., list[Tensor]]:
    """A function of flat tensors. Raises NotImplementedError naming the first primitive that has no translation."""
    missing = sorted({e.name for e in graph.equations} - OPS.keys())
    if missing:
        raise NotImplementedError(f"no torch for {', '.join(missing)}")
    constants = {v: torch.from_numpy(np.array(a)).to(device) for v, a in graph.constants.items()}
    steps, outputs = _folded_numbers(graph)

    def run(*flat: Tensor) -> list[Tensor]:
        known: dict[Any, Tensor] = {**constants, **dict(zip(graph.inputs, flat, strict=True))}
        for e, operands in steps:
            results = OPS[e.name](e, device, *(known[x] if isinstance(x, Variable) else x for x in operands))
            known.update(zip(e.outputs, results if isinstance(results, tuple | list) else [results], strict=True))
        found = [known[x] if isinstance(x, Variable) else x for x in outputs]
        return [_tensor(value, x, device) for value, x in zip(found, graph.outputs, strict=True)]

    return run


def traced(graph: Graph, device: str = "cpu") -> Any:
    """The function as one graph of torch's own operations: torch.compile would break at the loop over equations."""
    zeros = [torch.zeros(tuple(v.shape), dtype=DTYPES[v.dtype], device=device) for v in graph.inputs]  # which are places, too
    return make_fx(torch_function(graph, device), tracing_mode="real")(*zeros)


def _folded_numbers(graph: Graph) -> tuple[list[tuple[Equation, list[Any]]], list[Any]]:
    """The equations that compute tensors, with their operands, and the outputs; numbers are Python's.

    What computes a number from numbers is run here, by JAX, which torch.compile cannot look into.
    """
    numbers: dict[Variable, Any] = {}

    def operand(atom: Any) -> Any:
        return numbers.get(atom, atom) if isinstance(atom, Variable) else np.asarray(atom.value).item()

    steps = []
    for e in graph.equations:
        operands = [operand(x) for x in e.inputs]
        if operands and not any(isinstance(x, Variable) for x in operands) and all(x.shape == () for x in e.outputs):
            numbers.update(zip(e.outputs, _folded(e, operands), strict=True))
        else:
            steps.append((e, operands))
    return steps, [operand(x) for x in graph.outputs]


def _folded(e: Equation, values: list[Any]) -> list[Any]:
    operands = [np.asarray(v, np.dtype(x.dtype)) for v, x in zip(values, e.inputs, strict=True)]
    return [np.asarray(r).item() for r in e.bind(*operands)]


def _tensor(value: Tensor, atom: Any, device: str) -> Tensor:
    return (
        value if isinstance(value, torch.Tensor) else torch.full(atom.aval.shape, value, dtype=DTYPES[atom.dtype], device=device)
    )


# --- operators --------------------------------------------------------------------------------------------------


def plain(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """An operator that needs its operands only; at least one is a tensor."""
    return lambda e, device, *xs: function(*xs)


def extremum(whole: Callable[..., Tensor], bound: str) -> Callable[..., Tensor]:
    def apply(e: Equation, device: str, x: Tensor, y: Tensor) -> Tensor:
        if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor):
            return whole(x, y)
        tensor, number = (x, y) if isinstance(x, torch.Tensor) else (y, x)
        return tensor if number in (float("inf"), float("-inf")) else torch.clamp(tensor, **{bound: number})

    return apply


def divide(e: Equation, device: str, x: Tensor, y: Tensor) -> Tensor:
    return x / y if "float" in e.outputs[0].dtype else torch.div(x, y, rounding_mode="trunc")


def broadcast(e: Equation, device: str, x: Tensor) -> Tensor:
    shape, kept = e.params["shape"], e.params["broadcast_dimensions"]
    if not isinstance(x, torch.Tensor):
        return torch.full(shape, x, dtype=DTYPES[e.outputs[0].dtype], device=device)
    spread = [1] * len(shape)
    for n, axis in enumerate(kept):
        spread[axis] = x.shape[n]
    return x.reshape(spread).expand(shape)


def iota(e: Equation, device: str) -> Tensor:
    shape, axis = e.params["shape"], e.params["dimension"]
    numbers = torch.arange(shape[axis], dtype=DTYPES[e.outputs[0].dtype], device=device)
    return numbers.reshape([-1 if n == axis else 1 for n in range(len(shape))]).expand(shape)


def cast(e: Equation, device: str, x: Tensor) -> Tensor:
    dtype = DTYPES[str(np.dtype(e.params["new_dtype"]))]
    return x.to(dtype) if isinstance(x, torch.Tensor) else torch.full((), x, dtype=dtype, device=device)


def select(e: Equation, device: str, which: Tensor, *cases: Tensor) -> Tensor:
    no, yes = cases
    dtype = DTYPES[e.outputs[0].dtype]
    return torch.where(which, yes, no).to(dtype)


def dot_general(e: Equation, device: str, x: Tensor, y: Tensor) -> Tensor:
    (cx, cy), (bx, by) = e.params["dimension_numbers"]
    rows = [n for n in range(x.ndim) if n not in (*cx, *bx)]
    columns = [n for n in range(y.ndim) if n not in (*cy, *by)]
    batch, k = [x.shape[n] for n in bx], prod(x.shape[n] for n in cx)
    x, y = (operand.to(torch.promote_types(x.dtype, y.dtype)) for operand in (x, y))  # JAX multiplies float32 by bfloat16
    left = x.permute(*bx, *rows, *cx).reshape(*_one(batch), -1, k)
    right = y.permute(*by, *cy, *columns).reshape(*_one(batch), k, -1)
    result = torch.matmul(left, right).reshape([*batch, *(x.shape[n] for n in rows), *(y.shape[n] for n in columns)])
    return result.to(DTYPES[e.outputs[0].dtype])


def _one(batch: list[int]) -> list[int]:
    """Batch axes as at most one."""
    return [prod(batch)] if batch else []


def convolution(e: Equation, device: str, x: Tensor, w: Tensor) -> Tensor:
    p, spec = e.params, e.params["dimension_numbers"]
    if any(d != 1 for d in p["lhs_dilation"]) or p["batch_group_count"] != 1 or len(p["window_strides"]) != 2:
        raise NotImplementedError("no torch for this convolution")
    padding, x, w = p["padding"], x.permute(spec.lhs_spec), w.permute(spec.rhs_spec)
    even = all(low == high for low, high in padding)
    if not even:
        x = F.pad(x, [n for low, high in reversed(padding) for n in (low, high)])
    symmetric = [low for low, _ in padding] if even else [0, 0]
    y = F.conv2d(x, w, None, list(p["window_strides"]), symmetric, list(p["rhs_dilation"]), p["feature_group_count"])
    return y.permute(tuple(int(n) for n in np.argsort(spec.out_spec)))


def window(fill: float, pool: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def apply(e: Equation, device: str, x: Tensor) -> Tensor:
        p = e.params
        kernel, strides, padding = p["window_dimensions"], p["window_strides"], p["padding"]
        if x.ndim != 4 or kernel[:2] != (1, 1) or any(d != 1 for d in (*p["base_dilation"], *p["window_dilation"])):
            raise NotImplementedError(f"no torch for this {e.name}")
        if any(n for pair in padding for n in pair):
            x = F.pad(x, [n for low, high in reversed(padding[2:]) for n in (low, high)], value=fill)
        return pool(x, list(kernel[2:]), list(strides[2:]))

    return apply


def take_along(e: Equation, device: str, x: Tensor, index: Tensor) -> Tensor:
    """The gather of `take_along_axis` over the last of two axes."""
    d = e.params["dimension_numbers"]
    if x.ndim != 2 or d.collapsed_slice_dims != (1,) or d.operand_batching_dims != (0,):
        raise NotImplementedError("no torch for this gather")
    return torch.gather(x, 1, index.reshape(x.shape[0], -1).long()).reshape(e.outputs[0].shape)


def reduced(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda e, device, x: function(x, [int(a) for a in e.params["axes"]]) if e.params["axes"] else x


def sliced(e: Equation, device: str, x: Tensor) -> Tensor:
    p = e.params
    strides = p["strides"] or (1,) * x.ndim
    return x[
        tuple(slice(int(a), int(b), int(s)) for a, b, s in zip(p["start_indices"], p["limit_indices"], strides, strict=True))
    ]


def padded(e: Equation, device: str, x: Tensor, fill: Any) -> Tensor:
    config = e.params["padding_config"]
    if any(interior for _, _, interior in config) or isinstance(fill, torch.Tensor):
        raise NotImplementedError("no torch for this pad")
    return F.pad(x, [int(n) for low, high, _ in reversed(config) for n in (low, high)], value=fill)


def _identity(x: Tensor) -> Tensor:
    return x


OPS: dict[str, Callable[..., Any]] = {
    "add": plain(operator.add), "add_any": plain(operator.add), "sub": plain(operator.sub), "mul": plain(operator.mul),
    "div": divide, "pow": plain(torch.pow), "neg": plain(torch.neg), "max": extremum(torch.maximum, "min"),
    "min": extremum(torch.minimum, "max"), "exp": plain(torch.exp), "log": plain(torch.log), "sqrt": plain(torch.sqrt),
    "rsqrt": plain(torch.rsqrt), "tanh": plain(torch.tanh), "logistic": plain(torch.sigmoid), "sin": plain(torch.sin),
    "cos": plain(torch.cos), "abs": plain(torch.abs), "erf": plain(torch.erf), "erfc": plain(torch.erfc),
    "expm1": plain(torch.expm1), "log1p": plain(torch.log1p), "square": plain(torch.square),
    "is_finite": plain(torch.isfinite), "stop_gradient": plain(_identity), "copy": plain(_identity),
    "eq": plain(operator.eq), "ne": plain(operator.ne), "lt": plain(operator.lt), "le": plain(operator.le),
    "gt": plain(operator.gt), "ge": plain(operator.ge), "and": plain(operator.and_), "or": plain(operator.or_),
    "integer_pow": lambda e, device, x: x ** int(e.params["y"]),
    "select_n": select, "convert_element_type": cast, "broadcast_in_dim": broadcast, "iota": iota,
    "reshape": lambda e, device, x: x.reshape(e.outputs[0].shape),
    "squeeze": lambda e, device, x: x.reshape(e.outputs[0].shape),
    "expand_dims": lambda e, device, x: x.reshape(e.outputs[0].shape),
    "transpose": lambda e, device, x: x.permute(e.params["permutation"]),
    "concatenate": lambda e, device, *xs: torch.cat(xs, e.params["dimension"]),
    "split": lambda e, device, x: torch.split(x, [int(n) for n in e.params["sizes"]], e.params["axis"]),
    "slice": sliced, "pad": padded, "gather": take_along,
    "cumsum": lambda e, device, x: torch.cumsum(x, e.params["axis"]),
    "reduce_sum": reduced(torch.sum), "reduce_max": reduced(torch.amax), "reduce_min": reduced(torch.amin),
    "dot_general": dot_general, "conv_general_dilated": convolution,
    "reduce_window_max": window(float("-inf"), F.max_pool2d),
    "reduce_window_sum": window(0.0, lambda x, k, s: F.avg_pool2d(x, k, s, divisor_override=1)),
}  # fmt: skip


# --- arrays -----------------------------------------------------------------------------------------------------


def to_torch(arrays: Sequence[Any]) -> list[Tensor]:
    """JAX's arrays as tensors, without a copy where their memory allows it."""
    return [torch.from_dlpack(a) for a in arrays]


def to_numpy(tensor: Tensor) -> np.ndarray:
    tensor = tensor.detach().contiguous().cpu()
    if tensor.dtype == torch.bfloat16:
        import ml_dtypes

        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()
