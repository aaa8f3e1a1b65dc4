"""Reductions that array libraries do better than fold by fold: convolutions, folds of shifted slices, sums of products, scatters.

Read element by element, overlapping windows (indices such as ``2*x + r``) are a gather as large as all of them together.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from eqsat.arrays import Array, Value, shape_of, union
from eqsat.choices import Joined, Padded
from eqsat.columns import Columns
from eqsat.index import Axis, Index
from eqsat.loads import box
from eqsat.notation import Term, is_box, load, reduce, substitute
from eqsat.scalars import DTYPES, is_float, is_integer
from eqsat.scatters import Scatter, scatter

if TYPE_CHECKING:
    from eqsat.evaluate import Evaluator

SHIFTS = 8  # places along one axis of a window that are worth a slice each


@dataclass(frozen=True)
class Window:
    """One dimension of an image, read at ``stride * across + dilation * inside + start``; `inside` is summed."""

    whole: Axis  # the dimension before windows are taken
    across: Axis
    inside: Axis
    stride: int
    dilation: int
    start: int

    @property
    def padding(self) -> tuple[int, int]:
        """Zeros before and after the dimension, so that it holds exactly the windows; negative where some of it is not read."""
        first = self.start + min(0, self.dilation) * (self.inside.extent - 1)
        span = self.stride * (self.across.extent - 1) + abs(self.dilation) * (self.inside.extent - 1) + 1
        return -first, span + first - self.whole.extent


@dataclass(frozen=True)
class Convolution:
    """The sum over `axes` of an image read through windows times other factors."""

    image: Term  # read whole
    factors: tuple[Term, ...]
    windows: tuple[Window, ...]
    axes: tuple[Axis, ...]

    @property
    def operands(self) -> tuple[Term, ...]:
        return (self.image, *self.factors)

    def value(self, run: Evaluator) -> Value:
        dtype = self.image.dtype
        weight = run.multiply([run.values[f] for f in self.factors])
        inside, across = tuple(w.inside for w in self.windows), tuple(w.across for w in self.windows)
        whole = tuple(w.whole for w in self.windows)
        summed = tuple(a for a in self.axes if a not in inside)
        image = run.fold("sum", run.values[self.image], tuple(a for a in summed if a not in weight.axes), dtype)
        weight = run.fold("sum", weight, tuple(a for a in summed if a not in image.axes), dtype)
        channel = tuple(a for a in image.axes if a in summed)
        group = tuple(a for a in image.axes if a in weight.axes and a not in summed)
        batch = tuple(a for a in image.axes if a not in (*whole, *channel, *group))
        out = tuple(a for a in weight.axes if a not in (*inside, *channel, *group))
        left = _joined(run, image, (batch, *((w,) for w in whole), (*group, *channel)))
        right = _joined(run, weight, (*((i,) for i in inside), channel, (*group, *out)))
        if flipped := tuple(d for d, w in enumerate(self.windows) if w.dilation < 0):
            right = run.ops.apply("flip", right, flipped)
        letters = "DHW"[-len(self.windows) :]
        numbers = (f"N{letters}C", f"{letters}IO", f"N{letters}C")
        strides = tuple(w.stride for w in self.windows)
        dilations = tuple(abs(w.dilation) for w in self.windows)
        padding = tuple(w.padding for w in self.windows)
        accumulate = DTYPES[dtype].compute
        array = run.ops.apply(
            "convolve", left, right, strides, padding, dilations, numbers, prod(shape_of(group)), run.dtype(accumulate)
        )
        axes = (*batch, *across, *group, *out)
        joined = (prod(shape_of(batch)), *shape_of(across), prod(shape_of((*group, *out))))
        spread = array if joined == shape_of(axes) else run.ops.apply("reshape", array, shape_of(axes))
        return run.cast(Value(spread, axes), accumulate, dtype)


def _joined(run: Evaluator, value: Value, dims: tuple[tuple[Axis, ...], ...]) -> Array:
    """The array with one dimension for each tuple of axes."""
    axes = tuple(a for group in dims for a in group)
    return run.reshaped(Value(run.ordered(value, axes), axes), tuple(prod(shape_of(group)) for group in dims))


@dataclass(frozen=True)
class Parts:
    """An elementwise operation on several values, left to right."""

    op: str
    operands: tuple[Term, ...]

    def value(self, run: Evaluator) -> Value:
        return _left_to_right(run, self.op, [run.values[o] for o in self.operands])


def _left_to_right(run: Evaluator, op: str, values: list[Value]) -> Value:
    result, *rest = values
    for value in rest:
        result = run.scalar(op, result, value)
    return result


@dataclass(frozen=True)
class Slices:
    """A fold of windows along one axis of `whole`: an elementwise operation on one slice for each place in a window."""

    op: str
    whole: Term  # evaluated once: what it masks or pads is so for all slices
    axis: Axis  # of `whole`
    across: Axis
    stride: int
    count: int

    @property
    def operands(self) -> tuple[Term, ...]:
        return (self.whole,)

    def value(self, run: Evaluator) -> Value:
        whole = run.values[self.whole]
        dim = whole.axes.index(self.axis)
        axes = (*whole.axes[:dim], self.across, *whole.axes[dim + 1 :])
        limits, steps = shape_of(whole.axes), tuple(self.stride if d == dim else 1 for d in range(len(axes)))
        last = self.stride * (self.across.extent - 1) + 1
        slices = []
        for start in range(self.count):
            low = tuple(start if d == dim else 0 for d in range(len(axes)))
            high = tuple(start + last if d == dim else n for d, n in enumerate(limits))
            slices.append(Value(run.ops.apply("slice", whole.array, low, high, steps), axes))
        return _left_to_right(run, self.op, slices)


@dataclass(frozen=True)
class Placed:
    """A sum of which each term goes to one element, as one operation on elements counted in a row."""

    scatter: Scatter
    dtype: str

    @property
    def operands(self) -> tuple[Term, ...]:
        return (*self.scatter.places.values(), self.scatter.arg)

    def value(self, run: Evaluator) -> Value:
        arg, bound, places = run.values[self.scatter.arg], self.scatter.bound, self.scatter.places
        shared = tuple(a for a in union(run.values[p] for p in places.values()) if a not in bound)
        points = (*bound, *shared)
        rest = tuple(a for a in arg.axes if a not in points)
        terms = prod(shape_of(points))
        index = run.ops.apply("reshape", run.broadcast(self._number(run, shared), points), (terms,))
        updates = run.ops.apply("reshape", run.broadcast(arg, (*points, *rest)), (terms, *shape_of(rest)))
        axes = (*shared, *places, *rest)
        row = (prod(shape_of((*shared, *places))), *shape_of(rest))
        total = run.ops.apply("scatter_sum", row, run.dtype(self.dtype), index, updates)
        return Value(run.ops.apply("reshape", total, shape_of(axes)), axes)

    def _number(self, run: Evaluator, shared: tuple[Axis, ...]) -> Value:
        """The number of the element that a term goes to; that behind the last for one that goes to none."""
        places = self.scatter.places
        count = prod(shape_of((*shared, *places)))
        dtype = np.dtype("int32" if count < 1 << 31 else "int64")
        total: Value | None = None
        inside: Value | None = None
        for axis in (*shared, *places):
            if axis not in places:
                own = Value(run.ops.apply("arange", axis.extent, dtype), (axis,))
            else:
                place, kind = run.values[places[axis]], np.dtype(places[axis].dtype)
                bounds = [Value(run.ops.literal(n, kind), ()) for n in (0, axis.extent)]
                within = run.scalar("and", run.scalar("ge", place, bounds[0]), run.scalar("lt", place, bounds[1]))
                inside = within if inside is None else run.scalar("and", inside, within)
                own = Value(run.ops.apply("cast", place.array, dtype), place.axes)
            rows = total and run.scalar("mul", total, Value(run.ops.literal(axis.extent, dtype), ()))
            total = run.scalar("add", rows, own) if rows else own
        assert total is not None and inside is not None
        return run.scalar("where", inside, total, Value(run.ops.literal(count, dtype), ()))


def placed(term: Term) -> Placed | None:
    """A reduction as a scatter, if it is one."""
    found = scatter(term)
    return None if found is None else Placed(found, term.dtype)


Way = Convolution | Parts | Slices | Placed | Padded | Joined | Columns


def otherwise(term: Term, axes: tuple[Axis, ...], factors: tuple[Term, ...], numerics: str) -> Way | None:
    """A better way to compute a reduction than to fold what is below it; for a sum, `factors` below `axes`."""
    if term.data[0] == "sum":
        products = None if numerics == "exact" else _products(term.dtype, axes, factors)
        return _convolution(axes, factors) or products or _shifts(term)
    return _shifts(term)


def _products(dtype: str, axes: tuple[Axis, ...], factors: tuple[Term, ...]) -> Parts | None:
    """A sum of sums of products, one sum for each, as each may be a matrix product."""
    if len(factors) != 1 or factors[0].head not in ("add", "sub") or not is_float(dtype):
        return None
    sides = factors[0].args
    if not any(_is_product(s) for s in sides) or any(s.axes.isdisjoint(axes) for s in sides):
        return None
    for axis in reversed(axes):
        sides = tuple(reduce("sum", axis, s) for s in sides)
    return Parts(factors[0].head, sides)


def _is_product(term: Term) -> bool:
    return term.head == "mul" and all(a.head != "const" for a in term.args)


def _convolution(axes: tuple[Axis, ...], factors: tuple[Term, ...]) -> Convolution | None:
    """A product of floats of which one factor is read through windows, and the others vary inside of them only."""
    found = [(f, windows) for f in factors if (windows := _windows(f, axes))]
    if len(found) != 1 or len(factors) < 2 or not is_float(factors[0].dtype):
        return None
    image, windows = found[0]
    others = tuple(f for f in factors if f is not image)
    free = max((f.axes for f in others), key=len)
    small = all(f.axes <= free for f in others) and len(others) == len(factors) - 1
    if not small or any(w.across in free or w.inside not in free for w in windows.values()) or len(windows) > 3:
        return None
    if not set(axes) <= free | image.axes:
        return None
    indices = [Index.of(windows[d].whole) if d in windows else i for d, i in enumerate(image.indices)]
    return Convolution(load(image.tensor, indices), others, tuple(windows.values()), axes)


def _windows(term: Term, axes: tuple[Axis, ...]) -> dict[int, Window]:
    """The dimensions of a load that are read through overlapping windows, if windows are all that is unusual about it."""
    if term.head != "load" or term.args or 0 in term.tensor.shape:
        return {}
    windows: dict[int, Window] = {}
    for d, index in enumerate(term.indices):
        elsewhere = frozenset[Axis]().union(*(i.axes for n, i in enumerate(term.indices) if n != d))
        if box(index) is not None and not index.axes & elsewhere:
            continue
        if not is_box(index) or len(index.terms) != 2 or index.axes & elsewhere or term.tensor.shape[d] == 1:
            return {}
        (across, stride), (inside, dilation) = sorted(index.terms, key=lambda t: t[0] in axes)
        if across in axes or inside not in axes or stride < 0:
            return {}
        assert isinstance(across, Axis) and isinstance(inside, Axis)
        whole = Axis(f"image {d}", term.tensor.shape[d])
        windows[d] = Window(whole, across, inside, stride, dilation, index.constant)
    return windows


def _shifts(term: Term) -> Slices | Parts | None:
    """A short fold of windows, from one slice for each place in them; sums only where adding one by one rounds no worse."""
    name, axis = term.data
    arg = term.args[0]
    one_by_one = name in ("max", "min") or (name == "sum" and (is_integer(term.dtype) or term.dtype in ("float32", "float64")))
    if not one_by_one or axis.extent > SHIFTS or (name == "sum" and not _reads(arg)):
        return None
    sliding = [i for t in arg.walk() if t.head == "load" for i in t.indices if _slides(i, axis)]
    if not sliding:
        return None
    op = "add" if name == "sum" else name
    return _slices(op, arg, axis, sliding[0]) or Parts(
        op, tuple(substitute(arg, {axis: Index.of(n)}) for n in range(axis.extent))
    )


def _slices(op: str, arg: Term, inside: Axis, sliding: Index) -> Slices | None:
    """The fold as one of slices, if `arg` varies with its window, and along it, only as with ``stride * across + inside``."""
    stride, across = next((c, a) for a, c in sliding.terms if isinstance(a, Axis) and a != inside)
    if not 0 < stride <= inside.extent:
        return None
    axis = Axis(f"{across.name} {inside.name}", stride * (across.extent - 1) + inside.extent)
    try:
        whole = substitute(arg, {across: Index(), inside: Index.of(axis)})
        again = substitute(whole, {axis: stride * Index.of(across) + inside})
    except ValueError:  # a scan along one of them
        return None
    return Slices(op, whole, axis, across, stride, inside.extent) if again is arg else None


def _reads(term: Term) -> bool:
    """True for what is loaded, perhaps under a mask: sums of anything else are better left to a reduction."""
    while term.head in ("reduce", "where", "cast"):
        term = term.args[1 if term.head == "where" else 0]
    return term.head == "load"


def _slides(index: Index, axis: Axis) -> bool:
    return axis in index.axes and len(index.axes) == 2 and is_box(index) and box(index) is None
