"""The choice as an integer program: a bound on how cheap a selection can be, what a cheaper one may contain, and the cheapest.

Variables say which candidates run, which of them makes a tensor, and which tensors are stored. What is stored is made, once;
so all makers of a tensor that load another wait for it together, which bounds far better than one by one. And it is founded:
of any set of tensors, the first to be made loads none of the others, so if one is stored, some kernel runs that makes one
of them from outside (loop formulas: F. Lin and Y. Zhao, "ASSAT", AAAI 2002; in a graph, the cuts of a Steiner tree). This rules
out rings, and bounds what is shared. There are too many such sets, so each solution names those that it breaks.

HiGHS solves it, up to a number of nodes: nothing depends on the clock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from scipy.sparse import csr_array

if TYPE_CHECKING:
    from eqsat.kernels import Candidate

ROUNDS = 40  # of cuts
PATIENCE, WORTH = 10, 0.03  # rounds that close no more than this share of the gap are the last
RELAXED = 12_000  # most columns of a program that is relaxed
SOLVED = 500  # most candidates of a program that is solved in integers
NODES = 20  # of branch and bound, in all
RINGS = 8  # integer solutions that are not founded, and are cut off
PRECISION = 1e-6  # relative, of a solver's optimum
BROKEN = 1e-3  # a constraint that a solution breaks by less is let be
SEVERAL = 3  # tensors that a set of them is tried for
WHOLE = 1 << 20  # a flow of 1

Cut = tuple[frozenset[int], int]  # a set of tensors, and the one of them that is stored only if one of them is made from outside


@dataclass(frozen=True)
class Relaxed:
    """A lower bound of every selection's price; the candidates that a selection cheaper than the known one may contain."""

    bound: float
    candidates: list[Candidate]
    cuts: tuple[Cut, ...]


def relaxed(
    candidates: Sequence[Candidate],
    wanted: Sequence[int],
    price: float,
    cuts: tuple[Cut, ...] = (),
    among: Sequence[Candidate] | None = None,
) -> Relaxed:
    """The linear relaxation with cuts. A selection of this price is known; the bound is of all, it included.

    among: only selections that contain one of these count.
    """
    left = reachable(candidates, wanted)
    bounds: list[float] = []
    while len(bounds) < ROUNDS:
        program = _Program(left, wanted, price, cuts, among)
        if program.columns > RELAXED:
            break
        result = (
            linprog(program.prices, program.rows, np.zeros(program.height), bounds=program.limits.T) if program.makeable else None
        )
        if result is None or result.status == 2 or (result.status == 0 and result.fun >= 1 - 2 * PRECISION):
            return Relaxed(price, left, cuts)
        if result.status != 0:
            break
        bounds.append(max(bounds[-1:] + [(result.fun - PRECISION) * price]))
        left = reachable(program.without(result.lower.marginals > 1 + PRECISION - result.fun), wanted)
        tight, new = program.tight(result.x), program.broken(result.x)
        cuts = tuple(dict.fromkeys((*tight, *new)))
        before = bounds[max(0, len(bounds) - PATIENCE)]
        if not new or (len(bounds) > PATIENCE and bounds[-1] - before < WORTH * (price - before)):
            break
    return Relaxed(max(bounds, default=0.0), left, cuts)


