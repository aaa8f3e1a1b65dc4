"""Gradients of programs as people write them: what their plans store, and their numbers against float64."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lowered import statements
from test_optimize import run_tiles

import eqsat
import examples
from benchmarks.predict import planned, shortcomings
from benchmarks.workloads import gradients, workloads
from eqsat.backends import pallas, triton
from eqsat.backends.triton.interpret import run as run_in_interpreter
from eqsat.devices import DEVICES, device
from eqsat.graph import Graph
from eqsat.lower import lower
from eqsat.outline import parts_of
from eqsat.read import read
from eqsat.regions import Region
from eqsat.tile import Loop, TileAxis
from examples import attention, gpt2


def with_gradient(fn):
    """The function's value and the gradient of its inputs, from that of its output."""

    def both(cotangent, *args):
        value, pull = jax.vjp(fn, *args)
        return value, *pull(cotangent)

    return both


@pytest.mark.parametrize("fn", [attention.attention, attention.causal_attention])
def test_no_score_matrix_is_stored_by_the_gradient_of_attention(fn):
    heads = jax.ShapeDtypeStruct((4, 16, 2048, 64), jnp.bfloat16)
    program = eqsat.optimize(with_gradient(fn), *[heads] * 4)
    largest = max(o.nbytes for launch in program.launches for o in launch.kernel.outputs)
    assert largest <= 2 * 2 * heads.size  # of a tensor as large as q, in float32
    assert len(program.launches) <= 3 and program.cost.nbytes < 280e6 < program.baseline.nbytes / 70
    loops = [s for launch in program.launches for s in statements(lower(launch.kernel, launch.schedule), Loop)]
    causal = fn is attention.causal_attention
    assert len(loops) == 3 * (1 + causal)  # the tiles on the diagonal, and those that are seen whole
    assert all(bool(loop.bounds) == causal for loop in loops)


@pytest.mark.parametrize("objective", ["time", "traffic"])
def test_gradient_of_attention_agrees_with_float64(objective):
    specs = examples.tables("RAGGED")["causal_attention"][1]
    q, k, v, cotangent = examples.draw((*specs, specs[0]))
    program = eqsat.optimize(with_gradient(attention.causal_attention), cotangent, q, k, v, objective=objective)
    with jax.enable_x64():
        wide = [jnp.asarray(x, jnp.float64) for x in (cotangent, q, k, v)]
        wanted = [np.asarray(x) for x in with_gradient(attention.causal_attention)(*wide)]
    for found, other, right in zip(program(cotangent, q, k, v), run_tiles(program, [cotangent, q, k, v]), wanted, strict=True):
        for result in (found, other):
            np.testing.assert_allclose(result, right, atol=2e-5 * np.abs(right).max())


def _looped(schedule):
    """The same schedule with short loops over whatever it reduces at once."""
    tiles = [TileAxis(t.axis, 32, "loop") if t.role == "resident" and t.tile > 32 else t for t in schedule.axes]
    return replace(schedule, axes=tuple(tiles))


def test_kernels_of_the_gradient_of_attention_keep_to_their_arrays():
    """Printed, and run by the checked interpreter and Pallas', where tiles stick out and masks bound every loop."""
    heads = jax.ShapeDtypeStruct((1, 1, 70, 24), jnp.bfloat16)
    program = eqsat.optimize(with_gradient(attention.causal_attention), *[heads] * 4, objective="memory")
    arrays = [np.asarray(x) for x in examples.draw([heads] * 4)]
    values = dict(zip(program.inputs, arrays, strict=True))
    bounded = 0
    for launch in program.launches:
        tiles = lower(launch.kernel, _looped(launch.schedule))
        given = [values[dict(zip(launch.kernel.inputs, launch.inputs, strict=True))[t]] for t in tiles.inputs]
        found, report = run_in_interpreter(triton.emit(tiles), given, tiles.outputs, check=True)
        assert report.ok
        again = pallas.run(pallas.emit(tiles), given, interpret=True)
        for one, other in zip(found, again, strict=True):
            one, other = (np.asarray(x, np.float64) for x in (one, other))
            np.testing.assert_allclose(one, other, atol=0.02 * np.abs(one).max())
        values.update(zip(launch.outputs, found, strict=True))
        bounded += any(loop.bounds for loop in statements(tiles, Loop))
    assert bounded == len(program.launches)
    with jax.enable_x64():
        wanted = with_gradient(attention.causal_attention)(*[jnp.asarray(x.astype(np.float64)) for x in arrays])
    for tensor, right in zip(program.outputs, wanted, strict=True):
        np.testing.assert_allclose(values[tensor].astype(np.float64), right, atol=0.02 * np.abs(right).max())


