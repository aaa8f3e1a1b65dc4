"""The choice: the cheapest set of candidate kernels that makes every output.

First by dynamic programming over the frontier. Tensors are visited users first. A state is what is needed but not yet made,
and what was made on the way and may still be loaded; whatever lies above does not matter, so of all ways to reach a state only
the cheapest is kept. Programs are narrow (a few tensors are live at any place), so this is mostly exact. Where there are more
than a width, the most promising ones go on, and the best of the others bounds what was lost. What that leaves open, an integer
program decides: its relaxation bounds the price, and leaves out what no cheaper selection contains. Where too much is left to
solve it in integers, a wider search goes on with that. Nothing depends on the clock, unless a deadline comes first.

An order must exist in which every load follows its store. The cheapest selection seldom breaks this; where it does, some
tensors are loaded to make one another in a ring, and the search is repeated with each link of the ring forbidden in turn
(branch and bound, cheapest first).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from itertools import pairwise
from math import inf
from time import perf_counter
from typing import Any, NamedTuple

import networkx as nx

from eqsat.climbing import Selection
from eqsat.cones import Entity
from eqsat.integer_program import Cut, relaxed, solved
from eqsat.kernels import Candidate, Pool

WIDTH = 16  # states that go on from one tensor to the next
WIDE, WIDEST = 200, 1000  # the same, before the integer program is asked, and after
STATES = 20_000  # visited by a search and its branches, about: beyond, no more links are forbidden
TIE = 1e-9  # of two selections of one price, the one with fewer kernels
ALIKE = 1e-6  # relative difference of prices that rounding explains
PROVED = 1e-4  # a relative gap below this is none


@dataclass(frozen=True)
class Choice:
    """Chosen candidates in an order in which they can run, and their total price with a lower bound of the best one's."""

    candidates: tuple[Candidate, ...]
    price: float
    bound: float
    states: int  # visited
    cuts: tuple[Cut, ...] = ()  # with which the integer program came to its bound
    hurried: bool = False  # a deadline ended the search

    @property
    def gap(self) -> float:
        """Relative distance to the bound; 0 is proved to be optimal."""
        return gap_of(self.price, self.bound)


class Before(NamedTuple):
    """A choice among all candidates but the fresh ones. If it was proved, a cheaper selection contains one of these."""

    choice: Choice
    fresh: Sequence[Candidate]


NOTHING = Before(Choice((), inf, 0.0, 0), ())  # before anything is chosen or proved


def gap_of(price: float, bound: float) -> float:
    """Relative distance of a price to the least that it might be."""
    return max(0.0, 1 - bound / price) if price > 0 else 0.0


def in_order(candidates: Sequence[Candidate]) -> tuple[Candidate, ...] | None:
    """The candidates with all that reads a tensor before the one that overwrites it; None if there is no such order."""
    waiting, done = list(candidates), []
    while waiting:
        for c in waiting:
            others = [x for x in waiting if x is not c]
            made = {e.number for x in others for e in x.produces}
            if not c.needs & made and not any(c.kernel.donated.intersection(x.kernel.inputs) for x in others):
                break
        else:
            return None
        done.append(c)
        waiting.remove(c)
    return tuple(done)


def searched(pool: Pool, deadline: float = inf) -> tuple[list[Candidate], Choice]:
    """The candidates of a pool and the choice among them; what hill climbing meets around a choice joins as long as it gains.

    Exact choices take longer, so they are made once the others gain no more. Past the deadline, a time of `perf_counter`, no
    further step begins.
    """

    def late() -> bool:
        return perf_counter() > deadline

    candidates = pool.candidates(late)
    choice, last = choose(candidates, pool.outputs, pool.known, WIDTH, exact=False), inf
    for width, exact, mend in ((WIDTH, False, False), (WIDTH, False, True), (WIDE, True, True)):
        if mend:
            if choice.gap < PROVED:
                break
            if late():
                return candidates, replace(choice, hurried=True)
            choice = choose(candidates, pool.outputs, pool.known, width, exact, Before(choice, ()), mend)
        while choice.price < last * (1 - TIE):
            if late():
                return candidates, replace(choice, hurried=True)
            fresh = [*pool.around(choice.candidates), *pool.joined(choice.candidates)]
            last = choice.price
            if not fresh:
                break
            candidates += fresh
            choice = choose(candidates, pool.outputs, pool.known, width, exact, Before(choice, fresh), mend)
    return candidates, choice


