"""The run: every workload predicted, measured, and asked of other compilers; one JSON line each, as soon as it is known."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.engines import Engine
from benchmarks.machine import description, usual
from benchmarks.measure import BASELINE, Effort, measured
from benchmarks.peers.process import Peer
from benchmarks.predict import planned, shortcomings
from benchmarks.workloads import Workload

Record = dict[str, Any]
CALL_SECONDS = 20e-6  # of a kernel on a CPU: starting the threads, and its share of the call


@dataclass(frozen=True)
class Options:
    """What is kept with the results: runs with the same options can be resumed and compared."""

    target: str = "h100"
    numerics: str = "reassociate"
    seed: int = 0
    time_limit: float = 300.0
    engines: tuple[str, ...] = ()
    effort: Effort = Effort()
    measure: bool = True
    peers: tuple[str, ...] = ()

    def as_dict(self) -> Record:
        return json.loads(json.dumps(asdict(self)))


class Run:
    """Runs workloads and appends their records to a file, if there is one; what it has already is not run again."""

    def __init__(self, options: Options, engines: Sequence[Engine], path: Path | None, peers: Sequence[Peer] = ()) -> None:
        self.options, self.engines, self.path, self.peers = options, engines, path, peers
        self.header = {"machine": description(), "options": options.as_dict()}
        self.done = {} if path is None else resumable(path, self.header)
        if path is not None and not self.done:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(self.header) + "\n")

    def records(self, workloads: Sequence[Workload]) -> Iterator[tuple[Workload, Record]]:
        for workload in workloads:
            if workload.name in self.done:
                yield workload, self.done[workload.name]
            else:
                yield workload, self.keep(self.record(workload))

    def keep(self, record: Record) -> Record:
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps(record) + "\n")
        return record

    def record(self, workload: Workload) -> Record:
        start = time.perf_counter()
        record: Record = {"name": workload.name, "family": workload.family, "algebraic": workload.expected.algebraic}
        for part in ("predicted", "measured", "peers"):
            try:
                record |= getattr(self, f"_{part}")(workload)
            except Exception as error:  # a failure is a result; the others go on
                record.setdefault("errors", {})[part] = f"{type(error).__name__}: {error}"
                record.setdefault("traces", {})[part] = traceback.format_exc()
        return record | {"wall_seconds": time.perf_counter() - start}

    def _predicted(self, workload: Workload) -> Record:
        o = self.options
        _, plan = planned(workload, workload.full, o.target, o.numerics, o.time_limit)
        return {"plan": plan, "shortcomings": shortcomings(workload, plan)}

    def _measured(self, workload: Workload) -> Record:
        if not self.options.measure:
            return {}
        o = self.options
        _, small = planned(workload, workload.small, o.target, o.numerics, o.time_limit)
        flops = min(small["before"]["flops"], small["after"]["flops"])
        result = measured(workload, workload.small, self.engines, o.effort, o.seed, flops)
        return {"run": result | {"promised": promised(small, result)}}

    def _peers(self, workload: Workload) -> Record:
        answers = {peer.name: peer.ask(workload.name) for peer in self.peers}
        routes = {k: v for name, a in answers.items() for k, v in ({name: a} if "error" in a else a).items()}
        if not routes:
            return {}
        o = self.options
        _, least = planned(workload, workload.full, o.target, o.numerics, o.time_limit, "traffic")
        return {"peers": routes, "traffic": least["after"]}


def promised(plan: Record, result: Record) -> float | None:
    """How many times faster than jax.jit the saved arithmetic allows: no further than memory and a call's overhead let it be."""
    seconds = result["engines"].get(BASELINE, {}).get("seconds")
    if seconds is None:
        return None
    before, after = plan["before"], plan["after"]
    arithmetic = seconds * after["flops"] / max(before["flops"], 1)
    memory = after["nbytes"] / usual().bytes_per_second + after["launches"] * CALL_SECONDS
    return seconds / max(arithmetic, memory)


def read(path: Path) -> tuple[Record, dict[str, Record]]:
    """The header of a results file and its records by name; a last line that was cut off is dropped."""
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise ValueError(
            f"results {path}: a file that can be read required, got {error.strerror!r}; name one that a run wrote"
        ) from None
    if not lines:
        raise ValueError(f"results {path}: a header line required, got an empty file")
    try:
        header = json.loads(lines[0])
    except json.JSONDecodeError:
        raise ValueError(f"results {path}: lines of JSON required, got {lines[0][:40]!r}; name a file that a run wrote") from None
    records: dict[str, Record] = {}
    for line in lines[1:]:
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        records[record["name"]] = record
    return header, records


def resumable(path: Path, header: Record) -> dict[str, Record]:
    """What a file has of the same run; nothing if it is of another one."""
    if not path.exists():
        return {}
    try:
        old, records = read(path)
    except (ValueError, KeyError):
        return {}
    return records if old == header else {}
