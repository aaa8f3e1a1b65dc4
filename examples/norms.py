"""Normalisation: float32 inside, the dtype of the input outside."""

import jax
import jax.numpy as jnp

from eqsat.shapes import shapes
from examples import Table, report


def layer_norm(x, gain, bias):
    wide = x.astype(jnp.float32)
    centred = wide - jnp.mean(wide, axis=-1, keepdims=True)
    variance = jnp.mean(centred * centred, axis=-1, keepdims=True)
    return (centred * jax.lax.rsqrt(variance + 1e-5) * gain + bias).astype(x.dtype)


def rms_norm(x, gain):
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + 1e-6) * gain).astype(x.dtype)


def residual_rms_norm(x, residual, gain):
    """Both outputs are needed: the sum goes on as the next residual."""
    total = x + residual
    return rms_norm(total, gain), total


PROGRAMS: Table = {
    "layer_norm": (layer_norm, shapes("bfloat16[8192,4096] bfloat16[4096] bfloat16[4096]")),
    "rms_norm": (rms_norm, shapes("bfloat16[8192,4096] bfloat16[4096]")),
    "residual_rms_norm": (residual_rms_norm, shapes("bfloat16[8192,4096] bfloat16[8192,4096] bfloat16[4096]")),
}

RAGGED: Table = {
    "layer_norm": (layer_norm, shapes("bfloat16[5,37] bfloat16[37] bfloat16[37]")),
    "rms_norm": (rms_norm, shapes("float32[7,50] float32[50]")),
    "residual_rms_norm": (residual_rms_norm, shapes("bfloat16[5,37] bfloat16[5,37] bfloat16[37]")),
}


if __name__ == "__main__":
    report(PROGRAMS)
