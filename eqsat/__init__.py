"""eqsat: equality saturation for tensor programs, with GPU code generation."""

from eqsat.graph import Graph
from eqsat.optimize import optimize
from eqsat.program import Program

__all__ = ["Graph", "Program", "optimize"]
__version__ = "0.1.0"