def choose(
    candidates: list[Candidate],
    outputs: Iterable[Entity],
    known: Selection = (inf, ()),
    width: int = WIDTH,
    exact: bool = True,
    before: Before = NOTHING,
    mend: bool = False,
) -> Choice:
    """The cheapest selection; a `known` one prunes, and is the answer if nothing better is found.

    exact: False for dynamic programming of this width alone.
    before: a choice among fewer candidates, to go on from.
    mend: True to begin with the cheapest selection known made cheaper kernel by kernel.
    Raises ValueError if no selection makes every output.
    """
    wanted = sorted(e.number for e in outputs)
    if not wanted:
        return Choice((), 0.0, 0.0, 0)
    known = min((before.choice.price, before.choice.candidates), known, key=lambda selection: selection[0])
    best = _runnable(known[1] or _cheapest_first(candidates), wanted)
    if best is None:
        made = {e.number for c in candidates for e in c.produces}
        if missing := [n for n in wanted if n not in made]:
            raise ValueError(f"extraction: a candidate kernel for every output required, got none for {missing}")
        raise ValueError("extraction: kernels in some order required, got candidates that wait for one another")
    best = mended(best, candidates, wanted) if mend else best
    usable, bound, states = candidates, 0.0, 0
    for wide in sorted({width, WIDE}) if exact else (width,):
        limit = min(known[0], _total(best)) * (1 + ALIKE)
        usable = _undominated(usable, limit)
        order, proved, visited = _selection(usable, wanted, limit, wide)
        best, bound, states = min(order or best, best, key=_total), max(bound, proved), states + visited
        if not _open(best, bound):
            break
    cuts = before.choice.cuts
    if exact and _open(best, bound):
        best, bound, visited, cuts = _proved(usable, wanted, best, bound, before)
        states += visited
    return Choice(best, _total(best), min(_total(best), bound), states, cuts)


Order = tuple["Candidate", ...]


def _proved(
    usable: list[Candidate], wanted: list[int], best: Order, bound: float, before: Before
) -> tuple[Order, float, int, tuple[Cut, ...]]:
    """A selection as good as this one and a bound by the integer program, the states visited, the cuts made."""
    cuts = before.choice.cuts
    states, among, others = 0, None, inf
    if before.choice.gap < PROVED:
        fresh, others = set(map(id, before.fresh)), before.choice.bound
        among = [c for c in usable if id(c) in fresh]
    relaxation = relaxed(usable, wanted, _total(best), cuts, among)
    bound, cuts = max(bound, relaxation.bound), relaxation.cuts
    if _open(best, bound):
        found, proved = solved(relaxation.candidates, wanted, _total(best), cuts, among)
        best, bound = _better(_runnable(found, wanted), best), max(bound, proved)
    if _open(best, bound):
        order, proved, states = _selection(relaxation.candidates, wanted, _total(best) * (1 + ALIKE), WIDEST)
        best, bound = _better(order, best), max(bound, proved)
    return best, min(bound, others), states, cuts


def _total(order: Order) -> float:
    return sum(c.price for c in order)


