"""Programs where the right answer is to do nothing, and programs where a false law would pay."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from benchmarks.workloads import Expected, Table, case
from benchmarks.workloads.layers import max_pool


def one_product(a, b):
    return a @ b


def pool_and_add(x, y):
    return max_pool(x, 3, 1) + y


def best_order(a, b, c):
    """Already the cheapest order."""
    return a @ (b @ c)


def unscaled_bias(a, b, bias):
    """alpha (A B + bias): the scale reaches the bias as well."""
    return 2.0 * (a @ b + bias)


def product_of_sums(x, y, z):
    """(x y)(x z) is not x (y z)."""
    return (x * y) * (x * z)


def relu_of_sum(x, y):
    return jax.nn.relu(x + y)


def sum_of_exponentials(x, y):
    return jnp.exp(x) + jnp.exp(y)


def negative_scale(x):
    """max(-2 x) is not -2 max(x)."""
    return jnp.max(-2.0 * x, axis=-1)


def variance_of_large(x):
    """E[x^2] - E[x]^2 would cancel: the mean is far from zero."""
    shifted = x + 1000.0
    centred = shifted - jnp.mean(shifted, axis=-1, keepdims=True)
    return jnp.mean(centred * centred, axis=-1)


def guarded_division(x, y):
    """The value where y is zero comes from the other branch."""
    return jnp.where(y == 0, 0.0, x / jnp.where(y == 0, 1.0, y))


def rounding_kept(x):
    """The narrow rounding in the middle is part of the meaning."""
    return x.astype(jnp.bfloat16).astype(jnp.float32) * 3.0


def zero_times(x):
    """x * 0 is not 0 where x is not a number."""
    return x * 0.0 + 1.0


NOTHING = Expected(launches=1, unchanged=True)
ONE = Expected(launches=1)
PAIR, PAIR_SMALL = "float32[4096,4096] float32[4096,4096]", "float32[256,256] float32[256,256]"

PROGRAMS: Table = {
    "one product, bf16": case(
        one_product, "bfloat16[8192,8192] bfloat16[8192,8192]", PAIR_SMALL, NOTHING, quick=True
    ),
    "one product, f32": case(one_product, PAIR, PAIR_SMALL, NOTHING),
    "one product, odd sizes": case(
        one_product, "bfloat16[4097,1023] bfloat16[1023,511]", "float32[257,127] float32[127,63]", NOTHING
    ),
    "max pool + add": case(
        pool_and_add, "float32[1,16,64,64] float32[1,16,64,64]", "float32[1,16,32,32] float32[1,16,32,32]", ONE, quick=True
    ),
    "best order": case(
        best_order, "float32[2048,2048] float32[2048,2048] float32[2048,8]",
        "float32[512,512] float32[512,512] float32[512,8]", Expected(launches=2), quick=True,
    ),
    "scale of product and bias": case(unscaled_bias, f"{PAIR} float32[4096]", f"{PAIR_SMALL} float32[256]", ONE),
    "product of products": case(product_of_sums, f"{PAIR} float32[4096,4096]", f"{PAIR_SMALL} float32[256,256]", ONE),
    "relu of sum": case(relu_of_sum, PAIR, PAIR_SMALL, ONE),
    "sum of exponentials": case(sum_of_exponentials, PAIR, PAIR_SMALL, ONE),
    "max of negative scale": case(negative_scale, "float32[4096,4096]", "float32[256,256]", ONE),
    "variance far from zero": case(variance_of_large, "float32[4096,4096]", "float32[256,256]", ONE),
    "guarded division": case(guarded_division, PAIR, PAIR_SMALL, ONE),
    "rounding kept": case(rounding_kept, "float32[4096,4096]", "float32[256,256]", ONE),
    "zero times x": case(zero_times, "float32[4096,4096]", "float32[256,256]", ONE),
}  # fmt: skip
