"""From which rules a plan is equal to its region: those with a trace in it, and those that these needed on the way.

A rule leaves no trace where another takes its result further: max(-inf, m) = m made the maxima of a softmax one term, and the
plan shows the rule for sums of exponentials alone. The engine gives no proofs through its Python bindings, so e-graphs with
fewer rules are asked whether they have the plan; no kernel is searched for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

R = TypeVar("R")


def smallest(kept: Sequence[R], others: Sequence[R], suffices: Callable[[Sequence[R]], bool]) -> list[R]:
    """`kept`, and as few of the others as suffice with them (none of those can be spared); all together do.

    Junker's QuickXplain (2004), except that what stands in front is taken in small portions: put likely ones there.
    """
    return list(kept) if not others or suffices(kept) else [*kept, *_needed(kept, others, suffices, 1)]


def _needed(kept: Sequence[R], others: Sequence[R], suffices: Callable[[Sequence[R]], bool], portion: int) -> list[R]:
    """Those of the others that are needed beside `kept`, which does not suffice."""
    if len(others) == 1:
        return list(others)
    portion = min(portion, len(others) - 1)
    front, rest = others[:portion], others[portion:]
    later = [] if suffices([*kept, *front]) else _needed([*kept, *front], rest, suffices, 2 * portion)
    if later and suffices([*kept, *later]):
        return later
    return [*_needed([*kept, *later], front, suffices, (portion + 1) // 2), *later]
