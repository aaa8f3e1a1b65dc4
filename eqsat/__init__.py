"""eqsat: equality saturation for tensor programs, with GPU code generation."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eqsat.graph import Graph
    from eqsat.jitted import jit
    from eqsat.models import function
    from eqsat.optimizer import optimize
    from eqsat.program import Program

__all__ = ["Graph", "Program", "function", "jit", "optimize", "torch_compile"]
__version__ = "0.1.0"

# Where the names above are from; imported when first used, since JAX and egglog take a second.
_MODULES = {
    "Graph": "eqsat.graph",
    "Program": "eqsat.program",
    "function": "eqsat.models",
    "jit": "eqsat.jitted",
    "optimize": "eqsat.optimizer",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def torch_compile(module: object, **options: object) -> object:
    """A PyTorch module or function that runs by eqsat; options are those of `optimize`. See `eqsat.torch_backend`."""
    from eqsat.torch_backend import torch_compile as compiled

    return compiled(module, **options)
