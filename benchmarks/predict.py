"""What the optimiser does with a program: its CPU time and memory, and launches, bytes and predicted time before and after.

Shapes suffice; nothing runs. The baseline is the program as written, one kernel per computing equation.
"""

from __future__ import annotations

import time
from typing import Any

import eqsat
from benchmarks.memory import peak_nbytes, reset_peak
from benchmarks.workloads import Size, Workload
from eqsat.cost import Cost
from eqsat.program import Program
from eqsat.scans import CHUNK

Record = dict[str, Any]


def planned(
    workload: Workload,
    size: Size,
    target: str,
    numerics: str = "reassociate",
    time_limit: float = 300.0,
    objective: str = "time",
) -> tuple[Program, Record]:
    """The program, and what making it cost."""
    reset_peak()
    before, cpu, wall = peak_nbytes(), time.process_time(), time.perf_counter()
    program = eqsat.optimize(
        size.fn,
        *size.args,
        target=target,
        numerics=numerics,
        objective=objective,
        constants=workload.constants,
        time_limit=time_limit,
        cache=False,
    )
    effort = {
        "cpu_seconds": time.process_time() - cpu,
        "wall_seconds": time.perf_counter() - wall,
        "peak_nbytes": max(0, peak_nbytes() - before),
    }
    return program, effort | described(program)


def described(program: Program) -> Record:
    """A plan as numbers."""
    notes = program.notes
    return {
        "equations": notes["equations"],
        "opaque": [c.name for c in program.calls],
        "before": _cost(program.baseline),
        "after": _cost(program.cost) | {"launches": len(program.launches)},
        "parts_nbytes": parts_nbytes(program),
        "kernels": len(program.kernels),
        "regions": notes["regions"],
        "distinct_regions": notes["distinct_regions"],
        "gap": notes["gap"],
        "rules": list(notes["rules"]),
        "search": list(notes["search"]),
    }


def parts_nbytes(program: Program) -> int:
    """What of a plan's bytes are parts of reductions that were cut into chunks: what a library keeps in its scratch memory."""
    written = [(t, o) for k in program.launches for t, o in zip(k.outputs, k.kernel.outputs, strict=True)]
    parts = {t for t, o in written if any(a.name == CHUNK for a in o.axes)}
    return sum(t.nbytes for k in program.launches for t in (*k.inputs, *k.outputs) if t in parts)


def _cost(cost: Cost) -> Record:
    return {"launches": cost.launches, "nbytes": cost.nbytes, "flops": cost.flops, "seconds": cost.seconds}


def shortcomings(workload: Workload, record: Record) -> list[str]:
    """Where the plan of the full size falls short of what a good one has."""
    expected, after, before = workload.expected, record["after"], record["before"]
    found = []
    for name in ("launches", "flops", "nbytes"):
        limit = getattr(expected, name)
        if limit is not None and after[name] > limit:
            found.append(f"{name} {after[name]:.3g} > {limit:.3g}{f' ({expected.why})' if expected.why else ''}")
    if expected.unchanged and (after["flops"] > before["flops"] or after["launches"] != before["launches"]):
        found.append("changed, though nothing can be gained")
    if after["seconds"] > before["seconds"] * 1.0001:
        found.append(f"predicted slower: {after['seconds'] * 1e6:.1f} us after, {before['seconds'] * 1e6:.1f} us before")
    if record["opaque"]:
        found.append(f"{len(record['opaque'])} calls without a reading: {', '.join(sorted(set(record['opaque'])))}")
    return found
