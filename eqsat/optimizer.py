"""The pipeline, top to bottom: a function in, a program of kernels out."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import prod
from numbers import Integral, Real
from operator import index
from os import PathLike
from typing import Any, NamedTuple

from eqsat import plan_codec
from eqsat.cache import Cache, cache_of, key_of
from eqsat.cost import FREE, OBJECTIVES, UNDER_A_CAP, Cost
from eqsat.devices import Device, device
from eqsat.egraph import Budget, Engine, Saturated, engine_for
from eqsat.extract import ALIKE, PROVED, Choice, gap_of, in_order, searched
from eqsat.garbage import collected_seldom
from eqsat.graph import Graph
from eqsat.hoisting import hoisted
from eqsat.kernels import Candidate, Pool
from eqsat.makers import smallest
from eqsat.misuse import check_named, named_parameters
from eqsat.names import function_name
from eqsat.notation import Stored, Tensor
from eqsat.original import as_written, kernel_of, looped
from eqsat.outline import Asked, Part, outline
from eqsat.packs import default_rules
from eqsat.parts import Tensors
from eqsat.program import PlannedKernel, Program
from eqsat.read import Call
from eqsat.regions import Region, loads_in, retarget
from eqsat.rule import TIERS, Rule, select
from eqsat.scalars import DTYPES
from eqsat.tuning import recalled

log = logging.getLogger("eqsat")
_latest = threading.local()  # the search of each thread's last program: what is asked of that goes on from it


@dataclass(frozen=True)
class Request:
    """What `optimize` was asked for: its options, and the rules that the tier admits."""

    target: str
    numerics: str
    objective: str
    constants: tuple[int, ...]
    time_limit: float
    rules: tuple[Rule, ...]
    cache: bool | str | PathLike[str] = True
    donate: tuple[int, ...] = ()
    memory_limit: int | None = None  # None in a program's own request: its objective is the one that kept to the limit

    def admitting(self) -> Request:
        """With those of its rules only that its tier admits."""
        return replace(self, rules=select(self.rules, self.numerics))

    def optimize(self, graph: Graph, rules: Iterable[Rule] | None = None) -> Program:
        """Another search with the same options, with other rules if given."""
        options = {f.name: getattr(self, f.name) for f in fields(self)}
        return optimize(graph, **{**options, "rules": self.rules if rules is None else tuple(rules)})


@collected_seldom()
def optimize(
    fn: Callable[..., Any] | Graph,
    *args: Any,
    target: str = "h100",
    numerics: str = "reassociate",
    objective: str = "time",
    constants: int | Sequence[int] = (),
    time_limit: float = 300.0,
    rules: Iterable[Rule] | None = None,
    cache: bool | str | PathLike[str] = True,
    memory_limit: int | None = None,
    donate: int | Sequence[int] = (),
    **kwargs: Any,
) -> Program:
    """Find a cheaper program for `fn` and return it as kernels.

    fn: a JAX function, with example arguments (arrays, pytrees, or jax.ShapeDtypeStruct), or a Graph.
    target: a device of `eqsat.devices.DEVICES`; costs are predicted for it.
    numerics: "exact", "reassociate" or "fast": what a rule may change (see `eqsat.rule`).
    objective: "time", "launches", "traffic" or "memory" (bytes of temporaries): what a selection of kernels is judged by.
    constants: positions of arguments that never change (weights), or one; what depends on them alone is computed once.
    time_limit: seconds, for emergencies only, since what it cuts short depends on the machine's load: a search ends with its
        present step, regions not yet searched keep their original kernels. The search is bounded by counts.
    rules: the rules to use instead of the built-in packs.
    cache: False to search anew and keep nothing, or the folder to use instead of the user's own (see `eqsat.cache`).
    memory_limit: the most bytes of temporaries that may be alive at once; what the objective asks for counts for less and less
        until the program keeps to it.
    donate: positions of arguments that a call uses up, as `donate_argnums` of `jax.jit`: an output that differs from one of them
        in a window alone, such as a cache with a new row, is written in its buffer.

    Raises ValueError for an unknown target or tier, a negative time limit, an argument number out of range, or a memory limit
    that no program found keeps to, and TypeError or ValueError where `fn` cannot be traced.
    """
    card, start = checked(target, numerics, objective, time_limit, memory_limit), time.perf_counter()
    constants, donate = positions("constants", constants), positions("donate", donate)
    graph = _graph(fn, args, kwargs)
    admitted = select(default_rules() if rules is None else rules, numerics)
    moved, least = hoisted(graph), float("inf")
    for judged in (objective, *(UNDER_A_CAP if memory_limit is not None else ())):
        search = _latest.search = Search(card, admitted, judged, start + time_limit, cache_of(cache))
        program = _planned(moved, search, numerics, constants, donate)
        least = min(least, program.peak_nbytes)
        if memory_limit is None or least <= memory_limit:
            break
    else:
        raise ValueError(f"memory_limit: at least {least:,} bytes for temporaries required, got {memory_limit:,}; raise it")
    if moved is not graph:
        program.graph, program.baseline = graph, as_written(graph, card)
    program.request = Request(target, numerics, judged, constants, time_limit, admitted, cache, donate)
    program.notes.update(
        distinct_regions=len(search.plans),
        rules=tuple(dict.fromkeys(r for plan in search.plans.values() for r in plan.rules)),
        tiers={r.name: r.tier for r in admitted},
        search=tuple(plan.summary for plan in search.plans.values()),
        gap=max((plan.gap for plan in search.plans.values()), default=0.0),
        search_seconds=time.perf_counter() - start,
    )
    after, before = program.cost, program.baseline
    log.info("planned %d launches, %.1f us predicted, %.1f us before", after.launches, after.seconds * 1e6, before.seconds * 1e6)
    return program


def checked(target: str, numerics: str, objective: str, time_limit: float, memory_limit: int | None = None) -> Device:
    """The device of a target; raises ValueError for an unknown target, tier or objective, and for a negative time limit."""
    card = device(target)
    if numerics not in TIERS:
        raise ValueError(f"numerics {numerics!r}: one of {', '.join(TIERS)} required")
    if objective not in OBJECTIVES | UNDER_A_CAP:
        raise ValueError(f"objective {objective!r}: one of {', '.join(OBJECTIVES)} required")
    if not isinstance(time_limit, Real):
        raise TypeError(f"time_limit: seconds, at least 0, required, got {time_limit!r}")
    if not time_limit >= 0:
        raise ValueError(f"time_limit: seconds, at least 0, required, got {time_limit}")
    if not isinstance(memory_limit, Integral | None):
        raise TypeError(f"memory_limit: a number of bytes required, got {memory_limit!r}")
    return card


def _graph(fn: Callable[..., Any] | Graph, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Graph:
    """The graph of a function for arguments; raises TypeError for one by a name that is neither the function's nor an option."""
    options = [f.name for f in fields(Request)]
    if not isinstance(fn, Graph):
        check_named(function_name(fn), named_parameters(fn), kwargs, options)
        return Graph.from_jax(fn, *args, **kwargs)
    check_named(fn.name, [], kwargs, options)
    if args:
        raise TypeError(f"{fn.name}: no arguments beside a graph required, got {len(args)}; trace a function anew for others")
    return fn


