"""ONNX recurrent layers as scans over time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from eqsat.frontends.onnx.table import Array, Node, op

Step = Callable[[tuple[Array, ...], Array], tuple[Array, ...]]

_ACTIVATIONS: dict[str, Callable[[Array, float, float], Array]] = {
    "affine": lambda x, a, b: x * a + b,
    "elu": lambda x, a, b: jnp.where(x < 0, a * jnp.expm1(jnp.minimum(x, 0)), x),
    "hardsigmoid": lambda x, a, b: jnp.clip(x * a + b, 0, 1),
    "leakyrelu": lambda x, a, b: jnp.where(x < 0, x * a, x),
    "relu": lambda x, a, b: jnp.maximum(x, 0),
    "scaledtanh": lambda x, a, b: a * jnp.tanh(b * x),
    "sigmoid": lambda x, a, b: lax.logistic(x),
    "softplus": lambda x, a, b: jnp.logaddexp(x, 0),
    "softsign": lambda x, a, b: x / (1 + jnp.abs(x)),
    "tanh": lambda x, a, b: jnp.tanh(x),
    "thresholdedrelu": lambda x, a, b: jnp.where(x > a, x, 0),
}
_DEFAULTS = {
    "affine": (1.0, 0.0), "elu": (1.0, 0.0), "hardsigmoid": (0.2, 0.5), "leakyrelu": (0.01, 0.0),
    "scaledtanh": (1.0, 1.0), "thresholdedrelu": (1.0, 0.0),
}  # fmt: skip


def activations(node: Node, default: list[str], directions: int) -> list[list[Callable[[Array], Array]]]:
    """For each direction, its activations; alphas and betas are handed to those that take them, in order."""
    wanted = [name.lower() for name in node.get("activations", default * directions)]
    if wrong := [name for name in wanted if name not in _ACTIVATIONS]:
        raise node.error(f"activations among {sorted(_ACTIVATIONS)} required, got {wrong[0]!r}")
    alphas, betas = iter(node.get("activation_alpha", [])), iter(node.get("activation_beta", []))
    clip = node.get("clip", 0.0)
    made = []
    for name in wanted:
        alpha, beta = _DEFAULTS.get(name, (0.0, 0.0))
        if name in _DEFAULTS:
            alpha = next(alphas, alpha)
            beta = next(betas, beta) if name in ("affine", "hardsigmoid", "scaledtanh") else beta
        made.append(_activation(_ACTIVATIONS[name], float(alpha), float(beta), float(clip)))
    each = len(made) // directions
    return [made[n * each : (n + 1) * each] for n in range(directions)]


def _activation(function: Callable[..., Array], alpha: float, beta: float, clip: float) -> Callable[[Array], Array]:
    return lambda x: function(jnp.clip(x, -clip, clip) if clip else x, alpha, beta)


def layer(node: Node, x: Array, lengths: Array | None, initial: list[Array | None], cell: Any) -> tuple[Array, ...]:
    """Every direction's scan: outputs [time, direction, batch, hidden], then the last states [direction, batch, hidden].

    `cell(direction)` gives the projection of all inputs at once and the step on states.
    """
    batch_first = node.get("layout", 0)
    x = jnp.swapaxes(x, 0, 1) if batch_first else x
    initial = [jnp.swapaxes(s, 0, 1) if batch_first and s is not None else s for s in initial]
    directions = 2 if node.get("direction", "forward") == "bidirectional" else 1
    shape = (x.shape[1], node.get("hidden_size"))
    outputs, states = [], []
    for n in range(directions):
        project, step = cell(n)
        first = tuple(jnp.zeros(shape, x.dtype) if s is None else s[n] for s in initial)
        backward = n == 1 or node.get("direction") == "reverse"
        y, last = _scan(project(x), first, step, backward, lengths)
        outputs.append(y)
        states.append(last)
    y = jnp.stack(outputs, 1)
    last_states = tuple(jnp.stack(parts) for parts in zip(*states, strict=True))
    if batch_first:
        return (jnp.transpose(y, (2, 0, 1, 3)), *(jnp.swapaxes(s, 0, 1) for s in last_states))
    return (y, *last_states)


def _scan(inputs: Array, first: tuple[Array, ...], step: Step, backward: bool, lengths: Array | None) -> tuple[Array, Any]:
    """Past a sequence's end the states stay and the outputs are zero."""
    if lengths is None:

        def plain(states: tuple[Array, ...], x: Array) -> tuple[tuple[Array, ...], Array]:
            new = step(states, x)
            return new, new[0]

        last, outputs = lax.scan(plain, first, inputs, reverse=backward)
        return outputs, last
    ends = jnp.reshape(lengths, (-1, 1))

    def masked(states: tuple[Array, ...], timed: tuple[Array, Array]) -> tuple[tuple[Array, ...], Array]:
        x, time = timed
        live = time < ends
        new = tuple(jnp.where(live, a, b) for a, b in zip(step(states, x), states, strict=True))
        return new, jnp.where(live, new[0], jnp.zeros_like(new[0]))

    times = jnp.arange(inputs.shape[0], dtype=ends.dtype)
    last, outputs = lax.scan(masked, first, (inputs, times), reverse=backward)
    return outputs, last


