"""The tile program: what a kernel does block by block, before any target's syntax.

A value is a block over named axes (one array dimension per axis whose tile is above 1, in the order of `Value.axes`), so
broadcasting is a union of axes and no shape is ever written down. Statements are in single-assignment form; the only
structure is the serial loop with carried values. Lowering (`eqsat.schedule`) has already put in everything that makes
a kernel right at awkward sizes: masks, identities, widening, 64-bit offsets. A printer only spells it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from eqsat.index import Axis, Index
from eqsat.notation import Tensor, Window


@dataclass(frozen=True)
class TileAxis:
    """How one axis is traversed.

    role: "grid" (each program takes one tile), "loop" (a serial loop takes tile after tile) or
    "resident" (one tile of `tile` >= extent covers the axis). `tile` is a power of two; 1 makes the axis a scalar.
    """

    axis: Axis
    tile: int
    role: str

    @property
    def count(self) -> int:
        """Number of tiles."""
        return -(-self.axis.extent // self.tile)

    @property
    def ragged(self) -> bool:
        """True if the last tile sticks out, so that positions must be compared with the extent."""
        return self.axis.extent % self.tile != 0

    @property
    def padded(self) -> Axis:
        """An axis of all positions that tiles have; its name keeps axes apart that differ only in their extent."""
        return Axis(f"{self.axis.name}:{self.axis.extent}", self.count * self.tile)


def padded_range(index: Index, tiles: Mapping[Axis, TileAxis]) -> tuple[int, int]:
    """Least and greatest value of an index on all lanes, those beyond the end of a ragged axis included."""
    return index.substitute({a: Index.of(tiles[a].padded) for a in index.axes & tiles.keys()}).range


def of_starts(index: Index, tiles: Mapping[Axis, TileAxis]) -> Index:
    """An index of the first positions of tiles as one of the numbers of the tiles."""
    return index.substitute({a: Index.of(Axis(f"{a.name}:number", tiles[a].count)) * tiles[a].tile for a in index.axes})


@dataclass(frozen=True, eq=False)
class Value:
    """A block: its name in the printed code, its dtype, and the axes it varies over (those with tile > 1), in order."""

    name: str
    dtype: str
    axes: tuple[Axis, ...]

    def __repr__(self) -> str:
        return f"{self.name}<{self.dtype}{''.join(f' {a.name}' for a in self.axes)}>"


@dataclass(frozen=True)
class Const:
    """out = literal (a scalar, or a block filled with it when out has axes: the initial value of an accumulator)."""

    out: Value
    value: float | int | bool


@dataclass(frozen=True)
class Position:
    """out = value of `index` at each point of the block, as out.dtype (int32, or int64 where 32 bits could overflow)."""

    out: Value
    index: Index


@dataclass(frozen=True)
class Load:
    """out = tensor[index]; lanes outside the guards read `other` and touch no memory.

    `index` has one entry per dimension of the tensor; a Dynamic atom with slot n is the value of operands[n].
    `guards` are (index expression, bound): the lane is live if 0 <= expression < bound for all of them; a lower bound
    that the expression's `padded_range` already gives need not be tested. `wide` asks for 64-bit offsets.
    `out.axes` are exactly the axes (of tile > 1) that the index and the operands vary over.
    """

    out: Value
    tensor: Tensor
    index: tuple[Index, ...]
    operands: tuple[Value, ...]
    guards: tuple[tuple[Index, int], ...]
    other: float | int | bool
    wide: bool


@dataclass(frozen=True)
class Compute:
    """out = scalar op of the table on operands broadcast by axis name; operands already have the dtype to compute in."""

    out: Value
    op: str
    args: tuple[Value, ...]


@dataclass(frozen=True)
class Cast:
    """out = arg converted to out.dtype (to nearest, ties to even; float to int truncates; to bool is != 0)."""

    out: Value
    arg: Value


@dataclass(frozen=True)
class Reduce:
    """out = fold of arg over `axis` (tile > 1, in arg.axes) by a row of REDUCTIONS; padding already holds the identity.

    "max" and "min" may ignore NaN here: lowering adds the repair where it matters.
    """

    out: Value
    op: str
    arg: Value
    axis: Axis


@dataclass(frozen=True)
class Scan:
    """out = running fold of arg over `axis` (tile > 1, in arg.axes), from its end if `reverse`; extremes keep NaN.

    Beside `scores`, out is the running sum of arg * exp(scores - largest), `largest` being their running maximum: a scan of
    pairs, (m, a) and (n, b) together being (max, a * exp(m - max) + b * exp(n - max)). `largest` has the axes of `out`, the
    operands no others. Where a maximum is infinite the sum may be any number.
    """

    out: Value
    op: str
    arg: Value
    axis: Axis
    reverse: bool
    scores: Value | None = None
    largest: Value | None = None

    @property
    def operands(self) -> tuple[Value, ...]:
        return (self.arg,) if self.scores is None else (self.arg, self.scores)


@dataclass(frozen=True)
class Dot:
    """out = acc + sum over `axis` of a * b, in out.dtype (float32, float64 or int32); acc may be None.

    a has axes {m, axis} and b {axis, n} in any order, each of tile >= 16; out has {m, n}. Operand dtypes are equal,
    or float32 beside bfloat16. float32 operands multiply in full precision, never TF32: beside bfloat16 matrix instructions
    do that, since a float32 number is the sum of three bfloat16 ones (`PARTS`) and products of bfloat16 numbers are exact.
    """

    out: Value
    a: Value
    b: Value
    axis: Axis
    acc: Value | None


@dataclass(frozen=True)
class Carry:
    """A value carried round a loop: `state` inside starts as `init`, becomes `result` of each pass, ends as `final`."""

    state: Value
    init: Value
    result: Value
    final: Value


@dataclass(frozen=True)
class Loop:
    """A serial loop over the tiles of `axis`; inside it, positions along the axis are offset + 0..tile-1.

    Tiles that lie below `low`, or at `high` and above, change no carried value and are left out. Both are indices over axes
    whose tiles are given here, and mean the first position of each tile; the bounds themselves may lie outside of the axis.
    The same holds of positions below `start`, and at `end` and above, which are scalars of int32 within the axis.
    A `backward` loop takes the last tile first, and has no bounds.
    """

    axis: Axis
    carries: tuple[Carry, ...]
    body: tuple[Statement, ...]
    low: Index | None = None
    high: Index | None = None
    backward: bool = False
    start: Value | None = None
    end: Value | None = None

    @property
    def ends(self) -> tuple[Value, ...]:
        """The bounds that are values."""
        return tuple(v for v in (self.start, self.end) if v is not None)

    @property
    def bounds(self) -> tuple[Index, ...]:
        return tuple(b for b in (self.low, self.high) if b is not None)

    @property
    def inner(self) -> Iterator[Value]:
        """Values that end with the loop."""
        yield from (c.state for c in self.carries)
        for s in self.body:
            if isinstance(s, Loop):
                yield from s.inner
            yield from [c.final for c in s.carries] if isinstance(s, Loop) else results(s)


@dataclass(frozen=True)
class Store:
    """tensor[index] = value on the lanes that all guards admit; value.dtype is the tensor's. `operands` are as in Load.

    `axes` are the axes (tile > 1) of the stored block: value is broadcast to them. Where it `adds`, the value is added to what
    is there, whoever else adds to it at the same time.
    """

    tensor: Tensor
    index: tuple[Index, ...]
    operands: tuple[Value, ...]
    value: Value
    axes: tuple[Axis, ...]
    guards: tuple[tuple[Index, int], ...]
    wide: bool
    adds: bool = False


Statement = Const | Position | Load | Compute | Cast | Reduce | Scan | Dot | Loop | Store


def results(statement: Statement) -> tuple[Value, ...]:
    """The values that a statement other than a loop makes."""
    if isinstance(statement, Store | Loop):
        return ()
    second = statement.largest if isinstance(statement, Scan) else None
    return (statement.out,) if second is None else (statement.out, second)


@dataclass(frozen=True)
class TileProgram:
    """A kernel ready to be printed.

    `grid` lists the grid axes, slowest first; number p counts their tiles in row-major order, except that with
    group > 1 the last two axes with more than one tile each are visited in groups of `group` tiles of the first of the
    two, so that neighbouring programs share operands in L2 (see `grid_position`). Program p takes tile p; where there are fewer
    programs than tiles, as a `persistent` number above 0 may ask for, also p + programs, p + 2 * programs and so on, in that
    order. `header` is text for the top of a printed file. In an `exact` program no addition takes a product that was not rounded.
    """

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    axes: tuple[TileAxis, ...]
    body: tuple[Statement, ...]
    num_warps: int
    num_stages: int
    group: int
    header: tuple[str, ...]
    exact: bool = True
    persistent: int = 0

    @property
    def in_place(self) -> dict[int, int]:
        """Of an output that is written in the buffer of an input, and only in part: the numbers of both."""
        windows = ((n, o.base) for n, o in enumerate(self.outputs) if isinstance(o, Window))
        return {n: self.inputs.index(base) for n, base in windows if base is not None}

    @property
    def zeroed(self) -> tuple[int, ...]:
        """The numbers of outputs that must be zeros before it runs."""
        return tuple(n for n, o in enumerate(self.outputs) if isinstance(o, Window) and o.zeroed)

    def tile_of(self, axis: Axis) -> TileAxis:
        return next(t for t in self.axes if t.axis == axis)

    @property
    def grid(self) -> tuple[TileAxis, ...]:
        return tuple(t for t in self.axes if t.role == "grid")

    @property
    def tile_count(self) -> int:
        """Number of tiles of the grid."""
        return prod(t.count for t in self.grid)

    @property
    def programs(self) -> int:
        """Number of programs launched."""
        return min(self.tile_count, self.persistent or self.tile_count)

    def statements(self) -> Iterator[Statement]:
        """All statements, in order, loops before their bodies."""
        yield from _flat(self.body)


def _flat(body: tuple[Statement, ...]) -> Iterator[Statement]:
    for statement in body:
        yield statement
        if isinstance(statement, Loop):
            yield from _flat(statement.body)


def grouped_axes(program: TileProgram) -> tuple[TileAxis, TileAxis] | None:
    """The two grid axes (outer, inner) that are visited in groups, or None."""
    many = [t for t in program.grid if t.count > 1]
    return (many[-2], many[-1]) if program.group > 1 and len(many) >= 2 else None


def grid_position(program: TileProgram, number: int) -> dict[Axis, int]:
    """Number along each grid axis of tile `number`: the order that every printer must spell."""
    grouped = grouped_axes(program)
    position: dict[Axis, int] = {}
    for t in reversed(program.grid):
        if grouped and t is grouped[1]:
            outer, inner = grouped
            block = number % (outer.count * inner.count)
            number //= outer.count * inner.count
            width = program.group * inner.count
            first = block // width * program.group
            rows = min(program.group, outer.count - first)
            position[outer.axis] = first + block % width % rows
            position[inner.axis] = block % width // rows
        elif not (grouped and t is grouped[0]):
            position[t.axis] = number % t.count
            number //= t.count
    return position
