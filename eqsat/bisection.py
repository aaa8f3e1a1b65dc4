"""Bisection: the first stage, or the first rule, that takes a program's output out of tolerance.

The stages, in order: the original itself (against a reference of the user's), reading into index notation, fusion without
any rule, the rules one after the other, compiling by XLA, lowering to tiles, and each backend's text in its interpreter. Rules
are bisected over prefixes of their list, so that the result is certain in one sense: with the rules before it all is well, with
it all is not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from eqsat.check import check_rule
from eqsat.compare import ValidationError, position, same_class
from eqsat.engines import ENGINES, meaning
from eqsat.graph import Graph
from eqsat.inputs import draw
from eqsat.notation import Kernel, Tensor
from eqsat.oracle import evaluate_graph
from eqsat.program import PlannedKernel
from eqsat.read import Call, read
from eqsat.rule import Rule
from eqsat.running import backend
from eqsat.validate import Judge, output_name
from eqsat.validate_kernels import MAX_POINTS, points

if TYPE_CHECKING:
    from eqsat.program import Program

log = logging.getLogger("eqsat")
Array = Any


@dataclass(frozen=True)
class Bisection:
    """Where a program goes wrong. `stage` is "" if it does not, else "original", "reading", "fusion", "rule", "compiling",
    "tiles", "triton" or "pallas"; `culprit` names the rule or kernel."""

    program: str
    stage: str
    culprit: str
    complaint: str
    tried: tuple[tuple[str, str], ...]  # what was run, and what was wrong with it ("" if nothing)
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.stage:
            first = f"{self.program}: within tolerance in every stage"
        elif self.culprit:
            first = f"{self.program}: {self.stage} {self.culprit} is the first to take the output out of tolerance"
        else:
            first = f"{self.program}: {self.stage} is the first stage that takes the output out of tolerance"
        lines = [first, *([f"  {self.complaint}"] if self.complaint else [])]
        lines += [f"  {'wrong' if wrong else 'right'}  {what}" for what, wrong in self.tried]
        return "\n".join([*lines, *(f"  {line}" for note in self.notes for line in note.split("\n"))])


class Tolerance:
    """Says what is wrong with flat outputs; "" if nothing."""

    def __init__(self, program: Program, reference: Any, flat: list[Array], tolerance: float | None) -> None:
        self.graph, self.tolerance = program.graph, tolerance
        self._judge: Judge | None = None
        if reference is None:
            self._judge = Judge(program.graph, flat)
        elif isinstance(reference, Graph) or callable(reference):
            args, kwargs = jax.tree_util.tree_unflatten(program.graph.in_tree, flat)
            graph = reference if isinstance(reference, Graph) else Graph.from_jax(reference, *args, **kwargs)
            self._judge = Judge(graph, flat)
        else:
            if tolerance is None:
                raise ValueError("bisect: a tolerance required beside a reference of arrays, got none; such as tolerance=1e-3")
        plain = self._judge.plain if self._judge else jax.tree_util.tree_leaves(reference)
        self.expected = [np.asarray(x) for x in plain]
        if len(self.expected) != len(program.graph.outputs):
            raise ValueError(
                f"bisect: a reference with the {len(program.graph.outputs)} outputs of {program.name} required, "
                f"got {len(self.expected)}"
            )

    def complaint(self, outputs: Sequence[Array]) -> str:
        """What is wrong with the outputs; "" if nothing."""
        for n, output in enumerate(outputs):
            name, got = output_name(self.graph, n), np.asarray(output)
            if self.tolerance is not None:
                if wrong := _beyond(name, got, self.expected[n], self.tolerance):
                    return wrong
                continue
            assert self._judge is not None
            try:
                self._judge.check(n, name, got)
            except ValidationError as error:
                return str(error)
        return ""


def _beyond(name: str, got: np.ndarray, expected: np.ndarray, tolerance: float) -> str:
    """What is further from the reference than `tolerance` times its largest value."""
    if got.shape != expected.shape:
        return f"{name}: shape {expected.shape} required, got {got.shape}"
    a, b = got.astype(np.float64), expected.astype(np.float64)
    with np.errstate(all="ignore"):
        allowed = tolerance * np.abs(b[np.isfinite(b)]).max(initial=0)
        wrong = np.flatnonzero(~(same_class(a, b) & (~np.isfinite(b) | (np.abs(a - b) <= allowed))).reshape(-1))
    if not wrong.size:
        return ""
    at = int(wrong[0])
    return f"{name}{position(at, a.shape)}: {b.flat[at]:.9g} required within {allowed:.3g}, got {a.flat[at]:.9g}"


@dataclass
class _Search:
    program: Program
    flat: list[Array]
    tolerance: Tolerance
    tried: list[tuple[str, str]] = field(default_factory=list)

    def wrong(self, what: str, outputs: Callable[[], Sequence[Array]]) -> str:
        """Run and judge; a failure to run is one too."""
        log.info("bisect %s: %s", self.program.name, what)
        try:
            complaint = self.tolerance.complaint(outputs())
        except Exception as error:  # whatever stops this stage is what is looked for
            complaint = f"{type(error).__name__}: {error}".split("\n")[0]
        self.tried.append((what, complaint))
        return complaint

    def with_rules(self, rules: Sequence[Rule], what: str) -> str:
        """What is wrong with the meaning of the program that these rules find."""
        request = self.program.request
        assert request is not None
        return self.wrong(what, lambda: request.optimize(self.program.graph, rules).inline(*self.flat, launch=meaning))

    def found(self, stage: str, culprit: str, complaint: str, *notes: str) -> Bisection:
        return Bisection(self.program.name, stage, culprit, complaint, tuple(self.tried), notes)


def bisect(
    program: Program,
    reference: Any = None,
    args: Sequence[Array] | None = None,
    *,
    tolerance: float | None = None,
    seed: int = 0,
) -> Bisection:
    """Find the first stage or rule that takes an output out of tolerance.

    reference: a JAX function of the same arguments, a Graph, the right outputs as a pytree, or None for the original program run
    op by op. args: flat arguments (default: random ones from `seed`). tolerance: the largest error allowed, as a share of an
    output's largest value; None: a small factor of the reference's own distance from float64, as in `validate`.

    Raises ValueError for a program that no search made, and for arrays as reference without a tolerance.
    """
    request = program.request
    if request is None:
        raise ValueError(f"bisect {program.name}: a program that eqsat.optimize made required, got one without its search")
    flat = [jnp.asarray(a) for a in (draw(program.graph.inputs, seed, None) if args is None else args)]
    search = _Search(program, flat, Tolerance(program, reference, flat, tolerance))
    if reference is not None:
        if wrong := search.wrong("the original, op by op", lambda: evaluate_graph(program.graph, flat)):
            return search.found("original", "", wrong)
    if not search.wrong("the program's kernels, by their meaning", lambda: program.inline(*flat, launch=meaning)):
        return _bisect_backends(search)
    if wrong := search.wrong("the original, as it was read", lambda: _read_outputs(program, flat)):
        return search.found("reading", "", wrong)
    if wrong := search.with_rules((), "fusion without rules"):
        return search.found("fusion", "", wrong)
    return _bisect_rules(search, request.rules)


def _read_outputs(program: Program, flat: Sequence[Array]) -> list[Array]:
    """The outputs of the reading: one kernel per computing equation."""
    reading = read(program.graph, program.numerics == "exact")
    values: dict[Any, Array] = {**dict(zip(reading.inputs, flat, strict=True)), **reading.constants}
    for step in reading.steps:
        if isinstance(step, Call):
            results = step.run([values[x] if isinstance(x, Tensor) else x for x in step.inputs])
            values.update(zip(step.outputs, results, strict=True))
        else:
            values[step] = backend("jax").run_kernel(Kernel(step.name, (step,)), values)[0]
    return [values[t] for t in reading.outputs]


def _bisect_rules(search: _Search, rules: Sequence[Rule]) -> Bisection:
    """The first rule that makes the difference: right with those before it, wrong with it."""
    right, wrong_at, complaint = 0, len(rules), search.with_rules(rules, f"all {len(rules)} rules")
    if not complaint:
        return search.found("search", "", "the search took other kernels this time, and these are right", "give it more time")
    while wrong_at - right > 1:
        middle = (right + wrong_at) // 2
        wrong = search.with_rules(rules[:middle], f"the first {middle} rules, up to {rules[middle - 1].name}")
        right, wrong_at, complaint = (right, middle, wrong) if wrong else (middle, wrong_at, complaint)
    rule = rules[wrong_at - 1]
    rest = [r for r in rules if r is not rule]
    alone = not search.with_rules(rest, f"all rules but {rule.name}")
    notes = [f"rule {rule.name} of pack {rule.pack} ({rule.source}): {rule.law}"]
    notes += ["leaving it out is enough"] if alone else ["leaving it out is not enough: another rule is wrong, too"]
    verdict = check_rule(rule)
    notes += [str(verdict) if not verdict.passed else f"{verdict}: it may only lead to a wrong one; try `eqsat rules check`"]
    return search.found("rule", rule.name, complaint, *notes)


def _bisect_backends(search: _Search) -> Bisection:
    """The first way of running the right kernels that gives wrong results."""
    program, flat = search.program, search.flat
    if wrong := search.wrong("compiled, as it runs here", lambda: program.run(*flat)):
        return search.found("compiling", "", wrong)
    large = [p.name for p in program.kernels if points(p.kernel) > MAX_POINTS]
    if large:
        note = f"too large for the interpreters: {', '.join(large)}; reduce the shapes to look further"
        return search.found("", "", "", note)
    for name, engine in list(ENGINES.items())[1:]:
        if wrong := search.wrong(f"kernel by kernel, {name}", lambda engine=engine: program.inline(*flat, launch=engine)):  # type: ignore[misc]
            return search.found(name, _first_wrong_kernel(program, engine, flat), wrong)
    return search.found("", "", "")


def _first_wrong_kernel(program: Program, engine: Any, flat: Sequence[Array]) -> str:
    """The kernel whose results differ most from its meaning, on the values that the right program has there."""
    worst: list[tuple[float, str]] = []

    def both(planned: PlannedKernel, arrays: list[Array]) -> Sequence[Array]:
        right = meaning(planned, arrays)
        try:
            got = engine(planned, arrays)
            worst.append((max(map(_distance, got, right), default=0.0), planned.name))
        except Exception:
            worst.append((float("inf"), planned.name))
        return right

    program.inline(*flat, launch=both)
    return max(worst, key=lambda entry: entry[0], default=(0.0, ""))[1]


def _distance(got: Array, right: Array) -> float:
    a, b = np.asarray(got, np.float64), np.asarray(right, np.float64)
    with np.errstate(all="ignore"):
        if a.shape != b.shape or not same_class(a, b).all():
            return float("inf")
        error = np.abs(np.where(np.isfinite(b), a - b, 0)).max(initial=0)
        return float(error / max(np.abs(b[np.isfinite(b)]).max(initial=0), 1e-300))
