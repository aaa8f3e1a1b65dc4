"""Whether an e-graph holds a term, up to the names of bound axes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from eqsat.definitions import definition_at
from eqsat.egraph import Budget, Engine, Row, Saturated
from eqsat.graph import Graph
from eqsat.index import Axis, Index
from eqsat.notation import Stored, Tensor, Term
from eqsat.read import read
from eqsat.regions import Region, kept_steps, local
from eqsat.rule import Rule
from eqsat.rule_trial import forms_of

Names = Mapping[Axis, Axis]  # from bound axes of the term to those of the e-graph


def region_of(fn: Callable[..., Any], *shapes: Any) -> tuple[Region, list[Tensor]]:
    """A function as one region, and its outputs there."""
    reading = read(Graph.from_jax(fn, *shapes))
    steps, renamed = kept_steps(reading.steps, reading.outputs)
    outputs = [renamed.get(t, t) for t in reading.outputs]
    region = local(Region(reading.inputs, tuple(steps), tuple(s for s in steps if s in outputs)))
    place: dict[Tensor, Tensor] = dict(zip((*reading.inputs, *steps), (*region.inputs, *region.definitions), strict=True))
    return region, [place[t] for t in outputs]


def inlined(term: Term, defined: frozenset[Tensor]) -> Term:
    """The term over inputs alone."""
    memo: dict[Term, Term] = {}
    for t in term.walk():
        args = tuple(memo[a] for a in t.args)
        memo[t] = t if args == t.args else Term(t.head, args, t.data, t.dtype)
        if t.head == "load" and t.tensor in defined:
            assert isinstance(t.tensor, Stored)
            found = definition_at(t.tensor, t.indices, args)
            if found is not None:
                memo[t] = inlined(found, defined)
    return memo[term]


class Reached:
    """Searches the classes of a saturated e-graph for a term."""

    def __init__(self, saturated: Saturated) -> None:
        self.classes = saturated.classes
        self._failed: set[tuple[Term, int, frozenset[tuple[Axis, Axis]]]] = set()

    def holds(self, number: int, term: Term) -> bool:
        """True if a class has this term."""
        return self._match(term, number, {})

    def _match(self, term: Term, number: int, names: Names) -> bool:
        key = (term, number, frozenset((a, b) for a, b in names.items() if a in term.axes))
        if key in self._failed:
            return False
        self._failed.add(key)  # also stops at cycles
        found = any(self._row(term, row, names) for row in self.classes[number])
        if found:
            self._failed.discard(key)
        return found

    def _row(self, term: Term, row: Row, names: Names) -> bool:
        if row.head != term.head or row.dtype != term.dtype or len(row.args) != len(term.args):
            return False
        for inner in self._data(term, row, names):
            return all(self._match(a, n, inner) for a, n in zip(term.args, row.args, strict=True))
        return False

    def _data(self, term: Term, row: Row, names: Names) -> Iterator[Names]:
        """The names below a row whose data agree."""
        if term.head == "load":
            values = {a: Index.of(b) for a, b in names.items()}
            if row.data == (term.tensor, tuple(i.substitute(values) for i in term.indices)):
                yield names
        elif term.head == "pos":
            if row.data == term.data.substitute({a: Index.of(b) for a, b in names.items()}):
                yield names
        elif term.bound is not None:
            axis = row.data[1] if term.head == "reduce" else row.data[0]
            rest = term.data[0] == row.data[0] if term.head == "reduce" else term.data[1] == row.data[1]
            if rest and axis.extent == term.bound.extent:
                yield {**names, term.bound: axis}
        elif row.data == term.data:
            yield names


def saturated(engine: Engine, region: Region) -> Saturated:
    return engine.saturate(region, Budget(nesting=4))


def equal(done: Saturated, region: Region, one: Tensor, other: Tensor) -> bool:
    """True if the rules make two outputs equal: one class, or the class of one has a term of the other."""
    if one is other:
        return True
    assert isinstance(one, Stored) and isinstance(other, Stored)
    if done.class_of[one] == done.class_of[other]:
        return True
    defined = frozenset(region.definitions)
    search = Reached(done)
    pairs = ((one, other), (other, one))
    if any(search.holds(done.class_of[a], inlined(b.term, defined)) for a, b in pairs):
        return True
    forms = forms_of(done, region)
    return any(search.holds(done.class_of[a], f.term) for a, b in pairs for f in forms[done.class_of[b]])


def used(done: Saturated) -> set[str]:
    """The rules that made a row."""
    return {row.rule for rows in done.classes.values() for row in rows if row.rule is not None}


def names_of(rules: tuple[Rule, ...]) -> set[str]:
    return {r.name for r in rules}
