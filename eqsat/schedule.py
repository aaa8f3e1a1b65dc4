"""Schedules: how a kernel's axes are traversed, and which ones are worth pricing.

Each axis gets its options from the part it plays: rows, columns or k of a contraction, a reduced axis, the contiguous axis of a
pointwise kernel. The schedules of a kernel are the product of the options, a few dozen, and `eqsat.cost` ranks them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, product
from math import prod
from typing import NamedTuple, overload

from eqsat.index import Axis
from eqsat.scalars import DTYPES
from eqsat.tile import TileAxis
from eqsat.traversal import Option, Traversals, Way, positions
from eqsat.work import RESIDENT_K, Contraction, Work, main_axis

LARGEST_BLOCK = 8192  # elements of a reduction's block, unless several axes are reduced one position after the other
SMALLEST_DOT = 16  # the smallest tile that matrix instructions accept on every target
RESIDENT_LIMIT = 16384  # elements of a row held in registers
FEW = 4096  # results, of which tiles of 32 leave most of a device idle
SMALL = 64  # a reduced axis up to this extent is held whole beside others
LIMIT = 160  # schedules per kernel, and as many of small products without dots
FEW_POINTS = (1 << 22, 1 << 20)  # of a product that dots pad along an axis, and of one that leaves much of a device idle
TILES, SUMMED_TILES = (1, 4, 16, 64), (1, 16, 64, 256)  # of long axes of products without dots
SECTOR = 8  # elements of which memory moves no fewer
LARGEST_HELD = 1024  # extent of one that is summed, held whole


@dataclass(frozen=True)
class Schedule:
    """Roles and tiles for every axis of a kernel, output and bound, grid axes slowest first.

    persistent: programs to launch at most, each of which takes tile after tile of the grid; 0 launches one for each tile.
    by_xla: on a GPU, XLA runs the kernel's formula in its place, with the libraries' products and convolutions.
    """

    axes: tuple[TileAxis, ...]
    num_warps: int = 4
    num_stages: int = 2
    group: int = 1
    persistent: int = 0
    by_xla: bool = False

    def of(self, axis: Axis) -> TileAxis:
        return next(t for t in self.axes if t.axis == axis)

    def __str__(self) -> str:
        tiles = ", ".join(f"{t.axis}:{t.role}{'' if t.role == 'grid' and t.tile == 1 else f' {t.tile}'}" for t in self.axes)
        return f"{tiles}; {self.launch_text}"

    @property
    def launch_text(self) -> str:
        """Warps, stages, and what limits the number of programs; or that XLA launches what it makes of the formula."""
        if self.by_xla:
            return "run by XLA"
        persistent = f", at most {self.persistent} programs" if self.persistent else ""
        return f"{self.num_warps} warps, {self.num_stages} stages{persistent}"


class Schedules(Sequence[Schedule]):
    """The schedules worth pricing of one kernel, each built when it is asked for."""

    def __init__(self, axes: tuple[Axis, ...], traversals: Traversals) -> None:
        self._axes, self.traversals = axes, traversals

    def __len__(self) -> int:
        return len(self.traversals.ways)

    def alone(self, index: int) -> Schedules:
        """One of them, to be priced by itself."""
        return Schedules(self._axes, Traversals(self.traversals.extents, [self.traversals.ways[index]]))

    @overload
    def __getitem__(self, index: int) -> Schedule: ...
    @overload
    def __getitem__(self, index: slice) -> list[Schedule]: ...
    def __getitem__(self, index: int | slice) -> Schedule | list[Schedule]:
        if isinstance(index, slice):
            return [self[n] for n in range(*index.indices(len(self)))]
        way = self.traversals.ways[index]
        axes = tuple(TileAxis(axis, tile, role) for axis, (tile, role) in zip(self._axes, way.axes, strict=True))
        return Schedule(axes, way.num_warps, way.num_stages, way.group)


def power_of_two(n: int) -> int:
    """The least power of two that is at least n."""
    return 1 << max(0, n - 1).bit_length()


def schedules(work: Work) -> Schedules:
    """The schedules worth pricing, in a fixed order."""
    if work.scans and work.contractions:
        return Schedules(work.axes, Traversals((), []))  # a scan of products is two kernels
    if work.contractions:
        spaces = [_space(work, _contracting(work))] if all(c.dot for c in work.contractions) else []
        spaces += [_space(work, _unrolled(work), dots=False)] if not spaces or all(map(_small, work.contractions)) else []
    else:
        spaces = [_space(work, _scanning(work) if work.scans else _reducing(work) if work.bound_axes else _pointwise(work))]
    return Schedules(work.axes, _traversals(*spaces))


def _space(work: Work, options: Mapping[Axis, Sequence[Option]], dots: bool = True) -> _Space:
    position = {axis: n for n, axis in enumerate(work.axes)}

    def mask(axes: Iterable[Axis]) -> int:
        return sum(1 << position[a] for a in axes)

    return _Space(
        tuple(a.extent for a in work.axes),
        tuple(tuple(options[a]) for a in work.axes),
        len(work.kernel.axes),
        () if work.contractions else tuple((position[axis], position[bound]) for axis, bound in work.follows.items()),
        tuple(sorted({(*sorted((mask(c.rows), mask(c.columns))),) for c in work.contractions})) if dots else (),
        _on_matrix_units(work),
        () if dots else tuple(sorted({mask(c.scope) for c in work.contractions})),
    )


class _Space(NamedTuple):
    """What the schedules of a kernel depend on; axes are positions."""

    extents: tuple[int, ...]
    options: tuple[tuple[Option, ...], ...]
    written: int  # these axes come first
    follows: tuple[tuple[int, int], ...]  # output axes that are traversed like a reduced one
    contractions: tuple[tuple[int, ...], ...]  # masks of the rows and of the columns of dots
    matrix: bool
    unrolled: tuple[int, ...]  # masks of products that are no dots


@lru_cache(maxsize=1 << 10)
def _traversals(*spaces: _Space) -> Traversals:
    """Every schedule of spaces over the same axes, up to `LIMIT` of each."""
    return Traversals(spaces[0].extents, [way for space in spaces for way in islice(_ways(space), LIMIT)])


def _ways(space: _Space) -> Iterator[Way]:
    for axes in product(*space.options):
        held = (prod(axes[n][0] for n in positions(scope)) for scope in space.unrolled)
        follows = (axes[axis] == axes[bound] for axis, bound in space.follows if axes[axis][1] != "grid")
        if all(follows) and all(block <= LARGEST_BLOCK for block in held):
            yield from _with_warps(space, axes)


def _with_warps(space: _Space, axes: tuple[Option, ...]) -> list[Way]:
    tiles = [tile for tile, _ in axes]
    block = prod(tiles[: space.written])
    if space.contractions:
        block = max(block, *(prod(tiles[n] for n in positions(rows | columns)) for rows, columns in space.contractions))
        extents = zip(axes, space.extents, strict=True)
        several = sum(1 << n for n, ((tile, role), extent) in enumerate(extents) if role == "grid" and tile < extent)
        shared = any(several & rows and several & columns for rows, columns in space.contractions)  # neighbours share in L2
        warps = (4, 8) if block >= 8192 or (not space.matrix and block >= 4096) else (4,)
        if block >= 8192 and not space.matrix:  # of equals the first is taken, with fewer accumulators to a thread
            warps = (8, 4)
        return [Way(axes, w, stages, 8 if shared else 1) for w in warps for stages in (3, 2)]
    if space.unrolled:
        block = max(block, *(prod(tiles[n] for n in positions(scope)) for scope in space.unrolled))
        many = prod(tiles[space.written :]) == 1  # accumulators alone: of more to a thread each operand serves more
        return [Way(axes, min(16, max(1, power_of_two(block // (1024 if many else 256)))), 2, 1)]
    programs_tile = prod(tile for tile, role in axes if role == "grid")
    block = max(block, programs_tile * prod(tiles[space.written :]))
    return [Way(axes, min(16, max(1, power_of_two(block // 256))), 2, 1)]  # eight elements a thread


def _on_matrix_units(work: Work) -> bool:
    """True if every contraction has narrow operands; else it is done by multiply-adds, which unroll along k."""
    return all(DTYPES[c.dtype].nbytes < 4 for c in work.contractions)


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
            if whole <= (RESIDENT_K if matrix else 32) and axis in ks and axis not in rows | columns and not work.groups:
                options[axis] = [(whole, "resident")]
            elif axis in rows | columns:
                options[axis] = [(t, "loop") for t in _tiles(axis.extent, (32, 64, 128))]
            else:
                options[axis] = [(t, "loop") for t in _tiles(axis.extent, (64, 32) if matrix else (32, 16))]
        elif axis in work.serial:
            options[axis] = [(1, "loop")]
        else:
            options[axis] = [(whole, "resident") if whole <= 64 else (64, "loop")]
    return options


def _small(c: Contraction) -> bool:
    """True for a product of which the tiles of a dot are mostly padding, or so many fewer than a device's multiprocessors."""
    long = sum(a.extent >= SMALLEST_DOT for a in (main_axis(c.rows), main_axis(c.columns), c.k))
    return long < 2 or prod(a.extent for a in c.scope) <= FEW_POINTS[long - 2]


