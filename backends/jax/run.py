"""Running a kernel: the meaning of its terms on JAX arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from eqsat.evaluate import evaluate_all
from eqsat.notation import Kernel, Tensor


def run_kernel(kernel: Kernel, arrays: Mapping[Tensor, Any], numerics: str = "exact") -> tuple[Any, ...]:
    """The kernel's outputs for arrays of its inputs; traceable."""
    missing = [str(t) for t in kernel.inputs if t not in arrays]
    if missing:
        raise KeyError(f"kernel {kernel.name}: an array for each input required, none for {', '.join(missing)}")
    results = evaluate_all([(o.term, o.axes) for o in kernel.outputs], arrays, numerics=numerics)
    return tuple(jnp.reshape(r, o.shape) for r, o in zip(results, kernel.outputs, strict=True))
