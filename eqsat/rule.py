"""Rules: equations between terms, as their authors write them.

A rule is a function whose parameters are pattern variables (annotated with their sort) and whose body is the equation::

    @rule("reassociate", gives_up="the rounding of each product")
    def pull_factor_out_of_sum(a: Term, b: Term, k: Axis):
        '''Sum of a*b over k = a times the sum of b, if a does not mention k.'''
        return rewrite(sum_(k, a * b), a * sum_(k, b), absent(k, a))

The tier says what it keeps: "exact" (the same bits, up to the order of summation inside one reduction), "reassociate"
(real-number identities that keep finite results finite on ordinary data, and NaN and infinities where they were) or
"fast" (assumes finite values; approximates). Guards say when an equation is true; cost says when it pays. The phase says
when it runs: "normalise" (to a fixed point, so it must shrink), "structural", or "explore" (it may grow: matches are rationed).
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from eqsat.guard import (
    Guard,
    absent,
    at_least,
    between,
    dtype_in,
    fewer_axes,
    finite,
    has_dtype,
    present,
    values_above,
    values_at_least,
    values_at_most,
    values_below,
    varies,
    wide,
)
from eqsat.pattern import (
    SORTS,
    Axis,
    Bool,
    DType,
    Float,
    Integer,
    Number,
    Pattern,
    Sort,
    Term,
    cast,
    const,
    dtype_,
    exp,
    extent,
    log,
    max_,
    max_of,
    min_of,
    online,
    online_,
    op,
    position,
    reduce_,
    sum_,
    where,
)
from eqsat.rule_lowering import SIGNATURES, lower
from eqsat.rule_types import Types

__all__ = [
    "PHASES", "SIGNATURES", "SORTS", "TIERS", "Axis", "Bool", "DType", "Equation", "Float", "Guard", "Integer", "Number",
    "Pattern", "Rule", "Sort", "Term", "absent", "at_least", "between", "birewrite", "cast", "const", "dtype_",
    "dtype_in", "exp", "extent", "fewer_axes", "finite", "has_dtype", "log", "lower", "max_", "max_of", "min_of",
    "online", "online_", "op", "pack", "position", "present", "reduce_", "rewrite", "rule", "select", "sum_", "values_above",
    "values_at_least", "values_at_most", "values_below", "varies", "where", "wide", "without",
]  # fmt: skip

TIERS = ("exact", "reassociate", "fast")
PHASES = ("normalise", "structural", "explore")


@dataclass(frozen=True)
class Equation:
    left: Pattern
    right: Pattern
    guards: tuple[Guard, ...]
    both_ways: bool


def rewrite(left: Pattern, right: Pattern, *guards: Guard) -> Equation:
    """left becomes equal to right wherever left is found and the guards hold."""
    return Equation(left, right, guards, False)


def birewrite(left: Pattern, right: Pattern, *guards: Guard) -> Equation:
    """As `rewrite`, in both directions."""
    return Equation(left, right, guards, True)


@dataclass(frozen=True)
class Rule:
    """One law: its equation, what it keeps (tier), what it gives up, and when it runs (phase)."""

    name: str
    tier: str
    phase: str
    gives_up: str
    doc: str
    equation: Equation
    sorts: Mapping[str, Sort]
    source: str  # file:line of the author's function
    pack: str = ""  # the module that it stands in

    @property
    def law(self) -> str:
        """The law in readable notation."""
        e = self.equation
        text = f"{e.left} {'=' if e.both_ways else '->'} {e.right}"
        return text + (f"   if {self.conditions}" if e.guards else "")

    @property
    def conditions(self) -> str:
        return " and ".join(g.text for g in self.equation.guards)

    @property
    def types(self) -> Types:
        """Which variables share a dtype."""
        return Types(self.equation.left, self.equation.right, self.equation, self.sorts)


def rule(
    tier: str = "", *, phase: str = "structural", gives_up: str = "", name: str = "", **family: Any
) -> Callable[[Callable[..., Equation]], Rule]:
    """Decorator that makes a Rule of a function.

    Keyword arguments beyond the named ones are passed to the function: members of a family are made in a loop, each
    with its own `name`. Raises ValueError or TypeError, with the author's file and line, for an unknown tier, phase or operation,
    a variable without a sort, a variable of one side that the other does not bind, and sorts or dtypes that do not fit.
    """
    if not isinstance(tier, str):  # @rule without parentheses
        raise ValueError(f"rule {tier.__name__} ({_source(tier)}): a tier required, such as @rule('exact'); one of {TIERS}")

    def make(function: Callable[..., Equation]) -> Rule:
        label = name or function.__name__
        at = f"rule {label} ({_source(function)})"
        if tier not in TIERS or phase not in PHASES:
            raise ValueError(f"{at}: tier in {TIERS} and phase in {PHASES} required, got {tier!r}, {phase!r}")
        if (tier == "exact") == bool(gives_up):
            raise ValueError(f"{at}: tier exact gives up nothing, any other says what in gives_up; got {gives_up!r} for {tier}")
        sorts = {p: _sort_of(function, p, at) for p in inspect.signature(function).parameters if p not in family}
        try:
            equation = function(**{p: Pattern("variable", (), p, s) for p, s in sorts.items()}, **family)
            well_formed(equation, sorts)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{at}: {error}") from error
        module = function.__module__.rsplit(".")[-1]
        return Rule(label, tier, phase, gives_up, inspect.getdoc(function) or "", equation, sorts, _source(function), module)

    return make


def _source(function: Callable[..., Any]) -> str:
    return f"{inspect.getsourcefile(function)}:{function.__code__.co_firstlineno}"


def _sort_of(function: Callable[..., Any], parameter: str, at: str) -> Sort:
    annotation = function.__annotations__.get(parameter)
    sort = function.__globals__.get(annotation, SORTS.get(annotation)) if isinstance(annotation, str) else annotation
    if not isinstance(sort, Sort):
        raise ValueError(f"{at}: parameter {parameter} needs a sort as annotation, got {annotation}; one of {', '.join(SORTS)}")
    return sort


def well_formed(equation: Equation, sorts: Mapping[str, Sort]) -> None:
    """Raises TypeError or ValueError for mistakes that show when a rule is loaded."""
    if not isinstance(equation, Equation):
        raise TypeError(f"rewrite(...) or birewrite(...) as the result required, got {type(equation).__name__}")
    sides = [equation.left, equation.right] if equation.both_ways else [equation.left]
    for side in sides:
        if side.head in ("variable", "const"):
            raise ValueError(f"{side} -> ...: an operation to look for required, got what stands everywhere")
    left, right = equation.left.variables(), equation.right.variables()
    given = {d.data for g in equation.guards for _, d in g.dtypes if d.head == "variable"}  # a guard binds them
    unbound = right - left - given | (left - right - given if equation.both_ways else set())
    if unbound:
        raise ValueError(f"variables of one side must be bound by the other, got {', '.join(sorted(unbound))}")
    mentioned = set().union(*(m.variables() for g in equation.guards for m in g.mentions)) - given
    if stray := mentioned - left:
        raise ValueError(f"conditions may use the variables of the left side, got {', '.join(sorted(stray))}")
    if unused := sorts.keys() - left - given:
        raise ValueError(f"every parameter must stand on the left side, got {', '.join(sorted(unused))}")
    Types(equation.left, equation.right, equation, sorts)
    if equation.both_ways:
        Types(equation.right, equation.left, equation, sorts)


def pack(namespace: Mapping[str, Any]) -> tuple[Rule, ...]:
    """All rules of a module, in order of definition; pass ``globals()``. Lists of rules (families) are included."""
    found: list[Rule] = []
    for value in namespace.values():
        found.extend(r for r in (value if isinstance(value, list) else [value]) if isinstance(r, Rule))
    return unique(found)


def unique(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """The rules, if no two share a name."""
    by_name: dict[str, Rule] = {}
    for r in rules:
        if (other := by_name.setdefault(r.name, r)) is not r:
            raise ValueError(f"rule {r.name} ({r.source}): a name of its own required, {other.source} has it too; rename one")
    return tuple(by_name.values())


def select(rules: Iterable[Rule], numerics: str) -> tuple[Rule, ...]:
    """The rules that a numerics tier admits. Raises TypeError for what is no rule."""
    rules = tuple(rules)
    for r in rules:
        if not isinstance(r, Rule):
            raise TypeError(
                f"rules: rules required, got {r!r}; a function becomes one by @rule(tier), a name by eqsat.rules.RULES"
            )
    return tuple(r for r in rules if TIERS.index(r.tier) <= TIERS.index(numerics))


def without(rules: Iterable[Rule], names: Iterable[str]) -> tuple[Rule, ...]:
    """The rules but those switched off by name; the name of a pack switches off all of it."""
    rules, names = tuple(rules), set(names)
    known = {r.name for r in rules} | {r.pack for r in rules}
    for missing in sorted(names - known):
        near = difflib.get_close_matches(missing, known, 3)
        raise ValueError(f"rule or pack {missing!r}: none of that name" + (f"; did you mean {', '.join(near)}?" if near else ""))
    return tuple(r for r in rules if r.name not in names and r.pack not in names)
