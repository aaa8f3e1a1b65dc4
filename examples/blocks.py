"""The programs on which other compilers were measured (XLA:GPU, Inductor), at the same shapes."""

import jax
import jax.numpy as jnp

from eqsat.shapes import shapes
from examples import Table, report
from examples.attention import attention, causal_attention
from examples.gpt2 import block
from examples.mlp import mlp, swiglu
from examples.norms import layer_norm, residual_rms_norm
from examples.softmax import softmax_wide


def cross_entropy(x, w, labels):
    """x: [tokens, width], w: [width, vocabulary]; the mean loss of the labels."""
    logits = jnp.matmul(x, w, preferred_element_type=jnp.float32)
    likely = jax.nn.log_softmax(logits, axis=-1)
    return -jnp.mean(jnp.take_along_axis(likely, labels[:, None], axis=-1))


def transformer_block(x, w_qkv, b_qkv, w_out, b_out, w_up, b_up, w_down, b_down, gain1, bias1, gain2, bias2):
    """A layer of GPT-2 with heads 64 deep."""
    layer = {
        "gain1": gain1, "bias1": bias1, "w_qkv": w_qkv, "b_qkv": b_qkv, "w_out": w_out, "b_out": b_out,
        "gain2": gain2, "bias2": bias2, "w_up": w_up, "b_up": b_up, "w_down": w_down, "b_down": b_down,
    }  # fmt: skip
    return block(x, layer, max(x.shape[-1] // 64, 2))


def conv_bias_relu(x, w, b):
    """x: [batch, height, width, channels], a 3x3 convolution that keeps the size."""
    y = jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return jax.nn.relu(y + b)


def cumulative_sum(x):
    return jnp.cumsum(x, axis=-1)


def transpose_add(x, y):
    return x + y.T


def concat_pad_slice(x, y):
    joined = jnp.pad(jnp.concatenate([x, y], axis=1), ((0, 0), (8, 8)))
    return joined[:, 4:-4]


def transformer_args(batch: int, sequence: int, width: int, dtype: str = "bfloat16") -> tuple[jax.ShapeDtypeStruct, ...]:
    w = width
    extents = [
        f"{batch},{sequence},{w}", f"{w},{3 * w}", f"{3 * w}", f"{w},{w}", f"{w}", f"{w},{4 * w}", f"{4 * w}", f"{4 * w},{w}",
        f"{w}", f"{w}", f"{w}", f"{w}", f"{w}",
    ]  # fmt: skip
    return shapes(" ".join(f"{dtype}[{e}]" for e in extents))


HEADS = "bfloat16[4,16,2048,64] bfloat16[4,16,2048,64] bfloat16[4,16,2048,64]"

PROGRAMS: Table = {
    "softmax 8192x4096": (softmax_wide, shapes("bfloat16[8192,4096]")),
    "softmax 64x262144": (softmax_wide, shapes("bfloat16[64,262144]")),
    "layernorm 8192x4096": (layer_norm, shapes("bfloat16[8192,4096] bfloat16[4096] bfloat16[4096]")),
    "residual + rmsnorm 8192x4096": (
        residual_rms_norm,
        shapes("bfloat16[8192,4096] bfloat16[8192,4096] bfloat16[4096]"),
    ),
    "mlp 4096x1024x4096": (
        mlp,
        shapes("bfloat16[4096,1024] bfloat16[1024,4096] bfloat16[4096] bfloat16[4096,1024] bfloat16[1024]"),
    ),
    "swiglu 4096x2048x5504": (
        swiglu,
        shapes("bfloat16[4096,2048] bfloat16[2048,5504] bfloat16[2048,5504] bfloat16[5504,2048]"),
    ),
    "attention, plain, 4x16x2048x64": (attention, shapes(HEADS)),
    "attention, causal, f32 softmax": (causal_attention, shapes(HEADS)),
    "cross entropy 4096x4096x32000": (cross_entropy, shapes("bfloat16[4096,4096] bfloat16[4096,32000] int32[4096]")),
    "transformer block B4 S1024 E1024": (transformer_block, transformer_args(4, 1024, 1024)),
    "conv3x3+bias+relu 32x56x56x64": (conv_bias_relu, shapes("bfloat16[32,56,56,64] bfloat16[3,3,64,64] bfloat16[64]")),
    "cumsum 1024x8192 f32": (cumulative_sum, shapes("float32[1024,8192]")),
    "transpose+add 4096^2": (transpose_add, shapes("bfloat16[4096,4096] bfloat16[4096,4096]")),
    "concat+pad+slice": (concat_pad_slice, shapes("bfloat16[4096,2048] bfloat16[4096,1536]")),
}

RAGGED: Table = {
    "cross entropy": (cross_entropy, shapes("bfloat16[9,37] bfloat16[37,53] int32[9]")),
    "transformer block": (transformer_block, transformer_args(2, 37, 96)),
    "conv3x3+bias+relu": (conv_bias_relu, shapes("float32[2,7,5,3] float32[3,3,3,6] float32[6]")),
    "cumsum": (cumulative_sum, shapes("float32[3,37]")),
    "transpose+add": (transpose_add, shapes("bfloat16[37,37] bfloat16[37,37]")),
    "concat+pad+slice": (concat_pad_slice, shapes("bfloat16[5,17] bfloat16[5,6]")),
}


if __name__ == "__main__":
    report(PROGRAMS)
