"""What a search for rules found, as a file of rules to be read and changed by a person."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from eqsat.check import Verdict
from eqsat.discovery import Discovery, Found
from eqsat.pattern import Pattern
from eqsat.rule import Rule
from eqsat.scalars import SCALARS

WIDTH = 130
_SPELLED = {"exp": "exp", "log": "log", "where": "where", "max": "max_of", "min": "min_of"}  # operations with a name of their own
_REDUCED = {"sum": "sum_", "max": "max_"}


def pack_text(d: Discovery, question: str) -> str:
    """A Python file of the laws; `question` is what was asked, in one phrase."""
    bodies = [_rule(f) for f in d.found]
    words = {w for _, names in bodies for w in names} | {"pack", "rule"}
    parts = [
        f'"""Laws found by {question}.\n\n{_count(d)}\nRead each before use: name it for what it says; say why it holds.\n"""',
        _imports(words),
        *(text for text, _ in bodies),
        *([_near_misses(d.missed)] if d.missed else []),
        "RULES = pack(globals())\n",
    ]
    return "\n\n".join(parts[:2]) + "\n\n\n" + "\n\n\n".join(parts[2:-1]) + "\n\n" + parts[-1]


def _count(d: Discovery) -> str:
    return textwrap.fill(
        f"Of {d.terms} terms, {d.candidates} pairs were equal where they were first tried; {d.derived} of these follow from "
        f"other laws, {len(d.found)} are kept. The search is {d.stopped}.",
        WIDTH,
    )


def _imports(words: Iterable[str]) -> str:
    names = sorted(words, key=lambda w: (not w[0].isupper(), w))
    line = f"from eqsat.rule import {', '.join(names)}"
    return line if len(line) <= WIDTH else f"from eqsat.rule import (\n{''.join(f'    {n},{chr(10)}' for n in names)})"


def _rule(found: Found) -> tuple[str, set[str]]:
    """A rule's function, and the names that it uses."""
    rule, words = found.rule, set[str]()
    e = rule.equation
    words |= {str(s) for s in rule.sorts.values()}
    left, right = spelled(e.left, words), spelled(e.right, words)
    guards = [f"absent({', '.join(str(m) for m in g.mentions)})" for g in e.guards]
    words |= {"absent"} if guards else set()
    words.add(way := "birewrite" if e.both_ways else "rewrite")
    loss = f", gives_up={rule.gives_up!r}".replace("'", '"') if rule.gives_up else ""
    lines = [
        f'@rule("{rule.tier}"{loss})',
        f"def {rule.name}({', '.join(f'{n}: {s}' for n, s in rule.sorts.items())}):",
        *_doc(rule, found.verdict),
        f"    return {way}({', '.join([left, right, *guards])})",
    ]
    return "\n".join(lines), words


def _doc(rule: Rule, verdict: Verdict) -> list[str]:
    """The law, and what the checker tried."""
    condition = f", if {rule.conditions}" if rule.conditions else ""
    tried = str(verdict).partition("ok, ")[2]
    text = f'"""{_bare(rule.equation.left)} = {_bare(rule.equation.right)}{condition}. Checked on {tried}.'
    lines = textwrap.wrap(text, WIDTH - 4)
    return [f"    {line}" for line in lines[:-1]] + [f'    {lines[-1]}"""' if len(lines) == 1 else f'    {lines[-1]}\n    """']


def _bare(p: Pattern) -> str:
    text = str(p)
    return text[1:-1] if p.head in SCALARS and SCALARS[p.head].symbol else text


def spelled(p: Pattern, words: set[str], inner: bool = False) -> str:
    """A pattern as its author would write it; the names that this uses are added to `words`."""
    if p.head == "variable":
        return str(p.data)
    if p.head in ("const", "number"):
        number = f"{p.data:g}" if p.head == "number" else ""
        words |= {"const"} if p.head == "const" else set()
        return number or f"const({', '.join(spelled(a, words) for a in p.args)})"
    args = [spelled(a, words, True) for a in p.args]
    if p.head == "reduce":
        word = _REDUCED.get(p.data, "reduce_")
        words.add(word)
        given = [spelled(a, words) for a in p.args]
        return f"{word}({', '.join(given if word != 'reduce_' else [repr(p.data).replace(chr(39), chr(34)), *given])})"
    if p.head in ("add", "sub", "mul", "div"):
        text = f" {SCALARS[p.head].symbol} ".join(args)
        return f"({text})" if inner else text
    word = _SPELLED.get(p.head, "op")
    words.add(word)
    given = [spelled(a, words) for a in p.args]
    return f"{word}({', '.join(given if word != 'op' else [chr(34) + p.head + chr(34), *given])})"


def _near_misses(verdicts: Iterable[Verdict]) -> str:
    lines = ["# Near misses: equal where they were first tried, but no laws."]
    for v in verdicts:
        lines += ["#", *(f"#   {line}" for line in v.problem.splitlines())]
    return "\n".join(lines)
