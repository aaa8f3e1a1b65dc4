"""Ways to run a planned kernel on this machine, from its meaning to what each backend printed."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import jax
import numpy as np

from eqsat import interpret
from eqsat.lower import lower
from eqsat.program import Launch, PlannedKernel
from eqsat.running import backend

Array = Any


def meaning(planned: PlannedKernel, arrays: list[Array]) -> Sequence[Array]:
    """Its terms, evaluated one operation after the other in JAX."""
    with jax.disable_jit():
        return backend("jax").run_kernel(planned.kernel, dict(zip(planned.kernel.inputs, arrays, strict=True)))


def tiles(planned: PlannedKernel, arrays: list[Array]) -> Sequence[Array]:
    """Its tile program, block by block in NumPy."""
    if planned.schedule is None:  # it runs once, in JAX
        return meaning(planned, arrays)
    outputs = interpret.interpret(lower(planned.kernel, planned.schedule), [np.asarray(a) for a in arrays])
    return [np.asarray(a).reshape(o.shape) for a, o in zip(outputs, planned.kernel.outputs, strict=True)]


def triton(planned: PlannedKernel, arrays: list[Array]) -> Sequence[Array]:
    """Its Triton source, in Triton's interpreter."""
    if planned.schedule is None:
        return meaning(planned, arrays)
    outputs = [jax.ShapeDtypeStruct(o.shape, o.dtype) for o in planned.kernel.outputs]
    run = import_module("eqsat.backends.triton.interpret").run
    return run(planned.source("triton"), [np.asarray(a) for a in arrays], outputs)[0]


def pallas(planned: PlannedKernel, arrays: list[Array]) -> Sequence[Array]:
    """Its Pallas source, in Pallas' interpreter."""
    if planned.schedule is None:
        return meaning(planned, arrays)
    return import_module("eqsat.backends.pallas").run(planned.source("pallas"), arrays, interpret=True)


ENGINES: dict[str, Launch] = {"meaning": meaning, "tiles": tiles, "triton": triton, "pallas": pallas}


def engine(name: str) -> Launch:
    """An engine by name; raises ValueError listing them."""
    if name not in ENGINES:
        raise ValueError(f"engine {name!r}: one of {', '.join(ENGINES)} required")
    return ENGINES[name]
