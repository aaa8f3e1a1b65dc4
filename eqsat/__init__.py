"""eqsat: equality saturation for tensor programs, with GPU code generation."""

from eqsat.graph import Graph
from eqsat.jitted import jit
from eqsat.optimize import optimize
from eqsat.program import Program

__all__ = ["Graph", "Program", "jit", "optimize", "torch_compile"]
__version__ = "0.1.0"


def torch_compile(module: object, **options: object) -> object:
    """A PyTorch module or function that runs by eqsat; options are those of `optimize`. See `eqsat.torch_backend`."""
    from eqsat.torch_backend import torch_compile as compiled

    return compiled(module, **options)
