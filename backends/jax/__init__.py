"""Plain JAX: runs kernels through their meaning, on any device that JAX has, and prints them as readable functions."""

from eqsat.backends.jax.emit import HELPERS, emit_kernel, emit_module, identifier, number
from eqsat.backends.jax.run import run_kernel

__all__ = ["HELPERS", "emit_kernel", "emit_module", "identifier", "number", "run_kernel"]
