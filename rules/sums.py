"""Sums: linearity, factors that do not mention the axis, nested sums."""

from eqsat.rule import Axis, Float, absent, birewrite, pack, rewrite, rule, sum_


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


RULES = pack(globals())