def mended(best: Order, candidates: Sequence[Candidate], wanted: list[int]) -> Order:
    """A selection that gets no cheaper by one more kernel, nor by making its outputs without what one of its kernels stores."""
    total = inf
    while _total(best) < total * (1 - ALIKE):
        total = _total(best)
        for c in candidates:
            if c.price < total and c.needs <= {e.number for x in best for e in x.produces}:
                best = _better(_runnable((c, *best), wanted), best)
        for k in best:
            gone = {e.number for e in k.produces}.difference(wanted)
            rest = [c for c in candidates if c is not k and not c.needs & gone]
            best = _better(_runnable(_cheapest_first(rest, free=best), wanted), best)
    return best


def _better(found: Order | None, best: Order) -> Order:
    """The one found, if rounding does not explain that it is cheaper."""
    return found if found and _total(found) < _total(best) * (1 - ALIKE) else best


def _open(best: Order, bound: float) -> bool:
    """True if the bound does not prove a selection to be the cheapest."""
    return _total(best) * (1 - PROVED) > bound


def _cheapest_first(candidates: Sequence[Candidate], free: Order = ()) -> Order:
    """The cheapest tree of kernels for each tensor, in order (D. Knuth, "A generalization of Dijkstra's algorithm", 1977).

    free: kernels that cost nothing, since they are there.
    """
    there = set(map(id, free))
    users: dict[int, list[int]] = defaultdict(list)
    for n, c in enumerate(candidates):
        for e in c.needs:
            users[e].append(n)
    total, waiting = [0.0 if id(c) in there else c.price for c in candidates], [len(c.needs) for c in candidates]
    ready = [(total[n], n) for n, count in enumerate(waiting) if not count]
    heapify(ready)
    order: list[Candidate] = []
    made: set[int] = set()
    while ready:
        price, number = heappop(ready)
        fresh = sorted({e.number for e in candidates[number].produces} - made)
        if fresh:
            order.append(candidates[number])
            made.update(fresh)
        for n in (n for e in fresh for n in users[e]):
            total[n] += price
            waiting[n] -= 1
            if not waiting[n]:
                heappush(ready, (total[n], n))
    return tuple(order)


def _runnable(selection: Order, wanted: list[int]) -> Order | None:
    """What of a selection makes the wanted tensors, in an order in which it can run; None if there is none."""
    makers: dict[int, Candidate] = {}
    for c in selection:
        for e in c.produces:
            makers.setdefault(e.number, c)
    return _in_order(makers, wanted) if makers.keys() >= set(wanted) else None


Link = tuple[int, int]  # to make the first, the second is loaded


def _selection(
    candidates: list[Candidate], wanted: list[int], limit: float, width: int
) -> tuple[tuple[Candidate, ...] | None, float, int]:
    """The cheapest selection that searches of this width find, in order; a lower bound of any's price; the states visited."""
    bound, states, count = inf, 0, 0
    branches: list[tuple[float, int, frozenset[Link], dict[int, Candidate]]] = []

    def search(forbidden: frozenset[Link]) -> None:
        nonlocal bound, states, count
        frontier = _Frontier(candidates, wanted, limit, width, forbidden)
        path = frontier.search()
        states, count, bound = states + frontier.states, count + 1, min(bound, frontier.bound)
        if path:
            heappush(branches, (path[0], count, forbidden, frontier.makers_of(path)))

    search(frozenset())
    while branches:
        price, _, forbidden, makers = heappop(branches)
        order = _in_order(makers, wanted)
        if order or states > STATES:
            return order, min(bound, price), states
        for link in _ring(makers, wanted):
            search(forbidden | {link})
    return None, bound, states


def _makes(c: Candidate, forbidden: frozenset[Link]) -> list[int]:
    """The tensors that a candidate may make."""
    return sorted(e.number for e in c.produces if all((e.number, n) not in forbidden for n in c.needs))


