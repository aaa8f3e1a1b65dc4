"""ONNX's steps of optimisers: operands are the rate, the step number, then tensors, gradients and states, each in a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from eqsat.frontends.onnx.table import Array, Node, op

PREVIEW = "ai.onnx.preview.training"


def _rows(operands: Sequence[Array], rows: int) -> list[tuple[Array, ...]]:
    """For each tensor, itself, its gradient and its states."""
    count = len(operands) // rows
    return [tuple(operands[n + r * count] for r in range(rows)) for n in range(count)]


def _steps(rows: int, step: Callable[..., tuple[Array, ...]]) -> Callable[..., Any]:
    def steps(node: Node, rate: Array, number: Array, *operands: Array) -> tuple[Array, ...]:
        done = [step(node, rate, number, *row) for row in _rows(operands, rows)]
        return tuple(part for parts in zip(*done, strict=True) for part in parts)

    return steps


def _number(x: Array, value: float) -> np.ndarray:
    return np.asarray(value, x.dtype)


def _adagrad(node: Node, rate: Array, number: Array, x: Array, gradient: Array, squares: Array) -> tuple[Array, ...]:
    rate = rate / (1 + number.astype(x.dtype) * _number(x, node.get("decay_factor", 0.0)))
    gradient = gradient + _number(x, node.get("norm_coefficient", 0.0)) * x
    squares = squares + gradient * gradient
    return x - rate * gradient / (jnp.sqrt(squares) + _number(x, node.get("epsilon", 1e-6))), squares


def _adam(node: Node, rate: Array, number: Array, x: Array, gradient: Array, v: Array, h: Array) -> tuple[Array, ...]:
    alpha, beta = _number(x, node.get("alpha", 0.9)), _number(x, node.get("beta", 0.999))
    gradient = gradient + _number(x, node.get("norm_coefficient", 0.0)) * x
    v, h = alpha * v + (1 - alpha) * gradient, beta * h + (1 - beta) * gradient * gradient
    steps = number.astype(x.dtype)
    adjusted = rate * jnp.sqrt(1 - beta**steps) / (1 - alpha**steps)
    rate = jnp.where(number > 0, adjusted, rate)
    new = x - rate * v / (jnp.sqrt(h) + _number(x, node.get("epsilon", 1e-6)))
    return new * _number(x, 1 - node.get("norm_coefficient_post", 0.0)), v, h


def _momentum(node: Node, rate: Array, number: Array, x: Array, gradient: Array, v: Array) -> tuple[Array, ...]:
    alpha, beta = _number(x, node.get("alpha")), _number(x, node.get("beta"))
    gradient = gradient + _number(x, node.get("norm_coefficient")) * x
    slower = jnp.where(number > 0, beta, _number(x, 1))
    v = alpha * v + slower * gradient
    return x - rate * (gradient + alpha * v if node.get("mode") == "nesterov" else v), v


op("Adagrad", domain=PREVIEW)(_steps(3, _adagrad))
op("Adam", domain=PREVIEW)(_steps(4, _adam))
op("Momentum", domain=PREVIEW)(_steps(3, _momentum))
