"""Reduction: the smallest program that still fails in the same way, by delta debugging.

Equations are left out first (what they made becomes an input, what nothing uses any more becomes an output), then bypassed by an
operand of the same type; then outputs, extents and rules are cut down. Each step keeps the kind of failure: a wrong result,
or an exception of one type.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from eqsat import engines
from eqsat.compare import ValidationError
from eqsat.graph import Equation, Graph, Literal, Variable, pruned
from eqsat.inputs import draw
from eqsat.optimizer import Request
from eqsat.program import PlannedKernel, Program
from eqsat.rule import Rule
from eqsat.schedule import Schedule, schedules
from eqsat.validate import Judge, output_name
from eqsat.validate_kernels import MAX_POINTS, points
from eqsat.work import Work

log = logging.getLogger("eqsat")
T = TypeVar("T")

COMPILED = "compiled"  # as the program runs on this machine
ENGINES = ("meaning", COMPILED, *list(engines.ENGINES)[1:])
SMALL = (1, 2, 3, 4, 8, 16)  # extents tried in place of larger ones, smallest first
# Parameters of primitives that hold extents.
EXTENTS = ("shape", "new_sizes", "limit_indices", "slice_sizes", "sizes")


@dataclass(frozen=True)
class Failure:
    """What goes wrong: `kind` is "wrong" or the name of an exception's type."""

    kind: str
    text: str


@dataclass(frozen=True)
class Reduced:
    """The smallest program found that fails as the original does, the rules that it takes, and how it runs when it fails."""

    graph: Graph
    request: Request
    engine: str
    failure: Failure
    seed: int
    schedule: int | None  # the kernel's, by its number in `eqsat.schedule.schedules`; None: the one that costs least
    tried: int  # programs
    stopped: str  # "" or the limit that ended the search

    def to_dict(self) -> dict[str, Any]:
        """Everything but the graph itself, in types that JSON has."""
        operations = [e.name for e in self.graph.equations]
        facts = {
            "kind": self.failure.kind,
            "complaint": self.failure.text,
            "engine": self.engine,
            "seed": self.seed,
            "schedule": self.schedule,
        }
        inputs, rules = [v.type for v in self.graph.inputs], [r.name for r in self.request.rules]
        return {**facts, "inputs": inputs, "operations": operations, "rules": rules, "tried": self.tried, "stopped": self.stopped}

    def __str__(self) -> str:
        rules = ", ".join(r.name for r in self.request.rules) or "none"
        run = f"run by: {self.engine}{'' if self.schedule is None else f', schedule {self.schedule}'}; rules: {rules}"
        lines = [f"{self.failure.kind}: {self.failure.text}", run, str(self.graph)]
        return "\n".join([*lines, f"{self.tried} programs tried{f'; stopped at {self.stopped}' if self.stopped else ''}"])


def check(program: Program, engine: str = COMPILED, seed: int = 0, schedule: int | None = None) -> None:
    """Run a program on random inputs, its kernels by the schedule of a number if given.

    Raises ValidationError if an output is wrong by both oracles (see `eqsat.validate`).
    """
    flat = [jnp.asarray(a) for a in draw(program.graph.inputs, seed, None)]

    def launch(planned: PlannedKernel, arrays: list[Any]) -> Sequence[Any]:
        if schedule is not None:
            planned = replace(planned, schedule=schedules(Work(planned.kernel))[schedule])
        return engines.engine(engine)(planned, arrays)

    got = program.run(*flat) if engine == COMPILED else program.inline(*flat, launch=launch)
    judge = Judge(program.graph, flat)
    for n, result in enumerate(got):
        judge.check(n, output_name(program.graph, n), np.asarray(result))


def failure(graph: Graph, request: Request, engine: str, seed: int = 0, schedule: int | None = None) -> Failure | None:
    """What goes wrong when a graph is optimised and run; None if nothing does."""
    try:
        check(request.optimize(graph), engine, seed, schedule)
    except ValidationError as error:
        return Failure("wrong", str(error).split("\n")[0])
    except Exception as error:
        return Failure(type(error).__name__, str(error).split("\n")[0])
    return None


def reduce(graph: Graph, request: Request, engine: str = "", *, seed: int = 0, seconds: float = 300.0) -> Reduced:
    """Shrink a graph that fails to the smallest that fails in the same way, within about `seconds`.

    engine: how its kernels run: "meaning" (their terms, op by op), "compiled" (as on this machine), "tiles", "triton" or "pallas"
    (interpreters); "": the first of these that fails. No argument counts as constant. Raises ValueError if nothing fails.
    """
    request = replace(request, constants=())
    if engine and engine not in ENGINES:
        raise ValueError(f"engine {engine!r}: one of {', '.join(ENGINES)} required")
    found, engine = _first_failure(graph, request, engine, seed)
    return _Reduction(request, engine, found, seed, time.perf_counter() + seconds, seconds).run(graph)


