"""All schedules of kernels that are traversed alike, as NumPy vectors over the schedules.

Axes are positions and sets of axes are bit masks, so that kernels which differ in names only share these vectors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

Option = tuple[int, str]  # tile, role
# position of a reduced axis, the share of it that masks leave, and the positions of the axes whose tiles their edges cut
Visited = tuple[tuple[int, float, tuple[int, ...]], ...]


class Way(NamedTuple):
    """A schedule without names: an option for each axis."""

    axes: tuple[Option, ...]
    num_warps: int
    num_stages: int
    group: int


class Traversals:
    """Vectors over the ways to traverse axes of given extents; compared by identity."""

    def __init__(self, extents: tuple[int, ...], ways: list[Way]) -> None:
        self.extents, self.ways = extents, ways
        columns = [[way.axes[n] for way in ways] for n in range(len(extents))]
        self._tile = [np.array([tile for tile, _ in column], float) for column in columns]
        self._loop = [np.array([role == "loop" for _, role in column]) for column in columns]
        counts = [np.ceil(extent / tile) for extent, tile in zip(extents, self._tile, strict=True)]
        self._padded = [tile * count for tile, count in zip(self._tile, counts, strict=True)]
        grid = [np.array([role == "grid" for _, role in column]) for column in columns]
        self._along = [np.where(g, count, 1.0) for g, count in zip(grid, counts, strict=True)]  # programs along an axis
        self.warps = np.array([way.num_warps for way in ways], float)
        self.stages = np.array([way.num_stages for way in ways], float)
        self.one = np.ones(len(ways))
        self._blocks: dict[int, np.ndarray] = {}
        self._repeats: dict[int, np.ndarray] = {}
        self._executed: dict[tuple[int, int, Visited], np.ndarray] = {}

    @property
    def programs(self) -> np.ndarray:
        """Programs of the launch."""
        return self.repeats(0)

    def block(self, scope: int) -> np.ndarray:
        """Elements of one block over a scope."""
        if scope not in self._blocks:
            total = self.one.copy()
            for n in positions(scope):
                total *= self._tile[n]
            self._blocks[scope] = total
        return self._blocks[scope]

    def widest(self, scope: int) -> np.ndarray:
        """The largest tile of a scope."""
        return np.max([self.one, *(self._tile[n] for n in positions(scope))], axis=0)

    def copies(self, scope: int) -> np.ndarray:
        """Blocks over a scope that are in flight at once: one for each stage, if a loop moves them."""
        moves = sum((self._loop[n] for n in positions(scope)), start=0.0 * self.one) > 0
        return np.where(moves, self.stages, 1.0)

    def trips(self, scope: int) -> np.ndarray:
        """Passes of the loops over a scope, one after the other."""
        total = self.one.copy()
        for n in positions(scope):
            total *= np.where(self._loop[n], self._padded[n] / self._tile[n], 1.0)
        return total

    def repeats(self, scope: int) -> np.ndarray:
        """Programs that redo the same work because the scope lacks their grid axis."""
        if scope not in self._repeats:
            total = self.one.copy()
            for n, along in enumerate(self._along):
                if not scope >> n & 1:
                    total *= along
            self._repeats[scope] = total
        return self._repeats[scope]

    def executed(self, scope: int, passes: int, visited: Visited) -> np.ndarray:
        """Points evaluated in all, where consecutive loops repeat a scope `passes` times."""
        key = (scope, passes, visited)
        if key not in self._executed:
            self._executed[key] = self._volume(scope, visited) * self.repeats(scope) * self._passes(scope, passes)
        return self._executed[key]

    def _volume(self, scope: int, visited: Visited) -> np.ndarray:
        """Points of a scope that are visited, padding included."""
        total = self.one.copy()
        for n in positions(scope):
            total *= self._padded[n]
        for n, share, cut in visited:  # and half a tile at each of the edges of the mask
            if scope >> n & 1:
                whole = share + sum(self._tile[edge] / self.extents[edge] for edge in cut)
                total *= np.where(self._loop[n], np.minimum(1.0, whole), 1.0)
        return total

    def _passes(self, scope: int, passes: int) -> np.ndarray:
        """Repetitions by consecutive loops, which a resident axis does not need."""
        if passes == 1:
            return self.one
        looped = sum((self._loop[n] for n in positions(scope)), start=0.0 * self.one)
        return np.where(looped > 0, float(passes), 1.0)


def positions(mask: int) -> Iterator[int]:
    """The positions in a mask, lowest first."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest
