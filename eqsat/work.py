"""What a kernel does, before any schedule: operations by unit and axes, reads, contractions."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import prod
from typing import Any, NamedTuple

from eqsat.alpha import distinct
from eqsat.forms import as_run
from eqsat.index import Axis, Dynamic, Index, flatten
from eqsat.limits import Limits, limits_of, ranged, ranges_of, visited
from eqsat.notation import Kernel, Tensor, Term, Window, crossed, rebuild, substitute
from eqsat.online import ONLINE, spelled
from eqsat.scalars import DTYPES, PART, PARTS, SCALARS

SECTOR_NBYTES = 32  # the least that DRAM and L2 move
RESIDENT_K = 128  # a contracted axis up to this extent is held whole
SCANNING = 4.0  # operations of a scan for each element
CORRECTIONS = 2.0  # operations of an online reduction that one over whole arrays does not need
SPLITTING = 8  # operations that take a float32 number apart
TERMS = 1 << 15  # of which facts are kept: kernels have most terms in common


@dataclass(frozen=True)
class Contraction:
    """A sum over `k` of a product whose factors have the axes rows + k and columns + k (and `shared` ones)."""

    term: Term
    rows: frozenset[Axis]
    columns: frozenset[Axis]
    k: Axis
    dtype: str  # of the operands as the hardware sees them
    scope: frozenset[Axis]
    computed: int  # operands that are more than a load, and are made anew in each pass of a loop
    loaded: frozenset[frozenset[Axis]]  # axes of the operands that come from memory, not from another reduction
    split: frozenset[Axis] = frozenset()  # axes of the float32 operand that is taken in narrow parts
    dot: bool = True  # False where targets multiply no blocks of such numbers, as wide integers
    passes: int = 1  # as in Read

    @property
    def products(self) -> int:
        """Matrix products that it takes."""
        return PARTS if self.split else 1

    @property
    def widened(self) -> list[frozenset[Axis]]:
        """The axes of each operand that is converted where no matrix instruction does it."""
        operands = self.term.args if self.term.head == "online" else self.term.args[0].args
        return [x.axes for x in operands if x.head == "cast"]


class Read(NamedTuple):
    """A load and how often it is repeated when a reduction axis is traversed by loops."""

    tensor: Tensor
    scope: frozenset[Axis]
    passes: int
    element_nbytes: float  # moved for each element


class Work:
    """What a kernel does, before any schedule."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel = as_run(kernel)
        bound = dict.fromkeys(t.bound for t in kernel.terms if t.bound is not None)
        self.bound_axes: tuple[Axis, ...] = tuple(a for a in bound if a not in kernel.axes)
        self.axes: tuple[Axis, ...] = (*kernel.axes, *self.bound_axes)
        self.passes = _passes(kernel)
        found = (contraction(t) for t in kernel.terms)
        repeated = self.passes.keys()
        self.contractions = [replace(c, passes=self.passes[c.term]) if c.term in repeated else c for c in found if c is not None]
        if not self.contractions and not self.scans:
            self.contractions = [replace(c, passes=self.passes.get(c.term, 1)) for t in kernel.terms if (c := _spread(t))]
        self.absorbed = self._inside_contractions()

    def _inside_contractions(self) -> set[Term]:
        """Products and casts that a matrix instruction does by itself."""
        inside: set[Term] = set()
        for c in self.contractions:
            operands = c.term.args if c.term.head == "online" else c.term.args[0].args
            inside |= {c.term, *(() if c.term.head == "online" else (c.term.args[0],))}
            inside |= {t for t in operands if t.head == "cast"}
        return inside

    @cached_property
    def work(self) -> dict[tuple[frozenset[Axis], str, int], float]:
        """Operations on one point of the scope, by (scope, unit, passes)."""
        return self._operations((t for t in self.kernel.terms if t not in self.again), self.contractions)

    def as_arrays(self) -> tuple[dict[tuple[frozenset[Axis], str, int], float], list[Contraction], int]:
        """Operations, contractions and how many folds, where each value is an array, computed once whatever its axes are called.

        All that waits for another reduction does so, but for softmax's sums, which share their exponentials.
        """
        if any(_waits(t) for t in self.kernel.terms):
            return Work(_apart(self.kernel)).as_arrays()
        terms = distinct(self.kernel.terms)
        kept = set(terms)
        contractions = [c for c in self.contractions if c.term in kept]
        folds = sum(t.bound is not None and t.args[0].head != "reduce" for t in terms)  # several axes are folded at once
        return self._operations(terms, contractions, CORRECTIONS), contractions, folds

    def _operations(
        self, terms: Iterable[Term], contractions: Iterable[Contraction], arrays: float = 0
    ) -> dict[tuple[frozenset[Axis], str, int], float]:
        total: dict[tuple[frozenset[Axis], str, int], float] = defaultdict(float)
        weighed: set[tuple[Any, Term]] = set()
        for t in terms:
            scope = t.axes | ({t.bound} if t.bound is not None else set())
            passes = self.passes_of(t)
            if t.head == "online" and (weights := (t.data[:2], t.args[0])) not in weighed:
                weighed.add(weights)  # sums over one axis with one s share the exponential
                kind, points = ONLINE[t.data[0]], t.args[0].axes | {t.data[1]}
                total[points, "vector", passes] += kind.vector - arrays
                if kind.special:
                    total[points, "special", passes] += kind.special
            if t in self.absorbed or t.head in ("load", "const"):
                continue
            if t.head == "scan" and len(t.args) > 1:
                total[scope, "special", passes] += 1  # for each pair
            row = SCALARS.get(t.head)
            weight = row.weight if row else SCANNING if t.head == "scan" else 1.0
            total[scope, row.unit if row else "vector", passes] += weight
        for c in contractions:
            if c.split:
                total[c.split, "vector", c.passes] += SPLITTING
        return dict(total)

    @cached_property
    def visited(self) -> dict[Axis, float]:
        """The share of each reduced axis that masks leave to be visited, if loops traverse it, less the tiles that edges cut."""
        shares = {a: visited(limits, a) for a, limits in self._limits.items()} | {a: 1 / a.extent for a in self.groups}
        shares |= dict.fromkeys(self.ranges, 0.0)
        return {a: share for a, share in shares.items() if share < 1.0}

    @cached_property
    def _limits(self) -> dict[Axis, Limits]:
        """What masks leave to be visited of each reduced axis."""
        over: dict[Axis, list[Term]] = defaultdict(list)
        for t in self.kernel.terms:
            if t.bound is not None:
                over[t.bound].append(t)
        own = frozenset(self.kernel.axes)
        return {a: limits_of(terms, self.kernel.exact).within(own) for a, terms in over.items()}

    @cached_property
    def ranges(self) -> dict[Axis, Axis]:
        """Reduced axes that are shared out among ranges, each of which ends where the next begins, and the axis of the ranges.

        That is one along which nothing varies that is loaded along the reduced axis. A tile of it visits the ranges in it, which
        are taken as in `groups`.
        """
        found: dict[Axis, Axis] = {}
        for axis, limits in self._limits.items():
            loads = (t.axes for t in self.kernel.terms if t.head == "load" and axis in t.axes)
            own = frozenset[Axis]().union(*loads)
            if ranges := {a for start in limits.start for end in limits.end for a in _shared_out(start, end)} - own:
                found[axis] = main_axis(ranges)
        return found

    @cached_property
    def groups(self) -> dict[Axis, Axis]:
        """The axes of groups that each have a range of rows, whose ends are loaded, and the axis of the rows.

        The ranges of all groups are taken to be of one length and to have all rows among them.
        """
        found: dict[Axis, Axis] = {}
        own = frozenset(self.kernel.axes)
        for c in self.contractions:
            tests = [r for test in ranges_of([c.term], self.kernel.exact) if (r := ranged(test)) is not None]
            low, high = (self.serial.intersection(*(end.axes for _, end, low in tests if low is side)) for side in (True, False))
            rows = [at.axes for at, _, _ in tests if at.axes <= own]
            if rows and {low for _, _, low in tests} == {True, False}:
                found |= dict.fromkeys(low & high, main_axis(rows[0]))
        return found

    def cut(self, axis: Axis) -> tuple[Axis, ...]:
        """The axes whose tiles the edges of a mask cut that hides positions of this one: so much more is visited."""
        return (self.groups.get(axis, axis), *([self.ranges[axis]] if axis in self.ranges else []))

    @cached_property
    def reads(self) -> list[Read]:
        loads = (t for t in self.kernel.terms if t.head == "load" and t not in self.again)
        return [Read(t.tensor, t.axes, self.passes_of(t), _loaded_nbytes(t)) for t in loads]

    @cached_property
    def again(self) -> dict[Term, Term]:
        """Terms along an output axis, and what they are along the reduced axis that it follows, if the kernel has that too.

        They take one more pass of a loop over that axis; a block that is held whole has them at hand.
        """
        if self.contractions or self.scans or not self.follows:
            return {}
        swap, memo = {axis: Index.of(bound) for axis, bound in self.follows.items()}, dict[Any, Term]()
        terms = set(self.kernel.terms)
        along = (t for t in self.kernel.terms if not t.axes.isdisjoint(swap))
        return {t: same for t in along if (same := substitute(t, swap, memo)) in terms}

    @cached_property
    def _once_more(self) -> Counter[Term]:
        return Counter(self.again.values())

    def passes_of(self, t: Term) -> int:
        """How many loops over a bound axis evaluate a term, if that axis is traversed by loops."""
        return self.passes.get(t, 1) + self._once_more[t]

    @cached_property
    def uses(self) -> Counter[Term]:
        """How many terms and outputs use each term."""
        return Counter([*(o.term for o in self.kernel.outputs), *(a for t in self.kernel.terms for a in t.args)])

    @cached_property
    def serial(self) -> set[Axis]:
        """Axes of serial loops around a contraction, one position after the other: the taps of a convolution."""
        ends = {axis for c in self.contractions for axis in (c.k, main_axis(c.rows), main_axis(c.columns))}
        return {axis for axis in self.bound_axes if axis not in ends and any(axis in c.scope for c in self.contractions)}

    @cached_property
    def contiguous_axes(self) -> list[Axis]:
        """For each load, the axis along which neighbouring elements lie, most frequent first."""
        count: dict[Axis, int] = defaultdict(int)
        for t in self.kernel.terms:
            if t.head == "load":
                for axis in _neighbours(t):
                    count[axis] += 1
        return sorted(count, key=lambda a: (-count[a], a))

    @cached_property
    def nearest_axes(self) -> list[Axis]:
        """Those of the contiguous axes along which about as much is loaded as along any.

        What is small does not decide: a matrix whose columns are summed lies along them, however its factors' vector lies.
        """
        largest = max((self._nbytes_along(a) for a in self.contiguous_axes), default=0)
        return [a for a in self.contiguous_axes if 2 * self._nbytes_along(a) >= largest]

    @cached_property
    def contiguous(self) -> Axis | None:
        """The axis to traverse fastest: a reduced one if it is among the nearest, else the most frequent of those."""
        found = self.nearest_axes
        return next((a for a in found if a in self.bound_axes), next(iter(found), None))

    def _nbytes_along(self, axis: Axis) -> int:
        """Bytes of the largest load whose neighbouring elements lie along an axis."""
        loads = (t for t in self.kernel.terms if t.head == "load" and axis in _neighbours(t))
        return max((prod(a.extent for a in t.axes) * DTYPES[t.tensor.dtype].nbytes for t in loads), default=0)

    @cached_property
    def scans(self) -> dict[Axis, bool]:
        """The axes of scans, and whether they are scanned in both directions."""
        found: dict[Axis, set[bool]] = defaultdict(set)
        for t in self.kernel.terms:
            if t.head == "scan":
                found[t.data[1]].add(t.data[2])
        return {axis: len(directions) > 1 for axis, directions in found.items()}

    @cached_property
    def joined(self) -> set[Axis]:
        """Output axes that together are one dimension of what is written."""
        places = (i for o in self.kernel.outputs if isinstance(o, Window) for i in o.places)
        return {axis for i in places if len(i.axes) > 1 for axis in i.axes}

    @cached_property
    def follows(self) -> dict[Axis, Axis]:
        """Output axes that run over the same elements as a reduced axis: j of softmax's x[i, j] beside the sum over x[i, r].

        Not so an axis that meets the reduced one below its reduction: such a block has both.
        """
        loads = {(t.tensor, t.indices) for t in self.kernel.terms if t.head == "load"}
        found: dict[Axis, Axis] = {}
        for axis in self.kernel.axes:
            for bound in self.bound_axes:
                if bound.extent == axis.extent and axis not in found and not self._meet(axis, bound):
                    swap = {axis: Index.of(bound)}
                    if any(
                        (t, tuple(i.substitute(swap) for i in ix)) in loads for t, ix in loads if any(axis in i.axes for i in ix)
                    ):
                        found[axis] = bound
        return found

    def beside(self, axis: Axis) -> set[Axis]:
        """Other reduced axes along which something varies that varies along this one."""
        return {a for t in self.kernel.terms if axis in t.axes for a in t.axes.intersection(self.bound_axes)} - {axis}

    def _meet(self, axis: Axis, bound: Axis) -> bool:
        """True if a reduction over `bound` is done for each value of the output axis."""
        return any(t.bound == bound and axis in t.axes for t in self.kernel.terms)

    @cached_property
    def nbytes(self) -> int:
        """Compulsory traffic: what is read of each tensor (at most all of it), and what is written."""
        read: dict[Tensor, int] = defaultdict(int)
        for r in self.reads:
            read[r.tensor] += round(prod(a.extent for a in r.scope) * r.element_nbytes)
        return sum(min(n, t.nbytes) for t, n in read.items()) + sum(o.written_nbytes for o in self.kernel.outputs)

    @cached_property
    def launches(self) -> int:
        """Its own, and one for each output that starts as zeros."""
        return 1 + sum(isinstance(o, Window) and o.zeroed for o in self.kernel.outputs)

    @cached_property
    def flops(self) -> int:
        alike = lambda scope: prod(self.ranges[a].extent for a in scope & self.ranges.keys())  # noqa: E731
        points = lambda scope: prod(a.extent for a in scope - self.groups.keys()) / alike(scope)  # noqa: E731
        total = sum(2 * points(c.scope) for c in self.contractions)
        return int(total + sum(points(scope) * n for (scope, _, _), n in self.work.items()))


