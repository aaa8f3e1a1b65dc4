"""Rules in egglog's words, and the constructors of the e-graph."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from eqsat.online import ONLINE
from eqsat.pattern import DType, Pattern, egglog_float
from eqsat.scalars import DTYPES, REDUCTIONS, SCALARS

if TYPE_CHECKING:
    from eqsat.rule import Rule

MAX_DYNAMIC = 8  # values that one load's index may use

# Constructors of the e-graph by operation: name -> argument sorts ("T" a term, else an attribute).
SIGNATURES: dict[str, tuple[str, ...]] = {
    **{f"S_{o.name}": ("T",) * o.arity for o in SCALARS.values()},
    **{f"R_{r.name}": ("i64", "T") for r in REDUCTIONS.values()},
    "Cast": ("T", "i64"),
    "Const": ("f64", "i64"),
    "Pos": ("i64", "i64"),
    **{f"O_{name}": ("i64", "T", "T", "i64") for name in ONLINE},
    "Load": ("i64", "i64"),
    **{f"Load{n}": ("i64", "i64", *["T"] * n) for n in range(1, MAX_DYNAMIC + 1)},
    "Leaf": ("i64",),
}


_ARITHMETIC = {"add": "+", "sub": "-", "mul": "*", "div": "/", "neg": "neg"}


class Lowering:
    """Lowers one direction of a rule to an egglog rule; collects facts that bind dtypes and axes on demand."""

    def __init__(self, rule: Rule, number: int) -> None:
        self.rule, self.number = rule, number
        self.facts: list[str] = []
        self._fresh = itertools.count()
        self._bound: dict[tuple[str, str], str] = {}

    def var(self, pattern: Pattern) -> str:
        return f"v_{pattern.data}"

    def axes(self, pattern: Pattern) -> str:
        return self._fact("axes", pattern)

    def dtype(self, pattern: Pattern) -> str:
        """The dtype of a term, or a dtype itself."""
        return self.expression(pattern) if pattern.sort is DType else self._fact("dtype", pattern)

    def low(self, pattern: Pattern) -> str:
        """A bound below the values of a term."""
        return self._fact("low", pattern)

    def high(self, pattern: Pattern) -> str:
        return self._fact("high", pattern)

    def _fact(self, function: str, pattern: Pattern) -> str:
        key = (function, self.var(pattern))
        if key not in self._bound:
            self._bound[key] = f"{function}_{pattern.data}"
            self.facts.append(f"(= {self._bound[key]} ({function} {self.var(pattern)}))")
        return self._bound[key]

    def expression(self, pattern: Pattern) -> str:
        """A pattern as an egglog expression (left sides, and attributes)."""
        match pattern.head:
            case "variable":
                return self.var(pattern)
            case "number":
                return str(pattern.data) if pattern.sort is DType else egglog_float(pattern.data)
            case "arithmetic":
                return f"({_ARITHMETIC[pattern.data]} {' '.join(map(self.expression, pattern.args))})"
            case "extent":
                return f"(to-f64 {self._fact('extent', pattern.args[0])})"
            case "pos":
                return f"(Pos {self._fact('position', pattern.args[0])} d{next(self._fresh)})"
            case "const":
                if pattern.args[0].head == "variable":
                    return self._any_literal(pattern)
                dtype = self.dtype(pattern.args[1]) if len(pattern.args) > 1 else f"d{next(self._fresh)}"
                return f"(Const {self.expression(pattern.args[0])} {dtype})"
        return f"({constructor(pattern)} {' '.join(map(self.expression, pattern.args))})"

    def _any_literal(self, pattern: Pattern) -> str:
        """A term that is some literal: one for each class, which may hold several that rounding alone tells apart."""
        term = f"l{next(self._fresh)}"
        self.facts.append(f"(= {self.expression(pattern.args[0])} (literal {term}))")
        if len(pattern.args) > 1:
            self.facts.append(f"(= {self.dtype(pattern.args[1])} (dtype {term}))")
        return term

    def actions(self, pattern: Pattern, into: list[str]) -> str:
        """Build a right side node by node, tagging each row with the rule that made it."""
        if not pattern.sort.is_term or pattern.head == "variable":
            return self.expression(pattern)
        if pattern.head == "const":
            name, args = "Const", [self.expression(pattern.args[0]), self.dtype(pattern.args[1])]
        else:
            name, args = constructor(pattern), [self.actions(a, into) for a in pattern.args]
        out = f"n{next(self._fresh)}"
        into.append(f"(let {out} ({name} {' '.join(args)}))")
        into.append(f"(set (by_{name} {' '.join(args)}) {self.number})")
        return out

    def text(self, left: Pattern, right: Pattern, name: str) -> str:
        match = f"(= e {self.expression(left)})"
        for variable, sort in self.rule.sorts.items():
            if sort.kinds and variable in left.variables():
                bits = sum(d.bit for d in DTYPES.values() if d.kind in sort.kinds)
                self.facts.append(f"(!= 0 (& {bits} {self.dtype(Pattern('variable', (), variable, sort))}))")
        actions: list[str] = []
        result = self.actions(right, actions)
        if right.head == "variable":  # no row is made that could carry the tag
            actions.append(f"(bypassed e {self.number})")
        guards = [f for g in self.rule.equation.guards for f in g.facts(self)]
        body = " ".join([match, *self.facts, *guards])
        return f'(rule ({body}) ({" ".join(actions)} (union e {result})) :ruleset {self.rule.phase} :name "{name}")'


def constructor(pattern: Pattern) -> str:
    """Name of the e-graph's constructor for an operation."""
    if (form := {"reduce": "R", "online": "O"}.get(pattern.head)) is not None:
        return f"{form}_{pattern.data}"
    return "Cast" if pattern.head == "cast" else f"S_{pattern.head}"


def lower(rule: Rule, number: int) -> list[tuple[str, str]]:
    """(name, egglog text) of each direction of a rule; `number` tags the rows that it makes."""
    e = rule.equation
    texts = [(rule.name, Lowering(rule, number).text(e.left, e.right, rule.name))]
    if e.both_ways:
        back = f"{rule.name}_back"
        texts.append((back, Lowering(rule, number).text(e.right, e.left, back)))
    return texts
