"""Emitted kernels a reviewer should enjoy: the text of a few, held as files."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

import eqsat
import examples
from eqsat.lower import lower


def shapes(*sizes, dtype="bfloat16"):
    return tuple(jax.ShapeDtypeStruct(s, dtype) for s in sizes)


def attention(q, k, v):
    scores = jnp.einsum("hid,hjd->hij", q, k, preferred_element_type=jnp.float32) / 8
    seen = jnp.arange(q.shape[1])[:, None] >= jnp.arange(k.shape[1])[None, :]
    weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1)
    return jnp.einsum("hij,hjd->hid", weights.astype(v.dtype), v)


def bias_gelu(x, w, b):
    return jax.nn.gelu(x @ w + b)


def attention_gradient(q, k, v, g):
    return jax.vjp(attention, q, k, v)[1](g)


def int8_product(x, w, rows, columns):
    total = jax.lax.dot_general(x, w, (((1,), (0,)), ((), ())), preferred_element_type=jnp.int32)
    return (total.astype(jnp.float32) * rows[:, None] * columns).astype(jnp.bfloat16)


def router(logits):
    weights, experts = jax.lax.top_k(jax.nn.softmax(logits.astype(jnp.float32), axis=-1), 2)
    return weights / weights.sum(-1, keepdims=True), experts


def embedding_gradient(tokens, g):
    return jax.vjp(lambda table: table[tokens], jnp.zeros((32000, 512), g.dtype))[1](g)[0]


PROGRAMS = {
    "ragged_product": (jax.lax.ragged_dot, (*shapes((4096, 1024), (8, 1024, 2048)), *shapes((8,), dtype="int32"))),
    "embedding_gradient": (embedding_gradient, (*shapes((8, 512), dtype="int32"), *shapes((8, 512, 512), dtype="float32"))),
    "router": (router, shapes((4096, 8))),
    "int8_product": (
        int8_product,
        (*shapes((1000, 1024), (1024, 4096), dtype="int8"), *shapes((1000,), (4096,), dtype="float32")),
    ),
    "split_softmax": (lambda x: jax.nn.softmax(x, axis=-1), shapes((8, 262144), dtype="float32")),
    "running_sum": (jnp.cumsum, shapes((1 << 24,), dtype="float32")),
    "running_log_sum_exp": (lambda x: jax.lax.cumlogsumexp(x, axis=1), shapes((1024, 8192), dtype="float32")),
    "attention_gradient": (attention_gradient, shapes(*[(12, 1024, 64)] * 4)),
    "softmax": (lambda x: jax.nn.softmax(x, axis=-1), shapes((512, 1000), dtype="float32")),
    "residual_rms_norm": examples.tables("PROGRAMS")["residual_rms_norm"],
    "attention": (attention, shapes((12, 1024, 64), (12, 1024, 64), (12, 1024, 64))),
    "bias_gelu": (bias_gelu, shapes((1000, 768), (768, 3072), (3072,))),
    "greedy": (lambda x, w: jnp.argmax(x @ w, axis=-1), shapes((4096, 768), (768, 50304))),
    "transpose": (lambda x: x.T + 1, shapes((1024, 1000), dtype="float32")),
}


LONG = {"attention_gradient"}  # to search


@pytest.mark.parametrize("backend", ["triton", "pallas"])
@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.nightly] if n in LONG else []) for n in PROGRAMS])
def test_kernels_read_as_agreed(name, backend, golden):
    fn, args = PROGRAMS[name]
    program = eqsat.optimize(fn, *args)
    golden(f"{name}.{backend}", "\n\n".join(kernel.source(backend) for kernel in program.kernels))


def test_a_persistent_product_reads_as_agreed(golden):
    triton = pytest.importorskip("eqsat.backends.triton")
    fn, args = PROGRAMS["bias_gelu"]
    (planned,) = eqsat.optimize(fn, *args).kernels
    golden("persistent.triton", triton.emit(lower(planned.kernel, replace(planned.schedule, persistent=132))))