def _unrolled(work: Work) -> dict[Axis, list[Option]]:
    """Products without dots: blocks of points that are multiplied and added up as those of any other sum.

    Short axes of the products are held whole, or k goes position by position. What lies near in memory gets at least a sector.
    """
    ends = {a for c in work.contractions for a in (*c.rows, *c.columns, c.k)} - work.serial
    short = {a for a in ends if a.extent < SMALLEST_DOT}
    long = [a for a in work.axes if a not in short and (a in ends or a in work.kernel.axes)]
    written = [a for a in long if a in work.kernel.axes]
    tiled = ends.intersection(long).union(written[-1:], work.nearest_axes)
    near = {a for a in work.nearest_axes if a in written} or set(work.nearest_axes)
    options: dict[Axis, list[Option]] = {}
    for axis in work.axes:
        whole, output = power_of_two(axis.extent), axis in work.kernel.axes
        if axis in work.serial:
            options[axis] = [(1, "loop")]
        elif axis in short:
            options[axis] = [(whole, "grid" if output else "resident")]
            if not output and axis.extent < whole:
                options[axis].append((1, "loop"))
        elif axis in tiled:
            least = SECTOR if axis in near else 1
            tiles = TILES if output else SUMMED_TILES
            options[axis] = [(t, "grid" if output else "loop") for t in tiles if least <= t < whole]
            if whole <= (TILES[-1] if output else LARGEST_HELD):
                options[axis].append((whole, "grid" if output else "resident"))
        elif output:
            options[axis] = [(1, "grid")]
        else:
            options[axis] = [(whole, "resident") if whole <= SMALL else (SMALL, "loop")]
    return options