def _first_failure(graph: Graph, request: Request, engine: str, seed: int) -> tuple[Failure, str]:
    for name in [engine] if engine else ENGINES:
        if not engine and name not in ENGINES[:2]:
            large = [k.name for k in request.optimize(graph).kernels if points(k.kernel) > MAX_POINTS]
            if large:
                what = f"reduce {graph.name}: kernels small enough for the interpreters required"
                raise ValueError(f"{what}, got {', '.join(large)}; give smaller shapes")
        log.info("reduce %s: does it fail, run by %s?", graph.name, name)
        found = failure(graph, request, name, seed)
        if found is not None:
            return found, name
    raise ValueError(
        f"reduce {graph.name}: a program that fails required, but it is right, run by {engine or ', '.join(ENGINES)}"
    )


class _Reduction:
    def __init__(self, request: Request, engine: str, sought: Failure, seed: int, deadline: float, seconds: float) -> None:
        self.request, self.engine, self.sought, self.seed = request, engine, sought, seed
        self.deadline, self.seconds = deadline, seconds
        self.tried = 0

    @property
    def late(self) -> bool:
        return time.perf_counter() > self.deadline

    def run(self, graph: Graph) -> Reduced:
        whole = graph
        graph = self._first(graph, [flat(whole, whole.equations, as_inputs=True)])
        size: tuple[int, ...] = ()
        while size != (size := _size(graph)) and not self.late:
            graph = self._fewer_equations(graph)
            graph = self._bypassed(graph)
            graph = self._fewer_outputs(graph)
            graph = self._smaller(graph)
        rules = self._fewer_rules(graph)
        self.request = replace(self.request, rules=rules)
        schedule = self._simpler_schedule(graph)
        last = failure(graph, self.request, self.engine, self.seed, schedule) or self.sought
        stopped = f"the {self.seconds:g} s given" if self.late else ""
        return Reduced(graph, self.request, self.engine, last, self.seed, schedule, self.tried, stopped)

    def fails(self, graph: Graph | None, rules: Sequence[Rule] | None = None, schedule: int | None = None) -> bool:
        """True if a graph fails as the first one did; never after the deadline."""
        if graph is None or self.late:
            return False
        self.tried += 1
        request = self.request if rules is None else replace(self.request, rules=tuple(rules))
        found = failure(graph, request, self.engine, self.seed, schedule)
        kept = found is not None and found.kind == self.sought.kind
        log.info("reduce: %d equations, %s", len(graph.equations), "still fails" if kept else "does not fail")
        return kept

    def _first(self, graph: Graph, candidates: Iterable[Graph | None]) -> Graph:
        """The first candidate that fails, or the graph."""
        return next((c for c in candidates if c is not None and self.fails(c)), graph)

    def _fewer_equations(self, graph: Graph) -> Graph:
        kept = shortest(graph.equations, lambda rest: self.fails(flat(graph, rest)))
        return flat(graph, kept) or graph

    def _bypassed(self, graph: Graph) -> Graph:
        """Without equations in whose place an operand of their type does."""
        n = 0
        while n < len(graph.equations):
            smaller = self._first(graph, _bypasses(graph, graph.equations[n]))
            n, graph = (n + 1, graph) if smaller is graph else (n, smaller)
        return graph

    def _fewer_outputs(self, graph: Graph) -> Graph:
        outputs = shortest(graph.outputs, lambda rest: bool(rest) and self.fails(_with(graph, outputs=rest)))
        return _with(graph, outputs=outputs)

    def _smaller(self, graph: Graph) -> Graph:
        """With smaller extents, each everywhere at once."""
        for extent in sorted({n for v in graph.inputs for n in v.shape}, reverse=True):
            graph = self._first(graph, (resized(graph, extent, n) for n in SMALL if n < extent))
        return graph

    def _fewer_rules(self, graph: Graph) -> tuple[Rule, ...]:
        rules = self.request.rules
        if self.fails(graph, ()):
            return ()
        return tuple(shortest(rules, lambda rest: self.fails(graph, rest)))

    def _simpler_schedule(self, graph: Graph) -> int | None:
        """The schedule of the smallest tiles, then fewest warps, with which the only kernel fails; None: it is that already."""
        if self.engine not in ENGINES[2:] or self.late:
            return None
        try:
            kernels = self.request.optimize(graph).kernels
        except Exception:  # this is the failure
            return None
        if len(kernels) != 1 or kernels[0].schedule is None:
            return None
        choices = schedules(Work(kernels[0].kernel))
        ordered = sorted(range(len(choices)), key=lambda n: _schedule_size(choices[n]))
        largest = _schedule_size(kernels[0].schedule)
        simpler = (n for n in ordered if _schedule_size(choices[n]) < largest)
        return next((n for n in simpler if self.fails(graph, schedule=n)), None)


def _schedule_size(schedule: Schedule) -> tuple[int, ...]:
    return prod(t.tile for t in schedule.axes), schedule.num_warps, schedule.num_stages