def _halves(bias: Array | None, direction: int, width: int, dtype: Any) -> tuple[Array, Array]:
    if bias is None:
        return np.zeros(width, dtype), np.zeros(width, dtype)
    return bias[direction, :width], bias[direction, width:]


@op("RNN")
def rnn(
    node: Node, x: Array, w: Array, r: Array, bias: Array | None = None, lengths: Array | None = None, h: Array | None = None
) -> tuple[Array, ...]:
    functions = activations(node, ["Tanh"], w.shape[0])

    def cell(n: int) -> tuple[Callable[[Array], Array], Step]:
        (f,) = functions[n]
        wb, rb = _halves(bias, n, w.shape[1], x.dtype)
        return lambda x: jnp.matmul(x, w[n].T) + wb + rb, lambda s, a: (f(a + jnp.matmul(s[0], r[n].T)),)

    return layer(node, x, lengths, [h], cell)


@op("GRU")
def gru(
    node: Node, x: Array, w: Array, r: Array, bias: Array | None = None, lengths: Array | None = None, h: Array | None = None
) -> tuple[Array, ...]:
    """Gates in the order update, reset, hidden."""
    size = node.get("hidden_size")
    functions = activations(node, ["Sigmoid", "Tanh"], w.shape[0])
    late = node.get("linear_before_reset", 0)

    def cell(n: int) -> tuple[Callable[[Array], Array], Step]:
        f, g = functions[n]
        wb, rb = _halves(bias, n, w.shape[1], x.dtype)
        gates, hidden = r[n][: 2 * size].T, r[n][2 * size :].T

        def step(states: tuple[Array, ...], a: Array) -> tuple[Array, ...]:
            (state,) = states
            zr = f(a[:, : 2 * size] + jnp.matmul(state, gates) + rb[: 2 * size])
            z, reset = zr[:, :size], zr[:, size:]
            if late:
                inner = reset * (jnp.matmul(state, hidden) + rb[2 * size :])
            else:
                inner = jnp.matmul(reset * state, hidden) + rb[2 * size :]
            new = g(a[:, 2 * size :] + inner)
            return ((1 - z) * new + z * state,)

        return lambda x: jnp.matmul(x, w[n].T) + wb, step

    return layer(node, x, lengths, [h], cell)


@op("LSTM")
def lstm(
    node: Node, x: Array, w: Array, r: Array, bias: Array | None = None, lengths: Array | None = None, h: Array | None = None,
    c: Array | None = None, p: Array | None = None,
) -> tuple[Array, ...]:  # fmt: skip
    def product(weights: Array) -> Callable[[int, Array], Array]:
        return lambda n, values: jnp.matmul(values, weights[n].T)

    return long_short_term(node, x, product(w), product(r), w.shape[0], bias, lengths, h, c, p)


def long_short_term(
    node: Node, x: Array, project: Callable[[int, Array], Array], recur: Callable[[int, Array], Array], directions: int,
    bias: Array | None, lengths: Array | None, h: Array | None, c: Array | None, p: Array | None,
) -> tuple[Array, ...]:  # fmt: skip
    """Gates in the order input, output, forget, cell; `project(direction, inputs)` and `recur(direction, state)` are products."""
    size = node.get("hidden_size")
    functions = activations(node, ["Sigmoid", "Tanh", "Tanh"], directions)

    def cell(n: int) -> tuple[Callable[[Array], Array], Step]:
        f, g, output = functions[n]
        wb, rb = _halves(bias, n, 4 * size, x.dtype)
        peep = [None] * 3 if p is None else [p[n, k * size : (k + 1) * size] for k in range(3)]  # input, output, forget

        def step(states: tuple[Array, ...], a: Array) -> tuple[Array, ...]:
            state, memory = states
            a = a + recur(n, state)
            into, out, forget, new = (a[:, k * size : (k + 1) * size] for k in range(4))
            i = f(into if peep[0] is None else into + peep[0] * memory)
            keep = f(forget if peep[2] is None else forget + peep[2] * memory)
            keep = 1 - i if node.get("input_forget", 0) else keep
            memory = keep * memory + i * g(new)
            o = f(out if peep[1] is None else out + peep[1] * memory)
            return o * output(memory), memory

        return lambda x: project(n, x) + wb + rb, step

    return layer(node, x, lengths, [h, c], cell)