def positions(option: str, given: int | Sequence[int]) -> tuple[int, ...]:
    """Positions of arguments as a tuple, one alone as well; raises TypeError for what is no whole number."""
    try:
        return tuple(index(n) for n in (given if isinstance(given, Iterable) else (given,)))
    except TypeError:
        raise TypeError(f"{option}: positions of arguments, such as (0, 2), required, got {given!r}") from None


def _planned(graph: Graph, search: Search, numerics: str, constants: Sequence[int] | None, donate: Sequence[int] = ()) -> Program:
    """The program of a graph, or of a loop's body, in which nothing is computed once (`constants` is None)."""
    bodies = {body: _planned(body, search, numerics, None) for e in graph.equations for body in e.bodies}
    asked = Asked(numerics == "exact", None if constants is None else tuple(constants), tuple(donate), search.card)
    whole = outline(graph, asked, {body: p.notes["peak_nbytes_before"] for body, p in bodies.items()}, search.cache)
    facts, parts = whole.facts, whole.parts
    log.info("read %s: %d equations, %d tensors, %d parts", graph.name, len(graph.equations), facts.tensors, len(parts))
    planned: list[PlannedKernel | Call] = []
    plans: list[RegionPlan] = []
    tables: set[Tensor] = set()  # made once, whichever regions load them
    for number, part in enumerate(parts, 1):
        if isinstance(part, Call):
            planned.append(replace(part, programs=tuple(bodies[body] for body in part.eqn.bodies)))
        else:
            searched = len(search.plans)
            plans.append(search.plan(part))
            kernels = [replace(k, numerics=numerics) for k in plans[-1].instance(part) if not tables.issuperset(k.outputs)]
            tables.update(t for k in kernels if k.constant for t in k.outputs)
            planned += kernels
            if len(search.plans) > searched:
                seconds = sum(p.cost.seconds for p in planned if isinstance(p, PlannedKernel))
                log.info("%s: part %d of %d planned, %.1f us so far", graph.name, number, len(parts), seconds * 1e6)
    loops = [p for p in planned if isinstance(p, Call) and p.programs]
    before, after = facts.baseline, sum((p.cost for p in planned if isinstance(p, PlannedKernel)), FREE)
    for loop in loops:
        before += looped(loop.eqn, [p.baseline for p in loop.programs])
        after += looped(loop.eqn, [p.cost for p in loop.programs])
    totals = {
        "opaque_seconds": sum(called(p, search.card).seconds for p in planned if isinstance(p, Call) and p.opaque),
        "price": sum(plan.price for plan in plans),
        "bound": sum(plan.bound for plan in plans),
    }
    for name in totals:
        inside = (looped(loop.eqn, [replace(FREE, seconds=p.notes[name]) for p in loop.programs]) for loop in loops)
        totals[name] += sum(cost.seconds for cost in inside)
    notes = {
        "peak_nbytes_before": facts.peak_nbytes,
        "equations": len(graph.equations) + sum(p.notes["equations"] for p in bodies.values()),
        "views": facts.views + sum(p.notes["views"] for p in bodies.values()),
        "opaque": facts.opaque + sum(p.notes["opaque"] for p in bodies.values()),
        **totals,
        "loops": len(loops) + sum(p.notes["loops"] for p in bodies.values()),
        "regions": len(plans) + sum(p.notes["regions"] for p in bodies.values()),
    }
    return Program(
        graph, whole.inputs, whole.constants, planned, whole.outputs, search.card.name, numerics, before, after, notes
    )  # fmt: skip


