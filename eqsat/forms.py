"""The forms in which a kernel is priced and lowered, of which the language knows nothing: scans, updates in place, scatters,
joined axes.
"""

from __future__ import annotations

from dataclasses import replace

from eqsat.notation import Kernel, Window
from eqsat.scalars import is_float
from eqsat.scans import scanned
from eqsat.scatters import scattered
from eqsat.unjoined import unjoined
from eqsat.updates import in_place


def as_run(kernel: Kernel) -> Kernel:
    """The kernel in these forms; the same one if it has none of them."""
    return scattered(in_place(unjoined(scanned(kernel))))


def overwriting(kernel: Kernel) -> Kernel:
    """The kernel with those of its donated tensors that it overwrites."""
    if not kernel.donated:
        return kernel
    taken = (o.base for o in as_run(kernel).outputs if isinstance(o, Window) and o.base is not None)
    return replace(kernel, donated=frozenset(taken))


def has_no_order(kernel: Kernel) -> bool:
    """True if it adds floats to memory, as they come."""
    return any(isinstance(o, Window) and o.adds and is_float(o.dtype) for o in as_run(kernel).outputs)
