"""Peak memory: how it is counted, the objective, the cap, and grids of pairs that are never stored."""

import jax
import jax.numpy as jnp
import pytest

import eqsat
from eqsat.memory import Use, peak_nbytes
from eqsat.notation import Tensor

N = 4096
GRID_NBYTES = 4 * N * N


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def test_peak_is_what_is_alive_at_once():
    x, a, b, c, out = (Tensor(name, (n,), "float32") for name, n in [("x", 100), ("a", 1), ("b", 2), ("c", 4), ("out", 8)])
    uses = [Use([x], [a]), Use([a], [b]), Use([b, 3.0], [c]), Use([c, b], [out])]
    assert peak_nbytes(uses, {out}) == 4 * (2 + 4)  # a is gone when c is made; inputs and outputs do not count
    assert peak_nbytes([Use([x], [a], inside_nbytes=50), *uses[1:]], {out}) == 4 * 1 + 50
    assert peak_nbytes([Use([x], [a, b]), Use([b], [out])], {out}) == 4 * 3  # what nothing reads is there for a moment


def rbf(x, y, w):
    return (w * jnp.exp(-((x[:, None] - y[None, :]) ** 2) / 2)).sum(1)


def nearest(x, y):
    return ((x[:, None, :] - y[None, :, :]) ** 2).sum(-1).min(1)


def gravity(x, m):
    d = x[None, :, :] - x[:, None, :]
    return (m[None, :, None] * d * (((d**2).sum(-1) + 1e-3) ** -1.5)[..., None]).sum(1)


PAIRS = {
    "rbf": (rbf, (f32(N), f32(N), f32(N))),
    "rbf, gradient": (jax.grad(lambda *a: rbf(*a).sum(), (0, 1, 2)), (f32(N), f32(N), f32(N))),
    "nearest": (nearest, (f32(N, 3), f32(N, 3))),
    "nearest, gradient": (jax.grad(lambda *a: nearest(*a).sum(), (0, 1)), (f32(N, 3), f32(N, 3))),
    "gravity": (gravity, (f32(N, 3), f32(N))),
}


@pytest.mark.parametrize("name", PAIRS)
def test_no_grid_of_pairs_is_stored(name):  # P1-06
    fn, args = PAIRS[name]
    program = eqsat.optimize(fn, *args)
    assert program.peak_nbytes <= 0.01 * GRID_NBYTES
    assert program.notes["peak_nbytes_before"] >= GRID_NBYTES
    assert all(t.nbytes <= 0.01 * GRID_NBYTES for s in program.steps for t in s.outputs)


@pytest.mark.parametrize("fn, shapes", [(rbf, [(33,), (17,), (17,)]), (nearest, [(33, 3), (17, 3)]), (gravity, [(33, 3), (33,)])])
def test_sums_over_pairs_validate(fn, shapes):  # P1-06
    eqsat.optimize(fn, *map(f32_of, shapes)).validate()


def f32_of(shape):
    return f32(*shape)


def shared(x, w):
    """The product is dear and used twice: time alone stores it."""
    h = jnp.tanh(x @ w)
    return h / (1 + jnp.abs(h).sum(0, keepdims=True))


ARGS = (f32(2048, 1024), f32(1024, 512))


def test_the_objective_memory_stores_less():
    by = {objective: eqsat.optimize(shared, *ARGS, objective=objective) for objective in ("time", "memory")}
    assert by["memory"].peak_nbytes < by["time"].peak_nbytes
    assert by["time"].cost.seconds <= by["memory"].cost.seconds


def test_a_memory_cap_is_obeyed_or_refused_with_the_least_possible():
    free, least = (eqsat.optimize(shared, *ARGS, objective=o).peak_nbytes for o in ("time", "memory"))
    assert eqsat.optimize(shared, *ARGS, memory_limit=free).peak_nbytes == free
    capped = eqsat.optimize(shared, *ARGS, memory_limit=free - 1)
    assert capped.peak_nbytes <= free - 1
    with pytest.raises(ValueError, match=f"memory_limit: at least {least:,} bytes for temporaries required, got -1; raise it"):
        eqsat.optimize(shared, *ARGS, memory_limit=-1)


def test_the_report_says_the_peak():
    program = eqsat.optimize(jax.nn.softmax, f32(64, 64))
    assert program.peak_nbytes == 0
    assert "peak memory" in program.report()
