"""What a schedule makes of terms: tiles, padding, guards, and the simplifications that lowering relies on.

Everything here is decided on terms, before any statement exists: which reductions become loops, where a tile sticks
out of its axis, what a term holds there, and which products are dots.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cached_property
from math import nan

from numpy import iinfo

from eqsat.forms import as_run
from eqsat.index import Axis, Index
from eqsat.limits import ranges_of
from eqsat.maxima import replaceable
from eqsat.notation import Kernel, Term, cast, const, const_value, operands_of, pos, rebuild, reduce, scalar, substitute
from eqsat.online import ONLINE, in_base_two, leaders, numerator, plainly, spelled
from eqsat.ranges import range_of
from eqsat.scalars import DTYPES, PART, REDUCTIONS, is_float
from eqsat.schedule import SMALLEST_DOT, Schedule
from eqsat.tile import TileAxis, of_starts, padded_range

Guard = tuple[Index, int]


class Tiling:
    """A kernel under a schedule; `outputs` pairs what is stored with its prepared terms."""

    def __init__(self, kernel: Kernel, schedule: Schedule):
        self.kernel = kernel = as_run(kernel)
        self.terms = kernel.terms
        self.tiles = {t.axis: t for t in schedule.axes}
        self._check()
        grouped = {t.bound for t in self.terms if t.bound is not None and ranges_of([t], kernel.exact)}
        for axis, t in self.tiles.items():
            if (
                t.role == "loop" and t.tile >= axis.extent and axis not in grouped
            ):  # one tile needs no loop, unless to be left out
                self.tiles[axis] = TileAxis(axis, t.tile, "resident")
        self._shown = replaceable(root for o in kernel.outputs for root in o.roots)
        self._numerators = dict(filter(None, map(numerator, kernel.terms)))  # by what leads their softmax
        self._known = frozenset(kernel.terms)
        self._prepared: dict[Term, Term] = {}
        self.outputs = tuple((o, tuple(map(self._prepare, o.roots))) for o in kernel.outputs if o.size)

    def _check(self) -> None:
        bound = {b for t in self.terms if (b := t.bound) is not None and b.extent > 1}
        scans = {t.data[1] for t in self.terms if t.head == "scan"}
        for axis in sorted(bound | {a for o in self.kernel.outputs for a in o.axes}):
            tile = self.tiles.get(axis)
            subject = f"axis {axis.name} of extent {axis.extent}"
            if tile is None:
                raise ValueError(f"{subject}: a schedule has a tile for every axis, got none; add one")
            if tile.tile < 1 or tile.tile & (tile.tile - 1):
                raise ValueError(f"{subject}: a tile is a power of two, got {tile.tile}; round it up")
            if tile.role not in ("grid", "loop", "resident"):
                raise ValueError(f"{subject}: a role is grid, loop or resident, got {tile.role!r}; choose one")
            if tile.role == "resident" and tile.tile < axis.extent:
                raise ValueError(f"{subject}: a resident tile covers its axis, got {tile.tile}; enlarge it or choose loop")
            if tile.role == "grid" and axis in scans and tile.count > 1:
                raise ValueError(f"{subject}: a scan is resident or a loop, got grid; choose one")
            if tile.role == "grid" and axis in bound:
                raise ValueError(f"{subject}: a reduction is resident or a loop, got grid; split the reduction into two kernels")

    # --- axes ---

    def role(self, axis: Axis) -> str:
        """Role of an axis; an axis of one value is resident."""
        return self.tiles[axis].role if axis.extent > 1 else "resident"

    def tile(self, axis: Axis) -> int:
        return self.tiles[axis].tile if axis.extent > 1 else 1

    def block(self, axes: Iterable[Axis]) -> tuple[Axis, ...]:
        """The axes along which a block over `axes` extends, in the order of the schedule."""
        wanted = frozenset(axes)
        return tuple(t.axis for t in self.tiles.values() if t.axis in wanted and t.tile > 1)

    def ragged(self, axis: Axis) -> bool:
        """True if the last tile of the axis sticks out."""
        return axis.extent > 1 and self.tiles[axis].ragged

    def loops(self, axes: Iterable[Axis]) -> frozenset[Axis]:
        """Those of `axes` that are traversed by a loop."""
        return frozenset(a for a in axes if self.role(a) == "loop")

    @cached_property
    def used(self) -> tuple[TileAxis, ...]:
        """The axes that the program needs: a reduction axis that was merged into an output axis is gone."""
        bound = {b for t in self.prepared if (b := t.bound) is not None}
        needed = bound | {a for o, _ in self.outputs for a in o.axes}
        return tuple(t for t in self.tiles.values() if t.axis in needed and t.axis.extent != 1)

    @cached_property
    def uses(self) -> Counter[Term]:
        """How many terms have a term as operand; an output counts as one."""
        roots = [root for _, roots in self.outputs for root in roots]
        return Counter([*roots, *(a for t in self.prepared for a in t.args)])

    @cached_property
    def prepared(self) -> tuple[Term, ...]:
        """Distinct subterms of all that is stored, and of where."""
        return tuple(dict.fromkeys(t for _, roots in self.outputs for root in roots for t in root.walk()))

    def extreme(self, open_: frozenset[Axis], index: Index, sign: int) -> Index | None:
        """The least (sign -1) or greatest (1) value of an affine index over the tiles at hand, from their first positions.

        None if it depends on a loop that is not open, or on nothing.
        """
        result = Index.of(index.constant)
        for axis, coefficient in index.terms:
            assert isinstance(axis, Axis)
            role = self.role(axis)
            if role == "loop" and axis not in open_:
                return None
            if role != "resident":
                result += Index.of(axis) * coefficient
            result += max(0, sign * coefficient) * sign * (self.tile(axis) - 1)
        return result if result.axes else None

    def stepped(self, axis: Axis, low: Index | None, high: Index | None) -> tuple[Index | None, Index | None]:
        """The same limits of a loop at whole tiles of it, where they move by whole tiles."""
        tile = self.tile(axis)

        def moves(bound: Index) -> bool:
            return all(c % tile == 0 for _, c in of_starts(bound, self.tiles).terms)

        low = low - low.constant % tile if low is not None and moves(low) else low
        return low, high + -high.constant % tile if high is not None and moves(high) else high

    # --- padding ---

    def inside(self, axis: Axis) -> Term:
        """True where a position along `axis` exists."""
        return scalar("lt", pos(Index.of(axis), "int32"), const(axis.extent, "int32"))

    def padded_range(self, index: Index, trusted: Iterable[Axis] = ()) -> tuple[int, int]:
        """Range of an index over whole tiles: padding is included, but for the axes that are `trusted` to be inside."""
        trusted = frozenset(trusted)
        return padded_range(index, {a: t for a, t in self.tiles.items() if a not in trusted})

    def guards(self, term: Term) -> tuple[Guard, ...]:
        """The tests that keep a load inside its tensor, and away from it in the padding of every axis."""
        tests = self._bounds(term, ())
        ragged = [t.axis for t in self.tiles.values() if t.axis in term.axes and self.ragged(t.axis)]
        missed = [a for a in ragged if not any(self._misses(*test, a) for test in tests)]
        own: list[Guard] = [(Index.of(a), a.extent) for a in missed]
        return tuple(dict.fromkeys([*own, *(self._bounds(term, missed) if missed else tests)]))

    def _bounds(self, term: Term, trusted: Iterable[Axis]) -> list[Guard]:
        """The dimensions that an index may leave."""
        ranges = [self.padded_range(i, trusted) for i in term.indices]
        tests = zip(ranges, term.indices, term.tensor.shape, strict=True)
        return [(index, extent) for (low, high), index, extent in tests if low < 0 or high >= extent]

    def _misses(self, index: Index, extent: int, axis: Axis) -> bool:
        """True if a guard rejects all of the padding of `axis`."""
        if axis not in index.axes or index.slots:
            return False
        tile = self.tiles[axis]
        beyond = Axis(f"{axis.name}:beyond", tile.count * tile.tile - axis.extent)
        others = {a: Index.of(self.tiles[a].padded) for a in index.axes if a != axis}
        low, high = index.substitute({**others, axis: beyond + Index.of(axis.extent)}).range
        return low >= extent or high < 0

    def zero_padded(self, term: Term, axis: Axis) -> bool:
        """True if `term` is surely 0 (or False) in the padding of `axis`."""
        match term.head:
            case "const":
                return const_value(term) == 0
            case "load":
                return axis in term.axes  # by its guards
            case "cast" | "neg" | "abs" | "add" | "sub" | "mul" | "and" | "or":
                return all(self.zero_padded(a, axis) for a in term.args)
            case "where":
                predicate, *choices = term.args
                return all(self.zero_padded(a, axis) for a in (choices[1:] if predicate is self.inside(axis) else choices))
            case "ne":
                x, y = term.args
                return x is y and self._number_padded(x, axis)
        return False

    def _number_padded(self, term: Term, axis: Axis) -> bool:
        """True if `term` is surely not NaN in the padding of `axis`."""
        filled = term.head == "where" and term.args[0] is self.inside(axis) and term.args[2].head == "const"
        return filled or self.zero_padded(term, axis)

    def filled(self, name: str, axis: Axis, term: Term) -> Term:
        """`term` with the identity of a reduction in the padding of `axis`."""
        if not self.ragged(axis):
            return term
        zero = identity_of(name, term.dtype) == 0
        if zero and self.zero_padded(term, axis):
            return term
        if zero and term.head == "cast":  # 0 stays 0, and the wider side may be at hand
            return cast(term.dtype, self.filled("sum", axis, term.args[0]))
        return self.spread(name, axis, term)

    def spread(self, name: str, axis: Axis, term: Term) -> Term:
        """`term` inside `axis` and the identity outside; it varies over the axis even if `term` does not."""
        return scalar("where", self.inside(axis), term, const(identity_of(name, term.dtype), term.dtype))

    # --- preparation ---

    def _prepare(self, term: Term) -> Term:
        """Equal term in which reductions are what tiles can do.

        A resident reduction takes over an output axis of the same extent and tile, so that x[i, r] and x[i, x1] are
        one block; max and min get back the NaN that a tile's reduction may lose, unless the outputs show it anyway;
        online is spelled out where one tile holds the whole axis; division of whole numbers is defined for every divisor.
        """
        done = self._prepared
        for t in term.walk():
            if t not in done:
                merged = self._merge(rebuild(t, tuple(done[a] for a in t.args)))
                done[t] = merged if t in self._shown else self._prepare_form(t, merged)
        return done[term]

    def _merge(self, term: Term) -> Term:
        axis = term.bound
        if axis is None or axis.extent < 2 or self.role(axis) != "resident":
            return term
        for other in self.kernel.axes:
            same = other.extent == axis.extent and self.tile(other) == self.tile(axis) and self.role(other) != "loop"
            if same and other != axis and not any(other in a.axes for a in term.args):
                try:
                    args = tuple(substitute(a, {axis: Index.of(other)}) for a in term.args)
                except ValueError:  # `other` is bound inside, where `axis` is mentioned
                    continue
                data = (term.data[0], other, *term.data[2:])
                return Term(term.head, args, data, term.dtype)
        return term

    def _prepare_form(self, meant: Term, term: Term) -> Term:
        if term.head == "online":
            return self._prepare_online(meant, term)
        if term.head == "reduce" and term.data[0] in ("max", "min") and is_float(term.dtype) and term.data[1].extent > 1:
            name, axis = term.data
            filled = self.filled(name, axis, term.args[0])
            lost = reduce("or", axis, scalar("ne", filled, filled))
            return scalar("where", lost, const(nan, term.dtype), term)
        if term.head.startswith("shift_"):
            return _within_width(term)
        return _defined(term) if term.head in ("quot", "rem") else term

    def _prepare_online(self, meant: Term, term: Term) -> Term:
        row, s, v = ONLINE[term.data[0]], *term.args
        if row.rounds:
            s, v = _widened(s), _widened(v)
        wide = Term("online", (s, v), term.data, v.dtype)
        looped = self.role(wide.data[1]) == "loop" and wide.data[1] in s.axes
        scaled = self._numerators.get(leaders(meant)[0]) if row.name == "softmax" and not looped else None
        if scaled is not None and (s.head == "mul" or not scaled):  # the kernel computes its exponentials anyway
            return cast(term.dtype, plainly(wide, scaled))
        if looped and leaders(meant)[0] not in self._known:  # which a kernel that stores the maximum has
            wide = in_base_two(wide) or wide
        return cast(term.dtype, row.result(wide, wide) if looped else spelled(wide))

    # --- structure ---

    def contraction(self, axis: Axis, body: Term) -> tuple[Term, Term] | None:
        """The operands of the dot that a sum of `body` over `axis` is, zero in its padding; None if it is not one.

        Exact casts are dropped from operands that multiply exactly in their own dtype.
        """
        if body.head != "mul" or body.dtype not in ("float32", "float64", "int32") or self.tile(axis) < SMALLEST_DOT:
            return None
        pair = self._operands(axis, body)
        if pair is None:
            return None
        a, b = pair
        narrow = _narrow(a) if _narrow(a) == _narrow(b) else None
        if narrow is not None:
            a, b = a.args[0], b.args[0]
        elif body.dtype == "int32":
            return None
        else:  # beside float32 a bfloat16 operand stays as it is: the dot takes the other in parts
            a, b = (x.args[0] if _narrow(x) == PART else x for x in (a, b))
        return self._zeroed(a, axis), self._zeroed(b, axis)

    def _zeroed(self, term: Term, axis: Axis) -> Term:
        return self.filled("sum", axis, term)

    def _operands(self, axis: Axis, body: Term) -> tuple[Term, Term] | None:
        """Two factors of `body`: besides `axis`, each varies over one axis of the other's absence."""
        for pair in _splits(body):
            a, b = (set(self.block(x.axes)) for x in pair)
            own = [*(a - b), *(b - a)]
            if a & b == {axis} and len(a) == len(b) == 2 and all(self.tile(x) >= SMALLEST_DOT for x in own):
                return pair
        return None

    def loop_reductions(self, roots: Iterable[Term]) -> Iterator[Term]:
        """Reductions by a loop below `roots`, operands first, that depend on no loop bound in between."""
        found: dict[Term, None] = {}
        seen: set[tuple[Term, frozenset[Axis]]] = set()

        def visit(term: Term, blocked: frozenset[Axis]) -> None:
            if (term, blocked) in seen:
                return
            seen.add((term, blocked))
            own = self.loops([term.bound] if term.bound is not None else [])
            for arg in term.args:
                visit(arg, blocked | own)
            if own and not (term.axes & blocked):
                found[term] = None

        for root in roots:
            visit(root, frozenset())
        return iter(found)


