"""What is true because of the values that a term can have: bounds and finiteness that `eqsat.ranges` proves, or no rule fires."""

from eqsat.rule import (
    Axis,
    Float,
    Number,
    Term,
    absent,
    const,
    dtype_,
    exp,
    finite,
    log,
    op,
    pack,
    reduce_,
    rewrite,
    rule,
    values_above,
    values_at_least,
    values_below,
    wide,
)


def _either(name: str, a, c, first: bool):  # type: ignore[no-untyped-def]
    return op(name, const(c), a) if first else op(name, a, const(c))


def _with_less(first: bool):  # type: ignore[no-untyped-def]
    @rule("exact", phase="normalise", name=f"max_with_less{'_first' * first}", first=first)
    def max_with_less(a: Term, c: Number, first):  # type: ignore[no-untyped-def]
        """max(a, c) = a, if a is greater: NaN stays NaN."""
        return rewrite(_either("max", a, c, first), a, values_above(a, c))

    return max_with_less


def _with_greater(first: bool):  # type: ignore[no-untyped-def]
    @rule("exact", phase="normalise", name=f"min_with_greater{'_first' * first}", first=first)
    def min_with_greater(a: Term, c: Number, first):  # type: ignore[no-untyped-def]
        """min(a, c) = a, if a is less: the clip of a logistic function."""
        return rewrite(_either("min", a, c, first), a, values_below(a, c))

    return min_with_greater


def _with_no_greater(first: bool):  # type: ignore[no-untyped-def]
    @rule(
        "reassociate",
        phase="normalise",
        gives_up="the sign of a zero",
        name=f"max_with_no_greater{'_first' * first}",
        first=first,
    )
    def max_with_no_greater(a: Float, c: Number, first):  # type: ignore[no-untyped-def]
        """max(a, c) = a, if a is not less: the relu of a square."""
        return rewrite(_either("max", a, c, first), a, values_at_least(a, c))

    return max_with_no_greater


clipped = [f(first) for f in (_with_less, _with_greater, _with_no_greater) for first in (False, True)]


@rule("reassociate", phase="normalise", gives_up="the sign of a zero")
def absolute_of_not_negative(a: Float):
    """|a| = a, if a >= 0."""
    return rewrite(op("abs", a), a, values_at_least(a, 0.0))


@rule("reassociate", gives_up="one rounding")
def square_of_root(a: Float):
    """sqrt(a)*sqrt(a) = a, if a >= 0; of a negative number it is NaN."""
    return rewrite(op("sqrt", a) * op("sqrt", a), a, values_at_least(a, 0.0))


@rule("reassociate", phase="normalise", gives_up="one rounding")
def log_of_bounded_exp(a: Float):
    """log(exp(a)) = a, if a lies where the exponential is far from overflow and underflow."""
    return rewrite(log(exp(a)), a, values_above(a, -8.0), values_below(a, 8.0), wide(a))


@rule("exact", phase="normalise")
def quotient_of_equals(a: Float):
    """a/a = 1, if a is finite and greater than zero."""
    return rewrite(a / a, const(1, a), values_above(a, 0.0), finite(a))


@rule("exact", phase="normalise")
def difference_of_equals(a: Float):
    """a - a = 0, if a is finite."""
    return rewrite(a - a, const(0, a), finite(a))


@rule("exact", phase="normalise")
def not_less(a: Term, c: Number):
    """a < c is false, if a is greater; NaN is not less either."""
    return rewrite(op("lt", a, const(c)), const(0, dtype_("bool")), values_above(a, c))


@rule("exact", phase="normalise")
def surely_less(a: Term, c: Number):
    """a < c is true, if a is less and no NaN."""
    return rewrite(op("lt", a, const(c)), const(1, dtype_("bool")), values_below(a, c), finite(a))


def _of_scaled(name: str, operation: str, tier: str):  # type: ignore[no-untyped-def]
    @rule(
        tier, gives_up="NaN and infinity, where infinities meet", name=f"{name}_of_positive_{operation}", pair=(name, operation)
    )
    def of_scaled(a: Float, c: Float, k: Axis, pair):  # type: ignore[no-untyped-def]
        """max(a*c) = max(a)*c and max(a/c) = max(a)/c, if c > 0 does not mention k: the order stays."""
        name, operation = pair
        scaled = op(operation, reduce_(name, k, a), c)
        return rewrite(reduce_(name, k, op(operation, a, c)), scaled, absent(k, c), values_above(c, 0.0))

    return of_scaled


_TIERS = {"mul": "reassociate", "div": "fast"}  # a finite number over infinity is zero, an infinite one is NaN
of_scaled = [_of_scaled(name, operation, tier) for name in ("max", "min") for operation, tier in _TIERS.items()]

RULES = pack(globals())
