"""Rules: equations between terms, as their authors write them, and their lowering to egglog.

A rule is a function whose parameters are pattern variables (annotated with their sort) and whose body is the equation::

    @rule("reassociate", gives_up="the rounding of each product")
    def pull_factor_out_of_sum(a: Term, b: Term, k: Axis):
        '''Sum of a*b over k = a times the sum of b, if a does not mention k.'''
        return rewrite(sum_(k, a * b), a * sum_(k, b), absent(k, a))

The tier says what it keeps: "exact" (the same bits, up to the order of summation inside one reduction), "reassociate"
(real-number identities that keep finite results finite on ordinary data, and NaN and infinities where they were) or
"fast" (assumes finite values; approximates). Guards say when an equation is true; cost says when it pays.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from eqsat.scalars import DTYPES, REDUCTIONS, SCALARS

TIERS = ("exact", "reassociate", "fast")
PHASES = ("normalise", "structural", "explore")


class Sort:
    """What a pattern variable stands for; `kinds` limits a term's dtype."""

    def __init__(self, name: str, egglog: str, kinds: tuple[str, ...] = ()) -> None:
        self.name, self.egglog, self.kinds = name, egglog, kinds

    def __repr__(self) -> str:
        return self.name


Term = Sort("Term", "T")
Float = Sort("Float", "T", ("float",))
Integer = Sort("Integer", "T", ("int", "uint"))
Bool = Sort("Bool", "T", ("bool",))
Axis = Sort("Axis", "i64")
DType = Sort("DType", "i64")
Number = Sort("Number", "f64")


@dataclass(frozen=True)
class Pattern:
    """A pattern: a variable, a number, or an operation over patterns."""

    head: str  # "variable", "number", "arithmetic", or an operation of the language
    args: tuple[Pattern, ...] = ()
    data: Any = None
    sort: Sort = field(default=Term, compare=False)

    def __add__(self, other: Operand) -> Pattern:
        return _binary("add", self, other)

    def __radd__(self, other: Operand) -> Pattern:
        return _binary("add", other, self)

    def __sub__(self, other: Operand) -> Pattern:
        return _binary("sub", self, other)

    def __mul__(self, other: Operand) -> Pattern:
        return _binary("mul", self, other)

    def __rmul__(self, other: Operand) -> Pattern:
        return _binary("mul", other, self)

    def __truediv__(self, other: Operand) -> Pattern:
        return _binary("div", self, other)

    def __rtruediv__(self, other: Operand) -> Pattern:
        return _binary("div", other, self)

    def __neg__(self) -> Pattern:
        return _arithmetic("neg", self) if self.sort is Number else op("neg", self)

    def variables(self) -> set[str]:
        if self.head == "variable":
            return {self.data}
        return set().union(*(a.variables() for a in self.args))

    def __str__(self) -> str:
        if self.head == "variable":
            return str(self.data)
        if self.head == "number":
            return _DTYPE_OF_BIT[self.data] if self.sort is DType else f"{self.data:g}"
        args = [str(a) for a in self.args]
        name = self.data if self.head in ("reduce", "arithmetic") else self.head
        symbol = SCALARS[name].symbol if name in SCALARS else ""
        return f"({f' {symbol} '.join(args)})" if symbol and len(args) == 2 else f"{name}({', '.join(args)})"


Operand = Pattern | float | int
_DTYPE_OF_BIT = {d.bit: d.name for d in DTYPES.values()}


def _lift(value: Operand) -> Pattern:
    return value if isinstance(value, Pattern) else Pattern("number", (), float(value), Number)


def _arithmetic(name: str, *args: Operand) -> Pattern:
    return Pattern("arithmetic", tuple(map(_lift, args)), name, Number)


def _binary(name: str, a: Operand, b: Operand) -> Pattern:
    a, b = _lift(a), _lift(b)
    if a.sort is Number and b.sort is Number:
        return _arithmetic(name, a, b)
    return op(name, a, b)


def op(name: str, *args: Operand) -> Pattern:
    """A scalar operation of the table, by name."""
    if name not in SCALARS:
        raise ValueError(f"operation {name!r}: one of the table of scalar operations required; found none of that name")
    if len(args) != SCALARS[name].arity:
        raise ValueError(f"operation {name}: {SCALARS[name].arity} operands required, got {len(args)}")
    return Pattern(name, tuple(map(_lift, args)))


def _named(name: str) -> Callable[..., Pattern]:
    return lambda *args: op(name, *args)


exp, log, where, max_of, min_of = map(_named, ("exp", "log", "where", "max", "min"))


