"""Programs as people write them in JAX, each at two sizes: `full` for what is predicted, `small` to run.

A function takes its weights first, as a callable that gives an array of a shape (`benchmarks.workloads.Weights`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.workloads import Size, network
from eqsat.shapes import shapes

PROGRAMS: dict[str, Program] = {}


class Program(NamedTuple):
    """One program at two sizes; `expected` names the primitives that stay calls of JAX."""

    full: Size
    small: Size
    expected: frozenset[str]


def program(name: str, full: str, small: str, *, weights: bool = True, calls: str = "", **config: Any) -> Callable[[Any], Any]:
    """Enter a function under a name; `config` holds pairs (full, small) of keyword arguments."""

    def enter(fn: Callable[..., Any]) -> Callable[..., Any]:
        sizes = []
        for n, text in enumerate((full, small)):
            options = {key: value[n] for key, value in config.items()}
            sizes.append(network(fn, text, **options) if weights else Size(partial(fn, **options), shapes(text)))
        PROGRAMS[name] = Program(*sizes, frozenset(calls.split()))
        return fn

    return enter


def gradient(name: str, of: str, calls: str = "") -> None:
    """The gradient, for its last argument, of the sum of another program's results, as a program of its own."""

    def size(s: Size) -> Size:
        def total(last: Any, *args: Any) -> Any:
            return sum(jnp.sum(x.astype(jnp.float32)) for x in jax.tree.leaves(s.fn(*args, last)))

        return Size(lambda *args: jax.grad(total)(args[-1], *args[:-1]), s.args)

    PROGRAMS[name] = Program(size(PROGRAMS[of].full), size(PROGRAMS[of].small), PROGRAMS[of].expected | set(calls.split()))


# --- transformers -----------------------------------------------------------------------------------------------


def dense(w, x, width, bias=True):
    y = x @ w(x.shape[-1], width)
    return y + w(width) if bias else y


def layer_norm(w, x):
    centred = x - x.mean(-1, keepdims=True)
    return centred * lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5) * w(x.shape[-1]) + w(x.shape[-1])


def rms_norm(w, x):
    return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * w(x.shape[-1])


def split(x, heads):
    return x.reshape(*x.shape[:-1], heads, -1).swapaxes(-2, -3)


def attention(w, x, heads, seen=None, context=None):
    context = x if context is None else context
    q, k, v = (split(dense(w, y, x.shape[-1]), heads) for y in (x, context, context))
    scores = q @ k.mT / np.sqrt(q.shape[-1])
    scores = scores if seen is None else jnp.where(seen, scores, -jnp.inf)
    mixed = jax.nn.softmax(scores) @ v
    return dense(w, mixed.swapaxes(-2, -3).reshape(x.shape), x.shape[-1])


def block(w, x, heads, seen=None):
    x = x + attention(w, layer_norm(w, x), heads, seen)
    return x + dense(w, jax.nn.gelu(dense(w, layer_norm(w, x), 4 * x.shape[-1])), x.shape[-1])


def cross_entropy(logits, labels):
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1))


LANGUAGE = {"width": (768, 16), "heads": (12, 2), "vocabulary": (50257, 31)}


@program("GPT-2, loss", "int32[2,1024]", "int32[2,7]", **LANGUAGE)
def gpt2(w, tokens, width, heads, vocabulary):
    table, n = w(vocabulary, width), tokens.shape[1]
    x = table[tokens] + w(n, width)
    for _ in range(2):
        x = block(w, x, heads, jnp.tril(jnp.ones((n, n), bool)))
    return cross_entropy((layer_norm(w, x) @ table.T)[:, :-1], tokens[:, 1:])


@program("GPT-2, layers by scan, rematerialised", "float32[2,1024,768]", "float32[2,5,16]", heads=(12, 2))
def scanned(w, x, heads):
    width = x.shape[-1]
    layers = [(w(4, width, 3 * width), w(4, width, width), w(4, width, 4 * width), w(4, 4 * width, width))]

    @jax.checkpoint
    def layer(x, weights):
        qkv, out, up, down = weights
        q, k, v = (split(y, heads) for y in jnp.split(x @ qkv, 3, -1))
        y = jax.nn.softmax(q @ k.mT) @ v
        x = x + y.swapaxes(-2, -3).reshape(x.shape) @ out
        return x + jax.nn.gelu(x @ up) @ down, None

    return lax.scan(layer, x, layers[0])[0]


