"""Wall time and correctness of engines on this computer: interleaved, paired, on fresh inputs each time.

One repetition draws new inputs (arguments declared constant stay), runs every engine on them in a random order, and looks at
what came back. Each is timed right after a run on other inputs, as in a loop: what a call takes that wakes threads and fetches
code, after another engine and its checks, says little about the program. In two repetitions, one chosen at random, both
oracles judge every engine.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.engines import Engine, Run
from benchmarks.guards import CHANGED, Finding, Watch, digest, nothing_shown, shape_of, too_fast, verdict
from benchmarks.machine import peak
from benchmarks.statistics import paired_ratio
from benchmarks.workloads import Size, Workload
from eqsat import device_time
from eqsat.graph import Graph
from eqsat.inputs import draw
from eqsat.validate import Judge

Array = Any
log = logging.getLogger("benchmarks")

BASELINE = "jax.jit"
UNUSABLE = (CHANGED, "wrong type", "unfinished")  # findings after which nothing else can be asked


@dataclass
class Contestant:
    """An engine on one workload, and what was seen of it."""

    name: str
    run: Run
    watch: Watch
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    used: float = 0.0  # of the allowed error
    device_seconds: float | None = None  # of its kernels alone, with a cold L2, where there is a GPU

    def timed(self, flat: Sequence[Array], others: Sequence[Array]) -> Any:
        """The outputs; measured after a run on other inputs, of which no result could be kept."""
        jax.block_until_ready(self.run(others))
        wall, cpu = time.perf_counter(), time.process_time()
        outputs = jax.block_until_ready(self.run(flat))
        self.seconds.append(time.perf_counter() - wall)
        self.cpu_seconds.append(time.process_time() - cpu)
        return outputs

    def repeated(self, flat: Sequence[Array], outputs: Sequence[Array]) -> list[Finding]:
        """Twice on the same inputs: the same bits are required."""
        again = self.run(flat)
        if all(digest(np.asarray(a)) == digest(np.asarray(b)) for a, b in zip(outputs, again, strict=True)):
            return []
        return [Finding("nondeterministic", "two runs on the same inputs give different bits")]

    def add(self, findings: Sequence[Finding]) -> None:
        known = {f.kind for f in self.findings}
        self.findings.extend(f for f in findings if f.kind not in known)


class Inputs:
    """Fresh inputs for every repetition; those that belong to constant arguments are drawn once."""

    def __init__(self, graph: Graph, constants: Sequence[int], seed: int) -> None:
        self.graph, self.seed, self.number = graph, seed, 0
        self.fixed = {leaf for n in constants for leaf in graph.argument_leaves[n]}
        self.first = [jnp.asarray(a) for a in draw(graph.inputs, seed, None)]

    def next(self) -> list[Array]:
        self.number += 1
        return self.again()

    def others(self) -> list[Array]:
        """Inputs of no repetition, which may be overwritten."""
        return [a if n in self.fixed else jnp.copy(a) for n, a in enumerate(self.first)]

    def again(self) -> list[Array]:
        """The inputs of this repetition, drawn anew."""
        variables = [v for n, v in enumerate(self.graph.inputs) if n not in self.fixed]
        fresh = iter(draw(variables, self.seed + self.number, None))
        return [self.first[n] if n in self.fixed else jnp.asarray(next(fresh)) for n in range(len(self.graph.inputs))]


def floor_of(graph: Graph, flops: float) -> float:
    """No engine can be faster: the outputs must be written, and half of the cheapest known arithmetic done."""
    nbytes = sum(np.prod(shape_of(v), dtype=float) * jnp.dtype(v.dtype).itemsize for v in graph.outputs)
    return peak().floor_seconds(float(nbytes), flops / 2)


@dataclass(frozen=True)
class Effort:
    """How long to measure a workload."""

    seconds: float = 3.0
    least: int = 8
    most: int = 200


def measured(
    workload: Workload, size: Size, engines: Sequence[Engine], effort: Effort, seed: int = 0, flops: float = 0.0
) -> dict[str, Any]:
    """Results by engine. `flops`: of the cheapest known plan, for the floor."""
    graph = Graph.from_jax(size.fn, *size.args)
    results: dict[str, Any] = {}
    contestants = []
    for engine in engines:
        try:
            contestants.append(Contestant(engine.name, engine.prepare(workload, size, graph), Watch(graph)))
        except Exception as error:  # a failure of one engine is a result
            results[engine.name] = {"error": f"{type(error).__name__}: {error}"}
    contest = Contest(graph, contestants, Inputs(graph, workload.constants, seed), seed, floor_of(graph, flops))
    contest.hold(effort)
    return {"engines": results | contest.results(), "nothing_shown": contest.vacuous, "floor_seconds": contest.floor}


class Contest:
    """The repetitions."""

    def __init__(self, graph: Graph, contestants: list[Contestant], inputs: Inputs, seed: int, floor: float) -> None:
        self.graph, self.contestants, self.inputs, self.floor = graph, contestants, inputs, floor
        self.rng = np.random.default_rng(seed)
        self.vacuous: list[str] = []
        self.failed: dict[str, str] = {}

    def hold(self, effort: Effort) -> None:
        self.repetition(judged=True)  # compiles
        for c in self.contestants:
            c.seconds, c.cpu_seconds = [], []
        start = time.perf_counter()
        self.repetition()
        once = time.perf_counter() - start
        count = int(np.clip(effort.seconds / max(once, 1e-6), effort.least, effort.most))
        secret = int(self.rng.integers(1, count))
        for n in range(1, count):
            self.repetition(judged=n == secret)
        for c in self.contestants:
            c.add(too_fast(min(c.seconds), self.floor))
        if device_time.present():
            self._on_device(self.inputs.next())

    def _on_device(self, flat: list[Array]) -> None:
        for c in self.contestants:
            try:
                c.device_seconds = device_time.jax_seconds(lambda run=c.run: run(flat))  # type: ignore[misc]
            except Exception as error:  # the other times stand
                log.warning("%s: no time on the device: %s", c.name, error)

    def repetition(self, judged: bool = False) -> None:
        flat = self.inputs.next()
        before = [digest(np.asarray(a)) for a in flat]
        judge = Judge(self.graph, flat) if judged else None
        if judge is not None:
            self.vacuous = nothing_shown(judge)
        for number in self.rng.permutation(len(self.contestants)):
            contestant = self.contestants[number]
            if contestant.name not in self.failed:
                try:
                    if self._turn(contestant, flat, before, judge):
                        flat = self.inputs.again()
                except Exception as error:  # a failure of one engine is a result
                    self.failed[contestant.name] = f"{type(error).__name__}: {error}"
        self.contestants = [c for c in self.contestants if c.name not in self.failed]

    def _turn(self, contestant: Contestant, flat: list[Array], before: list[str], judge: Judge | None) -> bool:
        """True if the inputs are no longer what they were."""
        outputs = contestant.timed(flat, self.inputs.others())
        found = contestant.watch.observe(flat, before, outputs)
        contestant.add(found)
        if any(f.kind in UNUSABLE for f in found):
            return any(f.kind == CHANGED for f in found)
        if judge is not None:
            wrong, used = verdict(judge, outputs, contestant.watch.previous)
            contestant.add(wrong)
            contestant.add(contestant.repeated(flat, outputs))
            contestant.used = max(contestant.used, used)
        contestant.watch.remember(outputs)
        return False

    def results(self) -> dict[str, Any]:
        baseline = next((c.seconds for c in self.contestants if c.name == BASELINE), None)
        found: dict[str, Any] = {name: {"error": text} for name, text in self.failed.items()}
        for c in self.contestants:
            ratio = paired_ratio(baseline, c.seconds).as_dict() if baseline and c.name != BASELINE else None
            found[c.name] = {
                "seconds": float(np.median(c.seconds)),
                "cpu_seconds": float(np.median(c.cpu_seconds)),
                "repetitions": len(c.seconds),
                "ratio": ratio,
                "findings": [str(f) for f in c.findings],
                "allowed_error_used": c.used,
                "device_seconds": c.device_seconds,
            }
        return found
