"""The choice: the cheapest set of candidate kernels that makes every output, by dynamic programming over the frontier.

Tensors are visited users first. A state is what is needed but not yet made, and what was made on the way and may still be
loaded; whatever lies above does not matter, so of all ways to reach a state only the cheapest is kept. Programs are narrow
(a few tensors are live at any place), so there are few states and the choice is exact. Where there are more than `WIDTH`,
the most promising ones go on, and the best of the others bounds what was lost. Nothing depends on the clock.

An order must exist in which every load follows its store. Only tensors on a cycle of "is loaded to make" can break this, and
the cheapest selection seldom does; if it does, the search is repeated with states that also say which needed tensors each
made one on a cycle waits for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import networkx as nx

from eqsat.kernels import Candidate, Entity

FIRST = 16  # states of a first search; its selection lets the second leave out what costs more
WIDTH = 1000  # states that go on from one tensor to the next
TIE = 1e-9  # of two selections of one price, the one with fewer kernels
ALIKE = 1e-6  # relative difference of prices that rounding explains


@dataclass(frozen=True)
class Choice:
    """Chosen candidates in an order in which they can run, and their total price with a lower bound of the best one's."""

    candidates: tuple[Candidate, ...]
    price: float
    bound: float
    states: int  # visited

    @property
    def gap(self) -> float:
        """Relative distance to the bound; 0 is proved to be optimal."""
        return max(0.0, 1 - self.bound / self.price) if self.price > 0 else 0.0


Known = tuple[float, tuple[Candidate, ...]]  # a selection of candidates that make one tensor each, with its total


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


def choose(
    candidates: list[Candidate],
    outputs: Iterable[Entity],
    known: Known = (float("inf"), ()),
    width: int = WIDTH,
) -> Choice:
    """The cheapest selection; a `known` one prunes, and is the answer if nothing better is found.

    Raises ValueError if no selection makes every output.
    """
    wanted = sorted(e.number for e in outputs)
    if not wanted:
        return Choice((), 0.0, 0.0, 0)
    limit = known[0] * (1 + ALIKE)
    usable = _undominated(candidates, limit)
    made = {e.number for c in usable for e in c.produces}
    if missing := [n for n in wanted if n not in made]:
        raise ValueError(f"extraction: a candidate kernel for every output required, got none for {missing}")
    found: list[tuple[Candidate, ...]] = []
    bound, states = 0.0, 0
    for wide in sorted({min(FIRST, width), width}):
        order, proved, visited = _selection(usable, wanted, limit, wide)
        bound, states = max(bound, proved), states + visited
        if order:
            found.append(order)
            price = sum(c.price for c in order)
            limit = min(limit, price * (1 + ALIKE))
            usable = [c for c in usable if c.price <= limit]
            if price <= bound:
                break
    if known[1] and (order := _in_order({c.produces[0].number: c for c in known[1]}, wanted)):
        found.append(order)
    if not found:
        raise ValueError("extraction: kernels in some order required, got candidates that wait for one another")
    order = min(found, key=lambda kernels: sum(c.price for c in kernels))
    total = sum(c.price for c in order)
    return Choice(order, total, min(total, bound), states)


def _selection(
    candidates: list[Candidate], wanted: list[int], limit: float, width: int
) -> tuple[tuple[Candidate, ...] | None, float, int]:
    """The cheapest selection that a search of this width finds, in order; a lower bound of any's price; the states visited."""
    bound, states = 0.0, 0
    for ordered in (False, True):
        frontier = _Frontier(candidates, wanted, limit, width, ordered)
        path = frontier.search()
        states += frontier.states
        bound = max(bound, min(frontier.bound, path.price if path else float("inf")))
        order = _in_order(frontier.makers_of(path), wanted) if path else None
        if order is not None:
            return order, bound, states
    return None, bound, states


class _State(NamedTuple):
    """Sets are masks of positions; the lowest position is visited last."""

    pending: int  # needed, not yet made
    made: int  # may still be loaded
    waits: tuple[tuple[int, int], ...]  # position made on a cycle -> pending positions that its kernels wait for


class _Path(NamedTuple):
    """The cheapest way to a state: its price, the last kernel with what it is used for, and the way before it."""

    price: float
    kernel: int
    used: int
    before: _Path | None