def element_nbytes(tensor: Tensor, indices: tuple[Index, ...]) -> float:
    """Bytes that memory moves for one element of a load: a sector each where neighbours of every axis lie apart.

    On the average: what lies outside of the tensor is not loaded.
    """
    own = DTYPES[tensor.dtype].nbytes
    atoms = [(a, c) for a, c in flatten(indices, tensor.shape).terms if not isinstance(a, Dynamic)]
    moved = max(own, min(SECTOR_NBYTES, own * min((abs(c) for _, c in atoms), default=1)))
    return moved * prod(map(_share_inside, indices, tensor.shape))


def _share_inside(index: Index, extent: int) -> float:
    """The share of an axis at whose positions an index that it alone moves lies in 0 .. extent-1."""
    axis, step = index.terms[0] if len(index.terms) == 1 else (None, 0)
    if not isinstance(axis, Axis):
        return 1
    ends = -index.constant, extent - 1 - index.constant
    low, high = ends if step > 0 else (-ends[1], -ends[0])
    inside = min(high // abs(step), axis.extent - 1) - max(-(-low // abs(step)), 0) + 1
    return max(inside, 0) / axis.extent


@lru_cache(maxsize=TERMS)
def _neighbours(t: Term) -> tuple[Axis, ...]:
    """The axes along which a load's neighbouring elements lie."""
    return tuple(a for a, c in flatten(t.indices, t.tensor.shape).terms if isinstance(a, Axis) and c == 1)


@lru_cache(maxsize=TERMS)
def _loaded_nbytes(t: Term) -> float:
    return element_nbytes(t.tensor, t.indices)


def _shared_out(start: Term, end: Term) -> frozenset[Axis]:
    """The axes along which ranges lie one behind the other: their ends are sums of lengths, or offsets, one after the other."""
    if all(any(u.head == "reduce" and u.data[0] == "sum" for u in bound.walk()) for bound in (start, end)):
        return start.axes & end.axes
    return frozenset(a for a in start.axes & end.axes if substitute(start, {a: Index.of(a) + 1}) == end)


def main_axis(axes: Iterable[Axis]) -> Axis:
    """The axis of a group that gets the block of a matrix instruction: the longest, of equals the first by name."""
    return max(sorted(axes), key=lambda a: a.extent)


@lru_cache(maxsize=TERMS)
def contraction(t: Term) -> Contraction | None:
    """A term as a contraction, or None."""
    if t.head == "reduce" and t.data[0] == "sum" and t.args[0].head == "mul":
        a, b = t.args[0].args
        k = t.data[1]
        dtypes = _operand_dtype(a), _operand_dtype(b)
    elif t.head == "online" and t.data[0] == "softmax":
        a, b = t.args
        k = t.data[1]
        dtypes = t.data[2], _operand_dtype(b)
    else:
        return None
    rows, columns = a.axes - b.axes - {k}, b.axes - a.axes - {k}
    if not rows or not columns or k not in a.axes or k not in b.axes:
        return None
    dtype, split = dtypes[0] if len(set(dtypes)) == 1 else a.dtype, frozenset[Axis]()
    if set(dtypes) == {"float32", PART}:
        dtype, split = PART, (a, b)[dtypes.index("float32")].axes
    computed = [x for x in (a, b) if (x.args[0] if x.head == "cast" and x.args[0].dtype == dtype else x).head != "load"]
    loaded = frozenset(x.axes for x in (a, b) if all(u.bound is None for u in x.walk()) and (x is not a or t.head != "online"))
    dot = t.head == "online" or t.args[0].dtype in ("float32", "float64") or set(dtypes) == {"int8"}
    if DTYPES[dtype].nbytes >= 4:  # multiply-adds unroll, so every computed operand costs registers
        return Contraction(t, rows, columns, k, dtype, a.axes | b.axes, len(computed), loaded, dot=dot)
    varying = sum(any(axis.name.startswith("r") and (axis != k or k.extent > RESIDENT_K) for axis in x.axes) for x in computed)
    return Contraction(t, rows, columns, k, dtype, a.axes | b.axes, varying, loaded, split, dot)


@lru_cache(maxsize=TERMS)
def _spread(t: Term) -> Contraction | None:
    """A sum of three factors or more, of which two have an axis each that the other lacks: no dot, but as many points."""
    if t.head != "reduce" or t.data[0] != "sum" or t.args[0].head != "mul":
        return None
    k, body = t.data[1], t.args[0]
    for a, b in crossed(body):
        if k in a.axes and k in b.axes:
            return Contraction(t, a.axes - b.axes, b.axes - a.axes, k, body.dtype, body.axes, 0, frozenset(), dot=False)
    return None


def _operand_dtype(x: Term) -> str:
    """The dtype that matrix hardware could see: the source of a widening cast."""
    return x.args[0].dtype if x.head == "cast" and DTYPES[x.args[0].dtype].nbytes < DTYPES[x.dtype].nbytes else x.dtype


def _passes(kernel: Kernel) -> dict[Term, int]:
    """How many loops over a bound axis evaluate each term, if that axis is traversed by loops; one, where nothing is said.

    A reduction that depends on another over the same axis needs a later loop; what both use is evaluated in both.
    """
    phase: dict[Term, int] = {}
    for t in kernel.terms:
        if t.bound is not None:
            phase[t] = 1 + max((phase[u] for u in _along(t) if u.bound == t.bound), default=0)
    if all(n == 1 for n in phase.values()):
        return {}
    used: dict[Term, dict[Axis, set[int]]] = defaultdict(lambda: defaultdict(set))
    for t, n in phase.items():
        for u in _along(t):
            if t.bound in u.axes:
                used[u][t.bound].add(n)
    return {t: prod(len(phases) for phases in by_axis.values()) for t, by_axis in used.items()}


@lru_cache(maxsize=TERMS)
def _along(t: Term) -> tuple[Term, ...]:
    """The terms below a reduction that vary along its axis, or bind it too."""
    below = dict.fromkeys(u for a in t.args for u in a.walk())
    return tuple(u for u in below if t.bound in u.axes or u.bound == t.bound)


def _waits(t: Term) -> bool:
    """True for an online reduction that arrays take in two passes."""
    return t.head == "online" and t.data[0] != "softmax"


def _apart(kernel: Kernel) -> Kernel:
    """The kernel with two passes for each of those."""
    done: dict[Term, Term] = {}
    for t in kernel.terms:
        new = rebuild(t, tuple(done[a] for a in t.args))
        done[t] = spelled(new) if _waits(new) else new
    return replace(kernel, outputs=tuple(replace(o, term=done[o.term]) for o in kernel.outputs))
