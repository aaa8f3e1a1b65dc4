"""From which rules a plan is equal to its region: those with a trace in it, and those that these needed on the way.

A rule leaves no trace where another takes its result further: max(-inf, m) = m made the maxima of a softmax one term, and the
plan shows the rule for sums of exponentials alone. The engine gives no proofs through its Python bindings, so e-graphs with
fewer rules are asked whether they have the plan; no kernel is searched for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

R = TypeVar("R")


def smallest(traced: Sequence[R], others: Sequence[R], suffices: Callable[[Sequence[R]], bool]) -> list[R]:
    """`traced`, and as few of the others as suffice with them; all together do.

    The shortest beginning of the others that suffices ends in one that is needed: that joins, and those before it are asked
    again (as in Junker's QuickXplain, 2004). Beginnings are doubled first: put likely ones in front.
    """
    kept, rest = list(traced), list(others)
    while rest and not suffices(kept):
        few, enough = 0, 1
        while enough < len(rest) and not suffices([*kept, *rest[:enough]]):
            few, enough = enough, 2 * enough
        enough = min(enough, len(rest))
        while enough - few > 1:
            middle = (few + enough) // 2
            few, enough = (few, middle) if suffices([*kept, *rest[:middle]]) else (middle, enough)
        kept.append(rest[enough - 1])
        rest = rest[: enough - 1]
    return kept
