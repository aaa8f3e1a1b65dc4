"""A run spread over machines with Ray: one task for each workload, records written here as they come back.

Ray joins a cluster where RAY_ADDRESS or `ray start` says there is one, else it uses this machine. A task that measures times gets
a whole machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import description
from benchmarks.runner import Options, Record, Run
from benchmarks.workloads import Workload, workloads

ROOT = Path(__file__).resolve().parents[1]
LEFT = [".git", ".venv*", ".benchmarks", "tests", "docs", "demo-out", "**/__pycache__"]  # not sent to the machines
RETRIES = 2  # of a task whose machine goes away


def records(job: Run, chosen: Sequence[Workload], folders: Sequence[str] | None) -> Iterator[tuple[Workload, Record]]:
    """The records of a run, in the order in which they are done. Raises ImportError where Ray is not installed."""
    try:
        import ray
    except ImportError as error:
        raise ImportError("--ray: the package ray required, got none; pip install 'eqsat[ray]'") from error
    if not ray.is_initialized():
        ray.init(runtime_env={"working_dir": str(ROOT), "excludes": LEFT}, log_to_driver=False, logging_level="error")
    task = ray.remote(num_cpus=_cores(ray.nodes()) if job.options.measure else 1, max_retries=RETRIES)(record)
    yield from ((w, job.done[w.name]) for w in chosen if w.name in job.done)
    waiting = {task.remote(job.options, w.name, folders): w for w in chosen if w.name not in job.done}
    while waiting:
        (done,), _ = ray.wait(list(waiting), num_returns=1)
        workload = waiting.pop(done)
        yield workload, job.keep(_result(ray, done, workload))


def _result(ray: Any, done: Any, workload: Workload) -> Record:
    try:
        return ray.get(done)
    except Exception as error:  # the machine went away, and those tried instead
        text = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        return {"name": workload.name, "family": workload.family, "errors": {"ray": text}}


def _cores(nodes: Sequence[dict[str, Any]]) -> int:
    """Of the smallest machine: so many exclude a second task on any of them that has fewer than twice as many."""
    return max(1, min((int(n["Resources"].get("CPU", 1)) for n in nodes if n.get("Alive", True)), default=1))


def record(options: Options, name: str, folders: Sequence[str] | None) -> Record:
    """One workload, on whichever machine this runs; the record says which."""
    from contextlib import ExitStack

    from benchmarks import engines
    from benchmarks.peers import asked

    (workload,) = (w for w in workloads() if w.name == name)
    with ExitStack() as stack:
        peers = [] if folders is None else [stack.enter_context(p) for p in asked(options.target, folders)]
        run = Run(options, engines.chosen(options.engines), None, peers)
        return run.record(workload) | {"machine": description()}
