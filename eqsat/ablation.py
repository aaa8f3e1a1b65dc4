"""Which rules a region's plan needed: the search is repeated without each of them.

The engine gives no proofs through its Python bindings, so need is found by leaving rules out. What a rule is worth is what the
cheapest plan found without it costs more, all other rules being there. Rules that the plan is known to be made without cost
nothing; those that made it are tried one by one. Where no e-graph has the plan (chunks of reductions), those without a trace in
it are left out together, then, if that counts, by packs and by halves of those that do. Searches have rules that fired alone.
Where the e-graph without a rule still has all of the plan, or rules that sufficed are all there, that costs the same.
Searches share the prices of kernels; plans are kept in the cache.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from eqsat.cache import cache_of
from eqsat.cost import FREE, Cost
from eqsat.devices import Device
from eqsat.egraph import engine_for
from eqsat.extract import Choice, choose
from eqsat.kernels import Candidate
from eqsat.optimizer import Found, RegionPlan, Request, Search, found_before, rules_of, search_region
from eqsat.outline import Part
from eqsat.regions import Region
from eqsat.rule import Rule

log = logging.getLogger("eqsat")

SAME = 1e-6  # relative difference of prices below which two plans cost the same
SECONDS = 8.0  # of one search
LARGEST_LOSSES = 4  # runner-up plans kept per region


@dataclass(frozen=True)
class Loss:
    """The cheapest plan without one of the kernels chosen: what it has in its place, and what it costs more."""

    chosen: Candidate
    instead: tuple[Candidate, ...]
    more: Cost  # differences to the plan chosen; `bound` is empty


@dataclass(frozen=True)
class Ablated:
    """A region's search, and the searches that leave rules out; None where the time did not suffice."""

    found: Found
    cost: Cost
    worth: dict[str, Cost]  # by rule: what the plan without it costs more
    replaceable: tuple[str, ...]  # rules that made the plan, though another way costs the same
    here: dict[str, Cost]  # what leaving one of these out costs more, if there are only the rules that made this plan
    fusion_alone: Cost | None  # what the plan without any rule costs more
    untried: tuple[str, ...]  # rules that the time did not suffice for
    losses: tuple[Loss, ...]


class Ablation:
    """Repeats the search of regions without rules until the deadline."""

    def __init__(self, request: Request, card: Device, deadline: float) -> None:
        self.request, self.card, self.deadline = request, card, deadline
        self._found: dict[Hashable, list[Found]] = {}  # by region: with all rules, and others as cheap

    @property
    def late(self) -> bool:
        return time.perf_counter() > self.deadline

    @property
    def _seconds(self) -> float:
        """Of the next search."""
        return min(SECONDS, max(1.0, self.deadline - time.perf_counter()))

    def search(self, region: Region) -> Found:
        """The search with all rules."""
        if region.key not in self._found:
            found = found_before(self.request, region)
            if found is None:
                engine = engine_for(self.request.rules)
                found = search_region(engine, region, self.card, self.request.objective, self._seconds)
            self._found[region.key] = [found]
        return self._found[region.key][0]

    def fired(self, region: Region) -> list[Rule]:
        """The rules that matched something in the search with all."""
        names = self.search(region).fired
        return [r for r in self.request.rules if r.name in names]

    def plan(self, region: Region, left_out: Iterable[str]) -> RegionPlan:
        """The plan by the rules that fired, without some."""
        left_out = frozenset(left_out)
        rules = [r for r in self.fired(region) if r.name not in left_out]
        deadline, cache = time.perf_counter() + self._seconds, cache_of(self.request.cache)
        search = Search(self.card, rules, self.request.objective, deadline, cache, self._found[region.key])
        return search.recalled(Part.of(self.search(region).pool.region))

    def ablate(self, region: Region, label: str) -> Ablated:
        """Search a region again without each rule that made its plan."""
        found = self.search(region)
        trial = _Trial(self, region, found, label)
        alone = trial.without(trial.fired)
        made = sorted(found.makers or rules_of(found.choice.candidates))
        for rule in made:
            trial.narrow([rule])
        others = [r for r in trial.fired if r not in made]
        suffices = found.makers is not None or trial.without(others) is FREE
        if not suffices:
            packs = {r.name: r.pack for r in self.request.rules}
            for _, group in groupby(others, packs.__getitem__):
                trial.narrow(list(group))
            others = [r for r in others if r not in trial.worth]
        replaceable = tuple(r for r in made if r not in trial.worth and r not in trial.untried)
        suffices = suffices or (bool(replaceable) and trial.without(others) is FREE)
        here = {r: more for r in replaceable if suffices and (more := trial.without([*others, r]))}
        return Ablated(found, trial.cost, trial.worth, replaceable, here, alone, tuple(trial.untried), self._losses(found))

    def _losses(self, found: Found) -> tuple[Loss, ...]:
        """The next best plans, nearest first: for each kernel chosen, the best plan without a kernel of its loads and stores."""
        losses = []
        for chosen in found.choice.candidates:
            if self.late or chosen.constant:
                continue
            rest = [c for c in found.candidates if (c.produces, c.needs) != (chosen.produces, chosen.needs)]
            if not {e for e in chosen.produces if e in found.pool.outputs} <= {e for c in rest for e in c.produces}:
                continue  # nothing else makes this output
            other = _choice(rest, found)
            if other is not None:
                instead = tuple(c for c in other.candidates if all(c is not d for d in found.choice.candidates))
                losses.append(Loss(chosen, instead, difference(total(other.candidates), total(found.choice.candidates))))
        distinct = {frozenset(map(id, loss.instead)): loss for loss in losses}
        return tuple(sorted(distinct.values(), key=lambda loss: loss.more.seconds)[:LARGEST_LOSSES])


