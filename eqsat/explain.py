"""The ledger of a program: which rules it needed and what each is worth, what was considered and lost, why neighbours are two.

Need is found by leaving rules out and searching the distinct regions again (`eqsat.ablation`); all figures are the cost
model's. Where the time given does not suffice, what was not tried is named.
"""

from __future__ import annotations

import dataclasses
import textwrap
import time
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eqsat import report
from eqsat.ablation import Ablated, Ablation, difference, times, total
from eqsat.boundaries import Boundary, boundaries
from eqsat.cost import FREE, Cost
from eqsat.devices import Device, device
from eqsat.formula import wrapped
from eqsat.garbage import collected_seldom
from eqsat.graph import Graph
from eqsat.hoisting import hoisted
from eqsat.kernels import Candidate
from eqsat.outline import parts_of
from eqsat.packs import default_rules
from eqsat.read import read
from eqsat.regions import Region, local
from eqsat.rule import TIERS, Rule

if TYPE_CHECKING:
    from eqsat.optimizer import Request
    from eqsat.program import Program

WIDTH = 110
FORMULA = 120  # characters of a kernel that lost
SHOWN = 12  # lines of a list in the text; `to_dict` has all
AS_GOOD = 0.005  # of the program's time: a plan that costs no more than this in addition is as good


@dataclass(frozen=True)
class Worth:
    """A rule that made the result or a step towards it; `more` is what the program would cost more without it."""

    rule: str
    tier: str
    gives_up: str
    law: str
    doc: str
    more: Cost
    needed: bool  # False: without it another way costs the same
    here: Cost  # for one that is not needed: what the program would cost more, were there no rules but those that made it


@dataclass(frozen=True)
class Lost:
    """The next best plan of a region: kernels that were not chosen, and what the program would cost more with them."""

    chosen: str
    instead: tuple[str, ...]
    more: Cost


@dataclass(frozen=True)
class Explanation:
    """What `Program.explain` found. `str` of it is for reading, `to_dict` for programs."""

    name: str
    target: str
    numerics: str
    before: Cost
    after: Cost
    rules: tuple[Worth, ...]
    tiers: Mapping[str, tuple[str, ...]]  # by tier used: what its rules give up, in their own words
    fusion_alone: Cost | None  # what the program without any rule costs more; None where the time did not suffice
    rows: Mapping[str, int]  # e-nodes that each rule made, summed over distinct regions, most first
    matches: Mapping[str, int]  # and how often it matched
    idle: tuple[str, ...]  # rules that are not built in and matched nowhere
    lost: tuple[Lost, ...]
    boundaries: tuple[Boundary, ...]
    calls: tuple[tuple[str, str, int], ...]  # operation, reason, count
    search: tuple[str, ...]
    untried: tuple[str, ...]
    seconds: float
    limit: float

    @property
    def needed(self) -> tuple[str, ...]:
        """Names of the rules without which the program costs more."""
        return tuple(w.rule for w in self.rules if w.needed)

    def to_dict(self) -> dict[str, Any]:
        """Everything, in types that JSON has."""
        facts = dataclasses.asdict(self)
        return {**facts, "needed": list(self.needed)}

    def __str__(self) -> str:
        parts = [
            _heading(self),
            _rules(self),
            _tiers(self),
            _rows(self),
            _lost(self),
            _boundaries(self),
            _calls(self),
            _limits(self),
        ]
        return "\n\n".join(p for p in ("\n".join(part) for part in parts) if p) + "\n"


@collected_seldom()
def explain(program: Program, seconds: float = 60.0) -> Explanation:
    """Explain a program that `eqsat.optimize` made, in about `seconds`; what that did not suffice for is said.

    Raises ValueError for a program that no search made.
    """
    request = program.request
    if request is None:
        raise ValueError(f"explain {program.name}: a program that eqsat.optimize made required, got one without its search")
    start, card = time.perf_counter(), device(program.target)
    distinct, part_of = _distinct(program.graph, request, card)
    ablation = Ablation(request, card, start + seconds)
    ablated = [
        (ablation.ablate(region, f"region {n} of {len(distinct)}"), count)
        for n, (region, count) in enumerate(sorted(distinct.values(), key=lambda found: -found[1] * len(found[0].definitions)), 1)
    ]
    matches = dict(sum((Counter(a.found.saturated.growth) for a, _ in ablated), Counter()).most_common())
    return Explanation(
        program.name,
        program.target,
        program.numerics,
        program.baseline,
        program.cost,
        _worth(ablated, request.rules),
        _tiers_of([r for r in request.rules if r.name in program.notes["rules"]]),
        _sum((a.fusion_alone, n) for a, n in ablated),
        dict(sum((a.found.saturated.rows_of_rule for a, _ in ablated), Counter()).most_common()),
        matches,
        _idle(request.rules, matches),
        tuple(sorted((_lost_plan(loss, n) for a, n in ablated for loss in a.losses), key=lambda lost: lost.more.seconds)),
        tuple(b for part in program.parts for b in boundaries(part, part_of)),
        tuple((name, reason, n) for (name, reason), n in Counter((c.name, c.reason) for c in program.calls).items()),
        tuple(a.found.summary for a, _ in ablated),
        tuple(dict.fromkeys(rule for a, _ in ablated for rule in a.untried)),
        time.perf_counter() - start,
        seconds,
    )


