"""Scalar algebra: identities, signs, literals, factoring, and bringing together what is computed less often."""

from eqsat.rule import (
    DType,
    Float,
    Number,
    Term,
    between,
    birewrite,
    const,
    dtype_in,
    fewer_axes,
    max_of,
    min_of,
    op,
    pack,
    rewrite,
    rule,
    varies,
    wide,
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
    return rewrite(a / const(c), a * const(1.0 / c, a), between(1e-4, c, 1e4), wide(a))


@rule("reassociate", gives_up="the rounding of each product")
def factor_common(a: Float, b: Float, c: Float):
    """a*b + a*c = a*(b + c)."""
    return rewrite(a * b + a * c, a * (b + c))


@rule("reassociate", gives_up="the rounding of each product")
def factor_common_of_difference(a: Float, b: Float, c: Float):
    """a*b - a*c = a*(b - c)."""
    return rewrite(a * b - a * c, a * (b - c))


@rule("reassociate", gives_up="the order of two roundings")
def mul_of_quotient(a: Float, b: Float, c: Float):
    """a*(b/c) = (a*b)/c, for a divisor that is no literal: literals would multiply among themselves without end."""
    return birewrite(a * (b / c), (a * b) / c, varies(c))


@rule("reassociate", phase="normalise", gives_up="the sign of a zero")
def add_zero(a: Float):
    """a + 0 = a, but -0 + 0 = +0."""
    return rewrite(a + const(0), a)


@rule("exact")
def add_negation(a: Float, b: Float):
    """a + (-b) = a - b."""
    return rewrite(a + (-b), a - b)


@rule("exact")
def subtract_negation(a: Float, b: Float):
    """a - (-b) = a + b."""
    return rewrite(a - (-b), a + b)


@rule("exact")
def product_of_negation(a: Float, b: Float):
    """(-a)*b = -(a*b): the sign of a product is decided apart from its size."""
    return rewrite((-a) * b, -(a * b))


@rule("exact", phase="normalise")
def greater_of_equal(a: Term):
    """max(a, a) = a."""
    return rewrite(max_of(a, a), a)


@rule("exact", phase="normalise")
def lesser_of_equal(a: Term):
    """min(a, a) = a."""
    return rewrite(min_of(a, a), a)


@rule("fast", phase="normalise", gives_up="NaN of what is not finite")
def difference_with_itself(a: Float):
    """a - a = 0 for finite a."""
    return rewrite(a - a, const(0, a))


@rule("fast", phase="normalise", gives_up="NaN of what is not finite, and the sign of a zero")
def product_with_zero(a: Float):
    """a*0 = 0 for finite a."""
    return rewrite(a * const(0), const(0, a))


_CANCELS = "the rounding of what cancels, and NaN of what is not finite"


@rule("fast", gives_up=_CANCELS)
def cancel_difference(a: Float, b: Float):
    """a + (b - a) = b for finite a."""
    return rewrite(a + (b - a), b, wide(a))


@rule("fast", gives_up=_CANCELS)
def cancel_sum(a: Float, b: Float):
    """(a + b) - a = b for finite a."""
    return rewrite((a + b) - a, b, wide(a))


def _folds(name: str, suffix: str, largest: float, *dtypes: str):  # type: ignore[no-untyped-def]
    @rule("exact", phase="normalise", name=f"fold_{name}{suffix}", operation=name)
    def fold_literals(c: Number, d: Number, t: DType, operation):  # type: ignore[no-untyped-def]
        """Literals are computed once; what would be zero, infinite or NaN is left alone."""
        both = {"add": c + d, "sub": c - d, "mul": c * d, "div": c / d}[operation]
        left = op(operation, const(c, t), const(d, t))
        return rewrite(left, const(both, t), between(1 / largest, both, largest), dtype_in(t, *dtypes))

    return fold_literals


FOLDED = ("add", "sub", "mul", "div")
folds = [_folds(name, "", 1e9, "float32", "float64", "bfloat16") for name in FOLDED]
folds += [_folds(name, "_of_float16", 1e4, "float16") for name in FOLDED]


@rule("exact", phase="normalise")
def product_of_zeros(t: DType):
    """0*0 = 0: what a mask leaves of a product, both factors of which it makes 0."""
    return rewrite(const(0, t) * const(0, t), const(0, t))


@rule("reassociate", gives_up="one rounding")
def product_with_two_literals(a: Float, c: Number, d: Number):
    """(a*c)*d = a*(c*d), for literals that neither overflow nor vanish together: (a*1e30)*1e-30 is left alone."""
    whole = c * d
    guards = between(1e-4, c, 1e4), between(1e-4, d, 1e4), between(1e-4, whole, 1e4), wide(a)
    return rewrite((a * const(c)) * const(d), a * const(whole, a), *guards)


@rule("reassociate", gives_up="one rounding")
def sum_with_two_literals(a: Float, c: Number, d: Number):
    """(a + c) + d = a + (c + d)."""
    return rewrite((a + const(c)) + const(d), a + const(c + d, a), between(1e-4, c + d, 1e4), wide(a))


@rule("reassociate", gives_up="the rounding of the product")
def factor_out_itself(a: Float, c: Number):
    """a*c + a = a*(c + 1)."""
    return rewrite(a * const(c) + a, a * const(c + 1, a), between(1e-4, c + 1, 1e4), wide(a))


@rule("reassociate", phase="explore", gives_up="the rounding of the sum")
def scale_of_sum(a: Float, b: Float, c: Number):
    """(a + b)*c = a*c + b*c for a literal c: a scale passes through a bias into the weight."""
    return rewrite((a + b) * const(c), a * const(c, a) + b * const(c, a), between(1e-4, c, 1e4), wide(a))


def _brings_together(name: str):  # type: ignore[no-untyped-def]
    @rule("reassociate", gives_up="the order of roundings", name=f"bring_together_by_{name}", operation=name)
    def bring_together(a: Float, b: Float, c: Float, operation):  # type: ignore[no-untyped-def]
        """(a + b) + c = a + (b + c), if b and c have fewer axes than a: their sum is computed less often."""
        left = op(operation, op(operation, a, b), c)
        return rewrite(left, op(operation, a, op(operation, b, c)), fewer_axes(b, a), fewer_axes(c, a))

    return bring_together


bring_together = [_brings_together(name) for name in ("add", "mul")]

RULES = pack(globals())