# --- across regions -------------------------------------------------------------------------------------------------


def loss_gradient(config):
    params = jax.eval_shape(lambda key: gpt2.init(config, key), jax.random.key(0))
    tokens = jax.ShapeDtypeStruct((config.batch, config.sequence), jnp.int32)
    return jax.value_and_grad(partial(gpt2.loss, heads=config.heads)), params, tokens


def test_regions_of_a_training_step_pass_no_score_matrix():
    config = gpt2.SMALL._replace(layers=2, vocabulary=512)
    graph = Graph.from_jax(*loss_gradient(config))
    _, parts = parts_of(graph, read(graph), (), device("h100"))
    regions = [p for p in parts if isinstance(p, Region)]
    passed = [t for r in regions for t in (*r.inputs, *r.outputs)]
    scores = 2 * config.heads * config.sequence**2  # in bfloat16
    assert len(regions) > 4 and max(t.nbytes for t in passed) < scores
    made = [s for r in regions for s in r.definitions]
    assert len(made) > len(set(made)) and max(s.nbytes for s in made) == 2 * scores  # defined in both passes instead


@pytest.mark.nightly
def test_what_is_made_again_agrees_with_float64(monkeypatch):
    slow = replace(DEVICES["h100"], dram_bytes_per_second=1e9, launch_seconds=1e-9)
    monkeypatch.setitem(DEVICES, "h100", slow)  # everything pays to be made again
    config = gpt2.RAGGED._replace(layers=1, width=32, sequence=19, vocabulary=23, dtype=jnp.float32)
    fn, *_ = loss_gradient(config)
    args = gpt2.init(config, jax.random.key(0)), gpt2.sample_tokens(config)
    program = eqsat.optimize(fn, *args)
    assert len(program.launches) < program.baseline.launches
    flat = jax.tree.leaves(args)
    with jax.enable_x64(), monkeypatch.context() as patch:
        patch.setattr(gpt2, "WIDE", jnp.float64)
        wide = jax.tree.map(lambda a: a.astype(jnp.float64) if a.dtype == jnp.float32 else a, args)
        wanted = jax.tree.leaves(fn(*wide))
    for found, other, right in zip(jax.tree.leaves(program(*args)), run_tiles(program, flat), wanted, strict=True):
        for result in (found, other):
            np.testing.assert_allclose(result, right, atol=5e-5 * max(np.abs(right).max(), 1e-3))


def rows_and_sums(x, cotangent):
    """The softmax of rows, and the gradient of x: both traverse rows, of which each needs sums."""
    value, pull = jax.vjp(lambda x: jax.nn.softmax(x.astype(jnp.float32), axis=-1).astype(x.dtype), x)
    return value, *pull(cotangent)


def test_what_traverses_the_same_rows_is_one_launch():
    rows = jax.ShapeDtypeStruct((8192, 4096), jnp.bfloat16)
    program = eqsat.optimize(rows_and_sums, rows, rows)
    assert len(program.launches) == 1 and program.cost.nbytes == 4 * 2 * rows.size


@pytest.mark.nightly
@pytest.mark.parametrize("name", gradients.PROGRAMS)
def test_gradients_are_as_short_as_expected(name):
    workload = next(w for w in workloads() if w.name == name)
    _, record = planned(workload, workload.full, "h100")
    assert not shortcomings(workload, record)
