"""The checker rejects what is false, with a counterexample that a person can follow, and accepts what is true."""

from __future__ import annotations

import dataclasses

import pytest

from eqsat.check import check_rule
from eqsat.rule import (
    Axis,
    Float,
    Integer,
    Term,
    absent,
    between,
    birewrite,
    cast,
    const,
    exp,
    fewer_axes,
    has_dtype,
    log,
    max_,
    max_of,
    op,
    pack,
    rewrite,
    rule,
    sum_,
    where,
)
from eqsat.rule import Bool as BoolSort

LOSS = "rounding"

# --- rules that other rewriters have had, or that people believe; each is false in its tier -------------------------------


@rule("reassociate", gives_up=LOSS)
def product_of_products(x: Float, y: Float, z: Float, k: Axis):
    return rewrite(sum_(k, x * y) * sum_(k, x * z), sum_(k, x * (y * z)))


@rule("reassociate", gives_up=LOSS)
def quotient_of_products(x: Float, y: Float, z: Float, k: Axis):
    return rewrite(sum_(k, x * y) / sum_(k, x * z), sum_(k, x * (y / z)))


@rule("fast", gives_up=LOSS)
def log_of_product_of_any_sign(a: Float, b: Float):
    return rewrite(log(a * b), log(a) + log(b))


@rule("fast", gives_up=LOSS)
def root_of_absolute(a: Float):
    return rewrite(op("sqrt", op("abs", a)), op("sqrt", a))


@rule("reassociate", gives_up=LOSS)
def associate_without_conditions(a: Float, b: Float, c: Float, k: Axis, l: Axis):  # noqa: E741
    return rewrite(sum_(k, sum_(l, a * b) * c), sum_(l, a * sum_(k, b * c)))


@rule("reassociate", gives_up=LOSS)
def merge_chosen_products_of_unequal_parts(p: BoolSort, a: Float, b: Float, c: Float, d: Float, k: Axis):
    return rewrite(sum_(k, where(p, a * b, c * d)), where(p, sum_(k, a * b), sum_(k, c * d)))


@rule("reassociate", gives_up=LOSS)
def quotient_of_itself(a: Float):
    return rewrite(a / a, const(1, a))


@rule("reassociate", gives_up=LOSS)
def product_with_zero(a: Float):
    return rewrite(a * const(0), const(0, a))


@rule("reassociate", gives_up=LOSS)
def scale_without_the_bias(s: Float, a: Float, b: Float, c: Float, k: Axis):
    return rewrite(s * (sum_(k, a * b) + c), sum_(k, (s * a) * b) + c, absent(k, s))


@rule("reassociate", gives_up=LOSS)
def relu_of_sum(a: Float, b: Float):
    zero = const(0, a)
    return rewrite(max_of(a + b, const(0)), max_of(a, zero) + max_of(b, zero))


@rule("reassociate", gives_up=LOSS)
def softmax_of_sum(a: Float, b: Float, k: Axis):
    return rewrite(exp(a + b) / sum_(k, exp(a + b)), exp(a) / sum_(k, exp(a)) + exp(b) / sum_(k, exp(b)))


@rule("reassociate", gives_up=LOSS)
def sum_of_exponentials(a: Float, b: Float):
    return rewrite(exp(a) + exp(b), exp(a + b))


@rule("reassociate", gives_up=LOSS)
def exchange_max_and_sum(a: Float, k: Axis, l: Axis):  # noqa: E741
    return rewrite(max_(k, sum_(l, a)), sum_(l, max_(k, a)))


@rule("exact")
def scale_out_of_max(s: Float, x: Float, k: Axis):
    return rewrite(max_(k, s * x), s * max_(k, x), absent(k, s))


@rule("reassociate", gives_up=LOSS)
def sums_over_each_others_axes(a: Float, b: Float, k: Axis, l: Axis):  # noqa: E741
    return rewrite(sum_(k, a * sum_(l, b)), sum_(l, a * sum_(k, b)))


@rule("reassociate", gives_up=LOSS)
def fold_batch_statistics_into_the_weight(x: Float, w: Float, batch: Axis, k: Axis):
    statistic = sum_(batch, x * x)
    return rewrite(sum_(k, (x / statistic) * w), sum_(k, x * w) / statistic)


@rule("reassociate", gives_up=LOSS)
def exact_gelu_as_tanh(x: Float):
    exact = x * (const(0.5) * (const(1) + op("erf", x * const(0.7071067690849304))))
    inner = const(0.7978845834732056, x) * (x + const(0.044714998453855515, x) * (x * (x * x)))
    return rewrite(exact, x * (const(0.5, x) * (const(1, x) + op("tanh", inner))), has_dtype(x, "float32"))


@rule("reassociate", gives_up=LOSS)
def log_of_exp(a: Float):
    return rewrite(log(exp(a)), a)


@rule("reassociate", gives_up=LOSS)
def difference_with_itself(a: Float):
    return rewrite(a - a, const(0, a))


@rule("exact")
def add_zero(a: Float):
    return rewrite(a + const(0), a)


@rule("exact")
def subtract_and_add(a: Float, b: Float):
    return rewrite((a - b) + b, a)


@rule("exact")
def multiply_and_divide(a: Float):
    return rewrite((a * const(3)) / const(3), a)


@rule("exact")
def division_by_three(a: Float):
    return rewrite(a / const(3), a * const(1 / 3, a))


@rule("exact")
def reciprocal_square_root(a: Float):
    return rewrite(const(1) / op("sqrt", a), op("rsqrt", a))


@rule("exact")
def drop_narrow_cast(a: Float):
    return rewrite(cast("float32", cast("bfloat16", a)), a, has_dtype(a, "float32"))


@rule("exact")
def choose_the_greater(a: Float, b: Float):
    return rewrite(where(op("lt", a, b), b, a), max_of(a, b))


@rule("exact")
def square_is_not_negative(a: Integer):
    return rewrite(op("abs", a * a), a * a)


@rule("exact")
def and_with_one(a: Integer):
    return rewrite(op("and", a, const(1)), a)


@rule("exact")
def or_with_one(a: Integer):
    return rewrite(op("or", a, const(1)), const(1, a))


@rule("exact")
def halve_after_doubling(a: Integer):
    return rewrite(op("quot", a * const(2), const(2)), a)


@rule("exact")
def parity_by_the_next_number(x: Integer, y: Integer):
    right = (y + op("rem", x + const(1, x), const(2, x))) - const(1, x)
    return rewrite(y - op("rem", x, const(2)), right)


@rule("exact")
def reassociate_a_sum(a: Float, b: Float, c: Float):
    return rewrite((a + b) + c, a + (b + c))


@rule("reassociate", gives_up=LOSS)
def pull_any_factor_out_of_sum(a: Float, b: Float, k: Axis):
    return rewrite(sum_(k, a * b), a * sum_(k, b))


@rule("reassociate", gives_up=LOSS)
def sum_of_what_does_not_vary(a: Float, k: Axis):
    return rewrite(sum_(k, a), a, absent(k, a))


@rule("reassociate", gives_up=LOSS)
def merge_exponentials(a: Float, b: Float):
    return rewrite(exp(a) * exp(b), exp(a + b))


@rule("reassociate", gives_up=LOSS)
def softmax_without_the_maximum(s: Float, k: Axis):
    stable = exp(s - max_(k, s))
    return rewrite(stable / sum_(k, stable), exp(s) / sum_(k, exp(s)))


@rule("exact")
def shift_out_of_max_with_infinities(a: Float, c: Float, k: Axis):
    return rewrite(max_(k, a + c), max_(k, a) + c, absent(k, c))


@rule("exact")
def square_root_of_square(a: Float):
    return rewrite(op("sqrt", a * a), a)


FALSE = pack(globals())


