"""The commands `eqsat rules ...`: list, show, check, new, try."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from eqsat.packs import rules_in, rules_named
from eqsat.rule import TIERS, Rule

TEMPLATE = '''"""{title}: what these rules have in common, in one sentence."""

from eqsat.rule import Axis, Float, absent, pack, rewrite, rule, sum_


@rule("reassociate", gives_up="the rounding of each product")
def {name}(a: Float, b: Float, k: Axis):
    """The sum of a*b over k = a times the sum of b, if a does not mention k."""
    return rewrite(sum_(k, a * b), a * sum_(k, b), absent(k, a))


RULES = pack(globals())
'''


def add_rules_commands(subparsers: Any) -> None:
    """Add `rules` and its subcommands to the commands of `eqsat`."""
    top = subparsers.add_parser("rules", help="list, show, check, start and try rules")
    commands = top.add_subparsers(dest="rules_command", required=True, metavar="command")

    listing = commands.add_parser("list", help="the rules, a line each")
    listing.add_argument("names", nargs="*", metavar="PACK", help="packs, rules or .py files (all packs)")
    listing.add_argument("--tier", choices=TIERS, help="only those of one tier")
    listing.set_defaults(run=list_rules)

    one = commands.add_parser("show", help="one rule: law, tier, conditions, source")
    one.add_argument("name")
    one.add_argument("--file", help="the .py file that it stands in, if it is in no pack")
    one.add_argument("--program", metavar="MODULE:FUNCTION", help="a program: does the rule fire in it?")
    one.add_argument("--args", default="", help="shapes of the program's arguments: 'float32[4,8] bfloat16[8,8]'")
    one.set_defaults(run=show_rule)

    check = commands.add_parser("check", help="try rules on random instances; exit code 1 if one is wrong")
    check.add_argument("names", nargs="*", metavar="PACK|RULE|FILE", help="what to check (all packs)")
    check.add_argument("--seed", type=int, default=0)
    check.add_argument("--samples", type=int, default=None, help="instances of each rule")
    check.set_defaults(run=check_rules)

    new = commands.add_parser("new", help="write a file with a rule to start from")
    new.add_argument("name", help="name of the rule: the law, in snake case")
    new.add_argument("--file", help="where to write it (NAME.py)")
    new.set_defaults(run=new_rule)

    attempt = commands.add_parser("try", help="what rules make of an expression")
    attempt.add_argument("file", metavar="FILE|PACK|RULE")
    attempt.add_argument("expression", help="in JAX's words: 'exp(a) / sum(exp(a))'")
    attempt.add_argument("--args", default="", help="shapes of the operands: 'a=float32[4,8]' (float32[4,4] each)")
    attempt.add_argument("--limit", type=int, default=12, help="forms to print")
    attempt.set_defaults(run=try_rules)


def _console() -> Any:
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 200, highlight=False, markup=False, soft_wrap=True)


def list_rules(options: argparse.Namespace) -> None:
    """The laws of all packs, a line each."""
    rules = [r for r in rules_named(options.names) if options.tier in (None, r.tier)]
    console = _console()
    for group in dict.fromkeys(r.pack for r in rules):
        members = [r for r in rules if r.pack == group]
        console.print(f"{group}: {_count(members)}", style="bold")
        width = max(len(r.name) for r in members)
        for r in members:
            console.print(f"  {r.name:{width}}  {r.tier:11}  {r.law}")
    console.print(f"{_count(rules)} in {len({r.pack for r in rules})} packs")


def _count(rules: Iterable[Rule]) -> str:
    number = len(list(rules))
    return f"{number} rule{'s' if number != 1 else ''}"


def show_rule(options: argparse.Namespace) -> None:
    """All that is known of one rule."""
    rules = rules_in(options.file) if options.file else rules_named([options.name])
    found = next((r for r in rules if r.name == options.name), None)
    if found is None:
        raise ValueError(f"rule {options.name!r}: the name of one rule required, got that of a pack or of none in {options.file}")
    console = _console()
    console.print(found.name, style="bold")
    for label, text in _facts(found):
        console.print(f"  {label:10}  {text}")
    if options.program:
        console.print(f"  {'fires':10}  {_fires(found, options.program, options.args)}")


def _facts(r: Rule) -> list[tuple[str, str]]:
    e = r.equation
    facts = [("law", f"{e.left} {'=' if e.both_ways else '->'} {e.right}")]
    facts += [("if", r.conditions)] if e.guards else []
    facts += [("variables", ", ".join(f"{name}: {sort}" for name, sort in r.sorts.items()))]
    facts += [("tier", r.tier + (f", gives up {r.gives_up}" if r.gives_up else ", the same bits"))]
    facts += [("phase", r.phase), ("why", " ".join(r.doc.split())), ("pack", r.pack), ("source", relative(r.source))]
    return facts


def relative(source: str) -> str:
    """A place in a file, as seen from the current folder if it lies below."""
    path, _, line = source.rpartition(":")
    try:
        return f"{Path(os.path.realpath(path)).relative_to(Path.cwd().resolve())}:{line}"
    except ValueError:
        return source


def _fires(r: Rule, program: str, args: str) -> str:
    from eqsat.cli import function_of, shapes
    from eqsat.egraph import Engine
    from eqsat.rule_trial import regions_of

    engine = Engine(rules_named(()))
    growth = [engine.saturate(region).growth for region in regions_of(function_of(program), *shapes(args))]
    matches = sum(g.get(r.name, 0) + g.get(f"{r.name}_back", 0) for g in growth)
    return f"{matches} times in {program}"


def check_rules(options: argparse.Namespace) -> None:
    """Check rules and print what is wrong with each wrong one."""
    from eqsat.check import SAMPLES, check_rule

    start, wrong, console = time.perf_counter(), 0, _console()
    rules = rules_named(options.names)
    for r in rules:
        verdict = check_rule(r, seed=options.seed, samples=options.samples or SAMPLES)
        wrong += not verdict.passed
        console.print(str(verdict), style="" if verdict.passed else "red")
        if not verdict.passed:
            console.print(f"source   {relative(r.source)}")
    console.print(f"{_count(rules)} checked in {time.perf_counter() - start:.1f} s, {wrong} wrong")
    if wrong:
        raise SystemExit(1)


def new_rule(options: argparse.Namespace) -> None:
    """Write a file with one rule to change."""
    if not options.name.isidentifier():
        raise ValueError(f"name {options.name!r}: a Python name required, such as pull_factor_out_of_sum")
    path = Path(options.file or f"{options.name}.py")
    if path.exists():
        raise ValueError(f"{path}: a new file required, this one exists; choose another with --file")
    path.write_text(TEMPLATE.format(name=options.name, title=options.name.replace("_", " ").capitalize()))
    console = _console()
    console.print(f"wrote {path}; change the law, then")
    console.print(f"  eqsat rules check {path}")
    console.print(f"  eqsat rules try {path} 'sum(a * b)'")


def try_rules(options: argparse.Namespace) -> None:
    """Print the forms that rules make of an expression."""
    from eqsat.rule_trial import trial

    found = trial(rules_named([options.file]), options.expression, options.args, options.limit)
    console = _console()
    for n, form in enumerate(found.forms):
        by = f"   by {', '.join(form.rules)}" if form.rules else ""
        console.print(f"{'' if n else '  '}{'= ' if n else ''}{form.term}{by}")
    console.print(f"{found.rows} e-nodes, {found.stopped}; fired: {', '.join(found.fired) or 'no rule'}")
