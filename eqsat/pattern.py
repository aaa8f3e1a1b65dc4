"""Patterns: the two sides of a rule as data, built from variables with the operations of the language."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from eqsat.online import ONLINE
from eqsat.scalars import DTYPES, REDUCTIONS, SCALARS


class Sort:
    """What a pattern variable stands for; `kinds` limits a term's dtype."""

    def __init__(self, name: str, egglog: str, kinds: tuple[str, ...] = ()) -> None:
        self.name, self.egglog, self.kinds = name, egglog, kinds

    @property
    def is_term(self) -> bool:
        return self.egglog == "T"

    def __repr__(self) -> str:
        return self.name


if TYPE_CHECKING:  # to a type checker a rule's parameters are patterns, whatever their sort
    Term: TypeAlias = Any
    Float: TypeAlias = Any
    Integer: TypeAlias = Any
    Bool: TypeAlias = Any
    Axis: TypeAlias = Any
    DType: TypeAlias = Any
    Number: TypeAlias = Any
else:
    Term = Sort("Term", "T")
    Float = Sort("Float", "T", ("float",))
    Integer = Sort("Integer", "T", ("int", "uint"))
    Bool = Sort("Bool", "T", ("bool",))
    Axis = Sort("Axis", "i64")
    DType = Sort("DType", "i64")
    Number = Sort("Number", "f64")
SORTS = {s.name: s for s in (Term, Float, Integer, Bool, Axis, DType, Number)}


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
            return DTYPE_OF_BIT[self.data] if self.sort is DType else f"{self.data:g}"
        if self.head == "const":
            return str(self.args[0])
        args = [str(a) for a in self.args]
        if self.head == "pos":
            return f"position({args[0]})"
        name = self.data if self.head in ("reduce", "arithmetic") else self.head
        name = ONLINE[self.data].symbol if self.head == "online" else name
        symbol = SCALARS[name].symbol if name in SCALARS else ""
        return f"({f' {symbol} '.join(args)})" if symbol and len(args) == 2 else f"{name}({', '.join(args)})"


Operand = Pattern | float | int
DTYPE_OF_BIT = {d.bit: d.name for d in DTYPES.values()}


def number_(value: Operand) -> Pattern:
    """A number, or a pattern as it is."""
    return value if isinstance(value, Pattern) else Pattern("number", (), float(value), Number)


def _arithmetic(name: str, *args: Operand) -> Pattern:
    return Pattern("arithmetic", tuple(map(number_, args)), name, Number)


def _binary(name: str, a: Operand, b: Operand) -> Pattern:
    a, b = number_(a), number_(b)
    if a.sort is Number and b.sort is Number:
        return _arithmetic(name, a, b)
    return op(name, a, b)


def op(name: str, *args: Operand) -> Pattern:
    """A scalar operation of the table, by name."""
    if name not in SCALARS:
        raise ValueError(f"operation {name!r}: one of the table of scalar operations required; found none of that name")
    if len(args) != SCALARS[name].arity:
        raise ValueError(f"operation {name}: {SCALARS[name].arity} operands required, got {len(args)}")
    return Pattern(name, tuple(map(number_, args)))


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


def const(value: Operand, like: Pattern | None = None) -> Pattern:
    """A literal: on a left side with any dtype; on a right side with that of the term `like`, or the DType `like`."""
    return Pattern("const", (number_(value),) if like is None else (number_(value), like))


def extent(axis: Pattern) -> Pattern:
    """The extent of an axis, as a number."""
    return Pattern("extent", (axis,), None, Number)


def position(axis: Pattern) -> Pattern:
    """The position along an axis, as a term of any dtype; on a left side."""
    return Pattern("pos", (axis,))


def online(axis: Pattern, s: Pattern, v: Pattern, weight: Pattern | str) -> Pattern:
    """The one-pass weighted sum of the language (see `eqsat.notation`)."""
    return online_("softmax", axis, s, v, weight)


def online_(name: str, axis: Pattern, s: Pattern, v: Pattern, weight: Pattern | str) -> Pattern:
    """Reduction in one pass by a row of `eqsat.online`; of other rows than the softmax's `weight` is the dtype of `s`."""
    if name not in ONLINE:
        raise ValueError(f"online reduction {name!r}: one of {', '.join(ONLINE)} required")
    return Pattern("online", (axis, s, v, dtype_(weight)), name)


def egglog_float(value: float) -> str:
    """A number as egglog spells it."""
    if value == float("inf"):
        return "inf"
    return "-inf" if value == float("-inf") else "NaN" if value != value else repr(float(value))
