"""Random programs, and the same programs written otherwise: true rules, in either direction, at random places."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from eqsat.arrays import NUMPY
from eqsat.check import directions
from eqsat.check_sample import Instance, Value
from eqsat.devices import device
from eqsat.egraph import Budget, Engine
from eqsat.evaluate import Evaluator
from eqsat.extract import searched
from eqsat.index import Axis, Index
from eqsat.kernels import Pool
from eqsat.notation import Stored, Tensor, Term, const, const_value, load, output_axes, rebuild, reduce, scalar, substitute
from eqsat.pattern import Pattern
from eqsat.regions import Region, kept_steps, loads_in, local
from eqsat.rule import Equation, Rule
from eqsat.scalars import DTYPES

EXTENTS = (96, 256, 640)
STEPS = 6  # rewritings
LARGEST = 40  # subterms of a rewritten program

# --- programs ---------------------------------------------------------------------------------------------------------


@dataclass
class Writer:
    """Draws terms over named axes; loads are of matrices, vectors and numbers."""

    rng: random.Random
    extents: tuple[int, ...]
    tensors: list[Tensor] = field(default_factory=list)
    bound: int = 0

    def term(self, axes: tuple[Axis, ...], depth: int) -> Term:
        if depth == 0 or self.rng.random() < 0.1:
            return self.leaf(axes)
        kind = self.rng.choice(["contraction", "contraction", "sum", "max", "add", "sub", "mul", "scale", "unary", "divide"])
        if kind == "contraction":
            k = self.axis()
            left, right = self.split(axes)
            return reduce("sum", k, scalar("mul", self.term((*left, k), depth - 1), self.term((*right, k), depth - 1)))
        if kind in ("sum", "max"):
            k = self.axis()
            return reduce(kind, k, self.term((*axes, k), depth - 1)) if len(axes) < 2 else self.term(axes, depth - 1)
        if kind == "scale":
            return scalar("mul", self.term(axes, depth - 1), const(self.rng.choice([0.5, 2.0, 3.0]), "float32"))
        if kind == "unary":
            return scalar(self.rng.choice(["exp", "tanh", "neg"]), self.term(axes, depth - 1))
        other = tuple(a for a in axes if self.rng.random() < 0.7)
        if kind == "divide":
            return scalar("div", self.term(axes, depth - 1), self.leaf(other))
        return scalar(kind, self.term(axes, depth - 1), self.term(other, depth - 1))

    def split(self, axes: tuple[Axis, ...]) -> tuple[list[Axis], list[Axis]]:
        left = [a for a in axes if self.rng.random() < 0.5]
        return left, [a for a in axes if a not in left]

    def axis(self) -> Axis:
        self.bound += 1
        return Axis(f"r{self.bound}", self.rng.choice(self.extents))

    def leaf(self, axes: tuple[Axis, ...]) -> Term:
        shape = tuple(a.extent for a in axes)
        same = [t for t in self.tensors if t.shape == shape]
        if same and self.rng.random() < 0.3:
            tensor = self.rng.choice(same)
        else:
            tensor = Tensor(f"t{len(self.tensors)}", shape, "float32")
            self.tensors.append(tensor)
        return load(tensor, [Index.of(a) for a in axes])


def program(seed: int, extents: tuple[int, ...] = EXTENTS) -> Term:
    """A random term over one or two axes, which depends on nothing but the seed and the extents."""
    rng = random.Random(seed)
    axes = tuple(Axis(f"x{d}", rng.choice(extents)) for d in range(rng.choice([1, 2, 2])))
    while True:
        term = Writer(rng, extents).term(axes, 3)
        if term.axes == frozenset(axes) and any(t.head == "reduce" for t in term.walk()):
            return term


def region(term: Term) -> Region:
    """The program as it is read: every reduction is a tensor."""
    steps: list[Stored] = []
    done: dict[Term, Term] = {}
    for t in term.walk():
        made = rebuild(t, tuple(done[a] for a in t.args))
        if t.head == "reduce" or t is term:
            free = sorted(t.axes)
            axes = output_axes(a.extent for a in free)
            own = substitute(made, {a: Index.of(x) for a, x in zip(free, axes, strict=True)})
            steps.append(Stored(f"s{len(steps)}", tuple(a.extent for a in axes), t.dtype, own, axes))
            made = load(steps[-1], [Index.of(a) for a in free])
        done[t] = made
    kept, renamed = kept_steps(steps, [steps[-1]])
    inputs = dict.fromkeys(x for s in kept for x in loads_in(s.term) if not isinstance(x, Stored))
    return local(Region(tuple(inputs), tuple(kept), (renamed[steps[-1]],)))


def price(engine: Engine, term: Term) -> float:
    """Predicted seconds of the best kernels found for a program."""
    own = region(term)
    pool = Pool(engine.saturate(own, Budget(seconds=20.0)), own, device("h100"))
    return searched(pool)[1].price


def values(*terms: Term) -> list[np.ndarray]:
    """The terms over the same random operands, in float64."""
    rng = np.random.default_rng(0)
    loads = [t for term in terms for t in term.walk() if t.head == "load"]
    arrays = {t.tensor: rng.uniform(0.1, 0.5, t.tensor.shape) for t in loads}
    run = Evaluator(arrays, NUMPY, widen=True)
    return [run.broadcast(run.value(t), tuple(sorted(t.axes))) for t in terms]


# --- written otherwise ------------------------------------------------------------------------------------------------


def both_ways(rules: Iterable[Rule]) -> list[Rule]:
    """Each rule in every direction in which it can be read: also its reverse, where the right side has all of its variables."""
    found: list[Rule] = []
    for r in rules:
        found.extend(directions(r))
        e = r.equation
        if not e.both_ways and e.right.head not in ("variable", "const") and e.right.variables() >= e.left.variables():
            found.append(replace(r, name=f"{r.name} reversed", equation=Equation(e.right, e.left, e.guards, False)))
    return found


def match(pattern: Pattern, term: Term, values: dict[str, Value]) -> bool:
    """Bind the variables of a left side to parts of a term; operations that no program here has match nothing."""
    match pattern.head:
        case "variable":
            fits = not pattern.sort.kinds or DTYPES[term.dtype].kind in pattern.sort.kinds
            return fits and _bind(values, pattern.data, term)
        case "const":
            return term.head == "const" and _number(pattern.args[0], float(const_value(term)), values)
        case "reduce":
            axis, body = pattern.args
            same = term.head == "reduce" and term.data[0] == pattern.data
            return same and _bind(values, axis.data, term.data[1]) and match(body, term.args[0], values)
        case "cast" | "online":
            return False
    return term.head == pattern.head and all(match(p, t, values) for p, t in zip(pattern.args, term.args, strict=True))


def _number(pattern: Pattern, value: float, values: dict[str, Value]) -> bool:
    if pattern.head == "variable":
        return _bind(values, pattern.data, value)
    return pattern.head == "number" and pattern.data == value


def _bind(values: dict[str, Value], name: str, value: Value) -> bool:
    return values.setdefault(name, value) == value


def rewritings(term: Term, rules: list[Rule]) -> Iterator[tuple[str, Term]]:
    """Names of rules that apply somewhere in a term, and the whole term then."""
    for part in term.walk():
        for r in rules:
            bound: dict[str, Value] = {}
            if part.args and match(r.equation.left, part, bound):
                instance = Instance(r, bound, {}, "")
                if all(g.holds(instance) for g in r.equation.guards) and instance.right is not part:
                    yield r.name, _replaced(term, part, instance.right)


def _replaced(term: Term, part: Term, new: Term) -> Term:
    done: dict[Term, Term] = {}
    for t in term.walk():
        done[t] = new if t is part else rebuild(t, tuple(done[a] for a in t.args))
    return done[term]


def otherwise(term: Term, rules: list[Rule], seed: int) -> tuple[Term, list[str]]:
    """The program after a few rewritings, each by a rule drawn at random, and the rules' names."""
    rng, used = random.Random(seed), []
    for _ in range(STEPS):
        found: dict[str, list[Term]] = {}
        for name, new in rewritings(term, rules):
            if new.axes == term.axes and sum(1 for _ in new.walk()) <= LARGEST:
                found.setdefault(name, []).append(new)
        if not found:  # a bare reduction of a load
            break
        used.append(rng.choice(sorted(found)))
        term = rng.choice(found[used[-1]])
    return term, used
