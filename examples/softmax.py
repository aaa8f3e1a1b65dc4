"""Softmax and its relatives, written the plain way."""

import jax.numpy as jnp

from eqsat.shapes import shapes
from examples import Table, report


def softmax(x):
    weights = jnp.exp(x - jnp.max(x, axis=-1, keepdims=True))
    return weights / jnp.sum(weights, axis=-1, keepdims=True)


def softmax_wide(x):
    """bfloat16 in and out, computed in float32."""
    return softmax(x.astype(jnp.float32)).astype(x.dtype)


def log_softmax(x):
    shifted = x - jnp.max(x, axis=-1, keepdims=True)
    return shifted - jnp.log(jnp.sum(jnp.exp(shifted), axis=-1, keepdims=True))


def log_sum_exp(x):
    largest = jnp.max(x, axis=-1)
    return largest + jnp.log(jnp.sum(jnp.exp(x - largest[:, None]), axis=-1))


PROGRAMS: Table = {
    "softmax": (softmax, shapes("float32[8192,4096]")),
    "softmax_wide": (softmax_wide, shapes("bfloat16[8192,4096]")),
    "softmax_long": (softmax, shapes("float32[64,262144]")),
    "log_softmax": (log_softmax, shapes("float32[8192,4096]")),
    "log_sum_exp": (log_sum_exp, shapes("float32[8192,4096]")),
}

RAGGED: Table = {
    "softmax": (softmax, shapes("float32[5,37]")),
    "softmax_wide": (softmax_wide, shapes("bfloat16[3,70]")),
    "softmax_long": (softmax, shapes("float32[2,1031]")),
    "log_softmax": (log_softmax, shapes("float32[7,19]")),
    "log_sum_exp": (log_sum_exp, shapes("float32[9,45]")),
}


if __name__ == "__main__":
    report(PROGRAMS)
