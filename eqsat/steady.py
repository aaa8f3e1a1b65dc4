"""The parts of a loop: where a mask shows every position of a tile, nothing compares positions.

Causal attention needs its mask on the diagonal only. A comparison of positions that ends at a limit holds (or fails) at all
positions before it; the tiles that lie there become a loop of their own, in which the comparison is its outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from eqsat.index import Axis, Index
from eqsat.limits import COMPARISONS, positions_where
from eqsat.notation import Term, const, const_value, rebuild

LEAST_TILES = 8  # of a loop that is worth two

Extreme = Callable[[Index, int], Index | None]  # of a limit over the tiles at hand: the least (-1) or the greatest (1)
Bound = Index | None


@dataclass(frozen=True)
class Part:
    """Reductions over the tiles between two limits, as in `tile.Loop`."""

    terms: tuple[Term, ...]
    low: Bound
    high: Bound


def parts(terms: tuple[Term, ...], axis: Axis, tile: int, low: Bound, high: Bound, extreme: Extreme) -> list[Part]:
    """The loops over `axis` that fold `terms` one after the other: one, or one with a mask beside one without."""
    whole = Part(terms, low, high)
    if -(-axis.extent // tile) < LEAST_TILES or any(u.head == "scan" for t in terms for u in t.walk()):
        return [whole]
    outcomes = list(_outcomes(terms, axis, tile))
    for before in (True, False):
        for limit in dict.fromkeys(o.limit for o in outcomes if o.before == before):
            at = extreme(limit, -1 if before else 1)
            if at is not None:
                known = {o.comparison: o.holds for o in outcomes if o.before == before and o.limit == limit}
                steady = tuple(_decided(terms, axis, known))
                if steady == terms or any(a.axes != b.axes for a, b in zip(steady, terms, strict=True)):
                    continue  # without the mask, blocks would have another shape
                if before:  # a tile belongs to the steady part if its last position does
                    return [Part(steady, low, at - (tile - 1)), Part(terms, at, high)]
                return [Part(terms, low, at), Part(steady, at + (tile - 1), high)]
    return [whole]


@dataclass(frozen=True)
class _Outcome:
    """A comparison whose outcome is `holds` before the limit, or from it on."""

    comparison: Term
    holds: bool
    limit: Index
    before: bool


def _outcomes(terms: Iterable[Term], axis: Axis, tile: int) -> Iterator[_Outcome]:
    below = dict.fromkeys(u for t in terms for a in t.args for u in a.walk())
    for comparison in below:
        if comparison.head in COMPARISONS and axis in comparison.axes:
            for holds in (True, False):
                found = positions_where(comparison, axis, holds)
                if len(found.low) + len(found.high) == 1:
                    yield _Outcome(comparison, holds, *((found.high[0], True) if found.high else (found.low[0], False)))


def _decided(terms: tuple[Term, ...], axis: Axis, known: dict[Term, bool]) -> Iterator[Term]:
    """The terms with the outcomes of comparisons put in; a reduction below them that is complete stays as it is."""
    done: dict[Term, Term] = {c: const(holds, "bool") for c, holds in known.items()}
    for term in terms:
        for t in term.walk():
            if t.bound == axis and t not in terms:
                done[t] = t
            elif t not in done:
                done[t] = _simplified(rebuild(t, tuple(done[a] for a in t.args)))
        yield done[term]


def _simplified(t: Term) -> Term:
    literal = [bool(const_value(a)) if a.head == "const" and a.dtype == "bool" else None for a in t.args]
    if t.head == "where" and literal[0] is not None:
        return t.args[1] if literal[0] else t.args[2]
    if t.head == "not" and literal[0] is not None:
        return const(not literal[0], "bool")
    if t.head in ("and", "or") and t.dtype == "bool":
        neutral = t.head == "and"
        if (not neutral) in literal:
            return const(not neutral, "bool")
        if neutral in literal:
            return t.args[1 - literal.index(neutral)]
    return t
