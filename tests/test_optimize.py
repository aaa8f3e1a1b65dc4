"""The whole path: functions in, fewer kernels out, the same numbers."""

import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import eqsat
import examples
from eqsat.demand import demand
from eqsat.graph import Graph
from eqsat.interpret import interpret
from eqsat.lower import lower
from eqsat.read import Call
from eqsat.work import Work

RAGGED = examples.tables("RAGGED")
KERNELS = {  # launches that the whole-size programs must come down to
    "softmax": 1,
    "softmax_wide": 1,
    "softmax_long": 1,
    "log_softmax": 1,
    "log_sum_exp": 1,
    "layer_norm": 1,
    "rms_norm": 1,
    "residual_rms_norm": 1,
    "attention": 1,
    "causal_attention": 1,
    "scaled_query_attention": 1,
    "grouped_attention": 1,
    "biased_attention": 1,
    "divided_after_attention": 1,
    "mlp": 2,
    "swiglu": 2,
    "common_factor": 1,
    "chain": 2,
    "linear_attention": 3,  # the sum over the sequence is split over programs
}


def run_tiles(program, flat):
    """The program through the interpreter of tile programs, kernel by kernel."""
    values = {**dict(zip(program.inputs, map(np.asarray, flat), strict=True)), **program.constants}
    for step in program.steps:
        if isinstance(step, Call):
            outputs = step.eqn.bind(*[values[t] if t in values else t for t in step.inputs])
        else:
            tiles = lower(step.kernel, step.schedule)
            given = dict(zip(step.kernel.inputs, step.inputs, strict=True))
            outputs = interpret(tiles, [np.asarray(values[given[t]]) for t in tiles.inputs])
        values.update(zip(step.outputs, outputs, strict=True))
    return [values[t] for t in program.outputs]


def close(found, wanted, scale):
    found, wanted = (np.asarray(x).astype(np.float64) for x in (found, wanted))
    size = max(float(np.max(np.abs(wanted), initial=0.0)), 1e-30)
    assert found.shape == wanted.shape
    assert np.max(np.abs(found - wanted), initial=0.0) <= scale * size


@pytest.mark.parametrize("name", KERNELS)
def test_programs_come_down_to_few_kernels(name):
    fn, args = examples.tables("PROGRAMS")[name]
    program = eqsat.optimize(fn, *args)
    assert len(program.launches) == KERNELS[name]
    assert program.cost.seconds < program.baseline.seconds
    assert program.cost.launches < program.baseline.launches or program.baseline.launches <= KERNELS[name]


@pytest.mark.parametrize("name", RAGGED)
def test_ragged_programs_validate_and_tiles_agree(name):
    fn, specs = RAGGED[name]
    args = examples.draw(specs)
    program = eqsat.optimize(fn, *args)
    program.validate(*args)
    flat = jax.tree.leaves(args)
    narrow = any(a.dtype in (jnp.bfloat16, jnp.float16) for a in flat)
    for found, wanted in zip(run_tiles(program, flat), program.graph.evaluate(*flat), strict=True):
        close(found, wanted, 3e-2 if narrow else 2e-5)


def test_a_bias_is_alive_beside_the_scores():
    """On a B200 256 by 64 of both spilled 67 registers."""
    fn, args = examples.tables("PROGRAMS")["biased_attention"]
    (planned,) = eqsat.optimize(fn, *args, target="b200").kernels
    assert demand(Work(planned.kernel)).beside == 1
    assert max(t.tile for t in planned.schedule.axes) <= 128


def test_a_row_that_is_held_whole_takes_each_exponential_once():
    x = jax.ShapeDtypeStruct((1000, 300), "float32")
    (planned,) = eqsat.optimize(lambda x: jax.nn.softmax(x / 8, -1), x).kernels
    assert planned.source("triton").count("tl.exp") == 1
    work = Work(planned.kernel)
    assert {passes for _, unit, passes in work.work if unit == "special"} == {1, 2}, (
        "and the model knows: exp takes two passes of a loop"
    )
    assert [(r.scope, r.passes) for r in work.reads] == [(frozenset(work.axes) - {work.axes[1]}, 3)]


def test_no_score_matrix_is_stored():
    fn, args = examples.tables("PROGRAMS")["causal_attention"]
    (launch,) = eqsat.optimize(fn, *args).launches
    assert launch.kernel.nbytes == 4 * args[0].size * 2  # q, k, v and the result, once each


def test_matrix_chain_is_evaluated_from_the_vector():
    fn, args = examples.tables("PROGRAMS")["chain"]
    program = eqsat.optimize(fn, *args)
    assert program.cost.flops < program.baseline.flops / 1000


