"""The commands `eqsat rules ...`: list, show, check, new, try, discover."""

from __future__ import annotations

import keyword
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from eqsat.cli_options import AsJson, Talk, shared
from eqsat.cli_subject import place_for_file
from eqsat.demo_rules import said
from eqsat.packs import default_rules, packs, rules_in, rules_named
from eqsat.rule import TIERS, Rule

TEMPLATE = '''"""{title}: what these rules have in common, in one sentence."""

from eqsat.rule import Axis, Float, absent, pack, rewrite, rule, sum_


@rule("reassociate", gives_up="the rounding of each product")
def {name}(a: Float, b: Float, k: Axis):
    """The sum of a*b over k = a times the sum of b, if a does not mention k."""
    return rewrite(sum_(k, a * b), a * sum_(k, b), absent(k, a))


RULES = pack(globals())
'''

DEMO = "examples.gpt2:demo"  # the program of `make demo`

app = typer.Typer(help="List, show, check, start and try rules.", no_args_is_help=True)


def command(name: str, example: str) -> Any:
    """Decorator that makes a function `eqsat rules <name>`."""
    return lambda function: app.command(name, epilog=f"Example: eqsat rules {name} {example}")(shared(function))


def _known() -> list[str]:
    return [*packs(), *(r.name for members in packs().values() for r in members)]


Names = Annotated[
    list[str], typer.Argument(metavar="PACK|RULE|FILE", help="Packs, rules or .py files (all packs).", autocompletion=_known)
]


@command("list", "contractions --tier reassociate")
def list_rules(
    talk: Talk,
    names: Names = [],  # noqa: B006
    tier: Annotated[str, typer.Option(help="Only those of one tier.", autocompletion=lambda: list(TIERS))] = "",
    as_json: AsJson = False,
) -> None:
    """The rules, a line each."""
    if tier and tier not in TIERS:
        raise ValueError(f"tier {tier!r}: one of {', '.join(TIERS)} required")
    rules = [r for r in rules_named(names) if tier in ("", r.tier)]
    lines = []
    for group in dict.fromkeys(r.pack for r in rules):
        members = [r for r in rules if r.pack == group]
        lines.append(f"{group}: {_count(members)}")
        width = max(len(r.name) for r in members)
        lines += [f"  {r.name:{width}}  {r.tier:11}  {r.law}" for r in members]
    lines.append(f"{_count(rules)} in {len({r.pack for r in rules})} packs")
    talk.show("\n".join(lines), lambda: list(map(_as_dict, rules)), as_json)


def _count(rules: Iterable[Rule]) -> str:
    number = len(list(rules))
    return f"{number} rule{'s' if number != 1 else ''}"


def _as_dict(r: Rule) -> dict[str, str]:
    return {"name": r.name, **dict(_facts(r))}


@command("show", "softmax_sum --program jax.nn:softmax --args 'float32[64,4096]'")
def show_rule(
    talk: Talk,
    name: Annotated[str, typer.Argument(metavar="NAME", autocompletion=_known, help="The rule.")],
    file: Annotated[str, typer.Option(help="The .py file that it stands in, if it is in no pack.")] = "",
    program: Annotated[str, typer.Option(metavar="SUBJECT", help="A program: does it fire there, and what is it worth?")] = "",
    args: Annotated[str, typer.Option("--args", metavar="SHAPES", help="Example arguments of it, as for `optimize`.")] = "",
    demo: Annotated[bool, typer.Option("--demo", help="Search the demo anew with and without it (in a checkout).")] = False,
    as_json: AsJson = False,
) -> None:
    """One rule: law, tier, conditions, source, and where it fires."""
    rules = rules_in(file) if file else rules_named([name])
    found = next((r for r in rules if r.name == name), None)
    if found is None:
        raise ValueError(
            f"rule {name!r}: the name of one rule required, got " + (f"none of {file}" if file else "that of a pack")
        )
    facts = [*_facts(found), *([] if file else [("demo", said(name, default_rules()))])]
    for subject, shapes in ((program, args), (DEMO, "@arguments")):
        if subject == DEMO and not demo or not subject:
            continue
        with talk.phase(f"searching {subject} with and without {name}"):
            facts.append(("fires", f"{_fires(found, subject, shapes)} in {subject}"))
    lines = [found.name, *(f"  {label:10}  {text}" for label, text in facts)]
    talk.show("\n".join(lines), lambda: {"name": name, **dict(facts)}, as_json)


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


def _fires(r: Rule, subject: str, args: str) -> str:
    from eqsat.cli_subject import graph_of
    from eqsat.explain import fired
    from eqsat.optimizer import Request

    known = rules_named(())
    rules = known if any(k.name == r.name for k in known) else (*known, r)
    return str(fired(graph_of(subject, args), Request("h100", r.tier, "time", (), 30.0, rules).admitting(), r.name))


@command("check", "sums")
def check_rules(
    talk: Talk,
    names: Names = [],  # noqa: B006
    seed: Annotated[int, typer.Option(help="Of the random instances.")] = 0,
    samples: Annotated[int, typer.Option(min=0, help="Instances of each rule (0: as many as usual).")] = 0,
    prove: Annotated[bool, typer.Option("--prove", help="Also prove what z3 can (the extra `prove`).")] = False,
    as_json: AsJson = False,
) -> None:
    """Try rules on random instances; exit code 1 if one is wrong."""
    from eqsat.check import SAMPLES, check_rule
    from eqsat.proof import proved

    start, verdicts = time.perf_counter(), []
    rules = rules_named(names)
    for r in rules:
        verdict = check_rule(r, seed=seed, samples=samples or SAMPLES)
        verdicts.append(proved(verdict) if prove else verdict)
        if not as_json:
            talk.show(verdicts[-1] if verdicts[-1].passed else f"{verdicts[-1]}\nsource   {relative(r.source)}")
    wrong = sum(not v.passed for v in verdicts)
    facts = [
        {"name": v.rule.name, "passed": v.passed, "samples": v.samples, "problem": v.problem, "proof": v.proof} for v in verdicts
    ]
    talk.show(f"{_count(rules)} checked in {time.perf_counter() - start:.1f} s, {wrong} wrong", lambda: facts, as_json)
    if wrong:
        raise typer.Exit(1)


