"""A layer of experts, one to a token: rows in order of their experts meet the weights of these in ragged products."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from benchmarks.workloads import Expected, Table, case


def layer(x, router, gate, up, down):
    """x: [tokens, width]; router: [width, experts]; gate, up: [experts, width, hidden]; down: [experts, hidden, width]."""
    expert = jnp.argmax(jnp.dot(x, router, preferred_element_type=jnp.float32), axis=-1)
    order = jnp.argsort(expert)
    sizes = jnp.bincount(expert, length=router.shape[1]).astype("int32")
    rows = x[order]
    hidden = jax.nn.silu(jax.lax.ragged_dot(rows, gate, sizes)) * jax.lax.ragged_dot(rows, up, sizes)
    return jnp.zeros_like(x).at[order].set(jax.lax.ragged_dot(hidden, down, sizes))


def gradient(x, router, gate, up, down):
    def loss(x, gate, up, down):
        y = layer(x, router, gate, up, down).astype(jnp.float32)
        return jnp.mean(y * y)

    return jax.grad(loss, (0, 1, 2, 3))(x, gate, up, down)


WIDE = "bfloat16[4096,2048] bfloat16[2048,8] bfloat16[8,2048,5504] bfloat16[8,2048,5504] bfloat16[8,5504,2048]"
NARROW = "float32[64,96] float32[96,4] float32[4,96,160] float32[4,96,160] float32[4,160,96]"

PROGRAMS: Table = {
    "experts": case(layer, WIDE, NARROW, Expected(launches=4, why="gate and up in one launch, and down")),
    "experts, gradient": case(gradient, WIDE, NARROW, Expected(why="an expert's weights meet its rows alone")),
}  # fmt: skip
