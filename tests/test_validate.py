"""The checker: right programs pass, and every way of being wrong that was tried is caught."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from planned import program_of

from eqsat import validate_kernels
from eqsat.compare import ValidationError
from eqsat.graph import Graph
from eqsat.oracle import evaluate_graph


def layer_norm(x, gain):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * gain


def softmax(x):
    e = jnp.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


X, GAIN = jax.ShapeDtypeStruct((16, 32), jnp.float32), jax.ShapeDtypeStruct((32,), jnp.float32)
WIDE = jax.ShapeDtypeStruct((4, 5000), jnp.float32)


def tampered(program, change):
    """The program with other results."""
    honest = program.run
    program.run = lambda *flat: change(flat, honest(*flat))
    return program


def rejected(program, match=None, **options):
    with pytest.raises(ValidationError, match=match):
        program.validate(**options)


# --- right programs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (layer_norm, (X, GAIN)),
        (softmax, (WIDE,)),
        (lambda x: softmax(x.astype(jnp.bfloat16)), (X,)),
        (lambda x, w: (x @ w).astype(jnp.float16), (X, jax.ShapeDtypeStruct((32, 8), jnp.float32))),
        (lambda x: (x > 0, jnp.argmax(x, -1), (x * 10).astype(jnp.int32)), (X,)),
        (lambda x: (jnp.log(x), jnp.sqrt(x)), (X,)),
        (lambda x: jnp.sort(x * 2, -1)[:, ::-1], (X,)),
        (lambda t, i: t[i], (X, jax.ShapeDtypeStruct((7,), jnp.int32))),
        (lambda x: jax.lax.fori_loop(0, 3, lambda _, y: jnp.tanh(y) + x, x), (X,)),
        (lambda x: x.sum(), (X,)),
        (lambda x: x[:0] * 2, (X,)),
        (lambda x: jnp.fft.irfft(jnp.pad(jnp.fft.rfft(x), ((0, 0), (0, 3))) * (2 + 1j)), (X,)),
        (lambda x: (jnp.fft.fft(x), jnp.fft.fft(x[0])[1]), (X,)),
    ],
)
def test_right_programs_pass(fn, args):
    result = program_of(fn, *args).validate()
    assert all(c.ratio <= 1 for c in result.outputs) and "validated" in str(result)


def test_zero_is_right_where_only_rounding_errors_are_left():
    """A bias of attention's keys shifts whole rows of scores."""
    shift = jax.grad(lambda b, x: (softmax(x @ x.T + x @ b[:, None]) @ x).sum())
    (check,) = program_of(lambda b, x: shift(b, x), GAIN, X).validate().outputs
    assert check.note == "zero but for rounding, also in float64"
    rejected(tampered(program_of(lambda b, x: shift(b, x), GAIN, X), lambda _, got: [got[0] + 1e-3]), "required, got")


def test_complex_outputs_are_compared():
    program = program_of(lambda x: jnp.fft.fft(x) * 2, X)
    rejected(tampered(program, lambda _, got: [got[0].at[3, 5].add(0.1j)]), "required, got")
    rejected(program_of(lambda x: jnp.fft.fft(x) * 0, X), "a constant would match")


def test_kernels_are_run_block_by_block():
    result = program_of(layer_norm, X, GAIN).validate(level="kernels")
    assert len(result.kernels) >= 3 and all(c.ratio <= 1 for c in result.kernels)
    assert "kernel output" in str(result)


def test_kernels_too_large_for_the_interpreter_are_named():
    big = jax.ShapeDtypeStruct((4096, 4096), jnp.float32)
    result = program_of(lambda x: x + 1, big).validate(level="kernels")
    assert result.kernels == () and "too large for the interpreter" in str(result)


def test_given_arguments_are_used():
    x = np.linspace(-1, 1, 16 * 32, dtype=np.float32).reshape(16, 32)
    result = program_of(layer_norm, X, GAIN).validate(x, np.ones(32, np.float32))
    assert result.outputs[0].magnitude == pytest.approx(1.68, abs=0.01)


def test_ill_conditioned_programs_are_neither_failed_nor_excused():  # P2-15
    """1/(|layer norm| + 1e-6) grows roundings a million times where the layer norm is near zero."""

    def f(x):
        return 1 / (jnp.abs((x - x.mean(-1, keepdims=True)) * 3) + 1e-6)

    program = program_of(f, X)
    x = np.random.default_rng(0).standard_normal((16, 32)).astype(np.float32)
    x[:, 0] = (x[:, 1:].astype(np.float64).sum(-1) / 31).astype(np.float32)  # the mean of its row
    reassociated = jax.jit(lambda x: 1 / (jnp.abs(x * 3 - x.mean(-1, keepdims=True) * 3) + 1e-6))
    tampered(program, lambda flat, out: [reassociated(flat[0])]).validate(x)
    rejected(tampered(program_of(f, X), lambda flat, out: [out[0] * 1.001]), "float64")


# --- wrong programs ---------------------------------------------------------------------------------------------------

