"""The choice: the cheapest set of candidate kernels that makes every output, as an integer program.

Variables: one binary per candidate. Each output is produced; what a chosen kernel loads is produced; within cycles of
the dependency graph, potentials forbid circular orders. Solved by HiGHS.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import networkx as nx
import numpy as np

from eqsat.kernels import Candidate, Entity


@dataclass(frozen=True)
class Choice:
    """Chosen candidates in an order in which they can run, their total, and the solver's bound."""

    candidates: tuple[Candidate, ...]
    price: float
    gap: float  # relative distance to the proved bound; 0 is optimal
    status: str


def choose(
    candidates: list[Candidate],
    outputs: Iterable[Entity],
    time_limit: float = 5.0,
    known: tuple[float, tuple[Candidate, ...]] = (float("inf"), ()),
) -> Choice:
    """The cheapest selection; `known` is one that exists, with its total: it prunes, and stands in if time runs out.

    Raises ValueError if some output has no candidate.
    """
    wanted = {e.number for e in outputs}
    if not wanted:
        return Choice((), 0.0, 0.0, "nothing to make")
    limit = known[0] * (1 + 1e-6)
    candidates = _undominated(candidates, limit)
    made = {e.number for c in candidates for e in c.produces}
    if missing := wanted - made:
        raise ValueError(f"extraction: a candidate kernel for every output required, got none for {sorted(missing)}")
    problem = _Problem(candidates, wanted, limit)
    x, gap, status = problem.solve(time_limit)
    if x is None and known[1]:
        return Choice(_in_order(list(known[1]), wanted), known[0], 1.0, "time limit: the best selection met while searching")
    if x is None:
        raise ValueError(f"extraction: a feasible selection required, got {status}")
    ordered = _in_order([c for i, c in enumerate(candidates) if x[i] > 0.5], wanted)
    total = sum(c.price for c in ordered)
    if known[0] < total:
        return Choice(_in_order(list(known[1]), wanted), known[0], gap, f"{status} The best selection met while searching.")
    return Choice(ordered, total, gap, status)


class _Problem:
    """The integer program: rows of coefficients by variable, each at least its bound."""

    def __init__(self, candidates: list[Candidate], wanted: set[int], limit: float) -> None:
        self.candidates = candidates
        self.rows: list[dict[int, float]] = []
        self.lower: list[float] = []
        self.cyclic = _cyclic(candidates)
        producers: dict[int, list[int]] = {}
        for i, c in enumerate(candidates):
            for e in c.produces:
                producers.setdefault(e.number, []).append(i)
        for output in sorted(wanted):
            self._at_least(dict.fromkeys(producers[output], 1.0), 1.0)
        self._dependencies(producers)
        if limit < float("inf"):
            self._at_least({i: -c.price * 1e6 for i, c in enumerate(candidates)}, -limit * 1e6)

    def _at_least(self, row: dict[int, float], bound: float) -> None:
        self.rows.append(row)
        self.lower.append(bound)

    def _dependencies(self, producers: dict[int, list[int]]) -> None:
        """Each tensor is made at most once; what its maker loads is made, and inside a cycle made earlier.

        One row for all makers of a tensor that load another is much tighter than a row for each of them.
        """
        potential = {e: len(self.candidates) + n for n, e in enumerate(sorted(self.cyclic))}
        big = len(self.cyclic) + 1.0
        for made, makers in sorted(producers.items()):
            self._at_least(dict.fromkeys(makers, -1.0), -1.0)
            for e in sorted({n for i in makers for n in self.candidates[i].needs}):
                loading = [i for i in makers if e in self.candidates[i].needs]
                self._at_least({**dict.fromkeys(producers.get(e, []), 1.0), **dict.fromkeys(loading, -1.0)}, 0.0)
                if e in self.cyclic and self.cyclic[e] == self.cyclic.get(made):
                    row = {potential[made]: 1.0, potential[e]: -1.0, **dict.fromkeys(loading, -big)}
                    self._at_least(row, 1.0 - big)

    def solve(self, time_limit: float) -> tuple[np.ndarray | None, float, str]:
        """Values of the binaries (None if none were found in time), the optimality gap, the solver's words."""
        from scipy.optimize import Bounds, LinearConstraint, milp  # imported late: it costs a second
        from scipy.sparse import csr_array

        orders = len(self.cyclic)
        n = len(self.candidates) + orders
        entries = [(r, column, value) for r, row in enumerate(self.rows) for column, value in row.items()]
        at, columns, values = zip(*entries, strict=True)
        matrix = csr_array((values, (at, columns)), shape=(len(self.rows), n))
        # A nanosecond per kernel breaks ties between free selections.
        cost = np.array([c.price * 1e6 + 1e-3 for c in self.candidates] + [0.0] * orders)
        result = milp(
            cost,
            constraints=LinearConstraint(matrix, np.array(self.lower), np.inf),
            integrality=np.array([1] * len(self.candidates) + [0] * orders),
            bounds=Bounds(0, np.array([1.0] * len(self.candidates) + [orders + 1.0] * orders)),
            options={"time_limit": time_limit, "mip_rel_gap": 1e-4},
        )
        return result.x, float(result.mip_gap or 0.0), str(result.message)


def _undominated(candidates: list[Candidate], limit: float) -> list[Candidate]:
    """Without those that cost more than a known selection, or that another beats with no more loads and no fewer stores."""
    rows = sorted(
        (
            c.price,
            -sum(1 << e.number for e in c.produces).bit_count(),
            i,
            sum(1 << n for n in c.needs),
            sum(1 << e.number for e in c.produces),
        )
        for i, c in enumerate(candidates)
        if c.price <= limit
    )
    kept: list[tuple[int, int, int]] = []
    by_product: dict[int, list[tuple[int, int]]] = {}
    for _, _, i, needs, produces in rows:
        first = produces & -produces
        rivals = by_product.get(first, [])
        if any(not (n & ~needs) and not (produces & ~p) for n, p in rivals):
            continue
        kept.append((i, needs, produces))
        rest = produces
        while rest:
            bit = rest & -rest
            by_product.setdefault(bit, []).append((needs, produces))
            rest ^= bit
    made = 0
    for _, _, produces in kept:
        made |= produces
    return [candidates[i] for i, needs, _ in sorted(kept) if not needs & ~made]


def _cyclic(candidates: list[Candidate]) -> dict[int, int]:
    """Entities on cycles of "is loaded to make", by component."""
    graph = nx.DiGraph()
    for c in candidates:
        for e in c.needs:
            graph.add_edges_from((e, made.number) for made in c.produces)
    found: dict[int, int] = {}
    for n, component in enumerate(nx.strongly_connected_components(graph)):
        if len(component) > 1:
            found.update(dict.fromkeys(component, n))
    return found


def _in_order(chosen: list[Candidate], wanted: set[int]) -> tuple[Candidate, ...]:
    """An order in which every load follows its store; what nothing needs is left out."""
    producer: dict[int, Candidate] = {}
    for c in chosen:
        for e in c.produces:
            producer.setdefault(e.number, c)
    order: dict[int, Candidate] = {}
    open_: set[int] = set()

    def visit(c: Candidate) -> None:
        if id(c) in order:
            return
        if id(c) in open_:
            raise ValueError("extraction: an acyclic selection required, got a cycle")
        open_.add(id(c))
        for needed in sorted(c.needs):
            visit(producer[needed])
        order[id(c)] = c

    for output in sorted(wanted):
        visit(producer[output])
    return tuple(order.values())
