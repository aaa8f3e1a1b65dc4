"""Measure this machine's GPU in under six minutes: its ceilings, ten kernels, the model's estimates, other compilers."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

# Before JAX starts: torch needs memory of the card as well.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax  # noqa: E402

from benchmarks.card import kernels, peers, tiles  # noqa: E402
from benchmarks.card.steps import Context, Record, Step, performed  # noqa: E402
from benchmarks.machine import description  # noqa: E402
from benchmarks.report import table  # noqa: E402
from eqsat import calibrate  # noqa: E402
from eqsat.devices import DEVICES, device  # noqa: E402

SECONDS = 330.0  # of six minutes; a step ends with the item that it is at
EXAMPLES = """\
examples:
  python -m benchmarks.card                     everything, on the first GPU; .benchmarks/card.json and card.md
  python -m benchmarks.card --dry               the same without a GPU: interpreters and estimates
  python -m benchmarks.card --steps kernels     one step
"""


def ceilings(context: Context) -> tuple[dict[str, Record], str]:
    """The step: the rates that estimates are made of, measured; later steps estimate with them."""
    if not context.dry:
        context.device = calibrate.measured_card(context.row, f"{context.row}-measured")
    d, told = asdict(context.device), DEVICES[context.row]
    rates = {k: d[k] for k in ("dram_bytes_per_second", "l2_bytes_per_second", "vector_flops", "special_ops_per_second")}
    rates |= {f"{dtype} products": rate for dtype, rate in d["tensor_flops"].items()} | {"launch_seconds": d["launch_seconds"]}
    table_of = asdict(told) | {f"{dtype} products": rate for dtype, rate in told.tensor_flops.items()}
    found = {name: {"measured": None if context.dry else rate, "table": table_of.get(name)} for name, rate in rates.items()}
    return found, f"{len(found)} rates{' of the table' if context.dry else ''}"


def sanitized(context: Context) -> tuple[dict[str, Record], str]:
    """The step: compute-sanitizer over two programs' kernels, in a process of their own."""
    tool = shutil.which("compute-sanitizer")
    if context.dry or tool is None:
        return {}, "needs a GPU and compute-sanitizer"
    left = max(5.0, context.deadline - context.clock())
    command = [tool, "--error-exitcode", "9", sys.executable, "-m", "benchmarks.card", "--steps", "kernels", "--few", "2"]
    done = subprocess.run([*command, "-o", os.devnull], capture_output=True, text=True, timeout=left)
    if done.returncode:
        raise RuntimeError(f"compute-sanitizer: exit code {done.returncode}: {done.stdout[-300:]}")
    return {}, "two programs clean"


STEPS = [
    Step("ceilings", 45, ceilings),
    Step("kernels", 75, kernels.checked),
    Step("tiles", 60, tiles.timed),
    Step("jax", 80, peers.in_jax),
    Step("torch", 50, peers.in_torch),
    Step("sanitizer", 20, sanitized),
]


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="benchmarks.card", description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    top.add_argument("--dry", action="store_true", help="launch nothing: interpreters on small shapes, and estimates")
    top.add_argument("--row", choices=list(DEVICES), help="the card's row of the table; default: by its name, or h200 if dry")
    top.add_argument("--steps", nargs="+", choices=[s.name for s in STEPS], metavar="STEP", help="of: %(choices)s")
    top.add_argument("--seconds", type=float, default=SECONDS, help="for all steps together; default %(default)g")
    top.add_argument("--seed", type=int, default=0, help="of the inputs")
    top.add_argument("--few", type=int, metavar="N", help="at most N items a step")
    top.add_argument(
        "-o", "--output", type=Path, default=Path(".benchmarks/card.json"), metavar="FILE", help="JSON; a table lies beside"
    )
    return top


def row_of(kind: str) -> str:
    """The row of the table whose name is in a card's: "NVIDIA H200" is h200. Raises ValueError if there is none."""
    squeezed = kind.lower().replace(" ", "")
    for name in sorted(DEVICES, key=len, reverse=True):
        if name in squeezed:
            return name
    raise ValueError(f"card {kind!r}: a row of the table of devices required; choose the nearest with --row")


def context_of(options: argparse.Namespace) -> Context:
    if options.dry:
        jax.config.update("jax_platforms", "cpu")
        row = options.row or "h200"
    elif jax.default_backend() != "gpu":
        raise ValueError(f"benchmarks.card: a GPU that JAX finds required, got {jax.default_backend()}; or --dry")
    else:
        row = options.row or row_of(jax.devices()[0].device_kind)
    return Context(row, options.dry, options.seed, device(row), few=options.few)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        context = context_of(options)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    started = time.monotonic()
    steps = [s for s in STEPS if not options.steps or s.name in options.steps]
    records = performed(steps, context, options.seconds, lambda text: print(text, flush=True))
    card = "none" if context.dry else jax.devices()[0].device_kind
    result = {"card": card, "row": context.row, "dry": context.dry, "machine": description(), "steps": records}
    write(options.output, result, time.monotonic() - started)
    return 1 if any(r["failed"] for r in records.values()) else 0


def write(path: Path, result: Record, seconds: float) -> None:
    text = markdown(result)
    if path != Path(os.devnull):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n")
        path.with_suffix(".md").write_text(text)
        print(f"{seconds:.0f} s; written to {path} and {path.with_suffix('.md')}")


# --- the table ----------------------------------------------------------------------------------------------------------


def markdown(result: Record) -> str:
    """A section for each step: its results as a table, then what failed and what was left out."""
    parts = [f"# Card: {result['card']} as {result['row']}{', dry run' if result['dry'] else ''}"]
    for name, record in result["steps"].items():
        parts.append(f"## {name}: {record['summary']}")
        rows = [row for item, r in record["results"].items() for row in _rows(item, r)]
        if rows:
            columns = list(rows[0])
            parts.append(table(columns, ([_cell(row.get(c)) for c in columns] for row in rows)))
        parts += ["\n".join(f"- {item} failed: {text}" for item, text in record["failed"].items())] if record["failed"] else []
        parts += [f"Left out: {', '.join(record['left_out'])}"] if record["left_out"] else []
    return "\n\n".join(parts) + "\n"


def _rows(name: str, record: Record) -> list[Record]:
    """A record as table rows: one, or one for each kernel or schedule in it."""
    if "kernels" in record:
        return [
            {"program": name, "kernel": k} | {f"{r}, error / allowed": v for r, v in x.items()}
            for k, x in record["kernels"].items()
        ]
    return [{"": name} | tile for tile in record["tiles"]] if "tiles" in record else [{"": name} | record]


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
