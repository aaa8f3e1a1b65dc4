"""Ten programs at awkward sizes: each of their kernels against both of its meanings, through JAX and through torch.

On a card a kernel runs inside `jax.jit` by the ffi call, and from torch tensors; without one, in Triton's interpreter with
checks of bounds, races and unwritten bytes.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import eqsat
from benchmarks.card.steps import Context, Record
from benchmarks.workloads import shapes
from eqsat.backends import triton
from eqsat.backends.triton import interpret
from eqsat.backends.triton.source import load
from eqsat.devices import device
from eqsat.inputs import draw
from eqsat.lower import lower
from eqsat.program import PlannedKernel
from eqsat.tile import TileProgram
from eqsat.validate_kernels import check_outputs
from examples.attention import causal_attention, grouped_attention
from examples.blocks import concat_pad_slice, conv_bias_relu, cross_entropy, transpose_add
from examples.mlp import mlp, swiglu
from examples.norms import layer_norm, residual_rms_norm
from examples.softmax import softmax_wide

Array = Any
PROGRAMS: dict[str, tuple[Callable[..., Any], str]] = {
    "softmax": (softmax_wide, "bfloat16[129,1000]"),
    "layer norm": (layer_norm, "bfloat16[127,1001] bfloat16[1001] bfloat16[1001]"),
    "residual + RMS norm": (residual_rms_norm, "float32[17,2048] float32[17,2048] float32[2048]"),
    "MLP": (mlp, "bfloat16[129,127] bfloat16[127,257] bfloat16[257] bfloat16[257,127] bfloat16[127]"),
    "SwiGLU": (swiglu, "float16[65,128] float16[128,129] float16[128,129] float16[129,128]"),
    "causal attention": (causal_attention, "bfloat16[2,3,127,64] bfloat16[2,3,127,64] bfloat16[2,3,127,64]"),
    "grouped attention": (grouped_attention, "bfloat16[1,4,100,64] bfloat16[1,2,100,64] bfloat16[1,2,100,64]"),
    "cross entropy": (cross_entropy, "bfloat16[33,64] bfloat16[64,501] int32[33]"),
    "convolution": (conv_bias_relu, "bfloat16[2,15,17,16] bfloat16[3,3,16,16] bfloat16[16]"),
    "transpose + add, concat + pad + slice": (
        lambda x, y, z: concat_pad_slice(transpose_add(x, y), z),
        "float32[129,129] float32[129,129] float32[129,37]",
    ),
}


def checked(context: Context) -> tuple[dict[str, Record], str]:
    """The step: for each program, each route's worst error as a share of what is allowed."""
    results = context.each(PROGRAMS.items(), lambda case: _program(context, *case))
    count = sum(len(r["kernels"]) for r in results.values())
    how = "in the interpreter" if context.dry else "through JAX and torch" if torch_on_card() else "through JAX"
    return results, f"{count} kernels of {len(results)} programs right {how}"


def torch_on_card() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


def _program(context: Context, fn: Callable[..., Any], specs: str) -> Record:
    program = eqsat.optimize(fn, *shapes(specs), target=context.row)
    routes = {"interpreter": _interpreted} if context.dry else {"jax": _through_jax}
    if not context.dry and torch_on_card():
        routes["torch"] = through_torch
    kernels = {}
    for n, planned in enumerate(p for p in program.kernels if p.schedule is not None):
        kernels[planned.name] = {route: _kernel(context, planned, run, n) for route, run in routes.items()}
    return {"kernels": kernels}


def _kernel(context: Context, planned: PlannedKernel, run: Callable[..., Sequence[Array]], number: int) -> float:
    """The error as a share of the allowed one. Raises ValidationError if that is more than 1."""
    assert planned.schedule is not None
    tiles = lower(planned.kernel, planned.schedule)
    arrays = draw(tiles.inputs, context.seed + number, None)
    results = run(planned.source("triton"), tiles, arrays, context.row)
    return max(check.ratio for check in check_outputs(planned, dict(zip(tiles.inputs, arrays, strict=True)), results))


def _interpreted(source: str, tiles: TileProgram, arrays: Sequence[np.ndarray], row: str) -> Sequence[Array]:
    outputs, report = interpret.run(source, arrays, tiles.outputs, check=True)
    assert report is not None
    if not report.ok:
        raise ValueError(f"{tiles.name}: every byte written by one program required, got {report.races or report.unwritten}")
    return outputs


def _through_jax(source: str, tiles: TileProgram, arrays: Sequence[np.ndarray], row: str) -> Sequence[Array]:
    return jax.jit(jax_call(source, tiles, row))(*map(jnp.asarray, arrays))


def jax_call(source: str, tiles: TileProgram, row: str) -> Callable[..., tuple[jax.Array, ...]]:
    cc = device(row).compute_capability
    return lambda *arrays: triton.launch.call(source, tiles, *arrays, target=cc)


def through_torch(source: str, tiles: TileProgram, arrays: Sequence[np.ndarray], row: str) -> Sequence[Array]:
    """The kernel as its file's `launch` runs it, its outputs poisoned before."""
    tensors = [tensor(a) for a in (*arrays, *(interpret.poisoned(t.shape, t.dtype) for t in tiles.outputs))]
    load(source).launch(*tensors)
    return [np.asarray(jax.dlpack.from_dlpack(t)) for t in tensors[len(arrays) :]]


def tensor(array: Any) -> Any:
    """An array as a torch tensor on the card."""
    import torch

    array = np.asarray(array)
    if array.dtype == jnp.bfloat16:
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16).cuda()
    return torch.from_numpy(array.copy()).cuda()