@program("Llama block", "float32[1,2048,1024]", "float32[1,6,16]", heads=(16, 4), groups=(4, 2))
def llama(w, x, heads, groups):
    width, n = x.shape[-1], x.shape[1]
    size = width // heads

    def rotated(y):
        rates = 1 / 10000 ** (jnp.arange(0, size, 2) / size)
        angle = jnp.arange(n)[:, None] * rates
        low, high = jnp.split(y, 2, -1)
        cos, sin = jnp.cos(angle), jnp.sin(angle)
        return jnp.concatenate([low * cos - high * sin, high * cos + low * sin], -1)

    h = rms_norm(w, x)
    q, k, v = (split(dense(w, h, count * size, False), count) for count in (heads, groups, groups))
    k, v = (jnp.repeat(y, heads // groups, 1) for y in (rotated(k), v))
    seen = jnp.arange(n)[:, None] >= jnp.arange(n)
    y = jax.nn.softmax(jnp.where(seen, rotated(q) @ k.mT / np.sqrt(size), -jnp.inf)) @ v
    x = x + dense(w, y.swapaxes(1, 2).reshape(x.shape), width, False)
    h = rms_norm(w, x)
    return x + dense(w, jax.nn.silu(dense(w, h, 4 * width, False)) * dense(w, h, 4 * width, False), width, False)


@program(
    "Llama, one token with a cache", "float32[8,1024] float32[8,16,2048,64] float32[8,16,2048,64] int32[]",
    "float32[2,16] float32[2,4,6,4] float32[2,4,6,4] int32[]",
)  # fmt: skip
def decode(w, x, keys, values, position):
    heads = keys.shape[1]
    h = rms_norm(w, x)
    q, k, v = (split(dense(w, h, x.shape[-1], False)[:, None], heads) for _ in range(3))
    keys, values = (lax.dynamic_update_slice(c, new, (0, 0, position, 0)) for c, new in ((keys, k), (values, v)))
    seen = jnp.arange(keys.shape[2]) <= position
    y = jax.nn.softmax(jnp.where(seen, q @ keys.mT / np.sqrt(q.shape[-1]), -jnp.inf)) @ values
    return x + dense(w, y.reshape(x.shape), x.shape[-1], False), keys, values


@program("BERT", "int32[8,512] bool[8,512]", "int32[2,6] bool[2,6]", width=(768, 16), heads=(12, 2))
def bert(w, tokens, mask, width, heads):
    x = layer_norm(w, w(1000, width)[tokens] + w(tokens.shape[1], width))
    for _ in range(2):
        x = layer_norm(w, x + attention(w, x, heads, mask[:, None, None]))
        x = layer_norm(w, x + dense(w, jax.nn.gelu(dense(w, x, 4 * width), approximate=False), width))
    return x, jnp.tanh(dense(w, x[:, 0], width))


@program("ViT", "float32[8,224,224,3]", "float32[2,8,8,3]", patch=(16, 4), width=(384, 16), heads=(6, 2))
def vit(w, images, patch, width, heads):
    x = lax.conv_general_dilated(
        images, w(patch, patch, 3, width), (patch, patch), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    x = x.reshape(x.shape[0], -1, width)
    x = jnp.concatenate([jnp.broadcast_to(w(1, 1, width), (x.shape[0], 1, width)), x], 1)
    x = x + w(x.shape[1], width)
    for _ in range(2):
        x = block(w, x, heads)
    return dense(w, layer_norm(w, x)[:, 0], 10)


@program("mixture of experts, top 2, dense", "float32[4096,512]", "float32[6,8]", experts=(8, 4))
def experts(w, x, experts):
    width = x.shape[-1]
    scores, chosen = lax.top_k(x @ w(width, experts), 2)
    gates = (jax.nn.one_hot(chosen, experts) * jax.nn.softmax(scores)[..., None]).sum(1)
    hidden = jax.nn.silu(jnp.einsum("td,edh->teh", x, w(experts, width, 2 * width)))
    return jnp.einsum("teh,ehd,te->td", hidden, w(experts, 2 * width, width), gates)


@program("top-p sampling", "float32[16,50257] uint32[2]", "float32[2,9] uint32[2]", weights=False, calls="sort")
def sampled(logits, key):
    order = jnp.argsort(-logits)
    likely = jax.nn.softmax(jnp.take_along_axis(logits, order, -1))
    kept = jnp.where(jnp.cumsum(likely, -1) - likely < 0.9, jnp.log(likely), -jnp.inf)
    noise = jax.random.gumbel(jax.random.wrap_key_data(key), logits.shape)
    return jnp.take_along_axis(order, jnp.argmax(kept + noise, -1)[:, None], -1)


# --- images -----------------------------------------------------------------------------------------------------


def convolved(w, x, filters, size=3, stride=1, groups=1):
    kernel = w(size, size, x.shape[-1] // groups, filters)
    numbers = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, kernel, (stride,) * 2, "SAME", dimension_numbers=numbers, feature_group_count=groups)


def batch_norm(w, x):
    mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
    return (x - mean) * lax.rsqrt(variance + 1e-5) * w(x.shape[-1]) + w(x.shape[-1])


def bottleneck(w, x, width, stride):
    y = jax.nn.relu(batch_norm(w, convolved(w, x, width, 1)))
    y = jax.nn.relu(batch_norm(w, convolved(w, y, width, 3, stride)))
    y = batch_norm(w, convolved(w, y, 4 * width, 1))
    return jax.nn.relu(y + batch_norm(w, convolved(w, x, 4 * width, 1, stride)))


def pooled(x, fn, start):
    return lax.reduce_window(x, start, fn, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")


@program("ResNet, two stages", "float32[8,224,224,3] int32[8]", "float32[2,16,16,3] int32[2]", width=(64, 4))
def resnet(w, images, labels, width):
    x = pooled(jax.nn.relu(batch_norm(w, convolved(w, images, width, 7, 2))), lax.max, -jnp.inf)
    x = bottleneck(w, bottleneck(w, x, width, 1), 2 * width, 2)
    return cross_entropy(dense(w, x.mean((1, 2)), 10), labels)


@program("MobileNet block", "float32[8,56,56,64]", "float32[2,6,6,4]")
def mobile(w, x):
    y = jax.nn.hard_swish(batch_norm(w, convolved(w, x, 4 * x.shape[-1], 1)))
    y = jax.nn.hard_swish(batch_norm(w, convolved(w, y, y.shape[-1], 5, groups=y.shape[-1])))
    gate = jax.nn.hard_sigmoid(dense(w, jax.nn.relu(dense(w, y.mean((1, 2)), 8)), y.shape[-1]))
    return x + convolved(w, y * gate[:, None, None], x.shape[-1], 1)


@program("U-Net block", "float32[4,32,32,64] float32[4]", "float32[1,8,8,8] float32[1]", groups=(8, 2))
def unet(w, x, time, groups):
    def group_norm(x):
        y = x.reshape(*x.shape[:-1], groups, -1)
        y = (y - y.mean((1, 2, 4), keepdims=True)) * lax.rsqrt(y.var((1, 2, 4), keepdims=True) + 1e-5)
        return y.reshape(x.shape) * w(x.shape[-1]) + w(x.shape[-1])

    angle = time[:, None] * 10000.0 ** -jnp.linspace(0, 1, 16)
    embedded = dense(w, jax.nn.silu(dense(w, jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], -1), 32)), x.shape[-1])
    y = convolved(w, jax.nn.silu(group_norm(x)), x.shape[-1]) + embedded[:, None, None]
    x = x + convolved(w, jax.nn.silu(group_norm(y)), x.shape[-1])
    flat = group_norm(x).reshape(x.shape[0], -1, x.shape[-1])
    x = x + attention(w, flat, 2).reshape(x.shape)
    small = lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4
    large = jax.image.resize(convolved(w, small, x.shape[-1]), x.shape, "nearest")
    return convolved(w, jnp.concatenate([x, large], -1), x.shape[-1])


@program("dropout", "float32[4096,1024] uint32[2]", "float32[4,6] uint32[2]", weights=False)
def dropout(x, key):
    kept = jax.random.bernoulli(jax.random.wrap_key_data(key), 0.9, x.shape)
    return jnp.where(kept, x / 0.9, 0)


@program("variational autoencoder", "float32[256,784] uint32[2]", "float32[3,8] uint32[2]", width=(512, 8))
def autoencoder(w, x, key, width):
    mean, spread = jnp.split(dense(w, jax.nn.relu(dense(w, x, width)), 32), 2, -1)
    z = mean + jnp.exp(spread / 2) * jax.random.normal(jax.random.wrap_key_data(key), mean.shape)
    logits = dense(w, jax.nn.relu(dense(w, z, width)), x.shape[-1])
    likely = jnp.sum(x * jax.nn.log_sigmoid(logits) + (1 - x) * jax.nn.log_sigmoid(-logits), -1)
    return -jnp.mean(likely - 0.5 * jnp.sum(mean**2 + jnp.exp(spread) - 1 - spread, -1))


# --- recurrent --------------------------------------------------------------------------------------------------


@program("LSTM by scan", "float32[64,128,512]", "float32[5,2,4]", width=(512, 4))
def lstm(w, xs, width):
    into, recurrent, bias = w(xs.shape[-1], 4 * width), w(width, 4 * width), w(4 * width)

    def step(state, x):
        h, c = state
        i, f, g, o = jnp.split(x @ into + h @ recurrent + bias, 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    start = jnp.zeros((xs.shape[1], width))
    return lax.scan(step, (start, start), xs)[1]


@program("NasRNN by scan", "float32[16,8,512]", "float32[3,2,4]")
def nas_rnn(w, xs):
    from benchmarks.workloads.nasrnn import cell

    width = xs.shape[-1]
    weights = [w(width, width) for _ in range(16)]

    def step(h, x):
        given = iter(weights)
        return cell(lambda *shape: next(given), x, h, width), None

    return lax.scan(step, jnp.zeros(xs.shape[1:]), xs)[0]


def selective(w, x, states):
    """Mamba's discretised states: decays and inputs [time, width, state], and the read-out [time, state]."""
    width = x.shape[-1]
    step = jax.nn.softplus(dense(w, x, width))
    decay = jnp.exp(-step[..., None] * jnp.exp(w(width, states)))
    fed = (step * x)[..., None] * dense(w, x, states, False)[:, None]
    return decay, fed, dense(w, x, states, False)


@program("Mamba by scan", "float32[512,256]", "float32[5,4]", states=(16, 3))
def mamba(w, x, states):
    decay, fed, out = selective(w, x, states)

    def step(h, now):
        a, b, c = now
        h = a * h + b
        return h, h @ c

    return lax.scan(step, jnp.zeros(decay.shape[1:]), (decay, fed, out))[1]


@program("Mamba by associative scan", "float32[512,256]", "float32[5,4]", states=(16, 3))
def mamba_parallel(w, x, states):
    decay, fed, out = selective(w, x, states)
    h = lax.associative_scan(lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1]), (decay, fed))[1]
    return jnp.einsum("tds,ts->td", h, out)


@program("flash attention by scan", "float32[2048,64] float32[2048,64] float32[2048,64]", "float32[6,4] " * 3, weights=False)
def flash(q, k, v):
    parts = 4 if k.shape[0] % 4 == 0 else 2

    def step(state, now):
        top, total, acc = state
        scores = q @ now[0].T
        new = jnp.maximum(top, scores.max(-1, keepdims=True))
        p, old = jnp.exp(scores - new), jnp.exp(top - new)
        return (new, total * old + p.sum(-1, keepdims=True), acc * old + p @ now[1]), None

    start = (jnp.full((q.shape[0], 1), -jnp.inf), jnp.zeros((q.shape[0], 1)), jnp.zeros(q.shape))
    blocks = tuple(y.reshape(parts, -1, y.shape[-1]) for y in (k, v))
    _, total, acc = lax.scan(step, start, blocks)[0]
    return acc / total


# --- numerics ---------------------------------------------------------------------------------------------------


@program("Adam, one step", "float32[4096,1024] float32[4096,1024] float32[4096,1024] float32[4096,1024] int32[]",
         "float32[4,3] float32[4,3] float32[4,3] float32[4,3] int32[]", weights=False)  # fmt: skip
def adam(weights, gradient, mean, square, step):
    t = (step + 1).astype(jnp.float32)
    mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
    rate = jnp.sqrt(1 - 0.999**t) / (1 - 0.9**t)
    return weights - 1e-3 * rate * mean / (jnp.sqrt(jnp.abs(square)) + 1e-8), mean, square


@program("stencil of heat", "float32[1024,1024]", "float32[6,7]", weights=False)
def heat(u):
    def step(u, _):
        inner = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1]
        return u.at[1:-1, 1:-1].add(0.1 * inner), None

    return lax.scan(step, u, None, 8)[0]