def reduce_(name: str, axis: Pattern, body: Pattern) -> Pattern:
    """Reduction of `body` over `axis` by a row of REDUCTIONS."""
    if name not in REDUCTIONS:
        raise ValueError(f"reduction {name!r}: one of {', '.join(REDUCTIONS)} required")
    return Pattern("reduce", (axis, body), name)


def sum_(axis: Pattern, body: Pattern) -> Pattern:
    return reduce_("sum", axis, body)


def max_(axis: Pattern, body: Pattern) -> Pattern:
    return reduce_("max", axis, body)


def cast(dtype: Pattern | str, body: Pattern) -> Pattern:
    """Conversion to a dtype given by name or by a DType variable."""
    return Pattern("cast", (body, dtype_(dtype)))


def dtype_(dtype: Pattern | str) -> Pattern:
    """A dtype as a pattern."""
    return dtype if isinstance(dtype, Pattern) else Pattern("number", (), DTYPES[dtype].bit, DType)


def const(value: Pattern | float, like: Pattern | None = None) -> Pattern:
    """A literal: on a left side with any dtype, on a right side with the dtype of the term `like`."""
    return Pattern("const", (_lift(value),) if like is None else (_lift(value), like))


def online(axis: Pattern, s: Pattern, v: Pattern, weight: Pattern | str) -> Pattern:
    """The one-pass weighted sum of the language (see `eqsat.notation`)."""
    return Pattern("online", (axis, s, v, dtype_(weight)))


@dataclass(frozen=True)
class Guard:
    """A condition: egglog facts over the rule's variables, and its wording."""

    text: str
    facts: Callable[[Lowering], list[str]]


def absent(k: Pattern, *terms: Pattern) -> Guard:
    """No term mentions the axis k."""
    words = f"{', '.join(map(str, terms))} {'does' if len(terms) == 1 else 'do'} not mention {k}"
    return Guard(words, lambda low: [f"(= 0 (& {low.var(k)} {low.axes(t)}))" for t in terms])


def present(k: Pattern, *terms: Pattern) -> Guard:
    """Every term mentions the axis k."""
    words = f"{', '.join(map(str, terms))} mention{'s' if len(terms) == 1 else ''} {k}"
    return Guard(words, lambda low: [f"(!= 0 (& {low.var(k)} {low.axes(t)}))" for t in terms])


def has_dtype(t: Pattern, dtype: Pattern | str) -> Guard:
    """The term has this dtype."""
    d = dtype_(dtype)
    return Guard(f"{t} is of dtype {dtype}", lambda low: [f"(= {low.expression(d)} {low.dtype(t)})"])


def between(low_bound: float, c: Pattern, high_bound: float) -> Guard:
    """The magnitude of a number lies between two positive bounds, so it is neither zero nor infinite."""
    return Guard(
        f"{low_bound:g} <= |{c}| <= {high_bound:g}",
        lambda low: [f"(>= (abs {low.var(c)}) {float(low_bound)!r})", f"(<= (abs {low.var(c)}) {_f64(high_bound)})"],
    )


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

    @property
    def law(self) -> str:
        """The law in readable notation."""
        e = self.equation
        text = f"{e.left} {'=' if e.both_ways else '->'} {e.right}"
        return text + (f"   if {' and '.join(g.text for g in e.guards)}" if e.guards else "")


def rule(
    tier: str, *, phase: str = "structural", gives_up: str = "", name: str = "", **family: Any
) -> Callable[[Callable[..., Equation]], Rule]:
    """Decorator that makes a Rule of a function.

    Keyword arguments beyond the named ones are passed to the function: members of a family are made in a loop, each
    with its own `name`. Raises ValueError, with the author's file and line, for an unknown tier or phase, a variable
    without a sort, or a right side with a variable that the left side does not bind.
    """

    def make(function: Callable[..., Equation]) -> Rule:
        source = f"{inspect.getsourcefile(function)}:{function.__code__.co_firstlineno}"
        label = name or function.__name__
        where_ = f"rule {label} ({source})"
        if tier not in TIERS or phase not in PHASES:
            raise ValueError(f"{where_}: tier in {TIERS} and phase in {PHASES} required, got {tier!r}, {phase!r}")
        if (tier == "exact") == bool(gives_up):
            raise ValueError(
                f"{where_}: tier exact gives up nothing, any other says what in gives_up; got {gives_up!r} for {tier}"
            )
        sorts = {p: _sort_of(function, p, where_) for p in inspect.signature(function).parameters if p not in family}
        equation = function(**{p: Pattern("variable", (), p, s) for p, s in sorts.items()}, **family)
        _check_bound(equation, where_)
        return Rule(label, tier, phase, gives_up, inspect.getdoc(function) or "", equation, sorts, source)

    return make