def _ring(makers: dict[int, Candidate], wanted: list[int]) -> list[Link]:
    """The shortest ring of tensors that are loaded to make one another."""
    graph = nx.DiGraph((made, needed) for made, c in makers.items() for needed in sorted(c.needs))
    graph.add_nodes_from(wanted)
    rings: list[list[Link]] = []
    for group in nx.strongly_connected_components(graph.subgraph({*wanted}.union(*(nx.descendants(graph, n) for n in wanted)))):
        for made, needed in graph.subgraph(group).edges:
            path = nx.shortest_path(graph, needed, made)
            rings.append([(made, needed), *pairwise(path)])
    return min(rings, key=lambda ring: (len(ring), ring))


# Masks of positions, the lowest of which is visited last: what is needed and not yet made, and what was made and may still be
# loaded. Plain tuples, since there are millions.
_State = tuple[int, int]
# The cheapest way to a state: its price, the last kernel, what it is used for, and the way before it.
_Path = tuple[float, int, int, Any]


class _Frontier:
    """The search over states."""

    def __init__(
        self, candidates: list[Candidate], wanted: list[int], limit: float, width: int, forbidden: frozenset[Link] = frozenset()
    ) -> None:
        self._width = width
        makes = [_makes(c, forbidden) for c in candidates]
        self._candidates = [c for c, made in zip(candidates, makes, strict=True) if made]
        self._visit(wanted, [made for made in makes if made])
        self._wanted = self._mask(wanted)
        self._limit = limit + TIE * len(self._component)
        self._leasts: dict[int, float] = {0: 0.0}
        self.bound, self.states = inf, 0

    def _visit(self, wanted: list[int], makes: list[list[int]]) -> None:
        """Number the tensors by the order of visits, and the candidates of each."""
        graph = nx.DiGraph()  # an edge from each tensor to those that some candidate loads to make it
        graph.add_nodes_from({*wanted}.union(*makes))
        graph.add_edges_from({(m, n) for c, made in zip(self._candidates, makes, strict=True) for m in made for n in c.needs})
        components = nx.condensation(graph)
        users_first = nx.lexicographical_topological_sort(components, key=lambda c: -max(components.nodes[c]["members"]))
        groups = [sorted(components.nodes[c]["members"], reverse=True) for c in users_first][::-1]
        order = [e for group in groups for e in reversed(group)]
        self._position = {e: n for n, e in enumerate(order)}
        self._component = [n for n, group in enumerate(groups) for _ in group]  # of a position
        self._cycle = [self._mask(group) if len(group) > 1 else 0 for group in groups for _ in group]  # its cycle's positions
        self._share = [inf] * len(order)  # least price of making it, shared with all that the kernel makes
        self._relevant = [0] * len(groups)  # what candidates of this component and those below load or make
        self._makers: list[list[tuple[float, int, int, int]]] = [[] for _ in order]  # price, number, makes, needs
        for number, (c, made) in enumerate(zip(self._candidates, makes, strict=True)):
            mask, needs = self._mask(made), self._mask(c.needs)
            assert not mask & needs, f"{c.kernel.name}: a kernel that does not load what it stores"
            for p in _positions(mask):
                self._makers[p].append((c.price + TIE, number, mask, needs))
                self._share[p] = min(self._share[p], c.price / mask.bit_count())
                self._relevant[self._component[p]] |= mask | needs
        for n in range(1, len(groups)):
            self._relevant[n] |= self._relevant[n - 1]

    def _mask(self, entities: Iterable[int]) -> int:
        return sum(1 << self._position[e] for e in entities)

    def search(self) -> _Path | None:
        """The cheapest way to make everything, or None if there is none."""
        start: _State = (self._wanted, 0)
        layers: dict[int, dict[_State, _Path]] = {self._layer(*start): {start: (0.0, -1, 0, None)}}
        while layers:
            layer = max(layers)
            states = layers.pop(layer)
            if layer < 0:
                return min(states.values(), key=lambda path: path[0])
            for state, path in self._narrowed(states):
                self.states += 1
                self._step(state, path, layers)
        return None

    def _layer(self, pending: int, made: int) -> int:
        """States of one component are visited together, those with more made later; -1 is the end."""
        if not pending:
            return -1
        top = pending.bit_length() - 1
        left = (self._cycle[top] & ~made).bit_count()
        return self._component[top] * (len(self._component) + 1) + left

    def _step(self, state: _State, path: _Path, layers: dict[int, dict[_State, _Path]]) -> None:
        """Make the highest pending tensor in every way."""
        before, had, spent, limit = *state, path[0], self._limit
        for price, number, makes, needs in self._makers[before.bit_length() - 1]:
            total, fresh = spent + price, makes & ~had
            pending, made = before & ~fresh | needs & ~(had | fresh), had | fresh
            if total + self._least(pending) > limit:
                continue
            made &= self._relevant[self._component[pending.bit_length() - 1]] if pending else 0
            following, known = (pending, made), layers.setdefault(self._layer(pending, made), {})
            other = known.get(following)
            if other is None or total < other[0]:
                known[following] = (total, number, fresh, path)

    def _least(self, pending: int) -> float:
        """What making these costs at least."""
        found = self._leasts.get(pending)
        if found is None:
            found = self._leasts[pending] = sum(self._share[p] for p in _positions(pending))
        return found

    def _narrowed(self, states: dict[_State, _Path]) -> list[tuple[_State, _Path]]:
        """States that no other dominates, at most `width`, the most promising first; the rest lowers the bound."""
        ranked = sorted((path[0] + self._least(state[0]), state) for state, path in states.items())
        kept: list[tuple[_State, _Path]] = []
        rivals: list[tuple[int, int, float]] = []
        for promise, state in ranked:
            lacks, made, price = ~state[0], state[1], states[state][0]
            for needed, others, least in rivals:
                if not needed & lacks and not made & ~others and least <= price:
                    break
            else:
                if len(kept) == self._width:
                    self.bound = min(self.bound, promise)
                    break
                kept.append((state, states[state]))
                rivals.append((*state, price))
        return kept

    def makers_of(self, path: _Path | None) -> dict[int, Candidate]:
        """The candidate that makes each tensor."""
        entity = {p: e for e, p in self._position.items()}
        makers: dict[int, Candidate] = {}
        while path is not None and path[3] is not None:
            _, kernel, used, path = path
            makers.update((entity[p], self._candidates[kernel]) for p in _positions(used))
        return makers