@program("wave on a torus", "float32[1024,1024] float32[1024,1024]", "float32[5,6] float32[5,6]", weights=False)
def wave(u, before):
    around = sum(jnp.roll(u, n, axis) for n in (1, -1) for axis in (0, 1)) - 4 * u
    return 2 * u - before + 0.2 * around, u


@program("int8 product", "int8[1024,1024] int8[1024,1024] float32[1024]", "int8[4,5] int8[5,3] float32[3]", weights=False)
def int8_product(a, b, scale):
    total = lax.dot_general(a, b, (((1,), (0,)), ((), ())), preferred_element_type=jnp.int32)
    return jnp.clip(jnp.round(total * scale), -128, 127).astype(jnp.int8)


@program("forces of Lennard-Jones", "float32[1024,3]", "float32[5,3]", weights=False)
def forces(x):
    def energy(x):
        apart = x[:, None] - x[None]
        far = (apart * apart).sum(-1) + jnp.eye(x.shape[0])
        inverse = jnp.where(jnp.eye(x.shape[0], dtype=bool), 0, 1 / (far + 1) ** 3)
        return 2 * jnp.sum(inverse * inverse - inverse)

    return -jax.grad(energy)(x)


@program("conjugate gradients", "float32[512,512] float32[512]", "float32[4,4] float32[4]", weights=False)
def conjugate_gradients(a, b):
    a = a @ a.T / a.shape[0] + jnp.eye(a.shape[0])

    def step(state):
        n, x, r, p, rr = state
        q = a @ p
        alpha = rr / (p @ q)
        x, r = x + alpha * p, r - alpha * q
        new = r @ r
        return n + 1, x, r, r + (new / rr) * p, new

    return lax.while_loop(lambda s: (s[0] < 3) & (s[4] > 1e-10), step, (0, jnp.zeros_like(b), b, b, b @ b))[1]