def _reducing(work: Work) -> dict[Axis, list[Option]]:
    contiguous = work.contiguous
    options: dict[Axis, list[Option]] = {}
    by_rows = contiguous in work.bound_axes
    alone = {a for a in work.bound_axes if by_rows and a != contiguous and not work.beside(a)}
    for axis in work.bound_axes:
        whole = power_of_two(axis.extent)
        if axis in alone or (by_rows and axis.extent == 1):
            options[axis] = [(whole, "resident") if whole <= SMALL else (min(1024, whole), "loop")]
            continue
        if by_rows and axis != contiguous:
            options[axis] = [(1, "loop")]
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
            narrow = (8, 16) if prod(a.extent for a in work.kernel.axes) <= FEW else ()  # a sector of each row
            tiles = (*narrow, 32, 64, 128, 256, *((512, 1024) if apart else ()))
            options[axis] = [(t, "grid") for t in (tiles if last else (1,)) if t <= whole or t == 32]
            if axis in work.follows:  # the block that is reduced is at hand
                options[axis] = [*options[work.follows[axis]], *options[axis]]
    if prod(min(t for t, _ in options[axis]) for axis in work.axes if axis not in alone) > LARGEST_BLOCK:
        # registers hold none of these
        for axis in sorted((a for a in work.bound_axes if a not in alone), key=lambda a: a.extent)[:-1]:
            options[axis].insert(0, (1, "loop"))
    return options


def _scanning(work: Work) -> dict[Axis, list[Option]]:
    """A scanned axis is held whole, or goes on from tile to tile; the rows beside it are spread over programs."""
    near = next((a for a in work.nearest_axes if a in work.kernel.axes), None)
    by_rows = near in work.scans
    options: dict[Axis, list[Option]] = {}
    for axis in work.axes:
        whole = power_of_two(axis.extent)
        if axis in work.scans or axis in work.follows or axis in work.bound_axes:
            options[axis] = [(whole, "resident")] if whole <= (RESIDENT_LIMIT if by_rows else SMALL) else []
            if not work.scans.get(axis):  # a loop has one direction
                options[axis] += [(t, "loop") for t in ((1024, 4096) if by_rows else (16, 64, 256)) if t < whole]
        elif axis in work.joined:  # as chunks, whose rows lie one behind the other
            options[axis] = [(1, "grid")]
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
            if len(transposed) > 1:  # no registers hold a block over three long axes
                options[axis].append((1, "grid"))
    elif len(axes) > 1:
        row = axes[-2]
        options[row] = [
            (t, "grid") for t in (1, 2, 4, 8, 16, 32) if t <= power_of_two(row.extent) and t * options[last][-1][0] <= 4096
        ]
    return options
