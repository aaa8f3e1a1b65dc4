"""How a kernel's arrays are seen from its blocks: boxes, padding and cutting into blocks.

An access whose index is a scalar plus whole blocks in every dimension reads a box, and a slice spells it. A slice that
sticks out would be moved inwards by JAX, so arrays are padded until every box lies inside. Neighbouring dimensions are
merged where only their row-major offset is a box (an index that walks a flattened array), and a dimension that every
access cuts by one axis of the grid is cut by the block specification instead of a slice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from math import prod

from eqsat.index import ZERO, Atom, Axis, Index, flatten
from eqsat.notation import Tensor
from eqsat.tile import Load, Store, TileProgram, Value

Operands = tuple[Value, ...]


class Tiles:
    """The traversal of a program's axes, by axis."""

    def __init__(self, program: TileProgram) -> None:
        self._of = {t.axis: t for t in program.axes}

    def size(self, axis: Axis) -> int:
        return self._of[axis].tile

    def count(self, axis: Axis) -> int:
        return self._of[axis].count

    def in_grid(self, axis: Axis) -> bool:
        return self._of[axis].role == "grid"

    def blocks(self, axes: Iterable[Axis]) -> tuple[Axis, ...]:
        """Those axes that are blocks, in the order given."""
        return tuple(a for a in axes if self.size(a) > 1)

    def shape(self, axes: Iterable[Axis]) -> tuple[int, ...]:
        return tuple(self.size(a) for a in axes)

    def atom_blocks(self, atom: Atom, operands: Operands) -> frozenset[Axis]:
        """The block axes that an atom varies over."""
        index = Index(((atom, 1),))
        loaded = (axis for slot in index.slots for axis in operands[slot].axes)
        return frozenset((*self.blocks(index.axes), *loaded))

    def index_blocks(self, index: Index, operands: Operands = ()) -> frozenset[Axis]:
        return frozenset().union(*(self.atom_blocks(atom, operands) for atom, _ in index.terms))

    def lanes(self, index: Index, values: Mapping[Axis, Index] | None = None) -> tuple[int, int]:
        """Range of an index over all lanes, those in the padding of ragged tiles included; `values` replace some axes."""
        whole = {a: Index.of(self._whole(a)) for a in index.axes}
        return index.substitute({**whole, **(values or {})}).range

    def _whole(self, axis: Axis) -> Axis:
        return axis._replace(extent=self.count(axis) * self.size(axis))


@dataclass(frozen=True)
class Span:
    """What a box takes from one dimension: `size` elements from `start` (scalars) plus the starts of its blocks.

    `lanes` are the block axes with their strides, largest first; `low` and `high` bound the box over all tiles.
    """

    start: Index
    lanes: tuple[tuple[Axis, int], ...]
    size: int
    low: int
    high: int

    @property
    def axes(self) -> tuple[Axis, ...]:
        return tuple(axis for axis, _ in self.lanes)

    def dense(self, tiles: Tiles) -> bool:
        """True if the blocks fill the span without gaps."""
        return self.size == prod(tiles.shape(self.axes))


def span_of(index: Index, operands: Operands, tiles: Tiles) -> Span | None:
    """The span of an index, or None if it is not a box."""
    scalars, lanes = [], []
    for atom, stride in index.terms:
        if isinstance(atom, Axis) and tiles.size(atom) > 1:
            lanes.append((atom, stride))
        elif tiles.atom_blocks(atom, operands):
            return None
        else:
            scalars.append((atom, stride))
    lanes.sort(key=lambda lane: -lane[1])
    if not _nested(lanes, tiles):
        return None
    start = Index(tuple(scalars), index.constant)
    size = lanes[0][1] * tiles.size(lanes[0][0]) if lanes else 1
    low, high = start.range
    last = sum(stride * (tiles.count(axis) - 1) * tiles.size(axis) for axis, stride in lanes)
    return Span(start, tuple(lanes), size, low, high + last + size)