class _Trial:
    """Searches of one region without rules, against the plan with all of them."""

    def __init__(self, ablation: Ablation, region: Region, found: Found, label: str) -> None:
        self.ablation, self.region, self.found, self.label = ablation, region, found, label
        self.cost = total(found.choice.candidates)
        self.fired = [r.name for r in ablation.fired(region)]
        self.enough = [frozenset(found.makers or self.fired)]  # by each of these sets there is a plan as cheap
        self.worth: dict[str, Cost] = {}
        self.untried: list[str] = []

    def without(self, rules: Sequence[str]) -> Cost | None:
        """What the plan without these rules costs more (nothing, if it is as good); None if there is no time left."""
        kept = frozenset(self.fired).difference(rules)
        if any(enough <= kept for enough in self.enough):
            return FREE
        if self.ablation.late:
            return None
        log.info("explain %s: without %s", self.label, rules[0] if len(rules) == 1 else f"{len(rules)} rules")
        kernels = self.ablation.plan(self.region, rules).kernels
        if sum(c.price for c in kernels) <= self.found.choice.price * (1 + SAME):
            self.enough.append(kept)
            return FREE
        return difference(total(kernels), self.cost)

    def narrow(self, rules: Sequence[str]) -> None:
        """Find the rules of a group that are worth something each, by halving groups that are."""
        if not rules:
            return
        more = self.without(rules)
        if more is None:
            self.untried += rules
        elif more is not FREE and len(rules) == 1:
            self.worth[rules[0]] = more
        elif more is not FREE:
            middle = len(rules) // 2
            self.narrow(rules[:middle])
            self.narrow(rules[middle:])


def _choice(candidates: list[Candidate], found: Found) -> Choice | None:
    try:
        return choose(candidates, found.pool.outputs)
    except ValueError:  # no selection without the kernel
        return None


def total(kernels: Iterable[Candidate]) -> Cost:
    return sum((c.cost for c in kernels), FREE)


def difference(a: Cost, b: Cost) -> Cost:
    return Cost(a.seconds - b.seconds, a.launches - b.launches, a.nbytes - b.nbytes, a.flops - b.flops)


def times(cost: Cost, count: int) -> Cost:
    return Cost(cost.seconds * count, cost.launches * count, cost.nbytes * count, cost.flops * count)
