"""Hill climbing over what is stored: whole selections of kernels judged by their true price.

Ranking by parts cannot see what only a whole selection shows (a score matrix that is never stored).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from eqsat.cones import Cones, Entity, Fragment

if TYPE_CHECKING:
    from eqsat.kernels import Candidate

PASSES = 6  # most passes over all tensors

Selection = tuple[float, tuple["Candidate", ...]]  # kernels that make one tensor each, with their total price


class Climb:
    """Storing, or not storing, one tensor at a time, as long as the kernels that this makes are cheaper together.

    entities: what may be stored; outputs: those of them that must be, as a bit mask.
    make: the candidate kernel of an entity by a fragment.
    """

    def __init__(
        self, cones: Cones, entities: Sequence[Entity], outputs: int, make: Callable[[Entity, Fragment], Candidate]
    ) -> None:
        self._cones, self._entities, self._outputs, self._make = cones, entities, outputs, make
        self.found: dict[tuple[int, int], Candidate] = {}  # all kernels met, by entity and e-nodes
        self.best: Selection = (float("inf"), ())

    def start(self, stored: int, below: float = float("inf")) -> None:
        """Climb from storing the outputs and these entities, a bit mask; as long as they take less than `below`."""
        stored |= self._outputs
        mapped = self._cones.mapped(stored)
        best = min((below, ()), self._judged(mapped), key=_price)
        for _ in range(PASSES):
            improved = False
            for e in reversed(self._entities):
                if e.bit & self._outputs:
                    continue
                remapped = self._cones.remapped(mapped, stored ^ e.bit, e)
                other = self._judged(remapped)
                if other[0] < best[0] * (1 - 1e-9):
                    stored, mapped, best, improved = stored ^ e.bit, remapped, other, True
            if not improved:
                break
        if best[1]:
            self.best = min(self.best, best, key=_price)

    def _judged(self, mapped: dict[int, Fragment]) -> Selection:
        """The kernels that these fragments make, with their total price: infinite if some tensor cannot be made."""
        total, needed, done = 0.0, self._outputs, 0
        kernels: list[Candidate] = []
        while todo := needed & ~done:
            e = self._entities[todo.bit_length() - 1]
            done |= e.bit
            fragment = self._cones.root(e, mapped)
            if fragment is None:
                return float("inf"), ()
            key = (e.number, fragment.nodes)
            if key not in self.found:
                self.found[key] = self._make(e, fragment)
            kernels.append(self.found[key])
            total += self.found[key].price
            needed |= fragment.leaves
        if _circular(kernels):
            return float("inf"), ()
        return total, tuple(kernels)


def _price(selection: Selection) -> float:
    return selection[0]


def _circular(kernels: list[Candidate]) -> bool:
    """True if kernels that make one tensor each wait for one another."""
    waiting = {c.produces[0].number: c.needs for c in kernels}
    while ready := [n for n, needs in waiting.items() if not needs & waiting.keys()]:
        for n in ready:
            del waiting[n]
    return bool(waiting)
