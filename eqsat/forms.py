"""The forms in which a kernel is priced and lowered, of which the language knows nothing: scans, updates in place, scatters."""

from __future__ import annotations

from collections.abc import Sequence

from eqsat.notation import Kernel, Stored, Tensor, Window
from eqsat.scans import scanned
from eqsat.scatters import scattered
from eqsat.updates import in_place


def as_run(kernel: Kernel) -> Kernel:
    """The kernel in these forms; the same one if it has none of them."""
    return scattered(in_place(scanned(kernel)))


def taken_over(outputs: Sequence[Stored], donated: frozenset[Tensor]) -> frozenset[Tensor]:
    """Those of the donated tensors that a kernel with these outputs would overwrite."""
    if not donated:
        return donated
    made = as_run(Kernel("", tuple(outputs), donated=donated))
    return frozenset(o.base for o in made.outputs if isinstance(o, Window) and o.base is not None)