@program("convolution by FFT", "float32[64,4096] float32[4096]", "float32[2,8] float32[8]", weights=False,
         calls="fft broadcast_in_dim convert_element_type mul pad")  # fmt: skip
def by_fft(x, kernel):
    n = 2 * x.shape[-1]
    return jnp.fft.irfft(jnp.fft.rfft(x, n) * jnp.fft.rfft(kernel, n), n)[..., : x.shape[-1]]


@program("triangle update", "float32[256,256,64]", "float32[5,5,4]")
def triangle(w, z):
    c = z.shape[-1]
    y = layer_norm(w, z)
    a, b = (jax.nn.sigmoid(dense(w, y, c)) * dense(w, y, c) for _ in range(2))
    return jax.nn.sigmoid(dense(w, y, c)) * dense(w, layer_norm(w, jnp.einsum("ikc,jkc->ijc", a, b)), c)


@program("graph network", "float32[4096,64] int32[2,32768]", "float32[5,4] int32[2,9]")
def messages(w, nodes, edges):
    sender, receiver = edges
    sent = jax.nn.relu(dense(w, jnp.concatenate([nodes[sender], nodes[receiver]], -1), nodes.shape[-1]))
    received = jax.ops.segment_sum(sent, receiver, nodes.shape[0])
    return nodes + dense(w, received, nodes.shape[-1])


