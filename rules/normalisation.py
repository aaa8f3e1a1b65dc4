"""Normalisation: gains into weights, variance in one pass.

That a row's scale passes through a product is `pull_inner_divisor_out_of_sum` and `pull_inner_factor_out_of_sum`.
Statistics over the batch are no constants: what mentions the summed axis is not pulled out.
"""

from eqsat.rule import Axis, Float, Number, at_least, const, extent, fewer_axes, pack, rewrite, rule, sum_


@rule("reassociate", gives_up="the rounding of each product")
def fold_gain_into_weight(x: Float, g: Float, w: Float, k: Axis):
    """The sum of (x*g)*w = the sum of x*(g*w), if g has fewer axes than w: constant weights take in the gain once."""
    return rewrite(sum_(k, (x * g) * w), sum_(k, x * (g * w)), fewer_axes(g, w))


@rule("fast", phase="explore", gives_up="digits, where the mean is large beside the deviation")
def variance_in_one_pass(a: Float, n: Number, k: Axis):
    """The sum of (a - mean)^2 = the sum of a^2 - (the sum of a)^2/n: one pass over a instead of two."""
    deviation = a - sum_(k, a) / const(n)
    squares = sum_(k, a * a) - sum_(k, a) * (sum_(k, a) / const(n, a))
    return rewrite(sum_(k, deviation * deviation), squares, at_least(0, n - extent(k)), at_least(0, extent(k) - n))


RULES = pack(globals())
