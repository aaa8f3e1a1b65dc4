"""Overlap of regions: what is cheaper to make again than to store and load is made again.

A region that loads a large tensor of an earlier one may define it itself, from smaller tensors that it loads anyway: the score
matrix of attention, which its gradient needs, is no larger work than a matrix product of the queries and keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from eqsat.devices import Device
from eqsat.notation import Kernel, Stored, Tensor
from eqsat.regions import Region, Table, closed, loads_in
from eqsat.work import Work

SMALL = 16  # a tensor by so much smaller than another may be stored to make that one again
DEPTH = 8  # most definitions made again for one tensor


def overlapped(parts: Sequence[Region | Any], outputs: Iterable[Tensor], card: Device) -> list[Region | Any]:
    """The parts with such definitions added, and without the outputs that nothing then loads."""
    earlier: dict[Tensor, int] = {}  # definitions so far, by position
    grown: list[Region | Any] = []
    again: list[set[Stored]] = []
    wanted = set(outputs)
    for part in parts:
        added: list[Stored] = []
        if isinstance(part, Region):
            added = _Overlap(part, earlier, wanted, card).definitions
            if added:
                part = _extended(part, added)
            for s in part.definitions:
                earlier.setdefault(s, len(earlier))
        grown.append(part)
        again.append(set(added))
    return _needed(grown, again, wanted)


def _extended(region: Region, added: Sequence[Stored]) -> Region:
    inputs, definitions = closed((*added, *region.definitions))
    return replace(region, inputs=inputs, definitions=definitions)


def _needed(parts: Sequence[Region | Any], again: Sequence[set[Stored]], wanted: set[Tensor]) -> list[Region | Any]:
    """Regions with those outputs only that the program returns or a later part loads."""
    needed, result = set(wanted), list[Region | Any]()
    for part, added in zip(reversed(parts), reversed(again), strict=True):
        if isinstance(part, Region):
            part = replace(part, outputs=tuple(s for s in part.definitions if s in needed and s not in added))
            if not part.outputs:
                continue
        needed |= {t for t in part.inputs if isinstance(t, Tensor)}
        result.append(part)
    return result[::-1]


@dataclass
class _Overlap:
    """What one region makes again: `definitions`, in program order."""

    region: Region
    earlier: dict[Tensor, int]
    wanted: set[Tensor]
    card: Device

    def __post_init__(self) -> None:
        self._again: dict[Stored, None] = {}
        loaded = [t for t in self.region.inputs if t in self.earlier and t not in self.wanted]
        for tensor in sorted(loaded, key=self.earlier.__getitem__):
            self._again |= dict.fromkeys(self._chain(tensor))
        self.definitions = sorted(self._again, key=self.earlier.__getitem__)

    def _chain(self, tensor: Tensor) -> list[Stored]:
        """The definitions to make a tensor again, if that takes less time than storing and loading it, by more than a launch."""
        chain: list[Stored] = []
        stored: dict[Tensor, None] = {}
        queue = [tensor]
        while queue:
            t = queue.pop()
            if not isinstance(t, Stored) or len(chain) == DEPTH:
                return []
            chain.append(t)
            for u in loads_in(t.term):
                met = u in self._again or u in chain or isinstance(u, Table)
                if met or u not in self.earlier or (u in self.region.inputs and u is not tensor):
                    continue
                if SMALL * u.nbytes <= tensor.nbytes:
                    stored[u] = None
                else:
                    queue.append(u)
        spared = self._traffic(tensor) - sum(map(self._traffic, stored))
        return chain if sum(map(self._seconds, chain)) + self.card.launch_seconds < spared else []

    def _traffic(self, tensor: Tensor) -> float:
        """Seconds to store and load a tensor."""
        return 2 * tensor.nbytes / self.card.dram_bytes_per_second

    def _seconds(self, stored: Stored) -> float:
        """Seconds of arithmetic."""
        work = Work(Kernel(stored.name, (stored,)))
        matrix = sum(
            2 * c.products * prod(a.extent for a in c.scope) / self.card.contraction_flops(c.dtype) for c in work.contractions
        )
        rates = {"vector": self.card.vector_flops / 2, "special": self.card.special_ops_per_second}
        return matrix + sum(prod(a.extent for a in scope) * n / rates[unit] for (scope, unit, _), n in work.work.items())
