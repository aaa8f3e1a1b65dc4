"""Pallas: the portable printing of a tile program; it runs on a CPU in interpret mode and lowers for TPUs and GPUs."""

from eqsat.backends.pallas.emit import emit
from eqsat.backends.pallas.execute import Loaded, load, run

__all__ = ["Loaded", "emit", "load", "run"]
