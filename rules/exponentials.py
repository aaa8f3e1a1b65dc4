"""Exponentials and logarithms, roots.

Most textbook identities lose overflow or underflow: exp(89) is infinite in float32, and so is log(exp(89)).
They are in the fast tier.
"""

from eqsat.rule import Axis, Float, const, exp, log, max_, op, pack, rewrite, rule, sum_

_RANGE = "overflow and underflow of the exponentials"


@rule("fast", gives_up=_RANGE)
def product_of_exponentials(a: Float, b: Float):
    """exp(a)*exp(b) = exp(a + b)."""
    return rewrite(exp(a) * exp(b), exp(a + b))


@rule("fast", gives_up=_RANGE)
def quotient_of_exponentials(a: Float, b: Float):
    """exp(a)/exp(b) = exp(a - b)."""
    return rewrite(exp(a) / exp(b), exp(a - b))


@rule("fast", phase="normalise", gives_up=_RANGE)
def log_of_exp(a: Float):
    """log(exp(a)) = a."""
    return rewrite(log(exp(a)), a)


@rule("fast", gives_up="the underflow of small quotients")
def log_of_quotient(a: Float, b: Float):
    """log(a/b) = log(a) - log(b): log-softmax without its division."""
    return rewrite(log(exp(a) / b), a - log(b))


@rule("fast", gives_up="NaN where an infinite shift cancels")
def softmax_of_shifted(s: Float, c: Float, k: Axis):
    """exp((s + c) - max(s + c)) = exp(s - max s) is a case of this: a shift of both operands of a difference."""
    return rewrite(exp((s + c) - (max_(k, s) + c)), exp(s - max_(k, s)))


@rule("fast", phase="explore", gives_up="protection from overflow: only where exp(s) is finite")
def softmax_without_maximum(s: Float, k: Axis):
    """exp(s - m)/sum exp(s - m) = exp(s)/sum exp(s), for any m; here m = max s."""
    stable = exp(s - max_(k, s))
    return rewrite(stable / sum_(k, stable), exp(s) / sum_(k, exp(s)))


@rule("reassociate", gives_up="one rounding")
def reciprocal_square_root(a: Float):
    """1/sqrt(a) = rsqrt(a)."""
    return rewrite(const(1) / op("sqrt", a), op("rsqrt", a))


@rule("reassociate", gives_up="one rounding")
def division_by_square_root(a: Float, b: Float):
    """a/sqrt(b) = a*rsqrt(b)."""
    return rewrite(a / op("sqrt", b), a * op("rsqrt", b))


@rule("reassociate", gives_up="one rounding")
def recognise_logistic(a: Float):
    """1/(1 + exp(-a)) is the logistic function."""
    return rewrite(const(1) / (const(1) + exp(-a)), op("logistic", a))


RULES = pack(globals())
