"""Whole programs: the reading means what JAX computes, and has no calls where it need not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from meaning import Example, bf16, bools, by_evaluate, check, f32, ints

from eqsat.graph import Graph
from eqsat.notation import Stored
from eqsat.read import Call, read

NHWC = ("NHWC", "HWIO", "NHWC")

# --- whole programs -------------------------------------------------------------------------------------------------


def layer_norm(x: Any, scale: Any, shift: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * scale + shift


def gpt2(params: Any, tokens: Any) -> Any:
    h = params["wte"][tokens] + params["wpe"][: tokens.shape[1]]
    for layer in params["layers"]:
        a = layer_norm(h, *layer["ln1"])
        q, k, v = jnp.split(a @ layer["qkv"], 3, -1)
        q, k, v = (t.reshape(*t.shape[:2], 2, 8).transpose(0, 2, 1, 3) for t in (q, k, v))
        scores = q @ k.swapaxes(-1, -2) / jnp.sqrt(8.0)
        mask = jnp.tril(jnp.ones((tokens.shape[1],) * 2, bool))
        weights = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), -1)
        h = h + (weights @ v).transpose(0, 2, 1, 3).reshape(h.shape) @ layer["out"]
        m = layer_norm(h, *layer["ln2"])
        h = h + jax.nn.gelu(m @ layer["up"]) @ layer["down"]
    return layer_norm(h, *params["lnf"]) @ params["wte"].T


def loss(params: Any, tokens: Any) -> Any:
    scores = jax.nn.log_softmax(gpt2(params, tokens)[:, :-1])
    return -jnp.take_along_axis(scores, tokens[:, 1:, None], -1).mean()


def gpt2_arguments() -> tuple[Any, ...]:
    norm = (1 + 0.1 * f32(16), 0.1 * f32(16))
    layer = {
        "ln1": norm,
        "ln2": norm,
        "qkv": f32(16, 48) / 4,
        "out": f32(16, 16) / 4,
        "up": f32(16, 64) / 4,
        "down": f32(64, 16) / 8,
    }
    return {"wte": f32(11, 16), "wpe": f32(8, 16), "lnf": norm, "layers": [layer, layer]}, ints(2, 8, low=0, high=11)


def llama_block(x: Any, params: Any) -> Any:
    h = x * lax.rsqrt((x.astype(jnp.float32) ** 2).mean(-1, keepdims=True) + 1e-6).astype(x.dtype) * params["norm"]
    q, k, v = (jnp.einsum("bsd,dhe->bshe", h, params[n]) for n in "qkv")
    angle = jnp.arange(x.shape[1])[:, None] / 100.0 ** (jnp.arange(4) / 4)
    cos, sin = (t[:, None].astype(x.dtype) for t in (jnp.cos(angle), jnp.sin(angle)))

    def rotated(t: Any) -> Any:
        a, b = jnp.split(t, 2, -1)
        return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], -1)

    q, k = rotated(q), rotated(k)
    k, v = jnp.repeat(k, 2, axis=2), jnp.repeat(v, 2, axis=2)
    scores = jnp.einsum("bqhe,bkhe->bhqk", q, k).astype(jnp.float32) / 8**0.5
    weights = jax.nn.softmax(jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -1e9)).astype(x.dtype)
    x = x + jnp.einsum("bhqk,bkhe,hed->bqd", weights, v, params["o"])
    return x + (jax.nn.silu(x @ params["gate"]) * (x @ params["up"])) @ params["down"]


def llama_arguments(dtype: Any) -> tuple[Any, ...]:
    shapes = {
        "norm": (16,),
        "q": (16, 4, 8),
        "k": (16, 2, 8),
        "v": (16, 2, 8),
        "o": (4, 8, 16),
        "gate": (16, 24),
        "up": (16, 24),
        "down": (24, 16),
    }
    return jnp.asarray(f32(2, 6, 16), dtype), {n: jnp.asarray(f32(*s) / 4, dtype) for n, s in shapes.items()}


def conv_block(x: Any, w: Any, scale: Any) -> Any:
    y = lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=NHWC)
    y = jax.nn.relu((y - y.mean((0, 1, 2))) / jnp.sqrt(y.var((0, 1, 2)) + 1e-5) * scale)
    return lax.reduce_window(y, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME").mean((1, 2))


PROGRAMS: dict[str, Example] = {
    "gpt2 forward": (gpt2, gpt2_arguments()),
    "gpt2 loss": (loss, gpt2_arguments()),
    "llama block": (llama_block, llama_arguments(jnp.float32)),
    "llama block in bfloat16": (llama_block, llama_arguments(jnp.bfloat16)),
    "conv block": (conv_block, (f32(2, 7, 6, 3), f32(3, 3, 3, 4), f32(4))),
    "layer norm": (layer_norm, (f32(3, 7), f32(7), f32(7))),
    "layer norm gradient": (jax.grad(lambda x, s, b: (layer_norm(x, s, b) ** 2).sum(), (0, 1, 2)), (f32(3, 7), f32(7), f32(7))),
    **{n: (getattr(jax.nn, n), (f32(3, 7),)) for n in ("softmax", "log_softmax", "gelu", "silu", "softplus")},
    "exact gelu": (lambda x: jax.nn.gelu(x, approximate=False), (f32(3, 7),)),
    "masked softmax": (lambda x, m: jax.nn.softmax(x, where=m, axis=0), (f32(3, 7), bools(3, 7) | True)),
    "one hot": (lambda i, w: jax.nn.one_hot(i, 5) @ w, (ints(6, low=-1, high=7), f32(5, 2))),
    "embedding": (lambda w, i: w[i].sum(1), (f32(9, 4), ints(2, 3, low=0, high=9))),
    "attention": (jax.nn.dot_product_attention, (f32(1, 5, 2, 4), f32(1, 5, 2, 4), f32(1, 5, 2, 4))),
    "logsumexp": (lambda x: jax.nn.logsumexp(x, 1), (f32(3, 7),)),
    "roll and flip": (lambda x: jnp.roll(x, 2, 0)[::-1] + jnp.flip(x, 1), (f32(5, 4),)),
    "interleaved": (lambda x, y: jnp.stack([x, y], -1).reshape(3, -1), (f32(3, 4), f32(3, 4) + 1)),
    "cache update": (
        lambda cache, new, n: lax.dynamic_update_slice(cache, new, (0, n, 0)).sum(1), (f32(2, 8, 3), f32(2, 1, 3), np.int32(5)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_reads_without_calls(name: str) -> None:
    fn, args = PROGRAMS[name]
    reading = check(fn, args, by_evaluate, tolerance=1e-5)
    assert [call.name for call in reading.calls] == []


def test_gradient_of_gpt2_calls_nothing() -> None:
    assert not check(jax.grad(loss), gpt2_arguments(), by_evaluate, tolerance=2e-5).calls


def test_gradient_of_convolution() -> None:
    args = (f32(2, 6, 5, 3), f32(3, 3, 3, 4))

    def energy(x: Any, w: Any) -> Any:
        return (lax.conv_general_dilated(x, w, (2, 1), "SAME", rhs_dilation=(1, 2), dimension_numbers=NHWC) ** 2).sum()

    assert check(jax.grad(energy, (0, 1)), args, by_evaluate, tolerance=1e-5).opaque == 0


# --- what is not a term ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fn, args, names",
    [
        (lambda x: jnp.sort(x * 2) + 1, (f32(5),), ["sort"]),
        (lambda x: jnp.fft.fft(x).real + 1, (f32(8),), None),
        (lambda x: x[:0] * 2, (f32(8),), None),
        (lambda x: jax.random.normal(jax.random.key(x), (3,)), (np.uint32(3),), None),
        (lambda x, i: x.at[i].set(1.0), (f32(8), ints(3, low=0, high=8)), ["scatter"]),
    ],
)
def test_calls_where_there_is_no_reading(fn: Callable[..., Any], args: tuple[Any, ...], names: list[str] | None) -> None:
    reading = check(fn, args)
    assert reading.opaque > 0 and all(call.reason for call in reading.calls)
    assert names is None or [call.name for call in reading.calls] == names


@pytest.mark.parametrize(
    "fn, args, name",
    [
        (lambda x: lax.scan(lambda c, v: (c + v, c), 0.0, x), (f32(5),), "scan"),
        (lambda x: lax.while_loop(lambda c: c.sum() < 9, lambda c: c * 2 + 1, x), (f32(3),), "while"),
        (lambda x: lax.cond(x[0] > 0, jnp.sin, jnp.cos, x), (f32(8),), "cond"),
    ],
)
def test_loops_and_branches_are_calls_that_hold_programs(fn: Callable[..., Any], args: tuple[Any, ...], name: str) -> None:
    reading = check(fn, args)
    (loop,) = [s for s in reading.steps if isinstance(s, Call)]
    assert loop.name == name and not loop.opaque and loop.eqn.bodies and reading.opaque == 0


def test_views_give_no_tensor() -> None:
    reading = check(lambda x: jnp.exp(x.T.reshape(6, 2)[::2][:, None]), (f32(4, 3),))
    assert [s.name for s in reading.steps if isinstance(s, Stored)] == ["exp"] and reading.views == 4


def test_outputs_that_are_inputs_views_and_literals() -> None:
    reading = check(lambda x: (x, x.T, 1.5, x * 2, x.T), (f32(2, 3),))
    assert reading.outputs[0] is reading.inputs[0] and reading.outputs[1] is reading.outputs[4]


def test_masks_of_positions_give_no_tensor() -> None:
    reading = check(lambda x: jnp.where(jnp.tril(jnp.ones((4, 4), bool), 1), x, 0.0), (f32(4, 4),))
    (step,) = reading.steps
    assert str(step.term) == "where((x0+1) >= x1, x[x0, x1], 0)"  # type: ignore[union-attr]


def test_zero_padding_is_a_load() -> None:
    reading = check(
        lambda x, w: lax.conv_general_dilated(jnp.pad(x, ((0, 0), (0, 0), (1, 1))), w, (1,), "VALID"),
        (f32(1, 2, 5), f32(3, 2, 3)),
    )
    assert len(reading.steps) == 1


def test_sums_of_narrow_floats_accumulate_in_float32() -> None:
    reading = read(Graph.from_jax(lambda x: lax.reduce_sum(x, (0,)), bf16(4)))
    (step,) = reading.steps
    assert str(step.term) == "bfloat16(sum[r0:4](float32(x[r0])))"  # type: ignore[union-attr]


def test_static_positions_are_indices() -> None:
    reading = check(lambda x: x[jnp.arange(3), jnp.arange(3) * 2 + 1], (f32(3, 6),))
    assert str(reading.steps[-1].term) == "x[x0, 2*x0+1]"  # type: ignore[union-attr]


def test_double_precision() -> None:
    with jax.enable_x64(True):
        args = (np.random.default_rng(0).normal(size=(3, 4)), np.arange(3))
        reading = check(lambda x, i: jax.nn.softmax(x[i] @ x.T), args, by_evaluate, tolerance=1e-14)
    assert reading.opaque == 0 and reading.outputs[0].dtype == "float64"
