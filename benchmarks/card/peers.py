"""The programs on which other compilers were measured: time on the card of ours, of `jax.jit`, and of `torch.compile`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import eqsat
from benchmarks.card.kernels import tensor, torch_on_card
from benchmarks.card.steps import Context, Record
from benchmarks.statistics import geometric_mean
from eqsat import device_time
from eqsat.inputs import draw
from examples.blocks import PROGRAMS

Array = Any
Case = tuple[Callable[..., Any], Sequence[jax.ShapeDtypeStruct]]


def in_jax(context: Context) -> tuple[dict[str, Record], str]:
    """The step: our kernels and XLA's, inside one process; a dry run has our estimates."""
    results = context.each(PROGRAMS.items(), lambda case: _in_jax(context, *case))
    ratios = [r["jax.jit"] / r["eqsat"] for r in results.values() if r["eqsat"] and r["jax.jit"]]
    speed = f"{geometric_mean(ratios):.2f} times as fast as jax.jit" if ratios else "estimated only"
    return results, f"{len(results)} programs, {speed}"


def _in_jax(context: Context, fn: Callable[..., Any], args: Sequence[jax.ShapeDtypeStruct]) -> Record:
    program = eqsat.optimize(fn, *args, target=context.row)
    record: Record = {"launches": len(program.launches), "calls of JAX": len(program.calls), "nbytes": program.cost.nbytes}
    record |= {"estimated": program.cost.seconds, "eqsat": None, "jax.jit": None, "difference": None}
    if context.dry:
        return record
    arrays = [jnp.asarray(a) for a in draw(args, context.seed, None)]
    compiled = jax.jit(lambda *xs: jax.tree.leaves(fn(*xs)))
    record["difference"] = difference(program.run(*arrays), compiled(*arrays))
    record["jax.jit"] = device_time.jax_seconds(lambda: compiled(*arrays))
    record["eqsat"] = device_time.jax_seconds(lambda: program.run(*arrays))
    return record


def difference(ours: Sequence[Array], theirs: Sequence[Array]) -> float:
    """The largest over the outputs, as a share of the largest value: a sanity check, since neither is the truth."""

    def of(a: Array, b: Array) -> float:
        wide = [np.asarray(x, np.float64) for x in (a, b)]
        return float(np.abs(wide[0] - wide[1]).max(initial=0) / max(np.abs(wide[1]).max(initial=0), 1e-30))

    return max((of(a, b) for a, b in zip(ours, theirs, strict=True)), default=0.0)


def in_torch(context: Context) -> tuple[dict[str, Record], str]:
    """The step: torch.compile, on the same programs, equation by equation."""
    if context.dry or not torch_on_card():
        return {}, "needs a GPU and a build of torch for it"
    results = context.each(PROGRAMS.items(), lambda case: _in_torch(context, *case))
    return results, f"{len(results)} programs"


def _in_torch(context: Context, fn: Callable[..., Any], args: Sequence[jax.ShapeDtypeStruct]) -> Record:
    import torch

    from benchmarks.torch_graph import torch_function

    compiled = torch.compile(torch_function(eqsat.Graph.from_jax(fn, *args), "cuda"), dynamic=False)
    tensors = [tensor(a) for a in draw(args, context.seed, None)]
    with torch.inference_mode():
        return {"torch.compile": device_time.torch_seconds(lambda: compiled(*tensors))}
