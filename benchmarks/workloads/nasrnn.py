"""NasRNN of TASO and TENSAT: five steps, each with 16 weights of its own."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from benchmarks.workloads import Expected, Table, network, pair


def cell(w, x, h, hidden: int):
    t = [x @ w(x.shape[1], hidden) + h @ w(hidden, hidden) for _ in range(8)]
    relu, sigmoid, tanh = jax.nn.relu, jax.nn.sigmoid, jnp.tanh
    m0, m1 = relu(t[0]) + sigmoid(t[3]), sigmoid(t[1]) + tanh(t[2])
    m2, m3 = sigmoid(t[4]) * tanh(t[5]), sigmoid(t[6]) * relu(t[7])
    m4, m5 = sigmoid(m1) + tanh(m2), tanh(m0) * tanh(m3)
    return tanh(tanh(m4) * tanh(m5))


def nas_rnn(w, *xs):
    hidden = xs[0].shape[1]
    h = w(1, hidden)
    for x in xs:
        h = cell(w, x, h, hidden)
    return h


PROGRAMS: Table = {
    "NasRNN": pair(
        network(nas_rnn, " ".join(["float32[1,512]"] * 5)),
        network(nas_rnn, " ".join(["float32[1,128]"] * 5)),
        Expected(launches=10, why="all products of an input become one over joined weights"),
        constants=(5,),
    ),
}