def solved(
    candidates: Sequence[Candidate],
    wanted: Sequence[int],
    price: float,
    cuts: tuple[Cut, ...],
    among: Sequence[Candidate] | None = None,
) -> tuple[tuple[Candidate, ...], float]:
    """A selection in an order in which it can run, empty unless one is found that is cheaper than this price; a lower bound.

    among: only selections that contain one of these count.
    """
    left, bound, nodes = reachable(candidates, wanted), 0.0, NODES
    for _ in range(RINGS):
        program = _Program(left, wanted, price, cuts, among)
        if len(left) > SOLVED:
            return (), bound
        result = milp(
            program.prices,
            integrality=program.integral,
            bounds=Bounds(*program.limits),
            constraints=LinearConstraint(program.rows, -np.inf, 0),
            options={"node_limit": nodes, "mip_rel_gap": PRECISION},
        )
        if result.status == 2:  # none is cheaper
            return (), price
        if result.mip_dual_bound is not None:
            bound = max(bound, min(price, result.mip_dual_bound * price * (1 - PRECISION)))
        if result.x is None:
            return (), bound
        order = founded(c for c, runs in zip(left, result.x, strict=False) if runs > 0.5)
        made = {e.number for c in order for e in c.produces}
        nodes -= result.mip_node_count or 0
        if made.issuperset(wanted) or nodes <= 0:
            return order, bound
        unfounded = frozenset(program.tensors) - made
        cuts += tuple((unfounded, e) for e in sorted(unfounded) if result.x[program.stored[e]] > 0.5)
    return (), bound


