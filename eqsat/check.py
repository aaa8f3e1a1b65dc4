"""Checks of rules: both sides of each equation evaluated on random instances, and what the rule does to an e-graph alone.

The tier is the contract. "exact": the same bits. "reassociate": on ordinary data within rounding of one another, in float64
and in the operands' own dtype, and finite where the other is; NaN and infinities stay where they were. "fast": within
rounding on finite data, and makes no NaN of finite data unless something overflows or
underflows.
A rule that no instance satisfies fails too, and one that makes a small e-graph grow without end.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from eqsat.arrays import NUMPY
from eqsat.check_error import SLACK, Bounds
from eqsat.check_sample import Instance, Sampler, exhaustive
from eqsat.evaluate import evaluate_all
from eqsat.index import Axis
from eqsat.notation import Stored, Term
from eqsat.rule import Equation, Rule
from eqsat.scalars import is_float

Array = Any
SAMPLES = 120


@dataclass(frozen=True)
class Verdict:
    """What the checker found: the instances tried, the dtypes tried exhaustively, and the first problem, if any.

    `proof` says what a solver proved, where it was asked.
    """

    rule: Rule
    samples: int
    exhaustive: tuple[str, ...] = ()
    problem: str = ""
    proof: str = ""

    @property
    def passed(self) -> bool:
        return not self.problem

    def __str__(self) -> str:
        every = f", every value of {', '.join(self.exhaustive)}" if self.exhaustive else ""
        proof = f"; {self.proof}" if self.proof else ""
        return f"{self.rule.name}: " + (
            f"ok, {self.samples} instances{every}{proof}" if self.passed else f"WRONG\n{self.problem}"
        )


def check_rule(rule: Rule, *, seed: int = 0, samples: int = SAMPLES) -> Verdict:
    """Try a rule, in each of its directions; the same seed gives the same instances."""
    tried, every = 0, dict[str, None]()
    for one_way in directions(rule):
        found = 0
        for _, dtype, instance in _instances(one_way, seed, samples):
            found += 1
            if dtype:
                every[dtype] = None
            if disagreement(instance) is not None:
                from eqsat.check_shrink import counterexample

                return Verdict(rule, tried + found, tuple(every), counterexample(instance))
        if not found:
            conditions = f" satisfy '{rule.conditions}'" if rule.conditions else " exist"
            return Verdict(rule, tried, (), f"vacuous: none of {samples} random instances of {one_way.law}{conditions}")
        tried += found
    return Verdict(rule, tried, tuple(every), growth(rule))


def check_rules(rules: Iterable[Rule], *, seed: int = 0, samples: int = SAMPLES) -> Iterator[Verdict]:
    """The verdict on each rule, as it is found."""
    for rule in rules:
        yield check_rule(rule, seed=seed, samples=samples)


def directions(rule: Rule) -> tuple[Rule, ...]:
    """The rule, and its reverse if it holds both ways."""
    e = rule.equation
    forward = dataclasses.replace(rule, equation=Equation(e.left, e.right, e.guards, False))
    if not e.both_ways:
        return (forward,)
    return forward, dataclasses.replace(rule, equation=Equation(e.right, e.left, e.guards, False))


def _instances(rule: Rule, seed: int, samples: int) -> Iterator[tuple[int, str, Instance]]:
    for n, instance in enumerate(Sampler(rule, seed).instances(samples)):
        yield n, "", instance
    if rule.tier == "exact":
        for n, (dtype, instance) in enumerate(exhaustive(rule)):
            yield n, dtype, instance


# --- agreement of the two sides -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Disagreement:
    """Where two sides differ: the position by axis, both values, and the claim that fails."""

    position: dict[Axis, int]
    left: Any
    right: Any
    claim: str


def disagreement(instance: Instance) -> Disagreement | None:
    """The first place at which the sides break the contract of the rule's tier."""
    left = instance.left
    try:
        right = instance.right
    except TypeError as error:
        return Disagreement({}, left, error, "one of the values of its dtype")
    axes = tuple(sorted(left.axes | right.axes))
    if left.dtype != right.dtype:
        return Disagreement({}, left.dtype, right.dtype, "one dtype")
    a, b = map(np.asarray, evaluate_all([(left, axes), (right, axes)], instance.arrays, NUMPY))
    if not is_float(left.dtype) or (instance.rule.tier == "exact" and not _adds(instance)):
        return _first(axes, a, b, ~_same_bits(a, b), "the same bits")
    if instance.mode in ("special", "nan", "extreme", "wide"):
        return _special(axes, a, b, instance)
    return _rounding(axes, a, b, left, right, instance)