def called(call: Call, card: Device) -> Cost:
    """At least the cost of an opaque call: a launch, and every operand and result moved once. Without elements it is free."""
    tensors = [t for t in (*call.inputs, *call.outputs) if isinstance(t, Tensor) and t.dtype in DTYPES]
    moved = sum(prod(t.shape) * DTYPES[t.dtype].nbytes for t in tensors)
    if not any(prod(t.shape) for t in call.outputs if t in tensors):
        return FREE
    return Cost(card.launch_seconds + moved / card.dram_bytes_per_second, 1, moved, 0, "dram")


@dataclass(frozen=True)
class RegionPlan:
    """The kernels chosen for a region, over its own leaf tensors."""

    region: Tensors
    kernels: tuple[Candidate, ...]
    price: float  # of all kernels, as the objective has it
    bound: float  # no choice among the candidates has a lower price
    summary: str
    complete: bool = True  # False if the clock ended the search
    on_the_way: tuple[str, ...] = ()  # rules that made it and left no trace in a kernel

    @property
    def gap(self) -> float:
        """Relative distance to the bound; 0 is proved to be optimal."""
        return gap_of(self.price, self.bound)

    def instance(self, part: Part) -> list[PlannedKernel]:
        """The kernels bound to the tensors of a part of this structure."""
        actual: dict[str, Tensor] = {}
        for mine, theirs in zip((*self.region.inputs, *self.region.definitions), (*part.inputs, *part.definitions), strict=True):
            actual[mine.name] = theirs
        planned = []
        for c in self.kernels:
            for o in c.kernel.outputs:
                actual.setdefault(o.name, Tensor(f"{part.definitions[-1].name}_{o.name}", o.shape, o.dtype))
            inputs = tuple(actual[t.name] for t in c.kernel.inputs)
            outputs = tuple(actual[o.name] for o in c.kernel.outputs)
            assert c.schedule is not None or c.constant
            planned.append(PlannedKernel(c.kernel, c.schedule, c.cost, inputs, outputs, c.constant))
        return planned

    @property
    def rules(self) -> tuple[str, ...]:
        return tuple(sorted(rules_of(self.kernels).union(self.on_the_way)))


