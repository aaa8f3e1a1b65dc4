"""Schedules: how a kernel's axes are traversed, and which ones are worth pricing.

Each axis gets its options from the part it plays: rows, columns or k of a contraction, a reduced axis, the contiguous axis of a
pointwise kernel. The schedules of a kernel are the product of the options, a few dozen, and `eqsat.cost` ranks them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from eqsat.index import Axis
from eqsat.scalars import DTYPES
from eqsat.tile import TileAxis
from eqsat.work import RESIDENT_K, Work

SMALLEST_DOT = 16
RESIDENT_LIMIT = 16384  # elements of a row held in registers
SMALL = 64  # a reduced axis up to this extent is held whole beside others
LIMIT = 160  # schedules per kernel


@dataclass(frozen=True)
class Schedule:
    """Roles and tiles for every axis of a kernel, output and bound, grid axes slowest first."""

    axes: tuple[TileAxis, ...]
    num_warps: int = 4
    num_stages: int = 2
    group: int = 1

    def of(self, axis: Axis) -> TileAxis:
        return next(t for t in self.axes if t.axis == axis)

    def __str__(self) -> str:
        tiles = ", ".join(f"{t.axis}:{t.role}{'' if t.role == 'grid' and t.tile == 1 else f' {t.tile}'}" for t in self.axes)
        return f"{tiles}; {self.num_warps} warps, {self.num_stages} stages"


Option = tuple[int, str]  # tile, role


def power_of_two(n: int) -> int:
    """The least power of two that is at least n."""
    return 1 << max(0, n - 1).bit_length()


def schedules(work: Work) -> list[Schedule]:
    """The schedules worth pricing, in a fixed order."""
    if work.scans and work.contractions:
        return []  # a scan of products is two kernels
    options = (
        _scanning(work)
        if work.scans
        else _contracting(work)
        if work.contractions
        else _reducing(work)
        if work.bound_axes
        else _pointwise(work)
    )
    found: list[Schedule] = []
    for axes in product(*([TileAxis(a, tile, role) for tile, role in options[a]] for a in work.axes)):
        if _consistent(work, axes):
            found.extend(_with_warps(work, axes))
        if len(found) >= LIMIT:
            break
    return found


def _consistent(work: Work, axes: Sequence[TileAxis]) -> bool:
    """Without contractions, an output axis is traversed like the reduced axis that it follows."""
    if work.contractions or not work.follows:
        return True
    way = {t.axis: (t.tile, t.role) for t in axes}
    return all(way[axis] == way[bound] for axis, bound in work.follows.items() if way[axis][1] != "grid")


def _with_warps(work: Work, axes: tuple[TileAxis, ...]) -> list[Schedule]:
    written = len(work.kernel.axes)  # these axes come first
    block = prod([t.tile for t in axes[:written]])
    if work.contractions:
        tile = {t.axis: t.tile for t in axes}
        block = max(block, *(prod([tile[a] for a in c.rows | c.columns]) for c in work.contractions))
        several = {t.axis for t in axes if t.role == "grid" and t.tile < t.axis.extent}
        shared = any(several & c.rows and several & c.columns for c in work.contractions)  # neighbours can share operands in L2
        scalar = not _on_matrix_units(work)
        warps = (4, 8) if block >= 8192 or (scalar and block >= 4096) else (4,)
        return [Schedule(axes, w, stages, 8 if shared else 1) for w in warps for stages in (3, 2)]
    programs_tile = prod([t.tile for t in axes if t.role == "grid"])
    block = max(block, programs_tile * prod([t.tile for t in axes[written:]]))
    return [Schedule(axes, min(16, max(1, power_of_two(block // 256))), 2, 1)]  # eight elements a thread


def _on_matrix_units(work: Work) -> bool:
    """True if every contraction has narrow operands; else it is done by multiply-adds, which unroll along k."""
    return all(DTYPES[c.dtype].nbytes < 4 for c in work.contractions)


def main_axis(axes: Iterable[Axis]) -> Axis:
    """The axis of a group that gets the block of a matrix instruction: the longest, the later one of equals."""
    return max(sorted(axes), key=lambda a: a.extent)


def _tiles(extent: int, tiles: Iterable[int]) -> list[int]:
    """Those tiles that are not wastefully larger than the extent."""
    limit = max(SMALLEST_DOT, power_of_two(extent))
    return [t for t in tiles if t <= limit] or [limit]


def _contracting(work: Work) -> dict[Axis, list[Option]]:
    rows = {main_axis(c.rows) for c in work.contractions}
    columns = {main_axis(c.columns) for c in work.contractions}
    ks = {c.k for c in work.contractions}
    matrix = _on_matrix_units(work)
    nested = any((c.rows | c.columns) & set(work.bound_axes) for c in work.contractions) and len(work.contractions) > 1
    options: dict[Axis, list[Option]] = {}
    for axis in work.kernel.axes:
        if axis in columns and axis.extent <= 256 and nested:
            options[axis] = [(max(SMALLEST_DOT, power_of_two(axis.extent)), "grid")]
        elif axis in rows | columns:
            options[axis] = [(t, "grid") for t in _tiles(axis.extent, (16, 32, 64, 128) + ((256,) if matrix else ()))[-4:]]
        else:
            options[axis] = [(1, "grid")]
    for axis in work.bound_axes:
        whole = max(SMALLEST_DOT, power_of_two(axis.extent))
        if axis in ks | rows | columns:
            if whole <= (RESIDENT_K if matrix else 32) and axis in ks and axis not in rows | columns:
                options[axis] = [(whole, "resident")]
            elif axis in rows | columns:
                options[axis] = [(t, "loop") for t in _tiles(axis.extent, (32, 64, 128))]
            else:
                options[axis] = [(t, "loop") for t in _tiles(axis.extent, (64, 32) if matrix else (32, 16))]
        elif any(axis in c.scope for c in work.contractions):
            options[axis] = [(1, "loop")]  # a serial loop around a contraction: the taps of a convolution
        else:
            options[axis] = [(whole, "resident") if whole <= 64 else (64, "loop")]
    return options


def _reducing(work: Work) -> dict[Axis, list[Option]]:
    contiguous = work.contiguous
    options: dict[Axis, list[Option]] = {}
    by_rows = contiguous in work.bound_axes
    for axis in work.bound_axes:
        whole = power_of_two(axis.extent)
        if by_rows and axis != contiguous:
            apart = whole <= SMALL and not any({axis, contiguous} <= t.axes for t in work.kernel.terms)
            options[axis] = [(whole, "resident") if apart or axis.extent == 1 else (1, "loop")]
            continue
        loop_tiles = (1024, 4096) if by_rows else (16, 64, 256)
        options[axis] = [(t, "loop") for t in loop_tiles if t < whole]
        if whole <= (RESIDENT_LIMIT if by_rows else SMALL):
            options[axis].insert(0, (whole, "resident"))
        if not options[axis]:
            options[axis] = [(whole, "resident")]
    for position, axis in enumerate(work.kernel.axes):
        last = position == len(work.kernel.axes) - 1
        whole = power_of_two(axis.extent)
        if axis in work.follows and by_rows:
            resident = [(whole, "resident")] if whole <= RESIDENT_LIMIT else []
            options[axis] = resident + [(t, "loop") for t in (1024, 4096) if t < whole]
            continue
        if by_rows:
            near = last or (position == len(work.kernel.axes) - 2 and work.kernel.axes[-1] in work.follows)
            small = min(RESIDENT_LIMIT, max(power_of_two(a.extent) for a in work.bound_axes))
            options[axis] = [
                (t, "grid") for t in ((1, 2, 4, 8, 16, 32) if near else (1,)) if t <= whole and (t == 1 or t * small <= 8192)
            ]
        else:
            apart = all(axis not in t.args[0].axes for t in work.kernel.terms if t.bound is not None)  # mostly pointwise
            tiles = (32, 64, 128, 256, *((512, 1024) if apart else ()))
            options[axis] = [(t, "grid") for t in (tiles if last else (1,)) if t <= whole or t == 32]
    return options


def _scanning(work: Work) -> dict[Axis, list[Option]]:
    """A scanned axis is held whole, or goes on from tile to tile; the rows beside it are spread over programs."""
    near = next((a for a in work.contiguous_axes if a in work.kernel.axes), None)
    by_rows = near in work.scans
    options: dict[Axis, list[Option]] = {}
    for axis in work.axes:
        whole = power_of_two(axis.extent)
        if axis in work.scans or axis in work.follows or axis in work.bound_axes:
            options[axis] = [(whole, "resident")] if whole <= (RESIDENT_LIMIT if by_rows else SMALL) else []
            if not work.scans.get(axis):  # a loop has one direction
                options[axis] += [(t, "loop") for t in ((1024, 4096) if by_rows else (16, 64, 256)) if t < whole]
        elif axis == near:
            options[axis] = [(t, "grid") for t in (32, 64, 128) if t <= whole or t == 32]
        else:
            options[axis] = [(t, "grid") for t in ((1, 2, 4, 8) if by_rows else (1,)) if t <= whole]
    return options


def _pointwise(work: Work) -> dict[Axis, list[Option]]:
    axes = work.kernel.axes
    if not axes:
        return {}
    options: dict[Axis, list[Option]] = {a: [(1, "grid")] for a in axes}
    last = axes[-1]
    transposed = {r for r in work.contiguous_axes if r != last and r in axes}
    options[last] = [
        (t, "grid") for t in ((32, 64) if transposed else (128, 256, 512, 1024)) if t < 2 * power_of_two(last.extent)
    ] or [(power_of_two(last.extent), "grid")]
    if transposed:
        for axis in transposed:
            options[axis] = [(t, "grid") for t in (32, 64) if t < 2 * power_of_two(axis.extent)] or [
                (power_of_two(axis.extent), "grid")
            ]
    elif len(axes) > 1:
        row = axes[-2]
        options[row] = [
            (t, "grid") for t in (1, 2, 4, 8, 16, 32) if t <= power_of_two(row.extent) and t * options[last][-1][0] <= 4096
        ]
    return options