def test_exact_tier_uses_exact_rules_only():
    fn, args = examples.tables("RAGGED")["causal_attention"]
    program = eqsat.optimize(fn, *args, numerics="exact")
    assert all(program.notes["tiers"][rule] == "exact" for rule in program.notes["rules"])


def test_operands_that_lie_along_three_axes_have_a_schedule():
    x, y = jax.ShapeDtypeStruct((64, 256, 256), "float32"), jax.ShapeDtypeStruct((256, 256), "float32")
    program = eqsat.optimize(lambda x, y: x.transpose(2, 1, 0) - y[..., None], x, y)
    assert program.cost.launches == 1 and program.kernels[0].schedule is not None


def test_equal_layers_are_optimised_once():
    def layers(x, weights):
        for w in weights:
            x = x + jnp.tanh(x @ w) @ w.T
        return x

    x, w = jax.ShapeDtypeStruct((64, 32), jnp.float32), jax.ShapeDtypeStruct((32, 32), jnp.float32)
    program = eqsat.optimize(layers, x, [w] * 6)
    assert program.notes["distinct_regions"] < program.notes["regions"]
    assert len(program.kernels) < len(program.launches)


def test_same_input_same_text():
    fn, args = RAGGED["residual_rms_norm"]
    texts = [[k.source(b) for k in eqsat.optimize(fn, *args).kernels for b in ("triton", "pallas")] for _ in range(2)]
    assert texts[0] == texts[1]


