"""Programs shared by many sizes: results are those at the true size, whatever stands in the padding, and programs are few."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

import eqsat
from eqsat.graph import trace
from eqsat.padding import padded

EXTENTS = {"b": 4, "s": 8}
SIZES = {"b": 3, "s": 5}
B, S = SIZES["b"], SIZES["s"]


def floats(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


def whole(*shape, high=5):
    return jnp.asarray(np.random.default_rng(1).integers(0, high, shape), jnp.int32)


def attention(x, w):
    q, k = x @ w, x @ w.T
    scores = jnp.einsum("bqd,bkd->bqk", q, k)
    seen = jnp.arange(x.shape[1])[:, None] >= jnp.arange(x.shape[1])
    return jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(jnp.where(seen, scores, -jnp.inf)), x)


def loss(table, w, tokens):
    h = attention(table[tokens], w)
    picked = jnp.take_along_axis(jax.nn.log_softmax(h), (tokens % 4)[..., None], axis=-1)
    return -jnp.mean(picked)


def looped(x, w):
    def step(carry, row):
        carry = jnp.tanh(carry @ w + row[:, None])
        return carry, carry.max(0)

    return lax.scan(step, jnp.zeros((x.shape[0], 6)), x[..., 0, :2].T)


def normal(x):
    return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)


def transformer(table, w, tokens):
    """Two heads, positions, a causal mask, two products after it; the mean loss of the next token."""
    b, s = tokens.shape
    x = table[tokens] + table[:, ::-1][jnp.arange(s)]
    q, k, v = ((normal(x) @ part).reshape(b, s, 2, 3).transpose(0, 2, 1, 3) for part in (w, w.T, w * 2))
    scores = jnp.where(jnp.tril(jnp.ones((s, s), bool)), q @ k.swapaxes(-1, -2), -1e9)
    x = x + (jax.nn.softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(b, s, 6) @ w
    logits = jax.nn.log_softmax(normal(x + jax.nn.gelu(x @ w) @ w) @ table.T)
    return -jnp.take_along_axis(logits, tokens[..., None], -1).mean()


TABLE, W, X, T = floats(9, 6), floats(6, 6, seed=2), floats(B, S, 6, seed=3), whole(B, S)
XS, TS = "b, s, 6", "b, s"
PROGRAMS = {
    "softmax": (lambda x: jax.nn.softmax(x, axis=1), (XS,), (X,)),
    "attention": (attention, (XS, None), (X, W)),
    "loss": (loss, (None, None, TS), (TABLE, W, T)),
    "gradient of a transformer": (jax.grad(transformer, (0, 1)), (None, None, TS), (TABLE, W, T)),
    "gradient of a loss": (jax.grad(loss, (0, 1)), (None, None, TS), (TABLE, W, T)),
    "moments": (lambda x: (x.mean(), x.var(1), x.std((0, 1)), jnp.median(x, -1)), (XS,), (X,)),
    "extremes": (lambda x: (x.max(0), x.min((0, 1)), x.argmax(1), x.argmin(0), (x < 9).all(1), (x > 9).any()), (XS,), (X,)),
    "products": (lambda x: (x.prod(1), jnp.cumprod(x, 0), lax.cumsum(x, 1, reverse=True), lax.cumlogsumexp(x, 1)), (XS,), (X,)),
    "integers": (lambda t: (t.max(), t.min(0), t.sum(), jnp.bitwise_and.reduce(t, 0), (t == t.shape[1]).sum()), (TS,), (T,)),
    "last of a row": (lambda x: (x[:, -1], x[-1], x[:, -1:], x[:1], x[:, 0] + x[0, -1]), (XS,), (X,)),
    "sizes as values": (lambda x: x * x.shape[0] + x.shape[1] ** 2 - x.size // 7, (XS,), (X,)),
    "padding": (
        lambda x: (jnp.pad(x, ((1, 2), (0, 3), (1, 1)), constant_values=2.0), jnp.pad(x, ((0, 0), (1, 0), (0, 0)))),
        (XS,),
        (X,),
    ),
    "concatenation": (
        lambda x, y: (jnp.concatenate([x[:, :1], x, x[:, -1:] + 1], 1), jnp.concatenate([y, x[:, 0]])),
        (XS, None),
        (X, W),
    ),
    "rows by number": (
        lambda x, n: (x[n], x.at[n].get(mode="fill"), x[:, n], jnp.take(x, n, 1, mode="clip"), x[jnp.arange(x.shape[0]), n[0]]),
        (XS, None),
        (X, jnp.asarray([0, 2, -1, 4, 6])),
    ),
    "scattered": (
        lambda x, t: (jnp.zeros((5, 6)).at[t].add(x), jnp.zeros((5, 6)).at[t].max(x), jnp.full(7, -0.0).at[t[:, 0]].set(1.0)),
        (XS, TS),
        (X, T),
    ),
    "rows changed": (
        lambda x, n: (x.at[n].add(1.0), x.at[:, n].set(2.0), x.at[n].multiply(3.0, mode="clip")),
        (XS, None),
        (X, jnp.asarray([1, 3, -1, 9])),
    ),
    "windows": (
        lambda x, n: (lax.dynamic_slice_in_dim(x, n, 1, 1), lax.dynamic_update_slice_in_dim(x, x[:, :1] + 1, n, 1)),
        (XS, None),
        (X, jnp.asarray(4)),
    ),
    "positions": (lambda x, p: x + p[: x.shape[1]] + lax.dynamic_slice_in_dim(p, 6, x.shape[1]), (XS, None), (X, floats(9, 6))),
    "twice as many": (
        lambda x: (jnp.concatenate([x, x], 1).sum(1), jnp.repeat(x, 2, 1), jnp.stack([x, x], 2).reshape(x.shape[0], -1).max(1)),
        (XS,),
        (X,),
    ),
    "reshaped": (lambda x: (x.reshape(*x.shape[:2], 2, 3).transpose(0, 2, 1, 3), jnp.expand_dims(x, 1)), (XS,), (X,)),
    "convolution": (
        lambda x, w: lax.conv_general_dilated(x, w, (1,), "SAME"),
        ("b, 6, 9", None),
        (floats(B, 6, 9), floats(4, 6, 3)),
    ),
    "gradient of a convolution": (
        jax.grad(lambda w, x: (lax.conv(x, w, (1,), "SAME") ** 2).sum()),
        (None, "b, 6, 9"),
        (floats(4, 6, 3), floats(B, 6, 9)),
    ),
    "pooling": (lambda x: (lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 2), (1, 1, 2), "VALID"),), (XS,), (X,)),
    "loop": (looped, (XS, None), (X, W)),
    "branch": (lambda x: lax.cond(x.sum() > 0, lambda x: x.mean(1), lambda x: x.max(1), x), (XS,), (X,)),
    "search": (lambda x: lax.while_loop(lambda c: c.max() < 9, lambda c: 2 * jnp.abs(c) + 1, x), (XS,), (X,)),
    "sorted": (
        lambda x: (jnp.sort(x, -1), lax.top_k(x, 2), jnp.fft.fft(x).real, jnp.linalg.cholesky(x[..., :3, None] * 0 + jnp.eye(3))),
        (XS,),
        (X,),
    ),
}


def poisoned(x, shape, extents):
    """Filled with NaN, or a number that leads nowhere."""
    behind = [(0, extents.get(str(m), n) - n) for n, m in zip(x.shape, shape, strict=True)]
    return (
        x if not behind else jnp.pad(x, behind, constant_values=jnp.nan if jnp.issubdtype(x.dtype, jnp.floating) else 123456789)
    )


SLOW = (
    "gradient of a transformer",
    "gradient of a loss",
    "loss",
    "rows by number",
    "sorted",
    "moments",
    "extremes",
    "concatenation",
    "scattered",
    "rows changed",
    "loop",
    "branch",
)


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.nightly] * (n in SLOW)) for n in PROGRAMS])
def test_what_stands_in_the_padding_is_never_seen(name):
    fn, shapes, args = PROGRAMS[name]
    scope = export.SymbolicScope(["b <= 4", "s <= 8"])
    symbols = {n: export.symbolic_shape(n, scope=scope)[0] for n in EXTENTS}
    specs = export.symbolic_args_specs(args, shapes, scope=scope)
    graph = trace(fn, specs, {})
    flat = [poisoned(x, spec.shape, EXTENTS) for x, spec in zip(args, jax.tree_util.tree_leaves(specs), strict=True)]
    results = padded(graph, symbols)({n: jnp.int32(size) for n, size in SIZES.items()}, EXTENTS, *flat)
    wanted = jax.tree_util.tree_leaves(fn(*args))
    for got, want in zip(results, wanted, strict=True):
        got = got[tuple(slice(n) for n in want.shape)]
        assert got.dtype == want.dtype and got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-6)


REFUSED = {
    "one symbol plus a constant required, got b*s": lambda x: x.reshape(-1, 6).sum(1),
    "sort": lambda x: jnp.sort(x, 1),
    "rev": lambda x: x[:, ::-1],
    "scan": lambda x: lax.scan(lambda c, row: (c + row, c), x[0], x),
    "random_bits": lambda x: x + jax.random.uniform(jax.random.key(0), x.shape),
    "one symbol plus a constant required, got s + b": lambda x: jnp.concatenate([x[:, 0], x[0]]),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_padding_might_change_is_refused_by_name(reason):
    fast = eqsat.jit(REFUSED[reason], shapes=(XS,), buckets={"b": (4,), "s": (8,)})
    with pytest.raises(ValueError, match="operations that padding cannot change required") as error:
        fast(X)
    assert reason in str(error.value) and str(error.value).count("test_buckets.py") == 1  # what follows from it is not named


def scaled(x, w, bias):
    return jax.nn.softmax(x @ w, axis=1).mean(1) + bias


def test_sizes_of_a_bucket_share_a_program_and_the_report_says_how_many_there_can_be():
    fast = eqsat.jit(scaled, shapes=(XS, None, None), buckets={"b": [4, 2], "s": [8]}, time_limit=5.0)
    for b, s in ((1, 3), (2, 8), (2, 1), (3, 7), (4, 4), (3, 5)):
        x = floats(b, s, 6)
        np.testing.assert_allclose(fast(x, W, 2.0), scaled(x, W, 2.0), rtol=1e-5)
    assert len(fast.programs) == 2 == fast.bound
    program = fast.program(jax.ShapeDtypeStruct((1, 8, 6), jnp.float32), W, 2.0)
    assert program in fast.programs
    assert "b of 2 or 4, s of 8: at most 2 programs for all sizes up to these" in program.report()


@pytest.mark.nightly
def test_a_size_that_equals_a_fixed_one_stays_apart():
    fast = eqsat.jit(lambda x, w: x @ w, shapes=("b, 6", None), buckets={"b": [6]})
    for b in (6, 4, 1):
        np.testing.assert_allclose(fast(floats(b, 6), W), floats(b, 6) @ W, rtol=1e-5, atol=1e-6)
    assert len(fast.programs) == 1


@pytest.mark.nightly
def test_under_a_transformation_sizes_are_as_they_are():
    fast = eqsat.jit(scaled, shapes=(XS, None, None), buckets={"b": [4], "s": [8]}, time_limit=5.0)
    gradient = jax.grad(lambda w: fast(X, w, 2.0).sum())(W)
    np.testing.assert_allclose(gradient, jax.grad(lambda w: scaled(X, w, 2.0).sum())(W), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("shapes", "buckets", "said"),
    [
        ((XS, None, None), {"b": (2,), "s": (8,)}, "b of 1 to 2 required, got 3; add a larger extent"),
        ((XS, None, None), {"b": (4,)}, r"sizes \['s'\], for which buckets= has no extents"),
        ((XS, None, None), {"b": (4,), "s": (8,), "t": (1,)}, r"buckets of \['t'\], which are sizes of no argument"),
        (("b, b, 6", None, None), {"b": (8,)}, r"of shape \(b, b, 6\) with b = 3 required, got \(3, 5, 6\)"),
        (("b, s, 7", None, None), {"b": (4,), "s": (8,)}, "required, got"),
        ((XS, None, None), {"b": (0, 4), "s": (8,)}, "extents of at least 1 required"),
        ((XS, None, None), None, "both shapes= and buckets= required"),
    ],
)
def test_errors_say_what_is_required(shapes, buckets, said):
    with pytest.raises(ValueError, match=said):
        eqsat.jit(scaled, shapes=shapes, buckets=buckets)(X, W, 1.0)
