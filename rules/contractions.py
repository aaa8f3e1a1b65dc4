"""Contractions: the association of products, distribution over sums of operands.

In index notation matrix-chain order, LoRA, linear attention and A@B + A@C are consequences of these few laws.
"""

from eqsat.rule import Axis, Float, absent, fewer_axes, pack, present, rewrite, rule, sum_


@rule("reassociate", gives_up="the rounding of the inner product")
def associate_contraction(a: Float, b: Float, c: Float, k: Axis, l: Axis):  # noqa: E741
    """sum_k (sum_l a*b)*c = sum_l a*(sum_k b*c), if a does not mention k and c does not mention l: (AB)C = A(BC)."""
    return rewrite(sum_(k, sum_(l, a * b) * c), sum_(l, a * sum_(k, b * c)), absent(k, a), present(k, b), absent(l, c))


@rule("reassociate", gives_up="the order of the sum")
def weight_before_sum(b: Float, c: Float, k: Axis, l: Axis):  # noqa: E741
    """sum_k (sum_l b)*c = sum_l (sum_k b*c), if c has some axes of b, but not l: rows are summed, then weighted, or otherwise."""
    return rewrite(sum_(k, sum_(l, b) * c), sum_(l, sum_(k, b * c)), absent(l, c), present(k, b), fewer_axes(c, b))


@rule("reassociate", phase="explore", gives_up="the rounding of the sum of operands")
def distribute_contraction(a: Float, b: Float, c: Float, k: Axis):
    """sum_k a*(b + c) = sum_k a*b + sum_k a*c."""
    return rewrite(sum_(k, a * (b + c)), sum_(k, a * b) + sum_(k, a * c))


@rule("reassociate", gives_up="the rounding of each contraction")
def merge_contractions(a: Float, b: Float, c: Float, k: Axis):
    """sum_k a*b + sum_k a*c = sum_k a*(b + c): AB + AC = A(B + C)."""
    return rewrite(sum_(k, a * b) + sum_(k, a * c), sum_(k, a * (b + c)))


RULES = pack(globals())
