"""How each JAX primitive reads in index notation: a table filled by one module per family."""

from eqsat.primitives import contractions, elementwise, indexing, reductions, views
from eqsat.primitives.table import TABLE, Opaque, Out, Row, View

__all__ = ["TABLE", "Opaque", "Out", "Row", "View", "contractions", "elementwise", "indexing", "reductions", "views"]
