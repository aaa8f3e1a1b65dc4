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
    seconds: float
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
    from scipy.optimize import Bounds, LinearConstraint, milp  # imported late: it costs a second
    from scipy.sparse import csr_array

    limit = known[0] * (1 + 1e-6)
    candidates = _undominated(candidates, limit)
    producers: dict[int, list[int]] = {}
    for i, c in enumerate(candidates):
        for e in c.produces:
            producers.setdefault(e.number, []).append(i)
    wanted = {e.number for e in outputs}
    if missing := wanted - producers.keys():
        raise ValueError(f"extraction: a candidate kernel for every output required, got none for {sorted(missing)}")
    cyclic = _cyclic(candidates)
    potential = {e: len(candidates) + n for n, e in enumerate(sorted(cyclic))}
    rows: list[dict[int, float]] = []
    lower: list[float] = []

    def at_least(terms: dict[int, float], bound: float) -> None:
        rows.append(terms)
        lower.append(bound)

    for e in sorted(wanted):
        at_least(dict.fromkeys(producers[e], 1.0), 1.0)
    big = len(cyclic) + 1.0
    for i, c in enumerate(candidates):
        for e in sorted(c.needs):
            at_least({**{j: 1.0 for j in producers.get(e, [])}, i: -1.0}, 0.0)
            for made in c.produces:
                if e in cyclic and cyclic[e] == cyclic.get(made.number):
                    at_least({potential[made.number]: 1.0, potential[e]: -1.0, i: -big}, 1.0 - big)
    if limit < float("inf"):
        at_least({i: -c.cost.seconds * 1e6 for i, c in enumerate(candidates)}, -limit * 1e6)
    n = len(candidates) + len(cyclic)
    entries = [(r, column, value) for r, row in enumerate(rows) for column, value in row.items()]
    at, columns, values = zip(*entries, strict=True)
    matrix = csr_array((values, (at, columns)), shape=(len(rows), n))
    # A nanosecond per kernel breaks ties between free selections.
    cost = np.array([c.cost.seconds * 1e6 + 1e-3 for c in candidates] + [0.0] * len(cyclic))
    integral = np.array([1] * len(candidates) + [0] * len(cyclic))
    upper = np.array([1.0] * len(candidates) + [big] * len(cyclic))
    result = milp(
        cost,
        constraints=LinearConstraint(matrix, np.array(lower), np.inf),
        integrality=integral,
        bounds=Bounds(0, upper),
        options={"time_limit": time_limit, "mip_rel_gap": 1e-4},
    )
    if result.x is None and known[1]:
        return Choice(_in_order(list(known[1]), wanted), known[0], 1.0, "time limit: the best selection met while searching")
    if result.x is None:
        raise ValueError(f"extraction: a feasible selection required, got {result.message}")
    chosen = [c for i, c in enumerate(candidates) if result.x[i] > 0.5]
    ordered = _in_order(chosen, wanted)
    return Choice(ordered, sum(c.cost.seconds for c in ordered), float(result.mip_gap or 0.0), str(result.message))


def _undominated(candidates: list[Candidate], limit: float) -> list[Candidate]:
    """Without those that cost more than a known selection, or that another beats with no more loads and no fewer stores."""
    rows = sorted(
        (
            c.cost.seconds,
            -sum(1 << e.number for e in c.produces).bit_count(),
            i,
            sum(1 << n for n in c.needs),
            sum(1 << e.number for e in c.produces),
        )
        for i, c in enumerate(candidates)
        if c.cost.seconds <= limit
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
        for e in sorted(c.needs):
            visit(producer[e])
        order[id(c)] = c

    for e in sorted(wanted):
        visit(producer[e])
    return tuple(order.values())