def identity_of(name: str, dtype: str) -> float | int | bool:
    """The identity of a reduction as a value of `dtype`: all ones of an unsigned integer are not -1."""
    value, row = REDUCTIONS[name].identity(dtype), DTYPES[dtype]
    return value % 2 ** (8 * row.nbytes) if row.kind == "uint" else value


def _widened(term: Term) -> Term:
    compute = DTYPES[term.dtype].compute
    return const(const_value(term), compute) if term.head == "const" else cast(compute, term)


def _narrow(term: Term) -> str | None:
    """The dtype below a cast whose products are exact in the dtype above it."""
    if term.head != "cast":
        return None
    source = term.args[0].dtype
    floats = term.dtype == "float32" and is_float(source) and DTYPES[source].nbytes < 4
    return source if floats or (term.dtype == "int32" and source == "int8") else None


def _defined(term: Term) -> Term:
    """A quotient or remainder with XLA's values where processors leave them open: by 0, and of the lowest number by -1."""
    a, b = term.args
    (low, high, _), dtype = range_of(b), term.dtype
    info = iinfo(dtype)
    quotient = term.head == "quot"
    special = [(0, const(-1 if info.min else info.max, dtype) if quotient else a)]
    if info.min:
        special.append((-1, scalar("neg", a) if quotient else const(0, dtype)))
    found = [(scalar("eq", b, const(by, dtype)), value) for by, value in special if low <= by <= high]
    for by, _ in found:
        b = scalar("where", by, const(1, dtype), b)
    result = scalar(term.head, a, b)
    for by, value in found:
        result = scalar("where", by, value, result)
    return result


