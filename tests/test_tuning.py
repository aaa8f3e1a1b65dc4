"""Schedules by the clock: timed by a stand-in for a GPU, kept in the cache, and written as a list for Triton's autotuner."""

import re
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqsat
from eqsat import tuning
from eqsat.cli import main
from eqsat.cost import ranked
from eqsat.devices import device
from eqsat.lower import lower
from eqsat.report import schedule_text
from eqsat.running import triton_launch

matrix = jax.ShapeDtypeStruct((256, 256), "bfloat16")


def product(a, b):
    return a @ b


def best_of(program, count):
    return [s for _, s in ranked(program.kernels[0].kernel, device("h100"))[:count]]


@pytest.fixture
def optimize(tmp_path):
    return partial(eqsat.optimize, cache=tmp_path)


def test_the_fastest_schedule_is_kept(optimize):
    program = optimize(product, matrix, matrix)
    first, *_, last = best = best_of(program, 4)
    assert program.kernels[0].schedule == first
    seen = []

    def seconds(planned):
        seen.append(planned.schedule)
        if planned.schedule == best[1]:
            raise RuntimeError("out of shared memory")
        return 1.0 if planned.schedule == last else 2.0

    tuned = program.tune(4, seconds)
    assert seen == [*best, replace(first, by_xla=True)]
    assert tuned.kernels[0].schedule == last and tuned.cost.seconds >= program.cost.seconds
    again = optimize(lambda weight, x: weight @ x, matrix, matrix)  # another program with the same kernel
    assert again.kernels[0].schedule == last and again.cost == tuned.cost
    assert optimize(product, matrix, matrix, target="a100").kernels[0].schedule != last
    x = np.eye(256, dtype=jnp.bfloat16)
    np.testing.assert_array_equal(np.asarray(tuned(x, x), np.float32), np.eye(256))


def test_schedules_that_spill_are_passed_over(optimize, monkeypatch):
    triton = pytest.importorskip("eqsat.backends.triton")
    program = optimize(product, matrix, matrix)
    texts = {s: triton.emit(lower(program.kernels[0].kernel, s)) for s in best_of(program, 3)}
    spilling = texts[program.kernels[0].schedule]
    report = lambda source, tiles, cc: SimpleNamespace(spills=9 if source == spilling else 0)  # noqa: E731
    monkeypatch.setattr(triton, "compile_report", report)
    free = next(s for s, text in texts.items() if text != spilling)
    assert program.tune(3, tuning.static_timer(device("h100"))).kernels[0].schedule == free


