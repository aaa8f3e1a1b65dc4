"""Static figures of our kernels beside hand-written ones, for cards that need not be there; nothing is run."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.handwritten.compare import Compiled, compared
from benchmarks.handwritten.programs import PROGRAMS
from benchmarks.handwritten.table import markdown
from eqsat.devices import DEVICES

RESULTS = Path("benchmarks/results/handwritten.json")
CARDS = ("h100", "a100")


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="benchmarks.handwritten", description=__doc__)
    top.add_argument("--cards", nargs="+", choices=list(DEVICES), default=CARDS, metavar="CARD", help="default: %(default)s")
    top.add_argument("--only", nargs="+", choices=list(PROGRAMS), metavar="PROGRAM", help="of: %(choices)s")
    top.add_argument("-o", "--output", type=Path, default=RESULTS, metavar="FILE", help="JSON; default: %(default)s")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    records = {card: {} for card in options.cards}
    for name in options.only or PROGRAMS:
        for card in options.cards:
            found = compared(PROGRAMS[name], card)
            records[card][name] = {
                "ours": _record(found.ours),
                "same tiles": _record(found.same),
                "own tiles": _record(found.theirs),
            }
            print(f"{name} on {card}: {found.theirs.seconds / found.ours.seconds:.2f} times as fast", file=sys.stderr, flush=True)
    options.output.write_text(json.dumps(records, indent=1) + "\n")
    print(markdown(records))
    return 0


def _record(compiled: Compiled) -> dict:
    report = compiled.report
    loop = report.hot_loop
    return {
        "tiles": dict(compiled.choice.tiles),
        "num_warps": compiled.choice.num_warps,
        "num_stages": compiled.choice.num_stages,
        "registers": report.registers,
        "spills": report.spills,
        "shared_nbytes": report.shared_nbytes,
        "occupancy": report.occupancy,
        "matrix_instructions": report.matrix_instructions,
        "widest_load_bits": report.widest_load_bits,
        "instructions": report.instructions,
        "loop_instructions": loop.instructions if loop else None,
        "seconds": compiled.seconds,
    }


if __name__ == "__main__":
    sys.exit(main())