def _within_width(term: Term) -> Term:
    """A shift with XLA's values where processors differ: by less than 0, or by all bits or more, every bit is shifted out."""
    a, b = term.args
    (low, high, _), bits = range_of(b), 8 * DTYPES[term.dtype].nbytes
    if 0 <= low and high < bits:
        return term
    zero, unsigned = const(0, term.dtype), f"u{term.dtype.removeprefix('u')}"
    rest = scalar("where", scalar("lt", a, zero), const(-1, term.dtype), zero) if term.head == "shift_right_arithmetic" else zero
    return scalar("where", scalar("lt", cast(unsigned, b), const(bits, unsigned)), term, rest)


def _splits(body: Term) -> Iterator[tuple[Term, Term]]:
    """Ways to write a product as two factors: as it stands, then each factor of a longer product against the rest."""
    yield body.args[0], body.args[1]
    parts = operands_of(body, "mul")
    for i in range(len(parts)) if len(parts) > 2 else ():
        rest = parts[:i] + parts[i + 1 :]
        product = rest[0]
        for factor in rest[1:]:
            product = scalar("mul", product, factor)
        yield product, parts[i]


def is_mask(term: Term) -> bool:
    """True for a position compared with an extent."""
    return term.head == "lt" and term.args[0].head == "pos" and term.args[1].head == "const"