def _adds(instance: Instance) -> bool:
    """True if a side sums, so that the order of summation may differ."""
    terms = [*instance.left.walk(), *instance.right.walk()]
    return any(t.head == "online" or (t.head == "reduce" and t.data[0] in ("sum", "prod")) for t in terms)


def _same_bits(a: Array, b: Array) -> Array:
    """Equal values, NaN like NaN, zeros with their signs."""
    if a.dtype.kind in "biu":
        return a == b
    a, b = a.astype(np.float64), b.astype(np.float64)
    return ((a == b) & (np.signbit(a) == np.signbit(b))) | (np.isnan(a) & np.isnan(b))


def _special(axes: tuple[Axis, ...], a: Array, b: Array, instance: Instance) -> Disagreement | None:
    a64, b64 = a.astype(np.float64), b.astype(np.float64)
    if instance.mode == "nan":
        return _first(axes, a, b, np.isnan(a64) != np.isnan(b64), "NaN where it was")
    return _first(axes, a, b, np.isfinite(a64) != np.isfinite(b64), "NaN and infinities where they were")


def _rounding(axes: tuple[Axis, ...], a: Array, b: Array, left: Term, right: Term, instance: Instance) -> Disagreement | None:
    """Errors within rounding, first in float64, then in the operands' own dtypes."""
    fast = instance.rule.tier == "fast"
    for wide in (True, False):
        bounds = Bounds(instance.arrays, wide, fast)
        (x, x_error), (y, y_error) = bounds.over(left, axes), bounds.over(right, axes)
        with np.errstate(all="ignore"):
            bound = SLACK * (x_error + y_error)
            one, other = (x, y) if wide else (a.astype(np.float64), b.astype(np.float64))
            both = np.isfinite(one) & np.isfinite(other)
            far = both & (np.abs(one - other) > bound)
            unsure = np.isfinite(x) & np.isfinite(y) & ~np.isfinite(bound)
            lost = (np.isfinite(one) > np.isfinite(other)) if fast else (np.isfinite(one) != np.isfinite(other))
            lost &= ~unsure & (not fast or (wide and not bounds.leaves_range))
        where = "in float64" if wide else f"in {left.dtype}"
        if (found := _first(axes, one, other, far, f"equal up to rounding {where}")) is not None:
            return found
        if (found := _first(axes, one, other, lost, f"finite where the other is, {where}")) is not None:
            return found
    return None


def _first(axes: tuple[Axis, ...], a: Array, b: Array, wrong: Array, claim: str) -> Disagreement | None:
    if not np.any(wrong):
        return None
    place = tuple(int(i) for i in np.argwhere(wrong)[0])
    position = dict(zip(axes, place, strict=True))
    return Disagreement(position, a[place].item(), b[place].item(), claim)


# --- growth -----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _engine() -> Any:
    from eqsat.egraph import Engine

    return Engine(())


def growth(rule: Rule, rows: int = 400, iterations: int = 14) -> str:
    """What the rule alone makes of a small region, if that does not come to rest; else nothing."""
    from eqsat.egraph import Budget
    from eqsat.regions import Region, loads_in
    from eqsat.rule import lower

    one_way = directions(rule)[0]
    instance = next((i for i in Sampler(one_way, 1).instances(8)), None)
    if instance is None:
        return ""
    left = instance.left
    axes = tuple(sorted(left.axes))
    stored = Stored("y", tuple(a.extent for a in axes), left.dtype, left, axes)
    inputs = loads_in(left)
    engine = _engine()
    alone = dataclasses.replace(rule, phase="structural")  # a phase that is counted, step by step
    region = Region(inputs, (stored,), (stored,))
    engine._run("(push)")
    try:
        for _, text in lower(alone, 1):
            engine._run(text)
        # Rows and steps bound this; on a machine that stands still for a while, seconds would make it a matter of luck.
        if engine.saturate(region, Budget(60.0, rows, iterations)).stopped == "saturated":
            return ""
        steps = [engine.saturate(region, Budget(60.0, rows, n)).rows for n in range(1, 7)]
    finally:
        engine._run("(pop)")
    return f"grows without end: {left} alone becomes {', '.join(map(str, steps))} rows after 1, 2, ... steps"