class Found(NamedTuple):
    """Every stage's result for one region."""

    saturated: Saturated
    pool: Pool
    candidates: list[Candidate]
    choice: Choice
    summary: str
    makers: frozenset[str] | None = None  # rules from which all that is chosen is equal; None where no e-graph tells

    @property
    def fired(self) -> frozenset[str]:
        """Rules that matched something."""
        return frozenset(name.removesuffix("_back") for name in self.saturated.growth)

    def within(self, saturated: Saturated) -> bool:
        """True if another e-graph of its region has all that was chosen."""
        return saturated.has(d for c in self.choice.candidates for d in c.definitions)


def found_before(request: Request, region: Region) -> Found | None:
    """The search of a region of this structure, if it was of the last program that this thread optimised, and asked the same."""
    search: Search | None = getattr(_latest, "search", None)
    if search is None or (search.rules, search.objective, search.card.name) != (request.rules, request.objective, request.target):
        return None
    return search.found.get(region.key)


def search_region(
    engine: Engine, region: Region, card: Device, objective: str, seconds: float, others: list[Found] | None = None
) -> Found:
    """Saturate, build candidates and choose, in about `seconds` at most.

    others: searches of the same region with more rules, or as cheap as the first of them, which this one joins if it is. Where
      all that one of them chose is still equal, it is chosen again.
    """
    start = time.perf_counter()
    saturated = engine.saturate(region, Budget(seconds=seconds), others[0].saturated.ingest if others else None)
    for other in others or ():
        if other.within(saturated):
            return other._replace(saturated=saturated)
    pool = Pool(saturated, region, card, objective, others[0].pool.shared if others else None)
    candidates, choice = searched(pool, start + seconds)
    lean = pool.without_idle(choice.candidates)
    instead = {id(c): less for c, less in zip(choice.candidates, lean, strict=True)}
    candidates = [instead.get(id(c), c) for c in candidates]
    total = sum(c.price for c in lean)
    choice = replace(choice, candidates=lean, price=total, bound=min(choice.bound, total))
    quality = "the cheapest choice" if choice.gap < PROVED else f"choice within {choice.gap:.1%} of the bound"
    makers, stopped = saturated.rows_of_rule, saturated.stopped
    if makers and stopped != "saturated":
        stopped += f", most made by {', '.join(sorted(makers, key=lambda name: (-makers[name], name))[:3])}"
    quality += ", ended by the time limit" * choice.hurried
    summary = f"{saturated.rows} e-nodes ({stopped}), {len(candidates)} candidates, {quality}"
    took = (saturated.seconds, time.perf_counter() - start - saturated.seconds)
    log.info("region of %d tensors: %s; %.2f + %.2f s", len(region.definitions), summary, *took)
    found = Found(saturated, pool, candidates, choice, summary)
    if others is None:
        return found._replace(makers=_makers(found, engine.rules, start + seconds))
    if choice.price <= others[0].choice.price * (1 + ALIKE):
        others.append(found)
    return found


def rules_of(kernels: Iterable[Candidate]) -> frozenset[str]:
    """Rules that left a trace in kernels."""
    return frozenset().union(*(c.rules for c in kernels))


def _makers(found: Found, rules: Sequence[Rule], deadline: float) -> frozenset[str] | None:
    """Those from which all that was chosen is equal to the region, with as few that left no trace as there need be."""
    if not found.within(found.saturated):
        return None
    fired, seen = [r for r in rules if r.name in found.fired], rules_of(found.choice.candidates)
    merging = frozenset[str]().union(*found.saturated.bypassed.values())  # they leave a trace in no e-node
    others = sorted((r for r in fired if r.name not in seen), key=lambda r: r.name not in merging)
    engine = engine_for([r for r in fired if r.name in seen]) if others else None

    def suffices(kept: Sequence[Rule]) -> bool:
        assert engine is not None
        engine.load(kept)
        left = deadline - time.perf_counter()
        if left <= 0:
            raise TimeoutError
        return found.within(engine.saturate(found.pool.region, Budget(seconds=left), found.saturated.ingest))

    try:
        kept = smallest([r for r in fired if r.name in seen], others, suffices)
    except TimeoutError:
        return None
    return frozenset(r.name for r in kept)