def _sort_of(function: Callable[..., Any], parameter: str, where_: str) -> Sort:
    annotation = function.__annotations__.get(parameter)
    sort = function.__globals__.get(annotation, SORTS.get(annotation)) if isinstance(annotation, str) else annotation
    if not isinstance(sort, Sort):
        raise ValueError(
            f"{where_}: parameter {parameter} needs a sort as annotation, got {annotation}; use one of {', '.join(SORTS)}"
        )
    return sort


SORTS = {s.name: s for s in (Term, Float, Integer, Bool, Axis, DType, Number)}


def _check_bound(equation: Equation, where_: str) -> None:
    left, right = equation.left.variables(), equation.right.variables()
    unbound = right - left | (left - right if equation.both_ways else set())
    if unbound:
        raise ValueError(f"{where_}: variables of one side must be bound by the other, got {', '.join(sorted(unbound))}")


def pack(namespace: Mapping[str, Any]) -> tuple[Rule, ...]:
    """All rules of a module, in order of definition; pass ``globals()``. Lists of rules (families) are included."""
    found: list[Rule] = []
    for value in namespace.values():
        found.extend(r for r in (value if isinstance(value, list) else [value]) if isinstance(r, Rule))
    names = [r.name for r in found]
    if repeated := {n for n in names if names.count(n) > 1}:
        raise ValueError(f"pack: rule names must be unique, got {', '.join(sorted(repeated))} twice; rename one")
    return tuple(found)


# --- lowering to egglog -------------------------------------------------------------------------------------------

# Constructors of the e-graph by operation: name -> argument sorts ("T" a term, else an attribute).
SIGNATURES: dict[str, tuple[str, ...]] = {
    **{f"S_{o.name}": ("T",) * o.arity for o in SCALARS.values()},
    **{f"R_{r.name}": ("i64", "T") for r in REDUCTIONS.values()},
    "Cast": ("T", "i64"),
    "Const": ("f64", "i64"),
    "Pos": ("i64", "i64"),
    "Online": ("i64", "T", "T", "i64"),
    "Load": ("i64", "i64"),
    "Load1": ("i64", "i64", "T"),
    "Load2": ("i64", "i64", "T", "T"),
    "Leaf": ("i64",),
}


def _f64(value: float) -> str:
    if value == float("inf"):
        return "inf"
    return "-inf" if value == float("-inf") else "NaN" if value != value else repr(float(value))


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
        return self._fact("dtype", pattern)

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
                return str(pattern.data) if pattern.sort is DType else _f64(pattern.data)
            case "arithmetic":
                return f"({_ARITHMETIC[pattern.data]} {' '.join(map(self.expression, pattern.args))})"
            case "const":
                dtype = self.dtype(pattern.args[1]) if len(pattern.args) > 1 else f"d{next(self._fresh)}"
                return f"(Const {self.expression(pattern.args[0])} {dtype})"
        return f"({constructor(pattern)} {' '.join(map(self.expression, pattern.args))})"

    def actions(self, pattern: Pattern, into: list[str]) -> str:
        """Build a right side node by node, tagging each row with the rule that made it."""
        if pattern.sort is not Term or pattern.head == "variable":
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
        guards = [f for g in self.rule.equation.guards for f in g.facts(self)]
        body = " ".join([match, *self.facts, *guards])
        return f'(rule ({body}) ({" ".join(actions)} (union e {result})) :ruleset {self.rule.phase} :name "{name}")'


def constructor(pattern: Pattern) -> str:
    """Name of the e-graph's constructor for an operation."""
    if pattern.head == "reduce":
        return f"R_{pattern.data}"
    return {"cast": "Cast", "online": "Online"}.get(pattern.head, f"S_{pattern.head}")


def lower(rule: Rule, number: int) -> list[tuple[str, str]]:
    """(name, egglog text) of each direction of a rule; `number` tags the rows that it makes."""
    e = rule.equation
    texts = [(rule.name, Lowering(rule, number).text(e.left, e.right, rule.name))]
    if e.both_ways:
        back = f"{rule.name}_back"
        texts.append((back, Lowering(rule, number).text(e.right, e.left, back)))
    return texts


def select(rules: Iterable[Rule], numerics: str) -> tuple[Rule, ...]:
    """The rules that a numerics tier admits."""
    return tuple(r for r in rules if TIERS.index(r.tier) <= TIERS.index(numerics))