def _positions(mask: int) -> Iterator[int]:
    while mask:
        p = mask.bit_length() - 1
        yield p
        mask ^= 1 << p


def _undominated(candidates: list[Candidate], limit: float) -> list[Candidate]:
    """Without those that cost more than a known selection, or that another beats with no more loads and no fewer stores."""
    ranked = sorted((c for c in candidates if c.price <= limit), key=lambda c: (c.price, -len(c.produces)))
    rivals: dict[int, list[tuple[frozenset[int], frozenset[int]]]] = {}
    kept: set[int] = set()
    for c in ranked:
        made = frozenset(e.number for e in c.produces)
        if not any(needs <= c.needs and made <= makes for needs, makes in rivals.get(min(made), ())):
            kept.add(id(c))
            for e in made:
                rivals.setdefault(e, []).append((c.needs, made))
    makeable = rivals.keys()
    return [c for c in candidates if id(c) in kept and c.needs <= makeable]


def _in_order(makers: dict[int, Candidate], wanted: list[int]) -> tuple[Candidate, ...] | None:
    """The makers in an order in which every load follows its store; None if there is none."""
    done: dict[int, Candidate] = {}
    open_: set[int] = set()
    stack = [(makers[output], False) for output in reversed(wanted)]
    while stack:
        c, ready = stack.pop()
        if ready:
            done[id(c)] = c
        elif id(c) in open_ and id(c) not in done:
            return None
        elif id(c) not in done:
            open_.add(id(c))
            stack.append((c, True))
            stack.extend((makers[n], False) for n in sorted(c.needs, reverse=True))
    return tuple(done.values())
