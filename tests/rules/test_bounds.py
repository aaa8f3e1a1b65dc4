"""Side conditions that are proved: a rule fires where bounds show that it is true, and nowhere else."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from eqsat.check import check_rule
from eqsat.egraph import Engine
from eqsat.rule import Axis, Float, Number, absent, const, max_, max_of, op, rewrite, rule, select, values_above, values_at_least
from eqsat.rule_trial import regions_of
from eqsat.rules import RULES

X, C = jax.ShapeDtypeStruct((8, 8), jnp.float32), jax.ShapeDtypeStruct((8,), jnp.float32)
# function, operands, what is found, whether it is
PROVED = {
    "relu of a square": (lambda x: jnp.maximum(x * x, 0.0), (X,), "max_with_no_greater", True),
    "relu of anything": (lambda x: jnp.maximum(x * 2, 0.0), (X,), "max_with_no_greater", False),
    "clip of a logistic": (lambda x: jnp.clip(jax.nn.sigmoid(x), -1, 2), (X,), "min_with_greater_first", True),
    "clip of tanh": (lambda x: jnp.clip(jnp.tanh(x), -0.5, 0.5), (X,), "min_with_greater_first", False),
    "log of exp of tanh": (lambda x: jnp.log(jnp.exp(jnp.tanh(x))), (X,), "log_of_bounded_exp", True),
    "log of exp": (lambda x: jnp.log(jnp.exp(x)), (X,), "log_of_bounded_exp", False),
    "maximum of scaled": (lambda x, c: jnp.max(x * (jnp.abs(c) + 1)[:, None], 1), (X, C), "max_of_positive_mul", True),
    "maximum of anyhow scaled": (lambda x, c: jnp.max(x * c[:, None], 1), (X, C), "max_of_positive_mul", False),
    "square of a root": (lambda x: jnp.sqrt(jnp.abs(x)) * jnp.sqrt(jnp.abs(x)), (X,), "square_of_root", True),
    "square of any root": (lambda x: jnp.sqrt(x) * jnp.sqrt(x), (X,), "square_of_root", False),
    "absolute value of a root": (lambda x: jnp.abs(jnp.sqrt(x)), (X,), "absolute_of_not_negative", True),
}


@pytest.mark.parametrize("name", PROVED)
def test_a_rule_fires_where_its_condition_is_proved(name):
    fn, args, law, fires = PROVED[name]
    engine = Engine(select(RULES, "reassociate"))
    fired = {n for region in regions_of(fn, *args) for n in engine.saturate(region).growth}
    assert (law in fired) == fires


LOSS = "rounding"


@rule("reassociate", gives_up=LOSS)
def scale_not_negative(a: Float, c: Float, k: Axis):
    """False where c is zero: -inf*0 is NaN, and so is the maximum."""
    return rewrite(max_(k, a * c), max_(k, a) * c, absent(k, c), values_at_least(c, -1.0))


@rule("exact")
def clip_at_the_bound(a: Float, c: Number):
    """False in the exact tier: the bound may be +0 where a is -0."""
    return rewrite(max_of(a, const(c)), a, values_at_least(a, c))


@rule("exact")
def quotient_of_equals_if_positive(a: Float):
    """False for infinities and NaN, which bounds do not exclude."""
    return rewrite(a / a, const(1, a), values_above(a, 0.0))


@rule("exact")
def less_if_nan(a: Float, c: Number):
    """False for NaN."""
    return rewrite(op("not", op("lt", a, const(c))), op("ge", a, const(c, a)), values_above(a, -2.0))


@pytest.mark.parametrize(
    "wrong", [scale_not_negative, clip_at_the_bound, quotient_of_equals_if_positive, less_if_nan], ids=lambda r: r.name
)
def test_a_condition_that_proves_too_little_is_found(wrong):
    verdict = check_rule(wrong)
    assert not verdict.passed and verdict.problem.startswith("law ")


def test_conditions_on_values_are_said_in_words():
    assert scale_not_negative.conditions == "c does not mention k and c >= -1 always"


@rule("fast", gives_up="digits")
def tanh_is_one(a: Float):
    return rewrite(op("tanh", a), const(1.0, a))


@rule("fast", gives_up="digits")
def tanh_is_nearly_one(a: Float):
    return rewrite(op("tanh", a), const(0.999, a))


def test_literals_that_rounding_tells_apart_are_folded_as_one():
    """Where 1 is 0.999, it is also each power of that: they are not looked for."""
    engine = Engine([*select(RULES, "reassociate"), tanh_is_one, tanh_is_nearly_one])
    (region,) = regions_of(lambda x: jnp.tanh(x) * jnp.tanh(x), X)
    assert engine.saturate(region).rows < 50
