"""KernelBench level 2: problems whose work collapses once the algebra is seen, predicted at the published shapes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqsat
from eqsat.egraph import Engine
from eqsat.rule import select
from eqsat.rule_trial import regions_of
from eqsat.rules import RULES

pytestmark = pytest.mark.slow
F32 = jnp.float32


def linear(x, w, c):
    return x @ w + c


def halved_and_summed(x, w):  # 14
    return jnp.sum((x @ w) / 2, axis=1, keepdims=True) * 1.5


def sum_max_mean_logsumexp(x, w, c):  # 18
    y = jnp.sum(linear(x, w, c), axis=1, keepdims=True)
    y = jnp.mean(jnp.max(y, axis=1, keepdims=True), axis=1, keepdims=True)
    once = jax.scipy.special.logsumexp(y, axis=1, keepdims=True)
    return jax.scipy.special.logsumexp(once, axis=1, keepdims=True)


def residual_scaled(x, w, c):  # 40
    y = linear(x, w, c)
    return 0.5 * y + y


def mean_logsumexp_gelu(x, w, c, s):  # 51
    y = jnp.mean(linear(x, w, c) - s, axis=1, keepdims=True)
    return jax.nn.gelu(jax.scipy.special.logsumexp(y, axis=1, keepdims=True)) + x


def max_less_its_mean(x, w, c):  # 80
    m = jnp.max(linear(x, w, c), axis=1, keepdims=True)
    return jax.nn.gelu(m - jnp.mean(m, axis=1, keepdims=True))


def shifted_scaled_relu(x, w, c):  # 9
    return jax.nn.relu((linear(x, w, c) - 2) * 1.5)


def scaled_leaky_relu(x, w, c):  # 12
    return jax.nn.leaky_relu(2 * linear(x, w, c), 0.1)


def gelu_of_tenth(x, w, c):  # 86
    return jax.nn.gelu(linear(x, w, c) / 10)


def shapes(batch, inner, outer, *more):
    return tuple(jax.ShapeDtypeStruct(s, F32) for s in ((batch, inner), (inner, outer), *more))


def found(fn, args, numerics="reassociate"):
    return eqsat.optimize(fn, *args, numerics=numerics, constants=tuple(range(1, len(args))))


WIDE = shapes(1024, 8192, 8192, (8192,))
# function, shapes, tier, most arithmetic left (flops)
COLLAPSES = [
    (halved_and_summed, shapes(1024, 8192, 8192), "reassociate", 2e7),
    (sum_max_mean_logsumexp, WIDE, "reassociate", 2e7),
    (mean_logsumexp_gelu, shapes(2048, 8192, 8192, (8192,), (8192,)), "reassociate", 6e7),
    (max_less_its_mean, WIDE, "fast", 1),
]


@pytest.mark.parametrize(("fn", "args", "numerics", "most"), COLLAPSES, ids=lambda v: getattr(v, "__name__", None))
def test_matrix_products_become_vector_products(fn, args, numerics, most):
    program = found(fn, args, numerics)
    print(f"{fn.__name__}: {program.baseline.flops:.3g} -> {program.cost.flops:.3g} flops")
    assert program.baseline.flops > 1e11 and program.cost.flops <= most
    assert program.notes["rules"]


@pytest.mark.parametrize("numerics", ["exact", "reassociate"])
def test_a_difference_with_itself_is_zero_of_finite_values_only(numerics):
    """Problem 80 outside the fast tier: operands may hold infinities, whose difference is NaN, so that the product stays."""
    small = shapes(4, 3, 5, (5,))
    x, w, c = (np.ones(s.shape, np.float32) for s in small)
    x[1, 0], c[2] = np.inf, 1.0
    got = np.asarray(found(max_less_its_mean, small, numerics)(x, w, c))
    assert np.isnan(got[1]).all() and not np.delete(got, 1, 0).any()


@pytest.mark.parametrize("fn", [shifted_scaled_relu, scaled_leaky_relu, gelu_of_tenth], ids=lambda f: f.__name__)
def test_epilogues_are_one_kernel(fn):
    program = found(fn, WIDE)
    assert program.cost.launches <= 2 < program.baseline.launches
    assert program.cost.flops <= program.baseline.flops


def test_a_scaled_residual_is_one_scale():
    args = shapes(16384, 4096, 4096, (4096,))
    (region,) = regions_of(residual_scaled, *args)
    done = Engine(select(RULES, "reassociate")).saturate(region)
    scales = [r for rows in done.classes.values() for r in rows if r.rule == "factor_out_itself" and r.head == "mul"]
    assert scales, "0.5*y + y becomes 1.5*y"
    assert found(residual_scaled, args).cost.launches < 4


@pytest.mark.parametrize("case", COLLAPSES, ids=lambda c: c[0].__name__)
def test_the_collapsed_program_is_right(case):
    fn, args, numerics, *_ = case
    small = shapes(5, 7, 6 if len(args) < 4 else 7, *((7 if len(args) > 3 else 6,) for _ in args[2:]))
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=s.shape).astype(np.float32) for s in small]
    got = found(fn, small, numerics)(*arrays)
    np.testing.assert_allclose(got, fn(*arrays), rtol=1e-4, atol=1e-4)


def test_batch_statistics_are_not_folded_into_the_weight():
    """KernelBench 33, 39, 73: in training mode batch norm depends on the whole batch, so that the product stays."""

    def normalised(x, w, gain):
        y = x @ w
        mean = jnp.mean(y, axis=0)
        return (y - mean) / jnp.sqrt(jnp.mean((y - mean) ** 2, axis=0) + 1e-5) * gain

    args = shapes(64, 128, 96, (96,))
    program = found(normalised, args)
    assert program.cost.flops >= 2 * 64 * 128 * 96
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=s.shape).astype(np.float32) for s in args]
    np.testing.assert_allclose(program(*arrays), normalised(*arrays), rtol=2e-4, atol=2e-4)


# --- sums of one term -----------------------------------------------------------------------------------------------------


def test_the_gradient_of_cross_entropy_sums_no_one_hot_row():
    """softmax less one at the label: written over all classes, the only sum that is left is the softmax's own."""

    def loss(x, labels):
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(x), labels[:, None], axis=1))

    args = jax.ShapeDtypeStruct((512, 1000), F32), jax.ShapeDtypeStruct((512,), jnp.int32)
    program = eqsat.optimize(jax.grad(loss), *args)
    (kernel,) = [launch.kernel for launch in program.launches]
    terms = {t for stored in kernel.outputs for t in stored.term.walk()}
    assert [t.args[0].head for t in terms if t.head == "reduce" and t.data[0] == "sum"] == ["exp"]
