"""What each rule did in the demo, GPT-2 small: a table that `python docs/generate.py --demo` records."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from eqsat.cost import FREE, Cost
from eqsat.explain import more
from eqsat.program import Program
from eqsat.rule import Rule

TABLE = Path(__file__).with_suffix(".json")


def digest(rules: Iterable[Rule]) -> str:
    """What the rules say, as a few digits."""
    laws = "\n".join(f"{r.name} {r.tier} {r.phase} {r.law}" for r in rules)
    return hashlib.sha256(laws.encode()).hexdigest()[:16]


def recorded(program: Program, rules: Iterable[Rule]) -> dict[str, Any]:
    """The table of a program that `eqsat.optimize` made with the rules that its tier admits of these.

    `seconds` and `nbytes` are what the program would cost more without the rule, all others being there.
    """
    found = program.explain(600.0)
    worth = {w.rule: w.more for w in found.rules}
    fired = {name.removesuffix("_back") for name in found.matches}
    return {
        "program": f"{program.name} on {program.target}, numerics {program.numerics}",
        "rules": digest(rules),
        "fired": {
            name: {
                "matches": found.matches.get(name, 0) + found.matches.get(f"{name}_back", 0),
                "rows": found.rows.get(name, 0),
                "in the result": name in program.notes["rules"],
                "seconds": worth.get(name, FREE).seconds,
                "nbytes": worth.get(name, FREE).nbytes,
            }
            for name in sorted(fired)
        },
    }


def said(name: str, rules: Iterable[Rule], table: dict[str, Any] | None = None) -> str:
    """Where a rule fired in the demo, in words."""
    table = json.loads(TABLE.read_text()) if table is None else table
    did = table["fired"].get(name)
    text = "never fires"
    if did is not None:
        kept = "; the chosen kernels have some of them" if did["in the result"] else "; the chosen kernels have none of them"
        text = f"matches {did['matches']} times in distinct regions, makes {did['rows']} e-nodes{kept if did['rows'] else ''}"
        if did["seconds"]:
            text += f"; without it {more(Cost(did['seconds'], 0, did['nbytes'], 0))}"
    stale = "" if table["rules"] == digest(rules) else " (recorded with other rules than these)"
    return f"{text}, in {table['program']}{stale}"