class Search:
    """Optimises each distinct region once."""

    def __init__(
        self,
        card: Device,
        rules: Sequence[Rule],
        objective: str,
        deadline: float,
        cache: Cache | None,
        others: list[Found] | None = None,
    ) -> None:
        self.card, self.rules, self.objective, self.deadline, self.cache = card, rules, objective, deadline, cache
        self.others = others
        self.plans: dict[str, RegionPlan] = {}  # by the key of their parts
        self.found: dict[Hashable, Found] = {}  # by region, if it was searched
        self._names: dict[str, int] = {}

    def plan(self, part: Part) -> RegionPlan:
        """The plan of all parts of one structure."""
        if part.key not in self.plans:
            self.plans[part.key] = self._tuned(self.recalled(part))
        return self.plans[part.key]

    def recalled(self, part: Part) -> RegionPlan:
        """The plan of a part from the cache or new, which the cache then has."""
        if self.cache is None:
            return self._optimise(part.canonical())
        key = key_of(part.key, self.card, self.objective, self._laws)
        if (data := self.cache.get(key)) is not None:
            try:
                kernels, facts = plan_codec.decode(part, data)
                log.info("region of %d tensors: from the cache", len(part.definitions))
                return RegionPlan(part, self._named(kernels), **facts)
            except ValueError as error:
                log.info("cache: %s", error)
                self.cache.drop(key)
        plan = self._optimise(part.canonical())
        if plan.complete:
            facts = {name: getattr(plan, name) for name in ("price", "bound", "summary", "on_the_way")}
            self.cache.put(key, plan_codec.encode(part, plan.kernels, facts))
        return plan

    def _tuned(self, plan: RegionPlan) -> RegionPlan:
        """With the schedules that were timed on this device, as far as the cache has such."""
        if self.cache is None or self.card.arrays:
            return plan
        return replace(plan, kernels=tuple(recalled(c, self.card, self.cache) for c in plan.kernels))

    @cached_property
    def _laws(self) -> str:
        """What the rules say; where they stand does not matter."""
        return key_of([(r.name, r.tier, r.phase, r.law, [(v, s.name, s.kinds) for v, s in r.sorts.items()]) for r in self.rules])

    def _optimise(self, region: Region) -> RegionPlan:
        start = time.perf_counter()
        remaining = self.deadline - start
        if remaining <= 0:
            return self._unoptimised(region, "time limit reached: kernels as written")
        found = search_region(engine_for(self.rules), region, self.card, self.objective, remaining, self.others)
        self.found[region.key] = found
        kernels = in_order(found.choice.candidates)
        if kernels is None:  # something reads what was overwritten
            return self._optimise(replace(region, donated=frozenset()))
        for name, rows in found.saturated.rows_of_rule.most_common():
            log.debug("  %s made %d e-nodes", name, rows)
        for candidate in kernels:
            log.debug("  chose %s, %.2f us: %s", candidate.kernel.name, candidate.cost.seconds * 1e6, candidate.schedule)
        complete = not found.choice.hurried and not found.saturated.stopped.startswith("time")
        quiet = tuple(sorted((found.makers or frozenset()) - rules_of(kernels)))
        return RegionPlan(region, self._named(kernels), found.choice.price, found.choice.bound, found.summary, complete, quiet)

    def _unoptimised(self, region: Region, summary: str) -> RegionPlan:
        kernels = []
        for stored in region.definitions:
            original = kernel_of(_over_leaves(stored), self.card, region.exact)
            cost, schedule = original.cost, original.schedule
            kernels.append(Candidate((), frozenset(), original.kernel, cost, cost.seconds, schedule, frozenset()))
        return RegionPlan(region, self._named(tuple(kernels)), sum(c.price for c in kernels), 0.0, summary, complete=False)

    def _named(self, candidates: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
        """Kernels with names that are unique in the program and leaf tensors only."""
        leaves: dict[Tensor, Tensor] = {}
        named = []
        for c in candidates:
            for t in c.kernel.inputs:
                if isinstance(t, Stored):
                    leaves.setdefault(t, Tensor(t.name, t.shape, t.dtype))
            outputs = tuple(Stored(o.name, o.shape, o.dtype, retarget(o.term, leaves), o.axes) for o in c.kernel.outputs)
            count = self._names[c.kernel.name] = self._names.get(c.kernel.name, 0) + 1
            name = c.kernel.name if count == 1 else f"{c.kernel.name}_{count}"
            named.append(replace(c, kernel=replace(c.kernel, name=name, outputs=outputs)))
        return tuple(named)


def _over_leaves(stored: Stored) -> Stored:
    leaves: dict[Tensor, Tensor] = {t: Tensor(t.name, t.shape, t.dtype) for t in loads_in(stored.term)}
    return Stored(stored.name, stored.shape, stored.dtype, retarget(stored.term, leaves), stored.axes)
