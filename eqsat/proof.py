"""Proofs of rules by the SMT solver z3 (the extra `prove`): for every bit pattern of integers and of float16, or over the reals.

Samples show that a rule is wrong, a proof that it is right. What is proved is the equation alone, without its conditions: of
bit-vectors and floats the same bits, over the reals equality wherever no divisor is zero. Functions other than
arithmetic stand for any function there. Laws with reductions or conversions, or that need their conditions, are not proved.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import isfinite
from typing import Any

from eqsat.check import Verdict
from eqsat.pattern import Number, Pattern
from eqsat.rule import Rule
from eqsat.scalars import DTYPES, SCALARS

MILLISECONDS = 2000  # of one query
MISSING = "z3 is not installed; pip install 'eqsat[prove]'"
REALS = "reals"
_BITS = {"int8": 8, "uint8": 8, "int32": 32, "uint32": 32}
_COMPARES: dict[str, Callable[[Any, Any], Any]] = {n: getattr(operator, n) for n in ("lt", "le", "gt", "ge", "eq", "ne")}
_ARITHMETIC: dict[str, Callable[..., Any]] = {n: getattr(operator, n) for n in ("add", "sub", "mul", "neg")}
_LOGIC: dict[str, Callable[..., Any]] = {"and": operator.and_, "or": operator.or_, "xor": operator.xor, "not": operator.invert}


class Inexpressible(ValueError):
    """The solver's theories here have no word for a part of a rule."""


@dataclass(frozen=True)
class Proof:
    """What the solver found: where the equation is proved, or why it is not; `refuted` by values that make it false."""

    proved: tuple[str, ...] = ()  # dtypes, or "reals"
    reason: str = ""
    refuted: str = ""

    def __str__(self) -> str:
        if not self.proved:
            return f"not proved ({self.reason or self.refuted})"
        return "proved over the reals" if self.proved == (REALS,) else f"proved for every value of {', '.join(self.proved)}"


def prove(rule: Rule) -> Proof:
    """Prove a rule's equation wherever its sorts admit it, or say why not."""
    try:
        import z3  # noqa: F401
    except ImportError:
        return Proof(reason=MISSING)
    try:
        domains = list(_domains(rule))
        for domain in domains:
            if (failed := _Query(rule, domain).failure()) is not None:
                return failed
    except Inexpressible as error:
        return Proof(reason=str(error))
    return Proof(tuple(domains))


def proved(verdict: Verdict) -> Verdict:
    """The verdict on a rule that passed, with what the solver says of it; values that refute the rule are a problem."""
    if not verdict.passed:
        return verdict
    found = prove(verdict.rule)
    return replace(
        verdict, proof=str(found), problem=f"law      {verdict.rule.law}\nz3       {found.refuted}" if found.refuted else ""
    )


def _domains(rule: Rule) -> Iterator[str]:
    """The dtypes to prove a rule for: 8 and 32 bits stand for integers, float16 for floats of the exact tier, else the reals."""
    types = rule.types
    terms = [v for v, sort in rule.sorts.items() if sort.is_term]
    classes = {types.class_of(v) for v in terms if types.kinds(types.class_of(v)) != {"bool"}}
    if len(classes) > 1:
        raise Inexpressible("operands of several dtypes")
    kinds = types.kinds(classes.pop()) if classes else frozenset(["bool"])
    if "bool" in kinds:
        yield "bool"
    yield from (d for d in _BITS if DTYPES[d].kind in kinds)
    if "float" in kinds:
        yield "float16" if rule.tier == "exact" else REALS