WRONG = {
    "zeros": lambda flat, out: [jnp.zeros_like(out[0])],
    "mean": lambda flat, out: [jnp.full_like(out[0], out[0].mean())],
    "copy of the input": lambda flat, out: [flat[0].astype(out[0].dtype)],
    "a tile too far": lambda flat, out: [jnp.roll(out[0], 1, -1)],
    "last column missing": lambda flat, out: [out[0].at[:, -1].set(0)],
    "one element": lambda flat, out: [out[0].at[3, 7].multiply(1.01)],
    "half precision": lambda flat, out: [out[0].astype(jnp.float16).astype(out[0].dtype)],
    "poison": lambda flat, out: [out[0].at[0, 0].set(jnp.nan)],
    "another dtype": lambda flat, out: [out[0].astype(jnp.bfloat16)],
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize(("fn", "args"), [(layer_norm, (X, GAIN)), (softmax, (WIDE.update(shape=(16, 32)),)), (softmax, (WIDE,))])
def test_wrong_results_are_caught(fn, args, wrong):  # P4-12
    rejected(tampered(program_of(fn, *args), WRONG[wrong]))


def test_the_previous_output_is_caught():  # P4-12
    kept = []

    def stale(flat, out):
        kept.append(out)
        return kept[0]

    rejected(tampered(program_of(layer_norm, X, GAIN), stale), "with special values in the inputs: nan required")


def test_results_that_change_from_run_to_run_are_caught():  # P4-12
    runs = iter(range(100))
    rejected(
        tampered(program_of(layer_norm, X, GAIN), lambda flat, out: [out[0] + next(runs) * 1e-9]), "two runs on the same inputs"
    )


def test_the_message_names_the_place_and_all_three_values():
    program = tampered(program_of(layer_norm, X, GAIN), lambda flat, out: [out[0].at[3, 7].set(9)])
    rejected(program, r"output 0 \(.*\)\[3, 7\]: \S+ in float64 and \S+ op by op required, got 9; \S+ times the allowed error")


def test_integers_must_be_equal():
    program = tampered(program_of(lambda x: jnp.argmax(x, -1), X), lambda flat, out: [out[0].at[5].add(1)])
    rejected(program, r"output 0 \(.*\)\[5\]: \d+ required \(op by op\), got \d+; 1 of 16 elements differ")


def test_lost_nan_is_caught():
    def f(x):
        return jnp.maximum(x, 0)

    program = tampered(program_of(f, X), lambda flat, out: [jnp.where(flat[0] > 0, flat[0], 0)])
    rejected(program, "with special values in the inputs: nan required")
    program.numerics = "fast"
    program.validate()


def test_a_maximum_of_the_original_keeps_not_a_number():
    """XLA:CPU loses it in rows of this length (jaxlib 0.10.2), which is no fault of the program."""

    def negative(x):
        return jnp.max(-2.0 * x, -1)

    x = np.ones((256, 256), np.float32)
    x[3, 131] = np.nan
    assert np.isnan(np.asarray(evaluate_graph(Graph.from_jax(negative, x), [x])[0])).sum() == 1
    program_of(negative, x).validate()


def test_kernels_with_another_meaning_are_caught(monkeypatch):
    program = program_of(layer_norm, X, GAIN)
    honest = validate_kernels.interpret
    monkeypatch.setattr(validate_kernels, "interpret", lambda p, inputs: [o * 1.001 for o in honest(p, inputs)])
    rejected(program, "kernel ", level="kernels")


# --- nothing shown ------------------------------------------------------------------------------------------------------


def test_outputs_that_a_constant_would_match_show_nothing():
    rejected(program_of(lambda x: x * 0.0, X), "outputs that tell right from wrong required, but a constant would match output 0")
    rejected(program_of(lambda x: x > 1e9, X), "call validate with arguments on which they vary")


def test_another_scale_is_tried_first():
    result = program_of(lambda x: jnp.maximum(jnp.abs(x), 5.0), X).validate()
    assert "inputs of scale 8" in str(result)


def test_outputs_that_depend_on_nothing_may_be_constant():
    program_of(lambda x: (x * 2, jnp.zeros(4), jnp.arange(3)), X).validate()


# --- the oracles --------------------------------------------------------------------------------------------------------


def test_the_wide_oracle_rounds_nothing_to_narrow_floats():
    def f(x):
        return (x.astype(jnp.bfloat16) * 3).astype(jnp.float32) @ jnp.ones((32, 2), jnp.float16).astype(jnp.float32)

    x = np.random.default_rng(0).standard_normal((16, 32)).astype(np.float32)
    graph = Graph.from_jax(f, x)
    exact = (x.astype(np.float64) * 3).sum(-1, keepdims=True).repeat(2, 1)
    np.testing.assert_allclose(evaluate_graph(graph, [x], wide=True)[0], exact, rtol=1e-12)
    assert evaluate_graph(graph, [x])[0].dtype == jnp.float32 and not jax.config.jax_enable_x64


def test_jitter_moves_values_by_their_rounding_unit():
    x = np.ones((4, 4), np.float32)
    graph = Graph.from_jax(lambda x: x + x, x)
    moved = np.asarray(evaluate_graph(graph, [x], wide=True, jitter=1)[0]) - 2
    assert 0 < np.abs(moved).max() < 1e-6


def test_unknown_levels_are_refused():
    with pytest.raises(ValueError, match="level 'all': 'program' or 'kernels' required"):
        program_of(layer_norm, X, GAIN).validate(level="all")