def test_only_the_clock_chooses_a_persistent_product(optimize, monkeypatch):
    triton = pytest.importorskip("eqsat.backends.triton")
    monkeypatch.setattr(triton, "compile_report", lambda *_: SimpleNamespace(spills=0, warps_resident=16))
    large = jax.ShapeDtypeStruct((4096, 4096), "bfloat16")
    program = optimize(product, large, large)
    seen = []

    def seconds(planned):
        seen.append(planned.schedule)
        return 1.0 if planned.schedule.persistent else 2.0

    assert not program.kernels[0].schedule.persistent
    assert program.tune(2, lambda planned: 1.0).kernels[0].schedule == program.kernels[0].schedule  # no gain, no change
    chosen = program.tune(2, seconds).kernels[0].schedule
    assert len(seen) == 4 and chosen == seen[2] and not any(s.persistent for s in seen[:2])
    tiles = lower(program.kernels[0].kernel, chosen)
    assert tiles.programs == chosen.persistent == 132 * (16 // chosen.num_warps) < tiles.tile_count
    again = optimize(product, large, large)
    assert again.kernels[0].schedule == chosen and again.cost == program.cost


def test_xla_runs_what_it_runs_faster(optimize):
    program = optimize(lambda a, b: jax.nn.softmax(a @ b), matrix, matrix, objective="traffic")
    tuned = program.tune(1, lambda planned: 1.0 if planned.schedule.by_xla else 2.0)
    assert all(k.schedule.by_xla for k in tuned.kernels) and tuned.cost == program.cost
    assert all("run by XLA" in schedule_text(k) for k in tuned.kernels)
    lowered = [jax.jit(partial(p.inline, launch=triton_launch("h100"))).trace(matrix, matrix) for p in (program, tuned)]
    on_card = [t.lower(lowering_platforms=("cuda",)).as_text() for t in lowered]
    assert "triton" in on_card[0] and "triton" not in on_card[1] and "dot_general" in on_card[1]
    assert all(k.schedule == p.schedule for k, p in zip(program.tune(1, lambda _: 1.0).kernels, program.kernels, strict=True))


def test_kernels_in_loops_are_tuned(optimize):
    program = optimize(lambda x: jax.lax.fori_loop(0, 3, lambda _, y: y @ y, x), matrix)
    last = best_of(program, 3)[-1]
    assert program.tune(3, lambda planned: float(planned.schedule != last)).kernels[0].schedule == last


def test_what_is_not_a_schedule_is_dropped(optimize):
    program = optimize(product, matrix, matrix)
    cache = tuning.cache_of(program.request.cache)
    key = tuning._key(program.kernels[0].kernel, device("h100"))
    cache.put(key, b"no schedule")
    assert optimize(product, matrix, matrix).kernels[0].schedule == program.kernels[0].schedule
    assert cache.get(key) is None


def test_what_tuning_needs_is_said(optimize, monkeypatch):
    program = optimize(product, matrix, matrix)
    with pytest.raises(ValueError, match=r"tune for h100: a GPU of compute capability 9.0 .* required, got none; tune where"):
        program.tune()
    with pytest.raises(ValueError, match="at least one schedule .* required, got 0"):
        program.tune(0, lambda planned: 1.0)
    with pytest.raises(ValueError, match="a cache .* required"):
        eqsat.optimize(product, matrix, matrix, cache=False).tune(2, lambda planned: 1.0)

    class Older:
        device_kind, compute_capability = "NVIDIA A100", "8.0"

    monkeypatch.setattr(jax, "devices", lambda kind: [Older])
    with pytest.raises(ValueError, match=r"required, got NVIDIA A100 of 8.0; choose"):
        program.tune()


def test_the_command_says_so_before_it_searches(capsys):
    assert main(["optimize", "examples.softmax:softmax", "--args", "float32[64,32]", "--tune", "4"]) == 2
    assert capsys.readouterr().err.startswith("eqsat: tune for h100: a GPU of compute capability 9.0")


# --- lists for Triton's autotuner -------------------------------------------------------------------------------------


def segments(x, i):
    return jax.ops.segment_sum(x, i, 2000)


PROGRAMS = {
    "product": (product, (matrix, matrix)),
    "ragged": (product, (jax.ShapeDtypeStruct((200, 256), "bfloat16"), matrix)),
    "columns": (lambda x: x - x.mean(0), (jax.ShapeDtypeStruct((500, 64), "float32"),)),
    "sums by places": (segments, (jax.ShapeDtypeStruct((512, 128), "float32"), jax.ShapeDtypeStruct((512,), "int32"))),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_configuration_is_its_schedule(name, optimize):
    triton = pytest.importorskip("eqsat.backends.triton")
    fn, args = PROGRAMS[name]
    program = optimize(fn, *args)
    schedules_ = best_of(program, 8)
    tiles = [lower(program.kernels[0].kernel, s) for s in schedules_]
    text = triton.emit_autotuned(tiles)
    configs = re.findall(r"triton.Config\(({.*}), num_warps=(\d+), num_stages=(\d+)\)", text)
    assert len(configs) > 1
    wanted = {(body(triton.emit(t)), t.programs, t.num_warps, t.num_stages) for t in tiles}
    for numbers, warps, stages in configs:
        values = eval(numbers)
        spelled = re.sub(r"\b[A-Z]\w*\b", lambda found: str(values.get(found[0], found[0])), body(text))  # noqa: B023
        assert (spelled, values["PROGRAMS"], int(warps), int(stages)) in wanted


def body(text):
    """The lines of the kernel."""
    lines = text[text.rindex("@triton.jit") : text.index("\n\n\ndef launch")].splitlines()
    return "\n".join(line for line in lines if line.startswith("    ") and not line.endswith((",", "_ptr")))
