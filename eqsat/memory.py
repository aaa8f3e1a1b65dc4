"""Peak memory of a program: the most bytes of temporaries that are alive at once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from eqsat.notation import Tensor


class Use(NamedTuple):
    """What a step reads and writes, and the bytes that it needs inside (the bodies of a loop)."""

    inputs: Sequence[Any]  # what is no tensor is a literal
    outputs: Sequence[Tensor]
    inside_nbytes: int = 0


def peak_nbytes(uses: Iterable[Use], kept: Collection[Tensor]) -> int:
    """The most bytes alive while some step runs, of tensors that steps write, from there to their last reader.

    The tensors `kept` (a program's outputs, what is computed once) do not count, nor do inputs: they exist in any case.
    """
    steps = list(uses)
    used = [(*step.outputs, *(t for t in step.inputs if isinstance(t, Tensor))) for step in steps]
    last = {t: n for n, tensors in enumerate(used) for t in tensors}
    alive: dict[Tensor, int] = {}
    peak = 0
    for n, step in enumerate(steps):
        alive.update((t, t.nbytes) for t in step.outputs if t not in kept)
        peak = max(peak, sum(alive.values()) + step.inside_nbytes)
        for t in used[n]:
            if last[t] == n:
                alive.pop(t, None)
    return peak
