"""A region as the e-graph's tables: its terms, axes, tensors and index tuples numbered, and rows decoded again."""

from __future__ import annotations

from math import copysign
from typing import Any, NamedTuple

from eqsat.definitions import definition_at
from eqsat.index import Axis, Index
from eqsat.notation import Tensor, Term, const, const_value
from eqsat.ranges import range_of
from eqsat.regions import Region
from eqsat.scalars import DTYPES
from eqsat.splitting import levelled, masked, split

ATTRIBUTES = ("map_axes", "tensor_dtype", "leaf_dtype", "extent", "position")  # by the number of an index map, tensor, leaf, axis
MAX_AXES = 62  # axis sets are 64-bit masks
DTYPE_OF_BIT = {d.bit: d.name for d in DTYPES.values()}


class Row(NamedTuple):
    """An e-node: `head`, `data` and `dtype` as in `Term`, classes instead of operands, and the rule that made it."""

    head: str
    args: tuple[int, ...]
    data: Any
    dtype: str
    rule: str | None


class Ingest:
    """Numbers the terms, axes, tensors and index tuples of a region, and inlines definitions beside their loads."""

    def __init__(self, region: Region, nesting: int, fast: bool) -> None:
        self.region, self._fast = region, fast
        self.number: dict[Term, int] = {}
        self.tables: dict[str, list[tuple[Any, ...]]] = {t: [] for t in (*ATTRIBUTES, "union", "low", "high", "finite")}
        self._axes: list[Axis] = []
        self._bit: dict[Axis, int] = {}
        self._maps: dict[tuple[Index, ...], int] = {}
        self._tensors: dict[Tensor, int] = {}
        self._leaves: dict[Term, int] = {}
        self._budget: dict[Term, int] = {}
        self._defined = set(region.definitions)
        for stored in region.definitions:
            for axis in stored.axes:
                self.bit(axis)
            self.add(stored.term)
            self._inline(stored.term, nesting)

    def bit(self, axis: Axis) -> int:
        if axis not in self._bit:
            if len(self._axes) >= MAX_AXES:
                raise OverflowError(f"region: at most {MAX_AXES} axes, got more; cut it smaller")
            self._bit[axis] = 1 << len(self._axes)
            self._axes.append(axis)
            self.tables["extent"].append((self._bit[axis], axis.extent))
        return self._bit[axis]

    def axes_of(self, mask: int) -> frozenset[Axis]:
        return frozenset(a for a in self._axes if mask & self._bit[a])

    def map_id(self, indices: tuple[Index, ...]) -> int:
        if indices not in self._maps:
            self._maps[indices] = len(self._maps)
            mask = 0
            for axis in sorted(frozenset().union(*(i.axes for i in indices))):
                mask |= self.bit(axis)
            self.tables["map_axes"].append((self._maps[indices], mask))
        return self._maps[indices]

    def tensor_id(self, tensor: Tensor) -> int:
        if tensor not in self._tensors:
            self._tensors[tensor] = len(self._tensors)
            self.tables["tensor_dtype"].append((self._tensors[tensor], DTYPES[tensor.dtype].bit))
        return self._tensors[tensor]

    def add(self, term: Term) -> int:
        """Number of a term; its row goes to the table of its operation."""
        for t in term.walk():
            if t not in self.number:
                self.number[t] = len(self.number)
                name, columns = self._row_of(t)
                self.tables.setdefault(name, []).append((self.number[t], *columns))
                self._bounds(t)
        return self.number[term]

    def _bounds(self, t: Term) -> None:
        """What is proved of a term's values."""
        low, high, finite = range_of(t)
        if low > float("-inf"):
            self.tables["low"].append((self.number[t], low))
        if high < float("inf"):
            self.tables["high"].append((self.number[t], high))
        if finite:
            self.tables["finite"].append((self.number[t],))

    def _row_of(self, t: Term) -> tuple[str, tuple[Any, ...]]:
        args = tuple(self.number[a] for a in t.args)
        match t.head:
            case "const":
                if (value := _exact_float(t)) is not None:
                    return "Const", (value, DTYPES[t.dtype].bit)
                self._leaves[t] = len(self._leaves)
                self.tables["leaf_dtype"].append((self._leaves[t], DTYPES[t.dtype].bit))
                return "Leaf", (self._leaves[t],)
            case "pos":
                for axis in t.axes:
                    if t.data == Index.of(axis):
                        self.tables["position"].append((self.bit(axis), self.map_id((t.data,))))
                return "Pos", (self.map_id((t.data,)), DTYPES[t.dtype].bit)
            case "load":
                return f"Load{len(args) or ''}", (self.tensor_id(t.tensor), self.map_id(t.indices), *args)
            case "cast":
                return "Cast", (*args, DTYPES[t.dtype].bit)
            case "reduce":
                return f"R_{t.data[0]}", (self.bit(t.data[1]), *args)
            case "online":
                return f"O_{t.data[0]}", (self.bit(t.data[1]), *args, DTYPES[t.data[2]].bit)
        return f"S_{t.head}", args

    def _inline(self, term: Term, nesting: int) -> None:
        """Beside each load of a defined tensor put its term, while contractions nest at most `nesting` deep.

        A contraction that is a factor of another counts for nothing: chains of products are associated as a whole.
        """
        if self._budget.get(term, -1) >= nesting:
            return
        self._budget[term] = nesting
        if is_contraction(term):
            for factor in _factors(term):
                chained = factor.head == "load" and factor.tensor in self._defined and is_contraction(factor.tensor.term)
                self._inline(factor, nesting if chained else nesting - 1)
        for arg in term.args:
            self._inline(arg, nesting - 1 if is_contraction(term) else nesting)
        if term.head == "reduce" and len(self._axes) < MAX_AXES // 2:
            for other in split(term, self._definition):
                self._equal(term, other, nesting)
            if self._fast and (pair := masked(term, self._definition)) is not None:
                self.add(pair[0])
                self._equal(*pair, nesting)
        for own, other in levelled(term, self._definition):
            self._equal(own, other, nesting)
        if (inlined := self._definition(term)) is not None:
            if nesting > 0 or not any(is_contraction(t) for t in inlined.walk()):
                self._equal(term, inlined, nesting)

    def _equal(self, term: Term, other: Term, nesting: int) -> None:
        self.tables["union"].append((self.number[term], self.add(other)))
        self._inline(other, nesting)

    def _definition(self, term: Term) -> Term | None:
        """What a load of a defined tensor stands for."""
        if term.head != "load" or term.tensor not in self._defined:
            return None
        return definition_at(term.tensor, term.indices, term.args)

    def row(self, name: str, args: tuple[Any, ...], dtype: str, rule: str | None) -> Row:
        """Decode a frozen row."""
        if name.startswith("S_"):
            return Row(name[2:], args, None, dtype, rule)
        if name.startswith("R_"):
            return Row("reduce", args[1:], (name[2:], self._axis(args[0])), dtype, rule)
        if name.startswith("O_"):
            return Row("online", args[1:3], (name[2:], self._axis(args[0]), DTYPE_OF_BIT[args[3]]), dtype, rule)
        match name:
            case "Cast":
                return Row("cast", args[:1], None, dtype, rule)
            case "Const":
                return Row("const", (), const(args[0], dtype).data, dtype, rule)
            case "Leaf":
                return Row("const", (), next(t for t, n in self._leaves.items() if n == args[0]).data, dtype, rule)
            case "Pos":
                return Row("pos", (), self._map(args[0])[0], dtype, rule)
        tensors = list(self._tensors)
        return Row("load", args[2:], (tensors[args[0]], self._map(args[1])), dtype, rule)

    def text(self, data: Any) -> str:
        """A row's data for ordering, in which tensors are numbers: names decide nothing."""
        return str(tuple(self._tensors[d] if isinstance(d, Tensor) else d for d in data) if isinstance(data, tuple) else data)

    def _axis(self, bit: int) -> Axis:
        return self._axes[bit.bit_length() - 1]

    def _map(self, number: int) -> tuple[Index, ...]:
        return list(self._maps)[number]


def is_contraction(term: Term) -> bool:
    """A sum of products of which each factor has an axis that the other lacks."""
    if term.head != "reduce" or term.data[0] != "sum":
        return False
    if len(factors := _factors(term)) != 2:
        return False
    a, b = factors
    return bool(a.axes - b.axes) and bool(b.axes - a.axes)


def _factors(term: Term) -> tuple[Term, ...]:
    """The two operands of the product that nested sums are over, if it is one."""
    while term.head == "reduce":
        term = term.args[0]
    return term.args if term.head == "mul" else ()


def _exact_float(t: Term) -> float | None:
    """The value as a float if the engine can hold it: it knows neither -0.0 nor NaN nor integers beyond 2**53."""
    value = const_value(t)
    as_float = float(value)
    if (
        as_float != as_float
        or (as_float == 0 and copysign(1, as_float) < 0)
        or (isinstance(value, int) and int(as_float) != value)
    ):
        return None
    return as_float