@program("Sinkhorn", "float32[512,512]", "float32[4,5]", weights=False)
def sinkhorn(cost):
    def step(state, _):
        f, g = state
        f = -jax.nn.logsumexp(g[None] - cost, 1)
        return (f, -jax.nn.logsumexp(f[:, None] - cost, 0)), None

    f, g = lax.scan(step, (jnp.zeros(cost.shape[0]), jnp.zeros(cost.shape[1])), None, 10)[0]
    return jnp.exp(f[:, None] + g[None] - cost)


@program("radiance field", "float32[4096,3] float32[4096,3]", "float32[3,3] float32[3,3]", samples=(32, 4), width=(128, 8))
def radiance(w, origins, directions, samples, width):
    depth = jnp.linspace(1.0, 4.0, samples)
    x = origins[:, None] + depth[:, None] * directions[:, None]
    x = jnp.concatenate([f(x * 2.0**n) for n in range(4) for f in (jnp.sin, jnp.cos)], -1)
    for _ in range(3):
        x = jax.nn.relu(dense(w, x, width))
    density, colour = jax.nn.softplus(dense(w, x, 1))[..., 0], jax.nn.sigmoid(dense(w, x, 3))
    opaque = 1 - jnp.exp(-density * (3.0 / samples))
    through = jnp.cumprod(1 - opaque + 1e-10, -1) / (1 - opaque + 1e-10)
    return jnp.sum((opaque * through)[..., None] * colour, 1)


