"""The two feed-forward layers of today's models."""

import jax

from eqsat.shapes import shapes
from examples import Table, report


def mlp(x, w1, b1, w2, b2):
    return jax.nn.gelu(x @ w1 + b1) @ w2 + b2


def swiglu(x, w_gate, w_up, w_down):
    return (jax.nn.silu(x @ w_gate) * (x @ w_up)) @ w_down


PROGRAMS: Table = {
    "mlp": (mlp, shapes("bfloat16[4096,1024] bfloat16[1024,4096] bfloat16[4096] bfloat16[4096,1024] bfloat16[1024]")),
    "swiglu": (swiglu, shapes("bfloat16[4096,2048] bfloat16[2048,5504] bfloat16[2048,5504] bfloat16[5504,2048]")),
}

RAGGED: Table = {
    "mlp": (mlp, shapes("float32[37,24] float32[24,50] float32[50] float32[50,24] float32[24]")),
    "swiglu": (swiglu, shapes("float32[37,24] float32[24,50] float32[24,50] float32[50,24]")),
}


if __name__ == "__main__":
    report(PROGRAMS)