@dataclass
class _Query:
    """One equation in one dtype; values of a bool are single bits."""

    rule: Rule
    domain: str
    divisors: list[Any] = field(default_factory=list)
    any_function: bool = False

    def failure(self) -> Proof | None:
        """None if the equation is proved."""
        import z3

        left, right = self._fit(*map(self._term, (self.rule.equation.left, self.rule.equation.right)))
        solver = z3.Solver()
        solver.set("timeout", MILLISECONDS)
        solver.add(*(d != 0 for d in self.divisors))
        solver.add(left != right)  # as SMT-LIB has it: NaN is NaN, -0 is not 0
        found = solver.check()
        if found == z3.unsat:
            return None
        if found == z3.unknown:
            return Proof(reason=f"the solver gave up after {MILLISECONDS / 1000:g} s")
        if self.rule.equation.guards or self.any_function:
            return Proof(reason="true by its conditions" if self.rule.equation.guards else "true of these functions only")
        model = solver.model()
        values = ", ".join(f"{d} = {model[d]}" for d in sorted(model, key=str))
        return Proof(refuted=f"{self.domain}: {values or 'always'} makes {left} and {right} differ")

    def _term(self, pattern: Pattern) -> Any:
        """A pattern as the solver's term, a literal as a number that takes the sort of what it meets."""
        args = [] if pattern.head in ("variable", "number") else [self._term(a) for a in pattern.args[: self._operands(pattern)]]
        match pattern.head:
            case "variable":
                return self._variable(pattern)
            case "number":
                return pattern.data
            case "const":
                return args[0]
            case "where":
                return self._choice(*args)
        return self._apply(pattern.data if pattern.head == "arithmetic" else pattern.head, args)

    @staticmethod
    def _operands(pattern: Pattern) -> int:
        if pattern.head == "const":
            return 1
        if pattern.head not in SCALARS and pattern.head != "arithmetic":
            raise Inexpressible(f"no theory of {pattern.head}")
        return len(pattern.args)

    def _variable(self, pattern: Pattern) -> Any:
        import z3

        name = pattern.data
        if pattern.sort.kinds == ("bool",) or self.domain == "bool":
            return z3.BitVec(name, 1)
        if self.domain in _BITS:
            return z3.BitVec(name, _BITS[self.domain])
        if pattern.sort is Number and self.domain != REALS:
            raise Inexpressible("literals in floats")
        return z3.Real(name) if self.domain == REALS else z3.FP(name, z3.Float16())

    def _literal(self, value: float, like: Any) -> Any:
        import z3

        sort = like.sort()
        if z3.is_bv(like):
            return z3.BitVecVal(int(value), sort)
        if z3.is_fp(like):
            return z3.FPVal(value, sort)
        if not isfinite(value):
            raise Inexpressible("no infinite real")
        return z3.RealVal(Fraction(value))

    def _fit(self, *args: Any) -> list[Any]:
        like = next((a for a in args if not isinstance(a, float)), None)
        if like is None:
            raise Inexpressible("literals alone")
        return [self._literal(a, like) if isinstance(a, float) else a for a in args]

    def _choice(self, p: Any, a: Any, b: Any) -> Any:
        import z3

        return z3.If(p == 1, *self._fit(a, b))

    def _apply(self, name: str, args: list[Any]) -> Any:
        import z3

        args = self._fit(*args)
        x = args[0]
        if name in _COMPARES:
            return z3.If(self._compare(name, *args), z3.BitVecVal(1, 1), z3.BitVecVal(0, 1))
        if name in _LOGIC and z3.is_bv(x):
            return _LOGIC[name](*args)
        if name in ("add", "sub", "mul", "div") and z3.is_fp(x):
            return getattr(z3, f"fp{name.capitalize()}")(z3.RNE(), *args)
        if name == "div" and z3.is_real(x):
            self.divisors.append(args[1])
            return args[0] / args[1]
        if name in _ARITHMETIC:
            return _ARITHMETIC[name](*args)
        if name == "abs":
            return z3.fpAbs(x) if z3.is_fp(x) else x if self.domain.startswith("u") else z3.If(x < 0, -x, x)
        if name in ("max", "min") and not z3.is_fp(x):
            return z3.If(self._compare("ge" if name == "max" else "le", *args), *args)
        if z3.is_real(x):
            self.any_function = True
            return z3.Function(name, *(a.sort() for a in args), x.sort())(*args)
        raise Inexpressible(f"no theory of {name}")

    def _compare(self, name: str, a: Any, b: Any) -> Any:
        import z3

        if z3.is_fp(a) and name in ("eq", "ne"):
            return z3.fpEQ(a, b) if name == "eq" else z3.fpNEQ(a, b)
        if z3.is_bv(a) and not self.domain.startswith("i") and name in ("lt", "le", "gt", "ge"):
            return getattr(z3, f"U{name.upper()}")(a, b)
        return _COMPARES[name](a, b)
