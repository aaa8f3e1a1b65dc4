"""Schedules: how a kernel's axes are traversed."""

from __future__ import annotations

from dataclasses import dataclass

from eqsat.index import Axis
from eqsat.tile import TileAxis


@dataclass(frozen=True)
class Schedule:
    """Roles and tiles for every axis of a kernel, output and bound, grid axes slowest first."""

    axes: tuple[TileAxis, ...]
    num_warps: int = 4
    num_stages: int = 2
    group: int = 1

    def of(self, axis: Axis) -> TileAxis:
        return next(t for t in self.axes if t.axis == axis)