class _Frontier:
    """The search over states; `ordered` if it has to mind the order in which kernels can run."""

    def __init__(self, candidates: list[Candidate], wanted: list[int], limit: float, width: int, ordered: bool) -> None:
        self._candidates, self._width, self._ordered = candidates, width, ordered
        self._visit(candidates)
        self._wanted = self._mask(wanted)
        self._limit = limit + TIE * len(self._component)
        self._leasts: dict[int, float] = {0: 0.0}
        self.bound, self.states = float("inf"), 0

    def _visit(self, candidates: list[Candidate]) -> None:
        """Number the tensors by the order of visits, and the candidates of each."""
        graph = _dependencies(candidates)
        components = nx.condensation(graph)
        users_first = nx.lexicographical_topological_sort(components, key=lambda c: -max(components.nodes[c]["members"]))
        groups = [sorted(components.nodes[c]["members"], reverse=True) for c in users_first][::-1]
        order = [e for group in groups for e in reversed(group)]
        self._position = {e: n for n, e in enumerate(order)}
        self._component = [n for n, group in enumerate(groups) for _ in group]  # of a position
        self._cycle = [self._mask(group) if len(group) > 1 else 0 for group in groups for _ in group]  # its cycle's positions
        self._share = [float("inf")] * len(order)  # least price of making it, shared with all that the kernel makes
        self._relevant = [0] * len(groups)  # what candidates of this component and those below load or make
        self._makers: list[list[tuple[float, int, int, int]]] = [[] for _ in order]  # price, number, makes, needs
        for number, c in enumerate(candidates):
            makes, needs = self._mask(e.number for e in c.produces), self._mask(c.needs)
            assert not makes & needs, f"{c.kernel.name}: a kernel that does not load what it stores"
            for p in _positions(makes):
                self._makers[p].append((c.price + TIE, number, makes, needs))
                self._share[p] = min(self._share[p], c.price / makes.bit_count())
                self._relevant[self._component[p]] |= makes | needs
        for n in range(1, len(groups)):
            self._relevant[n] |= self._relevant[n - 1]

    def _mask(self, entities: Iterable[int]) -> int:
        return sum(1 << self._position[e] for e in entities)

    def search(self) -> _Path | None:
        """The cheapest way to make everything, or None if there is none."""
        start = _State(self._wanted, 0, ())
        layers: dict[int, dict[_State, _Path]] = {self._layer(start): {start: _Path(0.0, -1, 0, None)}}
        while layers:
            layer = max(layers)
            states = layers.pop(layer)
            if layer < 0:
                return min(states.values(), key=lambda path: path.price)
            for state, path in self._narrowed(states):
                self.states += 1
                for following, further in self._steps(state, path):
                    known = layers.setdefault(self._layer(following), {})
                    if following not in known or further.price < known[following].price:
                        known[following] = further
        return None

    def _layer(self, state: _State) -> int:
        """States of one component are visited together, those with more made later; -1 is the end."""
        if not state.pending:
            return -1
        top = state.pending.bit_length() - 1
        left = (self._cycle[top] & ~state.made).bit_count()
        return self._component[top] * (len(self._component) + 1) + left

    def _steps(self, state: _State, path: _Path) -> Iterator[tuple[_State, _Path]]:
        """Make the highest pending tensor in every way."""
        top = state.pending.bit_length() - 1
        for price, number, makes, needs in self._makers[top]:
            total, fresh = path.price + price, makes & ~state.made
            for used in self._uses(fresh, needs, top) if self._ordered else (fresh,):
                pending = state.pending & ~used | needs & ~(state.made | used)
                if total + self._least(pending) > self._limit:
                    continue
                made = (state.made | used) & (self._relevant[self._component[pending.bit_length() - 1]] if pending else 0)
                waits = self._waits(state, used, needs) if self._ordered else ()
                if waits is not None:
                    waits = tuple((p, w) for p, w in waits if made >> p & 1)
                    yield _State(pending, made, waits), _Path(total, number, used, path)

    def _uses(self, fresh: int, needs: int, top: int) -> Iterator[int]:
        """All that only this kernel makes; what comes to wait for others on its cycle may also be left to another kernel."""
        beside = [p for p in _positions(fresh) if p != top and self._cycle[p] & needs]
        for size in range(len(beside) + 1):
            for unused in combinations(beside, size):
                yield fresh & ~sum(1 << p for p in unused)

    def _waits(self, state: _State, used: int, needs: int) -> tuple[tuple[int, int], ...] | None:
        """What made tensors wait for after a step; None if a kernel would wait for itself."""
        waits = dict(state.waits)
        for p in _positions(used):
            cycle = self._cycle[p]
            behind = needs & cycle & ~state.made
            for n in _positions(needs & cycle & state.made):
                behind |= waits.get(n, 0)
            if behind & used:
                return None
            for q, others in waits.items():
                if others >> p & 1:
                    waits[q] = others & ~(1 << p) | behind
            if behind:
                waits[p] = behind
        return tuple(sorted((p, w) for p, w in waits.items() if w))

    def _least(self, pending: int) -> float:
        """What making these costs at least."""
        if pending not in self._leasts:
            self._leasts[pending] = sum(self._share[p] for p in _positions(pending))
        return self._leasts[pending]

    def _narrowed(self, states: dict[_State, _Path]) -> list[tuple[_State, _Path]]:
        """States that no other dominates, at most `width`, the most promising first; the rest lowers the bound."""
        ranked = sorted((path.price + self._least(state.pending), state, path) for state, path in states.items())
        kept: list[tuple[_State, _Path]] = []
        for promise, state, path in ranked:
            lacks = ~state.pending
            if any(not s.pending & lacks and p.price <= path.price and _dominates(s, state) for s, p in kept):
                continue
            if len(kept) == self._width:
                self.bound = min(self.bound, promise)
                break
            kept.append((state, path))
        return kept

    def makers_of(self, path: _Path | None) -> dict[int, Candidate]:
        """The candidate that makes each tensor."""
        entity = {p: e for e, p in self._position.items()}
        makers: dict[int, Candidate] = {}
        while path is not None and path.before is not None:
            makers.update((entity[p], self._candidates[path.kernel]) for p in _positions(path.used))
            path = path.before
        return makers


def _dominates(a: _State, b: _State) -> bool:
    """True if all that completes b, which has no fewer pending, completes a."""
    if b.made & ~a.made:
        return False
    if not a.waits:
        return True
    other = dict(b.waits)
    return all(b.made >> p & 1 and not w & ~other.get(p, 0) for p, w in a.waits)


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


def _dependencies(candidates: list[Candidate]) -> nx.DiGraph:
    """An edge from each entity to those that some candidate loads to make it."""
    graph = nx.DiGraph()
    for c in candidates:
        for made in sorted(e.number for e in c.produces):
            graph.add_node(made)
            graph.add_edges_from((made, e) for e in sorted(c.needs))
    return graph


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