def _idle(rules: Sequence[Rule], matches: Mapping[str, int]) -> tuple[str, ...]:
    own = {r.name for r in rules} - {r.name for r in default_rules()}
    return tuple(sorted(name for name in own if not matches.keys() & {name, f"{name}_back"}))


@dataclass(frozen=True)
class Fired:
    """What one rule did in a program."""

    matches: int  # in distinct regions
    rows: int
    regions: int
    more: Cost  # what the program would cost more without it

    def __str__(self) -> str:
        if not self.matches:
            return "never fires"
        worth = f"without it {more(self.more)}" if self.more.seconds else "without it another way costs the same"
        return f"matches {self.matches} times in {self.regions} distinct regions, makes {self.rows} e-nodes; {worth}"


def fired(graph: Graph, request: Request, rule: str, seconds: float = 60.0) -> Fired:
    """How often a rule fires in a graph, and what it is worth there, in about `seconds`."""
    card = device(request.target)
    ablation = Ablation(request, card, time.perf_counter() + seconds)
    result = Fired(0, 0, 0, FREE)
    for region, count in _distinct(graph, request, card)[0].values():
        found = ablation.search(region)
        growth = found.saturated.growth
        matches = growth.get(rule, 0) + growth.get(f"{rule}_back", 0)
        if matches:
            more = difference(total(ablation.plan(region, [rule]).kernels), total(found.choice.candidates))
            rows = found.saturated.rows_of_rule[rule]
            result = Fired(result.matches + matches, result.rows + rows, result.regions + 1, result.more + times(more, count))
    return result


def _distinct(graph: Graph, request: Request, card: Device) -> tuple[dict[Hashable, tuple[Region, int]], dict[str, int]]:
    """The distinct regions with how often they run, and by the name of each tensor the number of its region."""
    distinct: dict[Hashable, tuple[Region, int]] = {}
    part_of: dict[str, int] = {}
    exact = request.numerics == "exact"
    for number, (part, count) in enumerate(_regions(hoisted(graph), request.constants, card, exact, 1)):
        part_of.update((d.name, number) for d in part.definitions)
        region = local(part)
        distinct[region.key] = region, distinct.get(region.key, (region, 0))[1] + count
    return distinct, part_of


def _regions(
    graph: Graph, constants: Sequence[int] | None, card: Device, exact: bool, count: int
) -> Iterator[tuple[Region, int]]:
    """The regions of a graph and of its loops and branches, and how often each runs (once where values decide)."""
    for part in parts_of(graph, read(graph, exact), constants, card)[1]:
        if isinstance(part, Region):
            yield part, count
        else:
            for body in part.eqn.bodies:
                yield from _regions(body, None, card, exact, count * (1 if part.eqn.trips is None else part.eqn.trips))


def _sum(costs: Iterable[tuple[Cost | None, int]]) -> Cost | None:
    """The total over regions, if all of them are known."""
    known = [(cost, count) for cost, count in costs]
    return None if any(cost is None for cost, _ in known) else sum((times(cost, n) for cost, n in known if cost), FREE)


def _worth(ablated: Sequence[tuple[Ablated, int]], rules: Sequence[Rule]) -> tuple[Worth, ...]:
    """Every rule with a trace in some region, the most valuable first."""
    known = {r.name: r for r in rules}
    more, here = defaultdict[str, Cost](lambda: FREE), defaultdict[str, Cost](lambda: FREE)
    for a, count in ablated:
        for name in (*a.worth, *a.replaceable):
            more[name] += times(a.worth.get(name, FREE), count)
            here[name] += times(a.here.get(name, FREE), count)
    needed = {name for a, _ in ablated for name in a.worth}
    worth = []
    for name, cost in more.items():
        r = known[name]
        worth.append(Worth(name, r.tier, r.gives_up, r.law, " ".join(r.doc.split()), cost, name in needed, here[name]))
    return tuple(sorted(worth, key=lambda w: (not w.needed, -w.more.seconds, -w.here.seconds, w.rule)))


def _tiers_of(rules: Sequence[Rule]) -> dict[str, tuple[str, ...]]:
    used = {t: dict.fromkeys(r.gives_up for r in rules if r.tier == t) for t in TIERS}
    return {tier: tuple(filter(None, phrases)) for tier, phrases in used.items() if phrases}


def _lost_plan(loss: Any, count: int) -> Lost:
    instead = tuple(_spelled(c, [loss.chosen]) for c in loss.instead)
    return Lost(_spelled(loss.chosen, loss.instead), instead, times(loss.more, count))


