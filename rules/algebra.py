"""Scalar algebra: identities, commutativity, division by literals, selects."""

from eqsat.rule import (
    Bool,
    Float,
    Number,
    Term,
    between,
    birewrite,
    const,
    max_of,
    min_of,
    op,
    pack,
    rewrite,
    rule,
    where,
)
from eqsat.scalars import SCALARS


def _commutes(name: str):  # type: ignore[no-untyped-def]
    @rule("exact", name=f"{name}_commutes", operation=name)
    def commutes(a: Term, b: Term, operation):  # type: ignore[no-untyped-def]
        """The operands of a commutative operation may be swapped: the same bits."""
        return rewrite(op(operation, a, b), op(operation, b, a))

    return commutes


# Only where another rule looks for an operand on a given side; a swap that no rule uses would double the e-graph for nothing.
commutes = [_commutes(name) for name in ("add", "mul") if SCALARS[name].commutative]


@rule("exact", phase="normalise")
def mul_by_one(a: Term):
    """a*1 = a, also for NaN, infinities and signed zeros."""
    return rewrite(a * const(1), a)


@rule("exact", phase="normalise")
def div_by_one(a: Float):
    """a/1 = a."""
    return rewrite(a / const(1), a)


@rule("exact", phase="normalise")
def sub_zero(a: Term):
    """a - 0 = a, signed zeros included (a + 0 is not exact: -0 + 0 = +0)."""
    return rewrite(a - const(0.0), a)


@rule("exact", phase="normalise")
def max_with_negative_infinity(a: Float):
    """The greater of a and -inf is a; NaN stays NaN."""
    return rewrite(max_of(a, const(float("-inf"))), a)


@rule("exact", phase="normalise")
def max_with_negative_infinity_first(a: Float):
    """As max_with_negative_infinity, operands swapped."""
    return rewrite(max_of(const(float("-inf")), a), a)


@rule("exact", phase="normalise")
def min_with_infinity(a: Float):
    """The lesser of a and +inf is a; NaN stays NaN."""
    return rewrite(min_of(a, const(float("inf"))), a)


@rule("exact", phase="normalise")
def negation_twice(a: Float):
    """-(-a) = a: only the sign bit changes, twice."""
    return rewrite(op("neg", -a), a)


@rule("exact", phase="normalise")
def select_of_equal(p: Bool, a: Term):
    """Choosing between a and a gives a."""
    return rewrite(where(p, a, a), a)


def _divides(power: int):  # type: ignore[no-untyped-def]
    value = 2.0**power
    name = f"div_by_2_to_{power}" if power >= 0 else f"div_by_2_to_minus_{-power}"

    @rule("exact", phase="normalise", name=name, divisor=value)
    def div_by_power_of_two(a: Float, divisor):  # type: ignore[no-untyped-def]
        """Division by a power of two is multiplication by its reciprocal: both round the same real number."""
        return rewrite(a / const(divisor), a * const(1.0 / divisor, a))

    return div_by_power_of_two


div_by_powers_of_two = [_divides(power) for power in range(-4, 11) if power]


@rule("reassociate", gives_up="one rounding, of the reciprocal")
def div_by_literal(a: Float, c: Number):
    """a/c = a*(1/c) for a literal c whose reciprocal neither overflows nor is subnormal."""
    return rewrite(a / const(c), a * const(1.0 / c, a), between(1e-4, c, 1e4))


@rule("reassociate", gives_up="the rounding of each product")
def factor_common(a: Float, b: Float, c: Float):
    """a*b + a*c = a*(b + c)."""
    return rewrite(a * b + a * c, a * (b + c))


@rule("reassociate", gives_up="the order of two roundings")
def mul_of_quotient(a: Float, b: Float, c: Float):
    """a*(b/c) = (a*b)/c."""
    return birewrite(a * (b / c), (a * b) / c)


RULES = pack(globals())