def shortest(items: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> Sequence[T]:
    """A sublist that fails and of which no single item can be left out (Zeller and Hildebrandt's ddmin, complements only)."""
    size = max(1, len(items) // 2)
    while items:
        for start in range(0, len(items), size):
            rest = [*items[:start], *items[start + size :]]
            if fails(rest):
                items, size = rest, min(size, max(1, len(rest) // 2))
                break
        else:
            if size == 1:
                break
            size = max(1, size // 2)
    return items


# --- graphs cut down ----------------------------------------------------------------------------------------------


def flat(graph: Graph, equations: Sequence[Equation], as_inputs: bool = False) -> Graph | None:
    """The program of some of a graph's equations; None if there are none.

    What these need and do not make is an input (a constant as well, with `as_inputs`); what they make and do not use, or what the
    graph returns, is an output.
    """
    made = {v for e in equations for v in e.outputs}
    used = dict.fromkeys(x for e in equations for x in e.inputs if isinstance(x, Variable))
    outputs = [v for e in equations for v in e.outputs if v not in used or v in graph.outputs]
    if not outputs:
        return None
    constants = {v: c for v, c in graph.constants.items() if v in used and not as_inputs}
    inputs = [v for v in used if v not in made and v not in constants]
    return _flat_graph(graph, inputs, constants, equations, outputs)


def _flat_graph(graph: Graph, inputs: Any, constants: Any, equations: Any, outputs: Any) -> Graph:
    in_tree = jax.tree_util.tree_structure(((0,) * len(inputs), {}))
    out_tree = jax.tree_util.tree_structure([0] * len(outputs))
    leaves = tuple((n,) for n in range(len(inputs)))
    hints = {v: graph.name_of[v] for v in (*inputs, *(v for e in equations for v in e.outputs)) if v in graph.name_of}
    return pruned(
        Graph(graph.name, tuple(inputs), constants, tuple(equations), tuple(outputs), in_tree, out_tree, leaves, {}, hints)
    )


def _with(graph: Graph, *, outputs: Sequence[Variable | Literal]) -> Graph:
    """With fewer outputs, and without the inputs that only others needed."""
    smaller = _flat_graph(graph, graph.inputs, graph.constants, graph.equations, outputs)
    return flat(smaller, smaller.equations) or smaller if set(outputs) <= _made(smaller) else smaller


def _made(graph: Graph) -> set[Any]:
    return {v for e in graph.equations for v in e.outputs}


def _bypasses(graph: Graph, equation: Equation) -> Iterator[Graph | None]:
    """The graph with an operand in place of the equation's result."""
    if len(equation.outputs) > 1:
        return
    (result,) = equation.outputs
    for operand in equation.inputs:
        if isinstance(operand, Variable) and operand.type == result.type and len(graph.equations) > 1:
            rest = [
                replace(e, inputs=tuple(operand if x is result else x for x in e.inputs))
                for e in graph.equations
                if e is not equation
            ]
            yield flat(graph, rest)


def resized(graph: Graph, old: int, new: int) -> Graph | None:
    """The graph with `new` in place of the extent `old` everywhere; None where that is no program."""
    known: dict[Any, Any] = {}

    def scaled(shape: Iterable[int]) -> tuple[int, ...]:
        return tuple(new if n == old else n for n in shape)

    for v in graph.inputs:
        known[v] = Variable(jax.ShapeDtypeStruct(scaled(v.shape), v.aval.dtype))
    constants = {}
    for v, c in graph.constants.items():
        shape = scaled(v.shape)
        known[v] = Variable(jax.ShapeDtypeStruct(shape, v.aval.dtype))
        constants[known[v]] = np.asarray(c)[tuple(map(slice, shape))]
    equations = []
    for e in graph.equations:
        if e.bodies:
            return None
        params = {k: scaled(p) if k in EXTENTS and isinstance(p, tuple) else p for k, p in e.params.items()}
        inputs = tuple(known.get(x, x) for x in e.inputs)
        changed = replace(e, params=params, inputs=inputs)
        try:
            shapes = jax.eval_shape(changed.bind, *(x.value if isinstance(x, Literal) else x.aval for x in inputs))
        except Exception:
            return None
        outputs = tuple(Variable(jax.ShapeDtypeStruct(s.shape, s.dtype)) for s in shapes)
        known.update(zip(e.outputs, outputs, strict=True))
        equations.append(replace(changed, outputs=outputs))
    results = [known.get(x, x) for x in graph.outputs]
    smaller = _flat_graph(graph, [known[v] for v in graph.inputs], constants, equations, results)
    try:  # not every primitive looks at its operands' extents before it runs
        smaller.evaluate(*draw(smaller.inputs, 0, None))
    except Exception:
        return None
    return replace(smaller, hints={known[v]: name for v, name in graph.name_of.items() if v in known})


def _size(graph: Graph) -> tuple[int, int, int]:
    return len(graph.equations), len(graph.outputs), sum(int(np.prod(v.shape)) for v in graph.inputs)
