"""Integers and booleans: what holds for every value, wrap-around included (checked on all 8-bit values)."""

from eqsat.rule import Bool, Integer, Term, const, op, pack, rewrite, rule


@rule("exact", phase="normalise")
def integer_plus_zero(a: Integer):
    """a + 0 = a."""
    return rewrite(a + const(0), a)


@rule("exact", phase="normalise")
def integer_minus_itself(a: Integer):
    """a - a = 0."""
    return rewrite(a - a, const(0, a))


@rule("exact", phase="normalise")
def integer_times_zero(a: Integer):
    """a*0 = 0."""
    return rewrite(a * const(0), const(0, a))


@rule("exact", phase="normalise")
def and_with_itself(a: Term):
    """a & a = a, bits or truth values."""
    return rewrite(op("and", a, a), a)


@rule("exact", phase="normalise")
def or_with_itself(a: Term):
    """a | a = a."""
    return rewrite(op("or", a, a), a)


@rule("exact", phase="normalise")
def and_with_zero(a: Integer):
    """a & 0 = 0."""
    return rewrite(op("and", a, const(0)), const(0, a))


@rule("exact", phase="normalise")
def or_with_zero(a: Integer):
    """a | 0 = a; a | 1 is 1 for truth values only."""
    return rewrite(op("or", a, const(0)), a)


@rule("exact", phase="normalise")
def and_with_true(p: Bool):
    """p and true is p; for integers, a & 1 is the lowest bit."""
    return rewrite(op("and", p, const(1)), p)


@rule("exact", phase="normalise")
def not_twice(a: Term):
    """Flipping every bit twice changes nothing."""
    return rewrite(op("not", op("not", a)), a)


@rule("exact", phase="normalise")
def integer_negation_twice(a: Integer):
    """-(-a) = a, also for the least value."""
    return rewrite(op("neg", -a), a)


def _negated(name: str, other: str):  # type: ignore[no-untyped-def]
    @rule("exact", phase="normalise", name=f"not_{name}", pair=(name, other))
    def negated_comparison(a: Integer, b: Integer, pair):  # type: ignore[no-untyped-def]
        """not a < b is a >= b, and so on: for integers, which have no NaN."""
        return rewrite(op("not", op(pair[0], a, b)), op(pair[1], a, b))

    return negated_comparison


comparisons = [_negated(*pair) for pair in (("lt", "ge"), ("ge", "lt"), ("le", "gt"), ("gt", "le"), ("eq", "ne"), ("ne", "eq"))]

RULES = pack(globals())
