"""Discovery of rules: terms by size, equal values as candidates, checked, and kept where no other rule gives them.

As in Ruler (Nandi et al., OOPSLA 2021) and Enumo (Pal et al., OOPSLA 2023). Terms over a few variables and axes are enumerated;
larger ones are built of one representative of each value. Those of equal value are candidate laws, first with no condition
and then with variables that lack axes. A candidate is judged in the strictest tier first, dropped where the given
and the kept rules of that tier make its sides equal in an e-graph of it and its neighbours, and kept if the checker finds nothing
against it.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import Any

import numpy as np

from eqsat.arrays import NUMPY
from eqsat.check import Disagreement, Verdict, check_rule, disagreement
from eqsat.check_sample import Bound, Sampler, Value, leaf
from eqsat.egraph import Budget, Engine
from eqsat.evaluate import Evaluator
from eqsat.guard import absent
from eqsat.index import Axis, Index
from eqsat.notation import Stored, Tensor, Term, load
from eqsat.pattern import SORTS, Pattern, Sort, const, op, reduce_
from eqsat.pattern import Axis as AxisSort
from eqsat.regions import Region, loads_in
from eqsat.rule import TIERS, Equation, Rule, select, well_formed
from eqsat.scalars import DTYPES, REDUCTIONS, SCALARS, is_float

Array = Any
log = logging.getLogger("eqsat")

VARIABLES, AXES = ("a", "b", "c"), ("k", "l")
EXTENTS = (5, 7)  # of the axes: more than the operations of a small term can add up to
SAMPLES = 12  # assignments; of floats, the first half is positive
QUICK = 30  # instances that a candidate must pass before it is checked in full
CHUNK = 40  # candidates of one e-graph
BUDGET = Budget(seconds=10.0, rows=20000, iterations=8, matches=4000)  # of that
ENUMERATION = 0.5  # share of the time for terms and candidates
GROWTH = 0.1  # of that, for terms: each is evaluated in 10 settings or more
TOLD = 5000  # terms between two lines of the log
MISSES = 12  # near misses that are told
ROUNDINGS = "the order of roundings"  # what a law gives up, unless more is known
SORT_OF_KIND = {"float": "Float", "int": "Integer", "uint": "Integer", "bool": "Bool"}


@dataclass(frozen=True)
class Vocabulary:
    """What terms are made of: scalar operations, reductions and literals, for operands of one dtype."""

    scalars: tuple[str, ...]
    reductions: tuple[str, ...]
    dtype: str = "float32"
    literals: tuple[float, ...] = ()

    @classmethod
    def of(cls, names: Sequence[str], dtype: str = "float32", literals: Sequence[float] = ()) -> Vocabulary:
        """From names of operations, where one that is both (max) means both; raises ValueError for what does not fit."""
        if dtype not in DTYPES:
            raise ValueError(f"dtype {dtype!r}: one of {', '.join(DTYPES)} required")
        kind = DTYPES[dtype].kind
        for name in names:
            row = SCALARS.get(name) or REDUCTIONS.get(name)
            if row is None:
                raise ValueError(f"operation {name!r}: a scalar operation or a reduction required (docs/reference/operations.md)")
            if kind not in row.kinds or getattr(row, "result", "same") != "same" or getattr(row, "arity", 1) > 2:
                raise ValueError(f"operation {name}: one from one or two operands of {dtype} to {dtype} required")
        return cls(
            tuple(n for n in names if n in SCALARS),
            tuple(n for n in names if n in REDUCTIONS and kind in REDUCTIONS[n].kinds),
            dtype,
            tuple(literals),
        )

    @property
    def sort(self) -> Sort:
        return SORTS[SORT_OF_KIND[DTYPES[self.dtype].kind]]

    @property
    def axes(self) -> tuple[str, ...]:
        return AXES if self.reductions else ()

    def leaves(self) -> list[Pattern]:
        return [Pattern("variable", (), v, self.sort) for v in VARIABLES] + [const(c) for c in self.literals]

    def grown(self, smaller: Sequence[Sequence[Pattern]], swapped: set[str]) -> Iterator[Pattern]:
        """Terms of one operation over the given ones, by size; operands that may be swapped are so in small ones only."""
        rank = {p: n for n, p in enumerate(itertools.chain(*smaller))}
        size = len(smaller)
        for name in self.scalars:
            for sizes in [(size - 1,)] if SCALARS[name].arity == 1 else [(i, size - 1 - i) for i in range(size)]:
                for args in itertools.product(*(smaller[n] for n in sizes)):
                    if any(a.variables() for a in args) and not (size > 2 and name in swapped and rank[args[0]] > rank[args[1]]):
                        yield op(name, *args)
        for name, axis in itertools.product(self.reductions, self.axes):
            for body in smaller[size - 1]:
                if body.variables():
                    yield reduce_(name, Pattern("variable", (), axis, AxisSort), body)


# --- values -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Setting(Bound):
    """Which axes each variable lacks, and arrays for the rest."""

    lacks: Mapping[str, frozenset[str]]
    values: Mapping[str, Value]
    arrays: Mapping[Tensor, Array]
    literals: str  # dtype of those

    @classmethod
    def of(cls, words: Vocabulary, lacks: Mapping[str, frozenset[str]]) -> Setting:
        axes = {name: Axis(name, n) for name, n in zip(AXES, EXTENTS, strict=True)}
        arrays: dict[Tensor, Array] = {}
        values: dict[str, Value] = {name: axes[name] for name in words.axes}
        for n, name in enumerate(VARIABLES):
            own = (*(axes[a] for a in words.axes if a not in lacks[name]), Axis("x0", SAMPLES))
            values[name] = leaf(name, own, _assigned(words.dtype, n, tuple(a.extent for a in own)), arrays)
        return cls(lacks, values, arrays, words.dtype)

    @cached_property
    def run(self) -> Evaluator:
        return Evaluator(dict(self.arrays), NUMPY, widen=True)

    def meaning(self, pattern: Pattern) -> Term:
        return self.term(pattern, self.literals)

    def samples(self, pattern: Pattern) -> Array:
        """Its values, by assignment."""
        with np.errstate(all="ignore"):
            value = self.run.value(self.meaning(pattern))
        axes = [v for v in self.values.values() if isinstance(v, Axis)]
        array = self.run.broadcast(value, (*axes, Axis("x0", SAMPLES)))
        return array.reshape(-1, SAMPLES).T


def _assigned(dtype: str, number: int, shape: tuple[int, ...]) -> Array:
    """Operands: floats half positive, half of both signs and 0, 1, -1; integers of all sizes; every choice of truth values."""
    rng = np.random.default_rng([number, *shape])
    half = SAMPLES // 2
    if DTYPES[dtype].kind == "bool":
        return np.broadcast_to((np.arange(SAMPLES) >> number) % 2 == 1, shape).copy()
    if not is_float(dtype):
        info = np.iinfo(dtype)
        small = rng.integers(max(info.min, -3), 4, shape, dtype=np.int64)
        wide = rng.integers(info.min, info.max, shape, endpoint=True, dtype=np.dtype(dtype))
        return np.where(np.arange(SAMPLES) < half, small.astype(dtype), wide)
    signed = np.where(rng.random(shape) < 0.3, rng.choice([0.0, 1.0, -1.0], shape), rng.uniform(-2, 2, shape))
    return np.where(np.arange(SAMPLES) < half, rng.uniform(0.2, 1.3, shape), signed)


def _print(samples: Array) -> bytes:
    """What equal samples share."""
    if samples.dtype.kind in "biu":
        return samples.tobytes()
    few = samples[:, :: max(samples.shape[1] // 3, 1)]
    with np.errstate(over="ignore"):
        return np.where(np.abs(few) < 1e-12, 0.0, few).astype(np.float32).tobytes()  # equal in seven digits


def settings(words: Vocabulary) -> list[Setting]:
    """Ways for variables to lack axes, fewest first, and one of those that differ in names only."""
    subsets = [frozenset(s) for n in range(len(words.axes) + 1) for s in itertools.combinations(words.axes, n)]
    found: dict[Any, Setting] = {}
    for lacks in sorted(itertools.product(subsets, repeat=len(VARIABLES)), key=lambda s: sum(map(len, s))):
        swapped = [frozenset(AXES[1 - AXES.index(a)] for a in s) for s in lacks]
        key = min(sorted(map(sorted, s)) for s in (lacks, swapped))
        if str(key) not in found:
            found[str(key)] = Setting.of(words, dict(zip(VARIABLES, lacks, strict=True)))
    return list(found.values())


# --- candidates -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Candidate:
    """An equation to be judged, with its variables in order of occurrence."""

    left: Pattern
    right: Pattern
    lacks: tuple[tuple[str, tuple[str, ...]], ...]  # by axis, the variables that do not mention it

    @property
    def order(self) -> tuple[Any, ...]:
        """Few conditions first, then small, general ones."""
        conditions = sum(len(names) for _, names in self.lacks)
        most = max(count(self.left), count(self.right))
        variables = len(self.left.variables() | self.right.variables())
        return most, conditions, count(self.left) + count(self.right), -variables, str(self.left), str(self.right)

    def rules(self, words: Vocabulary, tier: str, loss: str = ROUNDINGS) -> Iterator[Rule]:
        """The equation as a rule, where it can be one: in both directions, or in one that does not grow."""
        larger, smaller = sorted((self.left, self.right), key=count, reverse=True)
        one_way = named(larger, smaller).endswith("_commutes") or smaller in _parts(larger)
        for left, right, both_ways in ((larger, smaller, True), (larger, smaller, False), (smaller, larger, False)):
            grows = count(right) > count(left)
            if not grows and not (both_ways and one_way):
                with contextlib.suppress(TypeError, ValueError):
                    yield self._rule(left, right, both_ways, words, tier, loss)

    def _rule(self, left: Pattern, right: Pattern, both_ways: bool, words: Vocabulary, tier: str, loss: str) -> Rule:
        sides = left.variables() | right.variables()
        sorts = {v: words.sort for v in VARIABLES if v in sides} | {k: AxisSort for k in AXES if k in sides}
        variable = {n: Pattern("variable", (), n, s) for n, s in sorts.items()}
        guards = tuple(absent(variable[k], *(variable[v] for v in names)) for k, names in self.lacks)
        right = right if both_ways else typed(right, next(iter(variable.values())))
        equation = Equation(left, right, guards, both_ways)
        well_formed(equation, sorts)
        loss = "" if tier == "exact" else loss
        return Rule(named(left, right), tier, "structural", loss, "", equation, sorts, "discovered:1", "discovered")


def typed(pattern: Pattern, like: Pattern) -> Pattern:
    """A right side, on which literals have the dtype of a variable."""
    if pattern.head == "const":
        return const(pattern.args[0], like)
    return Pattern(pattern.head, tuple(typed(a, like) for a in pattern.args), pattern.data, pattern.sort)


def count(pattern: Pattern) -> int:
    """Operations of a pattern."""
    own = pattern.head not in ("variable", "const", "number")
    return own + sum(map(count, pattern.args)) if own else 0


def named(left: Pattern, right: Pattern) -> str:
    """A name that says the law: mul_commutes, sum_of_mul_is_mul_of_sum."""
    if left.head == right.head and left.args == right.args[::-1] and all(a.head == "variable" for a in left.args):
        return f"{left.head}_commutes"
    return f"{_words(left)}_is_{_words(right)}"


def _adds(c: Candidate) -> bool:
    return any(p.data in ("sum", "prod") for side in (c.left, c.right) for p in _parts(side))


def _parts(pattern: Pattern) -> Iterator[Pattern]:
    yield pattern
    for a in pattern.args:
        yield from _parts(a)


def _numbered(name: str) -> Iterator[str]:
    return itertools.chain([name], (f"{name}_{n}" for n in itertools.count(2)))


def _words(pattern: Pattern) -> str:
    if pattern.head in ("variable", "const"):
        return str(pattern).replace("-", "minus_").replace(".", "_")
    inner = [_words(a) for a in pattern.args if a.head != "variable"]
    head = pattern.data if pattern.head == "reduce" else pattern.head
    return f"{head}_of_{'_and_'.join(inner)}" if inner else head


def candidate(left: Pattern, right: Pattern, lacks: Mapping[str, frozenset[str]]) -> Candidate:
    """Variables and axes renamed in order of their first occurrence."""
    names: dict[str, str] = {}
    fresh = {"T": iter(VARIABLES), "i64": iter(AXES)}

    def visit(p: Pattern) -> Pattern:
        if p.head == "variable":
            if p.data not in names:
                names[p.data] = next(fresh[p.sort.egglog])
            return Pattern("variable", (), names[p.data], p.sort)
        return Pattern(p.head, tuple(map(visit, p.args)), p.data, p.sort)

    sides = visit(left), visit(right)
    pairs = {(names[k], names[v]) for v, axes in lacks.items() for k in axes if v in names and k in names}
    by_axis = tuple((k, tuple(sorted(v for axis, v in pairs if axis == k))) for k in AXES if any(k == axis for axis, _ in pairs))
    return Candidate(*sides, by_axis)


class Enumeration:
    """Terms by size, and the candidates among them: those met within the given seconds, smallest terms first."""

    def __init__(self, words: Vocabulary, size: int, seconds: float = inf) -> None:
        start = time.perf_counter()
        self.words, self.terms, self.late = words, 0, False
        self.settings = settings(words)
        self.swapped: set[str] = set()
        self.kept: list[list[Pattern]] = [words.leaves()]  # one of each value, by size
        self._seen: set[Candidate] = set()
        self._first = {_print(self.settings[0].samples(p)): p for p in self.kept[0]}
        self.candidates: list[Candidate] = []
        while len(self.kept) <= size and not self.late:
            self._grow(start + GROWTH * seconds)
        for n, setting in enumerate(self.settings, 1):
            self._group(setting, start + seconds)
            log.info("equal values, %d of %d ways to lack axes: %d candidates", n, len(self.settings), len(self.candidates))
        self.candidates.sort(key=lambda c: c.order)

    def _timely(self, patterns: Iterable[Pattern], deadline: float) -> Iterator[Pattern]:
        """The patterns until the deadline."""
        for pattern in patterns:
            if time.perf_counter() > deadline:
                self.late = True
                return
            yield pattern

    def _grow(self, deadline: float) -> None:
        """The next size: terms of a value met before are candidates, the others stand for their value."""
        new: list[Pattern] = []
        size = len(self.kept)
        for pattern in self._timely(self.words.grown(self.kept, self.swapped), deadline):
            self.terms += 1
            if self.terms % TOLD == 0:
                log.info("%d terms, of %d operations now", self.terms, size)
            other = self._first.setdefault(_print(self.settings[0].samples(pattern)), pattern)
            if other is pattern:
                new.append(pattern)
            else:
                self._propose(pattern, other, self.settings[0])
        self.kept.append(new)
        self.swapped |= {p.left.head for p in self.candidates if named(p.left, p.right).endswith("_commutes")}

    def _propose(self, left: Pattern, right: Pattern, setting: Setting) -> None:
        new = candidate(left, right, setting.lacks)
        back = candidate(right, left, setting.lacks)
        if new not in self._seen and back not in self._seen:
            self._seen.add(new)
            self.candidates.append(new)

    def _group(self, setting: Setting, deadline: float) -> None:
        """Equal values where variables lack axes, or where all numbers are positive."""
        whole: dict[Any, Pattern] = {}
        positive: dict[Any, Pattern] = {}
        for pattern in self._timely(itertools.chain(*self.kept), deadline):
            samples = setting.samples(pattern)
            half = samples[: SAMPLES // 2]
            other = whole.setdefault(_print(samples), pattern)
            if other is pattern and is_float(self.words.dtype) and np.isfinite(half).all():
                other = positive.setdefault(_print(half), pattern)
            if other is not pattern:
                self._propose(pattern, other, setting)


# --- judgement --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """A law that was kept, and what the checker tried."""

    candidate: Candidate
    rule: Rule
    verdict: Verdict


@dataclass(frozen=True)
class Discovery:
    """What a search for rules came to."""

    found: tuple[Found, ...]
    missed: tuple[Verdict, ...]  # near misses: equal where they were first tried, and false
    terms: int
    candidates: int
    derived: int  # dropped because other rules give them
    stopped: str  # "complete", or the budget that ended the search

    @property
    def rules(self) -> tuple[Rule, ...]:
        return tuple(f.rule for f in self.found)


class Judge:
    """Keeps candidates, tier by tier."""

    def __init__(self, words: Vocabulary, given: Sequence[Rule], deadline: float) -> None:
        self.words, self.given, self.deadline = words, tuple(given), deadline
        self.found: list[Found] = []
        self.derived = 0
        self.losses: dict[Candidate, str] = {}

    @property
    def late(self) -> bool:
        return time.perf_counter() > self.deadline

    def judge(self, candidates: Sequence[Candidate], tier: str) -> list[Candidate]:
        """Keep those that hold in a tier and follow from nothing; return those that do not hold or were not tried."""
        remain: list[Candidate] = []
        for start in range(0, len(candidates), CHUNK):
            queue = list(candidates[start : start + CHUNK])
            queue = queue if self.late else self._underived(queue, tier)
            while queue and not self.late:
                first = queue.pop(0)
                if (kept := self._kept(first, tier)) is None:
                    remain.append(first)
                    continue
                self.found.append(kept)
                log.info("%s (%s): %d kept, %d derived", kept.rule.law, tier, len(self.found), self.derived)
                queue = self._underived(queue, tier)
            remain += queue
        return remain

    def _underived(self, candidates: list[Candidate], tier: str) -> list[Candidate]:
        if not candidates:
            return []
        rules = select([*self.given, *(f.rule for f in self.found)], tier)
        derivable = derived(rules, candidates, self.words)
        self.derived += len(derivable)
        return [c for c in candidates if c not in derivable]

    def _kept(self, c: Candidate, tier: str) -> Found | None:
        """The candidate as the first of its rules that holds in a tier."""
        if tier == "exact" and is_float(self.words.dtype) and _adds(c):  # the checker compares sums up to rounding
            return None
        taken = {r.name for r in (*self.given, *(f.rule for f in self.found))}
        for rule in c.rules(self.words, tier, self.losses.get(c, ROUNDINGS)):
            wrong = next((found for i in Sampler(rule).instances(QUICK) if (found := disagreement(i)) is not None), None)
            if wrong is not None:
                self.losses[c] = _loss(wrong)
            elif (verdict := check_rule(rule)).passed:
                name = next(n for n in _numbered(rule.name) if n not in taken)
                return Found(c, replace(rule, name=name), verdict)
        return None

    def minimal(self) -> None:
        """Drop what other laws of its tier give, the largest first."""
        for f in sorted(self.found, key=lambda f: -count(f.rule.equation.left)):
            others = [g.rule for g in self.found if g is not f]
            if not self.late and derived(select([*self.given, *others], f.rule.tier), [f.candidate], self.words):
                self.found.remove(f)
                self.derived += 1

    def misses(self, candidates: Sequence[Candidate], tier: str) -> tuple[Verdict, ...]:
        """Why the smallest candidates that remain are no rules."""
        told: list[Verdict] = []
        for c in candidates:
            if len(told) < MISSES and not self.late:
                told += [check_rule(r) for r in itertools.islice(c.rules(self.words, tier), 1)]
        return tuple(v for v in told if not v.passed)


def _loss(wrong: Disagreement) -> str:
    """What a law gives up that fails in this way in a stricter tier."""
    if not (np.isfinite(wrong.left) and np.isfinite(wrong.right)):
        return "NaN and infinities where they were"
    return "the sign of a zero" if wrong.left == wrong.right == 0 else ROUNDINGS


def derived(rules: Sequence[Rule], candidates: Sequence[Candidate], words: Vocabulary) -> set[Candidate]:
    """The candidates whose sides these rules make equal, all in one e-graph."""
    axes = {name: Axis(name, n) for name, n in zip(AXES, EXTENTS, strict=True)}
    sides: list[tuple[Stored, Stored]] = []
    loads: dict[Any, Term] = {}
    for c in candidates:
        lacking = {(v, k) for k, names in c.lacks for v in names}
        values: dict[str, Value] = dict(axes)
        for v in VARIABLES:
            own = tuple(axes[k] for k in words.axes if (v, k) not in lacking)
            values[v] = loads.setdefault((v, own), _operand(v, (*own, Axis("x0", SAMPLES)), words.dtype))
        setting = Setting({}, values, {}, words.dtype)
        sides.append((_stored(setting.meaning(c.left)), _stored(setting.meaning(c.right))))
    definitions = tuple({s.term: s for pair in sides for s in pair}.values())
    inputs = tuple(dict.fromkeys(t for s in definitions for t in loads_in(s.term)))
    done = Engine(rules).saturate(Region(inputs, definitions, definitions), BUDGET)
    number = {s.term: done.class_of[s] for s in definitions}
    return {c for c, (a, b) in zip(candidates, sides, strict=True) if number[a.term] == number[b.term]}


def _operand(name: str, axes: tuple[Axis, ...], dtype: str) -> Term:
    tensor = Tensor(name, tuple(a.extent for a in axes), dtype)
    return load(tensor, [Index.of(a) for a in axes])


def _stored(term: Term) -> Stored:
    axes = tuple(sorted(term.axes))
    return Stored("y", tuple(a.extent for a in axes), term.dtype, term, axes)


def discover(
    words: Vocabulary, size: int, given: Sequence[Rule] = (), tiers: Sequence[str] = TIERS, seconds: float = 120.0
) -> Discovery:
    """Laws between terms of at most `size` operations that hold in one of the tiers and do not follow from the given rules.

    The result depends on nothing but the arguments, unless the time budget ends the search; it says so then.
    """
    start = time.perf_counter()
    terms = Enumeration(words, size, ENUMERATION * seconds)
    log.info("%d terms, %d candidates", terms.terms, len(terms.candidates))
    judge = Judge(words, given, start + seconds)
    remain: Sequence[Candidate] = terms.candidates
    for tier in tiers:
        remain = judge.judge(remain, tier)
    judge.minimal()
    stopped = f"time budget of {seconds:g} s" if terms.late or judge.late else "complete"
    missed = () if judge.late else judge.misses(remain, tiers[-1])
    return Discovery(tuple(judge.found), missed, terms.terms, len(terms.candidates), judge.derived, stopped)