def _nested(lanes: list[tuple[Axis, int]], tiles: Tiles) -> bool:
    """True if each axis fits between two steps of the next larger one, so that a reshape separates them."""
    if any(stride <= 0 for _, stride in lanes):
        return False
    pairs = zip(lanes, lanes[1:], strict=False)
    return all(outer % inner == 0 and tiles.size(axis) <= outer // inner for (_, outer), (axis, inner) in pairs)


@dataclass(frozen=True)
class View:
    """An array as the kernel sees it.

    groups: the tensor's dimensions merged into each dimension; pads: elements added before and after each;
    cuts: the grid axis by which the block specification cuts a dimension, or None where the kernel sees all of it.
    """

    tensor: Tensor
    groups: tuple[tuple[int, ...], ...]
    pads: tuple[tuple[int, int], ...]
    cuts: tuple[Axis | None, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return _merged_shape(self.tensor, self.groups)

    @property
    def padded(self) -> tuple[int, ...]:
        return tuple(low + n + high for n, (low, high) in zip(self.shape, self.pads, strict=True))

    def indices(self, index: tuple[Index, ...]) -> tuple[Index, ...]:
        """One index per dimension of the view, before padding."""
        return _merged(index, self.tensor, self.groups)


def views(program: TileProgram, tiles: Tiles) -> dict[Tensor, View]:
    """A view of every input and output."""
    accesses = [s for s in program.statements() if isinstance(s, Load | Store)]
    found = {t: _view(t, [a for a in accesses if a.tensor is t], tiles) for t in (*program.inputs, *program.outputs)}
    for n, taken in program.in_place.items():  # one buffer, seen whole
        base, output = program.inputs[taken], program.outputs[n]
        view = _view(output, [a for a in accesses if a.tensor in (base, output)], tiles)
        found[output] = replace(view, cuts=(None,) * len(view.shape))
        found[base] = replace(found[output], tensor=base)
    for n in program.zeroed:
        output = program.outputs[n]
        found[output] = replace(found[output], cuts=(None,) * len(found[output].shape))
    return found


def _view(tensor: Tensor, accesses: list[Load | Store], tiles: Tiles) -> View:
    for groups in _groupings(len(tensor.shape)):
        spans = [_spans(a, tensor, groups, tiles) for a in accesses]
        if all(_boxed(a, s, tiles) for a, s in zip(accesses, spans, strict=True)):
            break
    else:
        groups = tuple((d,) for d in range(len(tensor.shape)))
        spans = [_spans(a, tensor, groups, tiles) for a in accesses]
    shape = _merged_shape(tensor, groups)
    boxes = [[s for s in box if s] for a, box in zip(accesses, spans, strict=True) if _boxed(a, box, tiles)]
    dimensions = [[box[d] for box in boxes] for d in range(len(shape))]
    pads = tuple(_pads(n, along) for n, along in zip(shape, dimensions, strict=True))
    view = View(tensor, groups, pads, (None,) * len(shape))
    if len(boxes) < len(accesses) or any(isinstance(a, Store) and guards_left(a, view, tiles) for a in accesses):
        return view
    return View(tensor, groups, pads, tuple(_cut(along, tiles) for along in dimensions))


def _groupings(rank: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    """All ways to merge neighbouring dimensions, the finest first; an array without dimensions is seen as one element."""
    if rank == 0:
        yield ((),)
    for merged in range(rank):
        for cuts in combinations(range(1, rank), rank - 1 - merged):
            bounds = (0, *cuts, rank)
            yield tuple(tuple(range(a, b)) for a, b in zip(bounds, bounds[1:], strict=False))


def _merged(index: tuple[Index, ...], tensor: Tensor, groups: tuple[tuple[int, ...], ...]) -> tuple[Index, ...]:
    return tuple(flatten([index[d] for d in g], [tensor.shape[d] for d in g]) for g in groups)


def _merged_shape(tensor: Tensor, groups: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    return tuple(prod(tensor.shape[d] for d in g) for g in groups)


def _spans(access: Load | Store, tensor: Tensor, groups: tuple[tuple[int, ...], ...], tiles: Tiles) -> list[Span | None]:
    return [span_of(i, operands_of(access), tiles) for i in _merged(access.index, tensor, groups)]


def _boxed(access: Load | Store, spans: list[Span | None], tiles: Tiles) -> bool:
    """True if one slice spells the access: no axis occurs twice, and a store leaves no gaps."""
    boxes = [s for s in spans if s is not None]
    axes = [axis for s in boxes for axis in s.axes]
    dense = isinstance(access, Load) or all(s.dense(tiles) for s in boxes)
    return len(boxes) == len(spans) and len(set(axes)) == len(axes) and dense


def box_of(access: Load | Store, view: View, tiles: Tiles) -> list[Span] | None:
    """The spans of an access, one per dimension of the view, or None if it is not a box."""
    spans = [span_of(i, operands_of(access), tiles) for i in view.indices(access.index)]
    return [s for s in spans if s is not None] if _boxed(access, spans, tiles) else None


def operands_of(access: Load | Store) -> Operands:
    return access.operands


def _pads(extent: int, spans: list[Span]) -> tuple[int, int]:
    return max([0, *(-s.low for s in spans)]), max([0, *(s.high - extent for s in spans)])


def _cut(spans: list[Span], tiles: Tiles) -> Axis | None:
    """The grid axis that all accesses step along in this dimension, each taking exactly its tile."""
    if not spans:
        return None
    first = spans[0]
    atoms = first.lanes or first.start.terms
    if any(s != first for s in spans) or first.start != (ZERO if first.lanes else Index(first.start.terms)) or len(atoms) != 1:
        return None
    ((axis, stride),) = atoms
    return axis if isinstance(axis, Axis) and stride == 1 and tiles.in_grid(axis) and tiles.count(axis) > 1 else None


# --- guards -----------------------------------------------------------------------------------------------------


Guard = tuple[Index, int]


def live_guards(guards: Iterable[Guard], tiles: Tiles) -> list[Guard]:
    """The guards that some lane of some tile fails."""
    return [(g, bound) for g, bound in guards if tiles.lanes(g)[0] < 0 or tiles.lanes(g)[1] >= bound]


def guards_left(access: Load | Store, view: View, tiles: Tiles) -> list[Guard]:
    """The guards that padding does not make needless.

    A lane that fails one of the others lies in the padding: there a store is cut off later and a load finds 0.
    """
    left = live_guards(access.guards, tiles)
    if box_of(access, view, tiles) is None or (isinstance(access, Load) and access.other != 0):
        return left
    dimensions = list(zip(view.indices(access.index), view.shape, strict=True))
    return [g for g in left if not any(_falls_outside(g, index, extent, tiles) for index, extent in dimensions)]


def _falls_outside(guard: Guard, index: Index, extent: int, tiles: Tiles) -> bool:
    """True if every lane that fails the guard has an index beyond the extent."""
    expression, bound = guard
    if expression == index:
        return bound == extent
    if len(expression.terms) != 1 or expression.constant:
        return False
    ((axis, coefficient),) = expression.terms
    if not isinstance(axis, Axis) or coefficient != 1:
        return False
    failing = Axis(axis.name, tiles.count(axis) * tiles.size(axis) - bound)
    return tiles.lanes(index, {axis: Index.of(failing) + bound})[0] >= extent
