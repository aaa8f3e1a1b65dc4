"""The figures as a table: ours, theirs under our tiles, theirs under the best of their own. Needs no compiler."""

from __future__ import annotations

from typing import Any

from benchmarks.report import table

COLUMNS = "kernel|tiles|registers|spills|shared kB|occupancy|matrix|load bits|hot loop|of ours|estimated µs|of ours".split("|")


def markdown(records: dict[str, Any]) -> str:
    """A table for each card: ours, theirs under our tiles, theirs under the best of their own."""
    return "\n\n".join(f"### {card}\n\n{_table(programs)}" for card, programs in records.items())


def _table(programs: dict[str, Any]) -> str:
    rows = []
    for name, kinds in programs.items():
        ours = kinds["ours"]
        for kind, r in kinds.items():
            tiles = "×".join(str(n) for axis, n in r["tiles"].items() if n > 1)
            label = {"ours": f"{name}: ours", "same tiles": "by hand, our tiles", "own tiles": "by hand, best tiles"}[kind]
            code, own = (x["loop_instructions"] or x["instructions"] for x in (r, ours))
            rows.append(
                [
                    label,
                    f"{tiles}, {r['num_warps']} warps, {r['num_stages']} stages",
                    str(r["registers"]),
                    str(r["spills"]),
                    f"{r['shared_nbytes'] / 1024:.0f}",
                    f"{r['occupancy']:.0%}",
                    str(r["matrix_instructions"]),
                    str(r["widest_load_bits"]),
                    str(code),
                    f"{code / own:.2f}",
                    f"{r['seconds'] * 1e6:.1f}",
                    f"{r['seconds'] / ours['seconds']:.2f}",
                ]
            )
    return table(COLUMNS, rows)