def founded(candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """Those candidates that run on what those before them make, in such an order."""
    made: set[int] = set()
    order: list[Candidate] = []
    waiting = list(candidates)
    while ready := [c for c in waiting if c.needs <= made]:
        waiting = [c for c in waiting if not c.needs <= made]
        made.update(e.number for c in ready for e in c.produces)
        order += ready
    return tuple(order)


def reachable(candidates: Sequence[Candidate], wanted: Iterable[int]) -> list[Candidate]:
    """The candidates that can run, and make something that is wanted or that one of them loads."""
    able = set(map(id, founded(candidates)))
    makers: dict[int, list[Candidate]] = defaultdict(list)
    for c in candidates:
        if id(c) in able:
            for e in c.produces:
                makers[e.number].append(c)
    seen, todo = set(wanted), list(wanted)
    used: set[int] = set()
    while todo:
        for c in makers[todo.pop()]:
            used.add(id(c))
            todo += c.needs - seen
            seen |= c.needs
    return [c for c in candidates if id(c) in used]


def least_cut(size: int, arcs: Iterable[tuple[int, int, int]], source: int, sink: int) -> tuple[set[int], set[int]]:
    """What the source still reaches, and what still reaches the sink, beside a largest flow: the sides of the least cuts.

    arcs: (from, to, capacity) of a network whose nodes are numbers below `size`, at most one for each pair and direction.
    """
    free: list[dict[int, int]] = [{} for _ in range(size)]  # into each node: what can still flow there, of whom it can be had
    for start, end, capacity in arcs:
        free[end][start] = capacity
        free[start].setdefault(end, 0)
    while True:
        behind, ring = {sink: sink}, [sink]  # backwards: few nodes lie on ways to one sink
        for n in ring:
            for other, most in free[n].items():
                if most and other not in behind:
                    behind[other] = n
                    ring.append(other)
            if source in behind:
                break
        else:
            break
        path = [source]
        while path[-1] != sink:
            path.append(behind[path[-1]])
        more = min(free[to][n] for n, to in pairwise(path))
        for n, to in pairwise(path):
            free[to][n] -= more
            free[n][to] += more
    near, ring = {source}, [source]
    for n in ring:
        fresh = [other for other in free[n] if other not in near and free[other][n]]
        near.update(fresh)
        ring += fresh
    return near, set(behind)


class _Program:
    """Minimise prices @ x, where rows @ x <= 0, and x lies within limits; prices are relative to a known one.

    The first columns are the candidates; then come the tensors, and what each candidate of several makes.
    """

    def __init__(
        self,
        candidates: list[Candidate],
        wanted: Sequence[int],
        price: float,
        cuts: Collection[Cut],
        among: Sequence[Candidate] | None = None,
    ) -> None:
        self.candidates = candidates
        self.tensors = sorted({e.number for c in candidates for e in c.produces})
        self._place = {e: n for n, e in enumerate(self.tensors)}
        self.makeable = self._place.keys() >= set(wanted)
        self.stored = {e: len(candidates) + n for n, e in enumerate(self.tensors)}
        self.columns = len(candidates) + len(self.tensors)
        self._makes = self._incidence([[e.number for e in c.produces] for c in candidates])
        self._loads = self._incidence([sorted(c.needs) for c in candidates])
        self._entries: list[tuple[int, int, float]] = []  # row, column, value
        self.height = 0
        self._state_makers()
        if among is not None and self.makeable:  # as what is wanted is stored, one of them runs
            some = set(map(id, among))
            self._row([self.stored[wanted[0]]], [n for n, c in enumerate(candidates) if id(c) in some])
        self.cuts = [(group, e) for group, e in cuts if e in self.stored]
        self._basic = self.height
        for group, e in self.cuts:
            self._row([self.stored[e]], np.flatnonzero(self._founding(group)))
        self.prices = np.zeros(self.columns)
        self.prices[: len(candidates)] = [c.price / price for c in candidates]
        self.limits = np.array([np.zeros(self.columns), np.ones(self.columns)])
        self.limits[0, [self.stored[e] for e in wanted if e in self.stored]] = 1
        self.integral = np.ones(
            self.columns
        )  # all: rounded, a solution keeps to the rows, and HiGHS need not mend (and print) it

    def _incidence(self, tensors: Sequence[Sequence[int]]) -> csr_array:
        """Candidates by tensors: 1 for each of those given."""
        pairs = [(n, self._place[e]) for n, some in enumerate(tensors) for e in some]
        starts, ends = zip(*pairs, strict=True) if pairs else ((), ())
        return _sparse(np.ones(len(pairs), np.int32), starts, ends, (len(tensors), len(self.tensors)))

    def _row(self, at_most: Iterable[int], these: Iterable[int]) -> None:
        """The sum of the first columns is at most that of the others."""
        self._entries += [(self.height, column, 1.0) for column in at_most]
        self._entries += [(self.height, column, -1.0) for column in these]
        self.height += 1

    def _state_makers(self) -> None:
        """What is stored is made; a kernel that makes something runs, and what it loads is stored."""
        makers: dict[int, list[int]] = defaultdict(list)
        through: dict[tuple[int, int], list[int]] = defaultdict(list)  # makers of the first tensor that load the second
        for n, c in enumerate(self.candidates):
            for made in c.produces:
                column = n
                if len(c.produces) > 1:
                    column, self.columns = self.columns, self.columns + 1
                    self._row([column], [n])
                makers[made.number].append(column)
                for needed in sorted(c.needs):
                    through[made.number, needed].append(column)
        for e, columns in makers.items():
            self._row([self.stored[e]], columns)
        for (_, e), columns in through.items():
            self._row(columns, [self.stored[e]])

    def _founding(self, group: frozenset[int]) -> np.ndarray:
        """Which candidates make one of these tensors and load none."""
        inside = np.zeros(len(self.tensors), np.int32)
        inside[[self._place[e] for e in group if e in self._place]] = 1
        return (self._makes @ inside > 0) & (self._loads @ inside == 0)

    @cached_property
    def rows(self) -> csr_array:
        rows, columns, values = zip(*self._entries, strict=True)
        return _sparse(np.array(values), rows, columns, (self.height, self.columns))

    def without(self, dear: np.ndarray) -> list[Candidate]:
        return [c for c, left_out in zip(self.candidates, dear, strict=False) if not left_out]

    def tight(self, x: np.ndarray) -> list[Cut]:
        """The cuts that a solution exhausts."""
        slack = -(self.rows @ x)[self._basic :]
        return [cut for cut, left in zip(self.cuts, slack, strict=True) if left < PRECISION]

    def broken(self, x: np.ndarray) -> list[Cut]:
        """Cuts that a solution breaks."""
        stored = {e: x[column] for e, column in self.stored.items() if x[column] > PRECISION}
        runs = {n: x[n] for n, c in enumerate(self.candidates) if x[n] > PRECISION and c.needs <= stored.keys()}
        ease = self._ease(runs)
        shares = np.zeros(len(self.candidates))
        shares[list(runs)] = list(runs.values())
        tried = dict.fromkeys((*self._levels(runs, stored, ease), *self._minimal(runs, stored, ease)))
        founding = {group: shares @ self._founding(group) for group in dict.fromkeys(group for group, _ in tried)}
        return [(group, e) for group, e in tried if founding[group] < stored[e] - BROKEN]

    def _levels(self, runs: dict[int, float], stored: dict[int, float], ease: dict[int, float]) -> Iterator[Cut]:
        """What is harder to make than a level, for each level; and that of it which goes into a tensor."""
        loaded: dict[int, set[int]] = defaultdict(set)
        for n in runs:
            for made in self.candidates[n].produces:
                loaded[made.number] |= self.candidates[n].needs
        for level in sorted(set(ease.values())):
            group = frozenset(e for e, most in ease.items() if most <= level)
            for e in sorted(group & stored.keys(), key=lambda e: -stored[e])[:SEVERAL]:
                inside, todo = {e}, [e]
                while todo:
                    fresh = (loaded[todo.pop()] & group) - inside
                    inside |= fresh
                    todo += sorted(fresh)
                yield group, e
                yield frozenset(inside), e

    def _minimal(self, runs: dict[int, float], stored: dict[int, float], ease: dict[int, float]) -> Iterator[Cut]:
        """Least cuts between nothing and a tensor, in the flow through what runs.

        A kernel passes on what comes to it through one of the tensors that it loads: the hardest to make of all, then the hardest
        of those that a cut leaves on the far side, as long as there are others.
        """
        node = {e: n for n, e in enumerate(stored, 1)}
        kernels = [self.candidates[n] for n in runs]
        entries = [len(node) + 1 + 2 * n for n in range(len(kernels))]
        arcs = [(n, n + 1, int(share * WHOLE)) for n, share in zip(entries, runs.values(), strict=True)]
        made = [(n + 1, node[e.number]) for c, n in zip(kernels, entries, strict=True) for e in c.produces if e.number in node]
        arcs += [(n, e, 2 * WHOLE) for n, e in made]
        size = len(node) + 1 + 2 * len(kernels)
        hardest = [sorted(c.needs, key=lambda e: (ease[e], e)) for c in kernels]
        first = [node[needs[0]] if needs else 0 for needs in hardest]
        for e in (e for e, share in stored.items() if share > BROKEN):
            through = first
            for _ in range(SEVERAL):
                loads = [(tensor, n, 2 * WHOLE) for tensor, n in zip(through, entries, strict=True)]
                near, far = least_cut(size, [*arcs, *loads], 0, node[e])
                yield frozenset(k for k in self.tensors if node.get(k, -1) not in near), e
                yield frozenset(k for k in node if node[k] in far), e
                beyond = [next((node[k] for k in needs if node[k] not in near), 0) for needs in hardest]
                turned = [other if n in near and other else n for n, other in zip(through, beyond, strict=True)]
                if turned == through:
                    break
                through = turned

    def _ease(self, runs: dict[int, float]) -> dict[int, float]:
        """How much of each tensor can be made: the largest share such that all kernels it takes run by as much."""
        users: dict[int, list[int]] = defaultdict(list)
        waits, least = {n: len(self.candidates[n].needs) for n in runs}, dict(runs)
        for n in runs:
            for e in self.candidates[n].needs:
                users[e].append(n)
        ease = dict.fromkeys(self.tensors, 0.0)
        ready = [(-share, n) for n, share in runs.items() if not waits[n]]
        heapify(ready)
        while ready:
            share, n = heappop(ready)
            for made in self.candidates[n].produces:
                if not ease[made.number]:
                    ease[made.number] = -share
                    for user in users[made.number]:
                        waits[user] -= 1
                        least[user] = min(least[user], -share)
                        if not waits[user]:
                            heappush(ready, (-least[user], user))
        return ease


def _sparse(values: np.ndarray, rows: Sequence[int], columns: Sequence[int], shape: tuple[int, int]) -> csr_array:
    """A matrix with indices of 32 bits, which SciPy's solvers take; its version 1.14 keeps those of lists in 64."""
    return csr_array((values, (np.array(rows, np.int32), np.array(columns, np.int32))), shape=shape)