def _spelled(c: Candidate, others: Sequence[Candidate]) -> str:
    """The lines of its formula that the others lack, as far as there is room, and its time."""
    theirs = {line for other in others for line in other.kernel.formula.splitlines()}
    lines = c.kernel.formula.splitlines()
    own = "; ".join(line for line in lines if line not in theirs) or c.kernel.formula
    return f"{textwrap.shorten(own, FORMULA, placeholder=' ...')} ({report.time(c.cost.seconds)})"


# --- as text -----------------------------------------------------------------------------------------------------


def _heading(e: Explanation) -> Iterator[str]:
    yield f"{e.name} on {e.target}, numerics {e.numerics}"
    yield f"as written   {e.before.launches} launches, {report.nbytes(e.before.nbytes)}, {report.time(e.before.seconds)}"
    if e.fusion_alone:
        plain = e.after + e.fusion_alone
        yield f"fusion alone {plain.launches} launches, {report.nbytes(plain.nbytes)}, {report.time(plain.seconds)}"
    yield f"with rules   {e.after.launches} launches, {report.nbytes(e.after.nbytes)}, {report.time(e.after.seconds)}"


def more(cost: Cost) -> str:
    """A difference of costs in words."""
    seconds = f"{cost.seconds * 1e6:+.1f} us"
    launches = f", {cost.launches:+d} launch{'es' * (abs(cost.launches) != 1)}" if cost.launches else ""
    sign = "-" if cost.nbytes < 0 else "+"
    return f"{seconds}, {sign}{report.nbytes(abs(cost.nbytes))}{launches}"


def _rules(e: Explanation) -> Iterator[str]:
    needed, spared = [w for w in e.rules if w.needed], [w for w in e.rules if not w.needed]
    if not e.rules:
        yield "no rule was needed: fusion alone made these kernels" if not e.untried else ""
        return
    yield "rules needed: without each the program would take" if needed else "rules needed: none alone"
    width = max((len(w.rule) for w in e.rules), default=0)
    for w in needed:
        yield f"  {w.rule:<{width}}  {more(w.more)}"
        yield from wrapped(w.law, WIDTH, "      ")
    if spared:
        yield "used, but without it another way costs the same (beside it: what it is worth if only the rules used are there)"
    for w in spared:
        yield f"  {w.rule:<{width}}  {more(w.here) if w.here != FREE else 'nothing'}"
        yield from wrapped(w.law, WIDTH, "      ") if w.here != FREE else ()


def _tiers(e: Explanation) -> Iterator[str]:
    if e.tiers:
        yield "tiers used, and what is given up"
    for tier, phrases in e.tiers.items():
        yield from wrapped(
            f"{tier:<12} {'; '.join(phrases) or 'nothing: the same bits, but for the order of a sum'}", WIDTH, "  "
        )


def _rows(e: Explanation) -> Iterator[str]:
    if e.rows:
        yield "e-nodes made, by rule (matches)"
    for name, rows in list(e.rows.items())[:SHOWN]:
        yield f"  {rows:>6}  {name} ({e.matches.get(name, 0) + e.matches.get(f'{name}_back', 0)})"
    if len(e.rows) > SHOWN:
        yield f"  {sum(list(e.rows.values())[SHOWN:]):>6}  {len(e.rows) - SHOWN} more rules"
    if e.idle:
        yield from wrapped(f"fired 0 times: {', '.join(e.idle)}", WIDTH, "  ")
    yield from (f"  {line}" for line in e.search)


def _lost(e: Explanation) -> Iterator[str]:
    dearer = [lost for lost in e.lost if lost.more.seconds > AS_GOOD * e.after.seconds]
    if dearer:
        yield "considered and lost: the next best plans, nearest first"
    for lost in dearer[:SHOWN]:
        yield f"  {more(lost.more)} with"
        for formula in lost.instead:
            yield from wrapped(formula, WIDTH, "    ")
        yield from wrapped(f"instead of {lost.chosen}", WIDTH, "    ")
    yield from _rest(dearer)
    if alike := len(e.lost) - len(dearer):
        yield f"considered and as good, within {AS_GOOD:.1%} of the time: {alike} plan{'s' * (alike != 1)} (in to_dict)"


def _boundaries(e: Explanation) -> Iterator[str]:
    if e.boundaries:
        yield "why neighbours are not one kernel"
    for b in e.boundaries[:SHOWN]:
        yield from wrapped(f"{b.writer} | {b.reader}, by {b.tensor}: {b.reason}", WIDTH, "  ")
    yield from _rest(e.boundaries)


def _rest(entries: Sequence[Any]) -> Iterator[str]:
    if len(entries) > SHOWN:
        yield f"  and {len(entries) - SHOWN} more (in to_dict)"


def _calls(e: Explanation) -> Iterator[str]:
    if e.calls:
        yield "calls of JAX"
    yield from (f"  {name}{f' x{n}' if n > 1 else ''}: {reason}" for name, reason, n in e.calls)


def _limits(e: Explanation) -> Iterator[str]:
    if e.untried:
        yield from wrapped(f"stopped at the {e.limit:g} s given: not tried without {', '.join(e.untried)}; give more", WIDTH)
