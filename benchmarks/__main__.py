"""The command: `python -m benchmarks`, or `eqsat bench`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from benchmarks import engines, report, spread  # noqa: E402
from benchmarks.measure import Effort  # noqa: E402
from benchmarks.peers import asked  # noqa: E402
from benchmarks.runner import Options, Record, Run, read  # noqa: E402
from benchmarks.workloads import Workload, workloads  # noqa: E402
from eqsat.devices import device  # noqa: E402
from eqsat.rule import TIERS  # noqa: E402

QUICK = Effort(seconds=0.6, least=6, most=40)
EXAMPLES = """\
examples:
  python -m benchmarks --quick                       under three minutes: 28 workloads, a table, a JSON file
  python -m benchmarks --only algebra                one family, or names that contain a word
  python -m benchmarks --predict --peers FOLDER      launches and bytes, ours and others', without a GPU
  python -m benchmarks --compare old.json new.json   what became worse; exit code 1 if anything did
"""


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="benchmarks", description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    top.add_argument("--quick", action="store_true", help="fewer workloads and repetitions")
    top.add_argument("--only", default="*", metavar="PATTERN", help="family/name, with * and ?, or a part of it")
    top.add_argument("--predict", action="store_true", help="plans only: nothing is run")
    top.add_argument("--seconds", type=float, metavar="SECONDS", help="of measuring, per workload; default 3, or 0.6 if quick")
    top.add_argument("--engines", nargs="+", metavar="NAME", help=f"of: {', '.join(engines.ENGINES)}")
    top.add_argument("--target", default="h100", help="the device of the predictions")
    top.add_argument("--numerics", default="reassociate", help="exact, reassociate or fast")
    top.add_argument("--time-limit", type=float, default=300.0, metavar="SECONDS", help="of the optimiser, per workload")
    top.add_argument("--seed", type=int, default=0)
    top.add_argument(
        "--peers", nargs="*", metavar="FOLDER", help="ask XLA:GPU and Inductor; folders that have them, if not installed"
    )
    top.add_argument("--ray", action="store_true", help="spread the workloads over the machines of a Ray cluster, or this one")
    top.add_argument("-o", "--output", type=Path, default=Path(".benchmarks/results.json"), metavar="FILE", help="JSON lines")
    top.add_argument("--markdown", type=Path, metavar="FILE", help="write the report to a file as well")
    top.add_argument("--plot", type=Path, metavar="FILE", help="draw the speeds (needs matplotlib)")
    top.add_argument("--fresh", action="store_true", help="do not go on with what the output file has")
    top.add_argument("--list", action="store_true", help="name the workloads and engines, run nothing")
    top.add_argument("--compare", nargs=2, type=Path, metavar=("A", "B"), help="two result files")
    return top


def effort(options: argparse.Namespace) -> Effort:
    usual = QUICK if options.quick else Effort()
    return replace(usual, seconds=options.seconds) if options.seconds else usual


def listed(chosen: Sequence[Workload]) -> None:
    for w in chosen:
        print(f"{w.family}/{w.name}{f'  {w.expected.why}' if w.expected.why else ''}")
    print()
    for engine in engines.ENGINES.values():
        print(f"{engine.name}: {engine.missing or ('by default' if engine.default else 'with --engines')}")


def compare(first: Path, second: Path) -> int:
    text, regressions = report.compared(read(first)[1], read(second)[1])
    print(text, end="")
    return 1 if regressions else 0


def run(options: argparse.Namespace) -> int:
    chosen = workloads(options.only, options.quick)
    if not chosen:
        raise ValueError(f"--only {options.only!r}: a workload required, none fits; see --list")
    if options.numerics not in TIERS:
        raise ValueError(f"--numerics {options.numerics!r}: one of {', '.join(TIERS)} required")
    device(options.target)  # says what is wrong before anything runs
    contestants = engines.chosen(options.engines)
    present = [] if options.peers is None else asked(options.target, options.peers)  # with --ray, each machine has its own
    kept = Options(
        options.target, options.numerics, options.seed, options.time_limit, tuple(e.name for e in contestants),
        effort(options), not options.predict, tuple(p.name for p in present),
    )  # fmt: skip
    if options.fresh:
        options.output.unlink(missing_ok=True)
    with ExitStack() as stack:
        job = Run(kept, contestants, options.output, [stack.enter_context(p) for p in present])
        records = followed(spread.records(job, chosen, options.peers) if options.ray else job.records(chosen), chosen)
    text = report.markdown(job.header, records)
    print(text, end="")
    print(_missing())
    print(f"\nwritten to {options.output}")
    if options.markdown:
        options.markdown.write_text(text)
    if options.plot:
        from benchmarks.plot import plot

        plot(records, options.plot)
    return 1 if report.wrong_results(records) else 0


def followed(results: Iterable[tuple[Workload, Record]], chosen: Sequence[Workload]) -> dict[str, Record]:
    """The records, with a progress bar on standard error while they are made."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    records: dict[str, Any] = {}
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=len(chosen))
        for workload, record in results:
            records[workload.name] = record
            following = next((w.name for w in chosen if w.name not in records), "")
            progress.update(task, advance=1, description=following[:40])
    return {w.name: records[w.name] for w in chosen}


def _missing() -> str:
    absent = [f"{e.name} ({e.missing})" for e in engines.ENGINES.values() if e.missing]
    return f"\nengines without results: {', '.join(absent)}" if absent else ""


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        if options.list:
            listed(workloads(options.only, options.quick))
            return 0
        return compare(*options.compare) if options.compare else run(options)
    except KeyboardInterrupt:
        print("benchmarks: stopped; the same command goes on from here", file=sys.stderr)
        return 130
    except (ValueError, OSError, ImportError) as error:
        print(f"benchmarks: {' '.join(str(error).split())}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