@command("new", "pull_factor_out_of_sum")
def new_rule(
    talk: Talk,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the rule: the law, in snake case.")],
    file: Annotated[str, typer.Option(callback=place_for_file, help="Where to write it (NAME.py).")] = "",
) -> None:
    """Write a file with a rule to start from."""
    if not name.isidentifier() or keyword.iskeyword(name):
        raise ValueError(f"name {name!r}: a Python name required, such as pull_factor_out_of_sum")
    path = Path(file or f"{name}.py")
    if path.exists():
        raise ValueError(f"{path}: a new file required, this one exists; choose another with --file")
    path.write_text(TEMPLATE.format(name=name, title=name.replace("_", " ").capitalize()))
    talk.show(f"wrote {path}; change the law, then\n  eqsat rules check {path}\n  eqsat rules try {path} 'sum(2.0 * a)'")


@command("try", "sums 'sum(2.0 * a)'")
def try_rules(
    talk: Talk,
    file: Annotated[str, typer.Argument(metavar="FILE|PACK|RULE", autocompletion=_known, help="The rules.")],
    expression: Annotated[str, typer.Argument(help="In JAX's words: 'exp(a) / sum(exp(a))'.")],
    args: Annotated[
        str, typer.Option("--args", metavar="SHAPES", help="Shapes of the operands: 'a=float32[4,8]' (float32[4,4] each).")
    ] = "",
    limit: Annotated[int, typer.Option(help="Forms to print.")] = 12,
    as_json: AsJson = False,
) -> None:
    """What rules make of an expression."""
    from eqsat.rule_trial import trial

    found = trial(rules_named([file]), expression, args, limit)
    lines = []
    for n, form in enumerate(found.forms):
        by = f"   by {', '.join(form.rules)}" if form.rules else ""
        lines.append(f"{'' if n else '  '}{'= ' if n else ''}{form.term}{by}")
    lines.append(f"{found.rows} e-nodes, {found.stopped}; fired: {', '.join(found.fired) or 'no rule'}")
    facts = {"forms": [{"term": str(f.term), "rules": f.rules} for f in found.forms], "rows": found.rows, "fired": found.fired}
    talk.show("\n".join(lines), lambda: facts, as_json)


@command("discover", "--ops add,mul,sum,exp --size 3 -o found.py")
def discover_rules(
    talk: Talk,
    names: Names = [],  # noqa: B006
    ops: Annotated[str, typer.Option(help="Scalar operations and reductions; max is both.")] = "add,mul,sum,exp",
    size: Annotated[int, typer.Option(min=1, help="Operations of a side, at most.")] = 3,
    dtype: Annotated[str, typer.Option(help="Of the operands: its kind decides for which the laws are.")] = "float32",
    literals: Annotated[str, typer.Option(metavar="NUMBERS", help="Literals that terms may use: '0,1'.")] = "",
    tier: Annotated[str, typer.Option(help="The loosest that is looked for.", autocompletion=lambda: list(TIERS))] = "fast",
    alone: Annotated[bool, typer.Option("--alone", help="Every law, not only what no given rule derives.")] = False,
    seconds: Annotated[float, typer.Option(metavar="SECONDS", help="Afterwards, what was found so far.")] = 120.0,
    out: Annotated[
        str, typer.Option("-o", metavar="FILE", callback=place_for_file, help="Where to write the laws as a pack.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Laws that hold and that the given rules do not derive."""
    from eqsat.discovery import Vocabulary, discover
    from eqsat.discovery_text import pack_text

    if tier not in TIERS:
        raise ValueError(f"tier {tier!r}: one of {', '.join(TIERS)} required")
    if out and Path(out).exists():
        raise ValueError(f"{out}: a new file required, this one exists; choose another with -o")
    words = Vocabulary.of(_words(ops), dtype, _literals(literals))
    with talk.phase("enumerating terms"):
        found = discover(words, size, () if alone else rules_named(names), TIERS[: TIERS.index(tier) + 1], seconds)
    lines = [f"{f.rule.tier:11}  {f.rule.law}" for f in found.found]
    lines.append(
        f"{_count(found.rules)} kept of {found.candidates} pairs among {found.terms} terms; {found.derived} follow from others, "
        f"{len(found.missed)} near misses; {found.stopped}"
    )
    if out and found.found:
        Path(out).write_text(pack_text(found, f"`eqsat rules discover --ops {ops} --size {size}`"))
        lines.append(f"wrote {out}; read it, then\n  eqsat rules check {out}")
    elif out:
        lines.append(f"wrote no {out}: there is nothing new; --alone writes what the given rules derive too")
    talk.show("\n".join(lines), lambda: list(map(_as_dict, found.rules)), as_json)


def _literals(text: str) -> list[float]:
    try:
        return [float(w) for w in _words(text)]
    except ValueError:
        raise ValueError(f"literals {text!r}: numbers, such as '0,1', required") from None


def _words(text: str) -> list[str]:
    return text.replace(",", " ").split()