@program("policy gradient, clipped", "float32[2048,64] int32[2048] float32[2048] float32[2048]",
         "float32[4,3] int32[4] float32[4] float32[4]", actions=(8, 3))  # fmt: skip
def policy(w, seen, action, old, advantage, actions):
    hidden = jnp.tanh(dense(w, seen, 64))
    likely = jnp.take_along_axis(jax.nn.log_softmax(dense(w, hidden, actions)), (action % actions)[:, None], -1)[:, 0]
    ratio = jnp.exp(likely - old)
    return -jnp.mean(jnp.minimum(ratio * advantage, jnp.clip(ratio, 0.8, 1.2) * advantage))


@program("generalised advantages", "float32[512,64] float32[512,64] bool[512,64]", "float32[4,2] float32[4,2] bool[4,2]",
         weights=False)  # fmt: skip
def advantages(rewards, values, done):
    following = jnp.concatenate([values[1:], jnp.zeros_like(values[:1])])
    delta = rewards + 0.99 * following * ~done - values
    return lax.scan(lambda c, x: (x[0] + 0.94 * c * ~x[1],) * 2, jnp.zeros_like(values[0]), (delta, done), reverse=True)[1]


@program("Kalman filter", "float32[64,4]", "float32[3,4]", weights=False, calls="lu custom_linear_solve")
def kalman(observed):
    n = observed.shape[-1]
    move, noise = jnp.eye(n) + 0.1 * jnp.eye(n, k=1), 0.1 * jnp.eye(n)

    def step(state, y):
        x, p = state
        x, p = move @ x, move @ p @ move.T + noise
        gain = jnp.linalg.solve(p + noise, p).T
        return (x + gain @ (y - x), p - gain @ p), x

    return lax.scan(step, (jnp.zeros(n), jnp.eye(n)), observed)[1]


for _made in (
    ("GPT-2, gradient", "GPT-2, loss"), ("Llama block, gradient", "Llama block"),
    ("ResNet, gradient", "ResNet, two stages"),
    ("LSTM by scan, gradient", "LSTM by scan"), ("layers by scan, gradient", "GPT-2, layers by scan, rematerialised"),
    ("radiance field, gradient", "radiance field"), ("policy gradient, gradient", "policy gradient, clipped"),
    ("autoencoder, gradient", "variational autoencoder"),
):  # fmt: skip
    gradient(*_made)