@pytest.mark.parametrize("wrong", FALSE, ids=lambda r: r.name)
def test_false_rules_are_rejected(wrong):
    verdict = check_rule(wrong)
    assert not verdict.passed
    assert verdict.problem.startswith("law "), "a counterexample, not another complaint"
    assert "left " in verdict.problem and "right " in verdict.problem


# Wrong in the tier above, but what the fast tier says it does.
FAST = (quotient_of_itself, product_with_zero, log_of_exp, difference_with_itself, drop_narrow_cast, merge_exponentials)


@pytest.mark.parametrize("quick", FAST, ids=lambda r: r.name)
def test_rules_that_assume_finite_values_are_fast(quick):
    verdict = check_rule(dataclasses.replace(quick, tier="fast", gives_up="NaN and infinities"))
    assert verdict.passed, verdict.problem


# --- rules that are true -------------------------------------------------------------------------------------------------


@rule("exact")
def integers_reassociate(a: Integer, b: Integer, c: Integer):
    return rewrite((a + b) + c, a + (b + c))


@rule("exact")
def integer_product_with_zero(a: Integer):
    return rewrite(a * const(0), const(0, a))


@rule("exact")
def double(a: Float):
    return rewrite(a * const(2), a + a)


@rule("reassociate", gives_up="the sign of infinities that meet")
def shift_out_of_max(a: Float, c: Float, k: Axis):
    return rewrite(max_(k, a + c), max_(k, a) + c, absent(k, c))


@rule("reassociate", gives_up=LOSS)
def distribute(a: Float, b: Float, c: Float):
    return birewrite(a * (b + c), a * b + a * c)


TRUE = (integers_reassociate, integer_product_with_zero, double, shift_out_of_max, distribute)


@pytest.mark.parametrize("right", TRUE, ids=lambda r: r.name)
def test_true_rules_are_accepted(right):
    verdict = check_rule(right)
    assert verdict.passed, verdict.problem


# --- what the checker says ------------------------------------------------------------------------------------------------


def test_the_counterexample_is_small_and_spelled_out():
    assert check_rule(subtract_and_add).problem.splitlines()[0] == "law      ((a - b) + b) -> a"
    problem = check_rule(scale_out_of_max).problem
    assert "k of extent 2" in problem and "s = " in problem
    problem = check_rule(sum_of_what_does_not_vary).problem
    assert problem.splitlines()[2:] == ["with     a = 1 (float32), k of extent 2", "left     sum(k, a) = 2", "right    a = 1"]


def test_the_same_seed_gives_the_same_verdict():
    first, second = (check_rule(relu_of_sum, seed=3) for _ in range(2))
    assert first == second


def test_a_rule_whose_conditions_nothing_meets_fails():
    @rule("exact")
    def never(a: Float, b: Float):
        return rewrite(a + b, b + a, fewer_axes(a, b), fewer_axes(b, a))

    @rule("exact")
    def no_such_number(a: Float):
        return rewrite(a * const(3), a * const(3, a), between(4, const(3).args[0], 5))

    for vacuous in (never, no_such_number):
        assert check_rule(vacuous).problem.startswith("vacuous: none of 120 random instances of ")


def test_a_rule_that_grows_without_end_fails_with_its_growth():  # P5-02
    @rule("exact")
    def add_and_subtract(a: Float, b: Float):
        return rewrite(a - b, (a * const(1, a)) - b)

    problem = check_rule(add_and_subtract).problem
    assert problem.startswith("grows without end: ") and "rows after 1, 2, ... steps" in problem


def test_terms_that_no_dtype_admits_are_not_tried():
    @rule("exact")
    def any_kind(a: Term, b: Term):
        return rewrite(op("eq", a, b), op("eq", b, a))

    verdict = check_rule(any_kind)
    assert verdict.passed and set(verdict.exhaustive) == {"int8", "uint8", "float8_e4m3fn", "float8_e5m2", "bool"}
