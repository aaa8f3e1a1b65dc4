"""Products of one array with parts of a matrix: one product with all of it, which is then cut.

Queries, keys and values are often three parts of one product. A kernel that uses them names three; array libraries copy each part
of the matrix before they multiply by it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce as fold
from math import prod
from typing import TYPE_CHECKING

from eqsat.alpha import Classes
from eqsat.arrays import Value, shape_of
from eqsat.index import Axis, Index
from eqsat.loads import box
from eqsat.notation import Term, cast, load, reduce, scalar

if TYPE_CHECKING:
    from eqsat.evaluate import Evaluator


@dataclass(frozen=True)
class Columns:
    """Some columns of a product."""

    whole: Term  # a sum of products over the axes of some other Columns, and `along`
    along: Axis
    start: int
    axes: tuple[Axis, ...]  # of the columns: the digits of their number
    names: tuple[tuple[Axis, Axis], ...]  # what the other axes of `whole` are called here

    @property
    def operands(self) -> tuple[Term, ...]:
        return (self.whole,)

    @property
    def count(self) -> int:
        return prod(shape_of(self.axes))

    def value(self, run: Evaluator) -> Value:
        whole, names = run.values[self.whole], dict(self.names)
        dim = whole.axes.index(self.along)
        shape = shape_of(whole.axes)
        low = tuple(self.start if d == dim else 0 for d in range(len(shape)))
        high = tuple(self.start + self.count if d == dim else n for d, n in enumerate(shape))
        array = run.ops.apply("slice", whole.array, low, high, (1,) * len(shape))
        spread = [(names.get(a, a),) if a != self.along else self.axes for a in whole.axes]
        axes = tuple(a for group in spread for a in group)
        return Value(array if len(self.axes) == 1 else run.ops.apply("reshape", array, shape_of(axes)), axes)


def columns(sums: Mapping[Term, tuple[tuple[Axis, ...], tuple[Term, ...]]]) -> dict[Term, Columns]:
    """The sums of products, given with their axes and factors, that are columns of one product, if they are all it has."""
    classes = Classes()
    groups: dict[int, list[tuple[Term, Columns]]] = defaultdict(list)
    for term, (axes, factors) in sums.items():
        for found in _as_columns(axes, factors):
            number = [classes.add(t)[0] for t in found.whole.walk()][-1]
            groups[number].append((term, found))
    result: dict[Term, Columns] = {}
    for members in groups.values():
        members = [(t, c) for t, c in members if t not in result]
        starts = sorted((c.start, c.start + c.count) for _, c in members)
        ends = [0, *(stop for _, stop in starts)]
        if len(members) < 2 or [start for start, _ in starts] != ends[:-1] or ends[-1] != members[0][1].along.extent:
            continue
        first = members[0][1].whole
        for term, c in members:
            names = zip(classes.add(first)[1], classes.add(c.whole)[1], strict=True)
            result[term] = Columns(first, c.along, c.start, c.axes, tuple(names))
    return result


def _as_columns(axes: tuple[Axis, ...], factors: tuple[Term, ...]) -> Iterator[Columns]:
    """The ways in which a sum of products is columns of another, one for each factor that is a part of a matrix."""
    for part in factors:
        others = [f for f in factors if f is not part]
        matrix = part.args[0] if part.head == "cast" else part
        if matrix.head != "load" or matrix.args or not others:
            continue
        elsewhere = frozenset(axes).union(*(f.axes for f in others))
        free = [d for d, index in enumerate(matrix.indices) if index.axes and index.axes.isdisjoint(elsewhere)]
        found = box(matrix.indices[free[0]]) if len(free) == 1 else None
        if found is None or found.step != 1 or any(found.reverse) or found.radices != shape_of(found.axes):
            continue
        along = Axis(f"column {free[0]}", matrix.tensor.shape[free[0]])
        if found.start < 0 or found.stop > along.extent or prod(found.radices) == along.extent:
            continue
        all_of_it = load(matrix.tensor, [Index.of(along) if d in free else i for d, i in enumerate(matrix.indices)])
        product = fold(lambda a, b: scalar("mul", a, b), [*others, cast(part.dtype, all_of_it)])
        yield Columns(fold(lambda t, axis: reduce("sum", axis, t), reversed(axes), product), along, found.start, found.axes, ())
