"""Sums: linearity, factors that do not mention the axis, nested sums."""

from eqsat.rule import (
    Axis,
    Float,
    Number,
    absent,
    between,
    birewrite,
    const,
    extent,
    pack,
    present,
    rewrite,
    rule,
    sum_,
    wide,
)


@rule("reassociate", gives_up="the rounding of each product")
def pull_factor_out_of_sum(a: Float, b: Float, k: Axis):
    """The sum of a*b over k = a times the sum of b, if a does not mention k."""
    return rewrite(sum_(k, a * b), a * sum_(k, b), absent(k, a))


@rule("reassociate", gives_up="the rounding of each product")
def pull_inner_factor_out_of_sum(a: Float, b: Float, c: Float, k: Axis):
    """The sum of (a*b)*c over k = a times the sum of b*c, if a does not mention k."""
    return rewrite(sum_(k, (a * b) * c), a * sum_(k, b * c), absent(k, a))


@rule("reassociate", gives_up="the rounding of each quotient")
def pull_divisor_out_of_sum(a: Float, d: Float, k: Axis):
    """The sum of a/d over k = (the sum of a) / d, if d does not mention k."""
    return rewrite(sum_(k, a / d), sum_(k, a) / d, absent(k, d))


@rule("reassociate", gives_up="the rounding of each quotient")
def pull_inner_divisor_out_of_sum(a: Float, d: Float, b: Float, k: Axis):
    """The sum of (a/d)*b over k = (the sum of a*b) / d, if d does not mention k: softmax divides after the product."""
    return rewrite(sum_(k, (a / d) * b), sum_(k, a * b) / d, absent(k, d))


@rule("reassociate", gives_up="the order of the sum")
def sum_of_sum(a: Float, b: Float, k: Axis):
    """The sum of a + b = the sum of a + the sum of b."""
    return birewrite(sum_(k, a + b), sum_(k, a) + sum_(k, b))


@rule("reassociate", gives_up="the order of the sum")
def sum_of_difference(a: Float, b: Float, k: Axis):
    """The sum of a - b = the sum of a - the sum of b."""
    return birewrite(sum_(k, a - b), sum_(k, a) - sum_(k, b))


@rule("reassociate", gives_up="the order of the sum")
def swap_sums(a: Float, k: Axis, l: Axis):  # noqa: E741
    """Nested sums may be swapped."""
    return rewrite(sum_(k, sum_(l, a)), sum_(l, sum_(k, a)))


@rule("reassociate", gives_up="the rounding of each addition")
def sum_of_what_does_not_vary(a: Float, k: Axis):
    """The sum of n equal terms = a*n."""
    return rewrite(sum_(k, a), a * const(extent(k), a), absent(k, a), between(1, extent(k), 32768), wide(a))


@rule("reassociate", gives_up="the sign of a zero")
def sum_of_negation(a: Float, k: Axis):
    """The sum of -a = -(the sum of a)."""
    return rewrite(sum_(k, -a), -sum_(k, a))


@rule("reassociate", phase="explore", gives_up="the rounding of each product")
def scale_into_sum(a: Float, b: Float, c: Number, k: Axis):
    """(the sum of a*b)*c = the sum of a*(b*c) for a literal c: constant weights take in the scale once."""
    return rewrite(sum_(k, a * b) * const(c), sum_(k, a * (b * const(c, b))), between(1e-4, c, 1e4), present(k, b))


RULES = pack(globals())
