"""How a planned kernel runs: by a backend, which is found by its name, since this package imports none of them."""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING, Any

import jax
from jax import lax

from eqsat.devices import device
from eqsat.lower import lower

if TYPE_CHECKING:
    from eqsat.program import Launch, PlannedKernel

Array = Any


def backend(name: str) -> Any:
    """The module `eqsat.backends.<name>`; raises ValueError listing the backends found."""
    package = importlib.import_module("eqsat.backends")
    found = sorted(m.name for m in pkgutil.iter_modules(package.__path__))
    if name not in found:
        raise ValueError(f"backend {name!r}: one of the backends found required; choose from {', '.join(found)}")
    return importlib.import_module(f"eqsat.backends.{name}")


def runner(target: str) -> Launch:
    """How a planned kernel runs on arrays here: launched by Triton on a GPU, by its meaning elsewhere."""
    return triton_launch(target) if jax.default_backend() == "gpu" else _run_in_jax


def triton_launch(target: str) -> Launch:
    """The launch of a planned kernel on a GPU; it can be traced and lowered anywhere.

    Raises ValueError for a target of AMD, whose kernels are printed and compiled only.
    """
    card = device(target)
    if card.gfx:
        raise ValueError(
            f"launch for {target}: a GPU of NVIDIA required, got {card.gfx}; "
            "write the kernels' Triton source, which Triton for ROCm launches, or choose another target"
        )
    call = importlib.import_module("eqsat.backends.triton.launch").call

    def launch(planned: PlannedKernel, arrays: list[Array]) -> tuple[Array, ...]:
        if planned.schedule is None or planned.schedule.by_xla:
            return _run_in_jax(planned, arrays)
        program = lower(planned.kernel, planned.schedule)
        return call(planned.source("triton"), program, *arrays, target=card.compute_capability)

    return launch


def _run_in_jax(planned: PlannedKernel, arrays: list[Array]) -> tuple[Array, ...]:
    outputs = backend("jax").run_kernel(planned.kernel, dict(zip(planned.kernel.inputs, arrays, strict=True)), planned.numerics)
    return lax.optimization_barrier(outputs)  # XLA may not simplify across what is stored
