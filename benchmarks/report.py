"""Results as Markdown: plans, times on this computer, other compilers; and the differences between two runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.statistics import geometric_mean

Record = dict[str, Any]
Records = Mapping[str, Record]
SLOWER = 0.95  # of jax.jit's speed; below it a workload is listed
TIME, EFFORT = 1.02, 1.5  # how much more predicted time and optimiser time count as a regression


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; columns after the first are right-aligned."""
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def markdown(header: Record, records: Records) -> str:
    """The whole report."""
    parts = [_heading(header), plans(records), times(records), device_times(records), peers(records), problems(records)]
    return "\n\n".join(p for p in parts if p) + "\n"


def _heading(header: Record) -> str:
    machine, options = header["machine"], header["options"]
    versions = ", ".join(f"{k} {v}" for k, v in machine["versions"].items() if v)
    return (
        f"{machine['processor']}, {machine['cores']} cores, {machine['system']}, Python {machine['python']}; {versions}; "
        f"target {options['target']}, numerics {options['numerics']}, seed {options['seed']}"
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def plans(records: Records) -> str:
    """Launches, bytes, arithmetic and predicted time, before and after, and what the search cost."""
    rows = []
    for name, record in records.items():
        if plan := record.get("plan"):
            a, b = plan["before"], plan["after"]
            cells = [f"{a['launches']} → {b['launches']}"]
            cells += [
                f"{_number(a[k] / s)} → {_number(b[k] / s)}" for k, s in (("nbytes", 1e6), ("flops", 1e9), ("seconds", 1e-6))
            ]
            gain = a["seconds"] / b["seconds"] if b["seconds"] else 1.0
            rows.append([name, *cells, f"{gain:.1f}", f"{plan['cpu_seconds']:.1f}", _number(plan["peak_nbytes"] / 1e6)])
    columns = ["full size", "launches", "MB", "GFLOP", "predicted µs", "gain", "optimiser s", "its MB"]
    return table(columns, rows) if rows else ""


def times(records: Records) -> str:
    """Times on this computer at the small size: each engine against jax.jit, paired."""
    names = list(dict.fromkeys(n for r in records.values() for n in r.get("run", {}).get("engines", {})))
    if not names:
        return ""
    rows = [
        [name, *(_engine(r["run"]["engines"].get(n)) for n in names), _promise(r)] for name, r in records.items() if r.get("run")
    ]
    text = table(["small size, speed against jax.jit", *names, "promised"], rows)
    means = [
        f"{n}: geometric mean {geometric_mean(v):.2f} ({geometric_mean(ratios(records, n, 'best')):.2f} at best) over {len(v)}"
        for n in names
        if (v := ratios(records, n))
    ]
    return "\n\n".join([text, *(["; ".join(means)] if means else [])])


def device_times(records: Records) -> str:
    """Microseconds of each engine's kernels alone, with a cold L2, where the run had a GPU."""
    runs = {name: r["run"]["engines"] for name, r in records.items() if r.get("run")}
    names = list(dict.fromkeys(n for engines in runs.values() for n in engines))
    seconds = {name: [engines.get(n, {}).get("device_seconds") for n in names] for name, engines in runs.items()}
    rows = [[name, *(_number(t * 1e6) if t else "" for t in found)] for name, found in seconds.items() if any(found)]
    return table(["small size, \N{MICRO SIGN}s on the GPU", *names], rows) if rows else ""


def _promise(record: Record) -> str:
    promised = record["run"].get("promised")
    return f"{promised:.1f}" if record.get("algebraic") and promised else ""


def ratios(records: Records, engine: str, kind: str = "value") -> list[float]:
    found = [r.get("run", {}).get("engines", {}).get(engine, {}) for r in records.values()]
    return [e["ratio"][kind] for e in found if e.get("ratio")]


def _engine(result: Record | None) -> str:
    if result is None:
        return ""
    if "error" in result:
        return "failed"
    flag = " ⚠" if result["findings"] else ""
    if ratio := result.get("ratio"):
        return f"{ratio['value']:.2f} ({ratio['low']:.2f}–{ratio['high']:.2f}){flag}"
    return f"{result['seconds'] * 1e3:.2f} ms{flag}"


def peers(records: Records) -> str:
    """Launches / MB at the full size: ours for time and for traffic, and what other compilers would launch."""
    routes = list(dict.fromkeys(route for r in records.values() for route in r.get("peers", {})))
    rows = []
    for name, record in records.items():
        if (found := record.get("peers")) and (plan := record.get("plan")):
            calls = f" + {len(plan['opaque'])} calls" if plan["opaque"] else ""
            ours = [_pair(plan["after"]) + calls, _pair(record.get("traffic", {}))]
            rows.append([name, *ours, *(_pair(found.get(route, {})) for route in routes)])
    return table(["launches / MB", "eqsat", "eqsat, for traffic", *routes], rows) if rows else ""


def _pair(cost: Record) -> str:
    return f"{cost['launches']} / {_number(cost['nbytes'] / 1e6)}" if "launches" in cost else "failed" if cost else ""


def problems(records: Records) -> str:
    """Everything that a reader should not have to look for."""
    lines = []
    for name, r in records.items():
        lines += [f"- {name}: {part} failed: {text}" for part, text in r.get("errors", {}).items()]
        run = r.get("run", {})
        for engine, result in run.get("engines", {}).items():
            if "error" in result:
                lines.append(f"- {name}: {engine} failed: {result['error']}")
            lines += [f"- {name}: {engine}: {f}" for f in result.get("findings", [])]
            ratio = result.get("ratio")
            if engine.startswith("eqsat") and ratio and max(ratio["high"], ratio["best"]) < SLOWER:
                lines.append(f"- {name}: {engine} slower than jax.jit: {ratio['value']:.2f}, {ratio['best']:.2f} at best")
            promised = (run["promised"] or 0) if engine == "eqsat" and r.get("algebraic") else 0
            if ratio and max(ratio["high"], ratio["best"]) < promised / 2:
                lines.append(f"- {name}: eqsat {ratio['value']:.1f} times as fast, {promised:.1f} promised")
        lines += [f"- {name}: a constant passes for {o}: nothing is shown" for o in run.get("nothing_shown", [])]
        lines += [f"- {name}: plan: {s}" for s in r.get("shortcomings", [])]
        lines += [f"- {name}: {route}: {x['error']}" for route, x in r.get("peers", {}).items() if "error" in x]
    return "\n".join(["Problems", "", *lines]) if lines else ""


def wrong_results(records: Records) -> list[str]:
    """Workloads on which an eqsat engine failed or was caught."""
    return [
        name
        for name, r in records.items()
        if r.get("errors")
        or any(e.startswith("eqsat") and ("error" in x or x["findings"]) for e, x in r.get("run", {}).get("engines", {}).items())
    ]


# --- two runs ---------------------------------------------------------------------------------------------------


def compared(old: Records, new: Records) -> tuple[str, int]:
    """What became worse or better, as text, and the number of regressions."""
    worse: list[str] = []
    better: list[str] = []
    for name in new:
        if name in old:
            for text, sign in differences(old[name], new[name]):
                (worse if sign > 0 else better).append(f"- {name}: {text}")
    gone = [f"- {name}: no longer run" for name in old if name not in new]
    added = sum(name not in old for name in new)
    parts = [f"{len(worse)} regressions, {len(better)} improvements, {len(gone)} gone, {added} new"]
    parts += ["\n".join(["Worse", "", *worse])] if worse else []
    parts += ["\n".join(["Better", "", *better])] if better else []
    parts += ["\n".join(gone)] if gone else []
    return "\n\n".join(parts) + "\n", len(worse)


def differences(old: Record, new: Record) -> list[tuple[str, int]]:
    """(text, 1 for worse or -1 for better)."""
    found = []
    failed = [bool(wrong_results({"": r})) for r in (old, new)]
    if failed[0] != failed[1]:
        found.append(("wrong or failed" if failed[1] else "right again", 1 if failed[1] else -1))
    if (a := old.get("plan")) and (b := new.get("plan")):
        for name, factor in (("launches", 1.0), ("nbytes", TIME), ("seconds", TIME)):
            found += _change(f"planned {name}", a["after"][name], b["after"][name], factor)
        if abs(a["cpu_seconds"] - b["cpu_seconds"]) > 0.5:
            found += _change("optimiser seconds", a["cpu_seconds"], b["cpu_seconds"], EFFORT)
    for engine, b in new.get("run", {}).get("engines", {}).items():
        a = old.get("run", {}).get("engines", {}).get(engine, {})
        if engine.startswith("eqsat") and a.get("ratio") and b.get("ratio"):
            found += _ratio_change(engine, a["ratio"], b["ratio"])
    return found


def _change(name: str, a: float, b: float, factor: float) -> list[tuple[str, int]]:
    if a * factor < b or b * factor < a:
        return [(f"{name} {a:.4g} → {b:.4g}", 1 if b > a else -1)]
    return []


def _ratio_change(engine: str, a: Record, b: Record) -> list[tuple[str, int]]:
    """Speeds differ where their intervals do not meet."""
    if a["low"] > b["high"] or b["low"] > a["high"]:
        return [(f"{engine} against jax.jit {a['value']:.2f} → {b['value']:.2f}", 1 if b["value"] < a["value"] else -1)]
    return []