def test_opaque_calls_stay_in_order():
    def fn(x):
        return jnp.sort(x.sum(-1) * 2) + 1, jnp.cumsum(jnp.tanh(x), 0)

    x = jnp.asarray(np.random.default_rng(0).standard_normal((5, 7)), jnp.float32)
    program = eqsat.optimize(fn, x)
    assert program.calls
    for found, wanted in zip(program(x), fn(x), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_a_program_traces_and_differentiates():
    x = jnp.linspace(-1.0, 1.0, 24, dtype=jnp.float32).reshape(4, 6)
    program = eqsat.optimize(lambda x: jax.nn.softmax(x, axis=-1) * x, x)
    wanted = jax.grad(lambda x: (jax.nn.softmax(x, axis=-1) * x).sum())(x)
    np.testing.assert_allclose(jax.jit(program)(x), jax.nn.softmax(x, axis=-1) * x, rtol=1e-5)
    np.testing.assert_allclose(jax.grad(lambda x: program(x).sum())(x), wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "h1000"}, "target 'h1000': a device of the table required"),
        ({"numerics": "quick"}, "numerics 'quick': one of exact, reassociate, fast required"),
        ({"constants": (3,)}, "constants: positions of the 1 positional arguments required, got 3"),
    ],
)
def test_bad_options_are_one_clear_error(options, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        eqsat.optimize(lambda x: x + 1, jnp.ones(3), **options)


def test_a_function_that_cannot_be_traced():
    with pytest.raises((TypeError, ValueError), match="decide"):
        eqsat.optimize(decide, jnp.ones(3))


def decide(x):
    return x if x.sum() > 0 else -x


# --- random programs ------------------------------------------------------------------------------------------------

UNARY = [jnp.tanh, jnp.exp, lambda x: x * 2, lambda x: -x, jax.nn.relu, lambda x: x.T, lambda x: x / 3]
BINARY = [jnp.add, jnp.subtract, jnp.multiply, lambda a, b: a @ b.T @ b, jnp.maximum]
ROWS = [
    lambda x: jax.nn.softmax(x, -1),
    lambda x: x - x.mean(-1, keepdims=True),
    lambda x: x / (1 + jnp.abs(x).max(-1, keepdims=True)),
]


@st.composite
def programs(draw):
    """A function of two matrices, as a list of instructions."""
    instruction = st.tuples(st.integers(0, 2), st.integers(0, 6), st.integers(0, 9), st.integers(0, 9))
    return draw(st.lists(instruction, min_size=2, max_size=6))


def meaning(instructions):
    def fn(a, b):
        values = [a, b]
        for kind, op, i, j in instructions:
            x, y = values[i % len(values)], values[j % len(values)]
            if kind == 0:
                values.append(UNARY[op % len(UNARY)](x))
            elif kind == 1:
                values.append(BINARY[op % len(BINARY)](x, y if y.shape == x.shape else x))
            else:
                values.append(ROWS[op % len(ROWS)](x))
        return values[-1], values[-2]

    return fn


@settings(max_examples=25, deadline=None)
@given(programs(), st.sampled_from(["exact", "reassociate"]))
def test_random_programs_agree(instructions, numerics):
    generator = np.random.default_rng(1)
    args = [jnp.asarray(0.3 * generator.standard_normal((5, 7)), jnp.float32) for _ in range(2)]
    graph = Graph.from_jax(meaning(instructions), *args)
    program = eqsat.optimize(graph, numerics=numerics)
    for found, other, wanted in zip(program(*args), run_tiles(program, args), graph.evaluate(*args), strict=True):
        if np.all(np.isfinite(wanted)) and np.max(np.abs(wanted), initial=0.0) < 1e6:
            close(found, wanted, 2e-4)
            close(other, wanted, 2e-4)


# --- transformer blocks -----------------------------------------------------------------------------------------------


def test_a_gpt2_layer_takes_six_launches():
    from examples import gpt2

    config = gpt2.SMALL._replace(layers=3)
    params = jax.eval_shape(lambda key: gpt2.init(config, key), jax.random.key(0))
    tokens = jax.ShapeDtypeStruct((1, config.sequence), jnp.int32)
    two, three = (
        eqsat.optimize(gpt2.forward, {**params, "layers": params["layers"][:n]}, tokens, constants=(0,)) for n in (2, 3)
    )
    assert len(three.launches) - len(two.launches) <= 6
    assert all(len(o.shape) > 2 for k in two.launches for o in k.kernel.outputs)  # no row statistics, which norms can make again


def test_objectives_trade_time_for_launches_and_traffic():
    from examples import blocks

    fn, args = blocks.PROGRAMS["transformer block B4 S1024 E1024"]
    by = {objective: eqsat.optimize(fn, *args, objective=objective).cost for objective in ("time", "launches", "traffic")}
    assert by["traffic"].launches <= 6 and by["traffic"].nbytes <= 215e6
    assert by["launches"].launches <= by["traffic"].launches
    assert by["time"].seconds <= min(by["launches"].seconds, by["traffic"].seconds)
    with pytest.raises(ValueError, match="objective 'bytes': one of time, launches, traffic, memory required"):
        eqsat.optimize(fn, *args, objective="bytes")


def test_names_of_the_user_and_of_the_search_do_not_meet():
    def fn(part1, part2, part3):
        return (part1 @ part2) @ part3

    args = examples.draw([jax.ShapeDtypeStruct(s, jnp.float32) for s in ((40, 30), (30, 40), (40,))])
    program = eqsat.optimize(fn, *args)
    np.testing.assert_allclose(program(*args), fn(*args), rtol=1e-4)


@pytest.mark.parametrize("numerics", ["exact", "reassociate", "fast"])
def test_what_does_not_vary_along_an_axis_is_read_anywhere(numerics):
    """The products of a zero state are equal in all rows, so its loads at any two places are one class."""

    def recurrent(x, w):
        h, steps = jnp.zeros((1, 5, 8)), []
        for t in range(2):
            h = jnp.tanh(x[:, t][None] + h @ w)
            steps.append(h)
        return jnp.swapaxes(jnp.concatenate(steps), 0, 1)

    generator = np.random.default_rng(0)
    x, w = (jnp.asarray(generator.standard_normal(shape), jnp.float32) for shape in ((5, 2, 8), (8, 8)))
    program = eqsat.optimize(recurrent, x, w, numerics=numerics, cache=False)
    first = np.tanh(np.asarray(x[:, 0], np.float64))
    second = np.tanh(np.asarray(x[:, 1], np.float64) + first @ np.asarray(w, np.float64))
    np.testing.assert_allclose(program(x, w), np.stack([first, second], 1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("numerics", ["exact", "reassociate", "fast"])
def test_tensors_of_one_term_may_have_other_shapes(numerics):
    """A tensor and its broadcast are one class; each is stored under a schedule of its own."""

    def repeated(x):
        t = jnp.tanh(x)
        return t, jnp.broadcast_to(t[:, None], (64, 32))

    x = jnp.asarray(np.random.default_rng(0).standard_normal(64), jnp.float32)
    program = eqsat.optimize(repeated, x, numerics=numerics, cache=False)
    program.validate(level="kernels")
    wanted = np.tanh(np.asarray(x, np.float64))
    for found, right in zip(run_tiles(program, [x]), (wanted, np.repeat(wanted[:, None], 32, 1)), strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-6)


def test_thresholds_of_the_garbage_collector_are_back_after_a_search():
    usual, within = gc.get_threshold(), []

    def f(x):
        within.append(gc.get_threshold())
        if x.shape == (3,):
            raise RuntimeError("stop")
        return x + 1

    eqsat.optimize(f, jnp.ones(4))
    with pytest.raises(ValueError, match="stop"):
        eqsat.optimize(f, jnp.ones(3))
    assert gc.get_threshold() == usual and all(seen[0] > usual[0] for seen in within)
