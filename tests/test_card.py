"""The card script: steps survive each other's failures and the clock; what needs a card runs here on stand-ins."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.card import __main__ as command
from benchmarks.card import kernels, peers, tiles
from benchmarks.card.steps import Context, Step, performed
from eqsat import device_time
from eqsat.backends.triton import interpret
from eqsat.devices import DEVICES
from examples.blocks import transpose_add


class Clock:
    """Time that passes only when a step says so."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def items(clock, *costs):
    """A step whose items take these seconds; a negative one fails after as long."""

    def do(cost):
        clock.now += abs(cost)
        if cost < 0:
            raise RuntimeError("no\nsuch kernel")
        return {"cost": cost}

    return lambda context: (context.each(((f"{n}: {cost}", cost) for n, cost in enumerate(costs)), do), "done")


def test_failures_are_recorded_and_the_rest_goes_on():
    clock, said = Clock(), []

    def broken(context):
        raise ValueError("no card")

    steps = [Step("a", 10, items(clock, 1, -1, 2)), Step("b", 10, broken), Step("c", 10, items(clock, 1))]
    records = performed(steps, Context("h200", True, clock=clock), 30, said.append)
    assert list(records["a"]["results"]) == ["0: 1", "2: 2"] and records["a"]["failed"] == {
        "1: -1": "RuntimeError: no such kernel"
    }
    assert records["b"]["failed"] == {"b": "ValueError: no card"} and records["c"]["results"]
    assert [line.split()[:2] for line in said] == [["✗", "a"], ["✗", "b"], ["✓", "c"]]


def test_steps_keep_to_the_budget_and_name_what_they_leave_out():
    clock = Clock()
    steps = [Step("a", 10, items(clock, 6, 6, 6, 6)), Step("b", 20, items(clock, 1, 1))]
    records = performed(steps, Context("h200", True, clock=clock), 30, lambda text: None)
    assert records["a"]["left_out"] == ["2: 6", "3: 6"] and records["a"]["seconds"] == 12
    assert not records["b"]["left_out"]
    assert sum(s.seconds for s in command.STEPS) <= command.SECONDS + 1 and command.SECONDS < 360


def test_dry_run_writes_json_and_a_table(tmp_path, capsys):
    path = tmp_path / "card.json"
    assert command.main(["--dry", "--few", "2", "-o", str(path)]) == 0
    result = json.loads(path.read_text())
    assert set(result["steps"]) == {s.name for s in command.STEPS} and result["dry"]
    worst = [r for p in result["steps"]["kernels"]["results"].values() for k in p["kernels"].values() for r in k.values()]
    assert worst and all(0 < r <= 1 for r in worst)
    assert result["steps"]["jax"]["results"]["softmax 8192x4096"]["launches"] == 1
    text = path.with_suffix(".md").read_text()
    assert "| matmul 4096 |" in text and "## torch: needs a GPU" in text
    assert len(capsys.readouterr().out.splitlines()) == len(command.STEPS) + 1


def test_without_a_gpu_it_says_so(capsys):
    assert command.main(["--steps", "kernels"]) == 2
    assert "a GPU that JAX finds required, got cpu; or --dry" in capsys.readouterr().err


def test_cards_are_found_in_the_table():
    assert command.row_of("NVIDIA H200") == "h200" and command.row_of("NVIDIA GeForce RTX 4090") == "rtx4090"
    with pytest.raises(ValueError, match="--row"):
        command.row_of("NVIDIA GeForce GTX 1080")


def test_wrong_kernel_fails_the_step(monkeypatch):
    monkeypatch.setattr(
        kernels, "_interpreted", lambda source, program, arrays, row: [np.zeros(t.shape, t.dtype) for t in program.outputs]
    )
    context = Context("h200", True, few=1)
    results, _ = kernels.checked(context)
    assert not results and "ValidationError" in context.failed["softmax"]


# --- what a card would run, on stand-ins for it ------------------------------------------------------------------------


@pytest.fixture
def card(monkeypatch):
    """Kernels run in the interpreter where a card would, and every program takes a millisecond."""

    def call(source, program, row):
        specs = [jax.ShapeDtypeStruct(t.shape, t.dtype) for t in program.outputs]
        run = lambda *arrays: tuple(interpret.run(source, [np.asarray(a) for a in arrays], specs)[0])  # noqa: E731
        return lambda *arrays: jax.pure_callback(run, tuple(specs), *arrays)

    monkeypatch.setattr(kernels, "jax_call", call)
    monkeypatch.setattr(device_time, "jax_seconds", lambda run: 1e-3)
    monkeypatch.setattr(peers, "PROGRAMS", {"transpose": (transpose_add, [jax.ShapeDtypeStruct((16, 16), "float32")] * 2)})
    monkeypatch.setattr(tiles, "CASES", {"matmul": (jnp.matmul, "bfloat16[512,512] bfloat16[512,512]")})
    return Context("h200", False, few=1, device=DEVICES["h200"])


def test_kernels_are_checked_through_jax(card):
    results, summary = kernels.checked(card)
    assert not card.failed and 0 < results["softmax"]["kernels"].popitem()[1]["jax"] < 1
    assert summary == "1 kernels of 1 programs right through JAX"


def test_best_and_bad_schedules_are_timed_and_give_factors(card):
    card.few = None
    results, summary = tiles.timed(card)
    timed = results["matmul"]["tiles"]
    assert not card.failed and [t["place"] for t in timed][:3] == [0, 1, 2] and len(timed) == 5
    assert timed[-1]["estimated"] > timed[0]["estimated"]
    (factor,) = tiles.factors(results).values()
    assert factor == pytest.approx(1e-3 / timed[0]["estimated"], rel=0.2) and "measured / estimated" in summary


def test_ours_and_jit_are_timed_side_by_side(card):
    results, summary = peers.in_jax(card)
    record = results["transpose"]
    assert not card.failed and record["eqsat"] == record["jax.jit"] == 1e-3 and record["difference"] == 0
    assert summary == "1 programs, 1.00 times as fast as jax.jit"


def test_torch_compile_gets_the_same_program(card, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(peers, "torch_on_card", lambda: True)
    monkeypatch.setattr(peers, "tensor", lambda a: torch.from_numpy(a.copy()))
    monkeypatch.setattr(torch, "compile", lambda fn, **options: fn)
    monkeypatch.setattr(device_time, "torch_seconds", lambda run: float(len(run())))
    results, _ = peers.in_torch(card)
    assert not card.failed and results == {"transpose": {"torch.compile": 1.0}}


PROFILE = """
planes { id: 1 name: "/device:GPU:0"
  stat_metadata { key: 1 value { id: 1 name: "hlo_module" } }
  stat_metadata { key: 2 value { id: 2 name: "jit_flush_l2" } }
  event_metadata { key: 1 value { id: 1 name: "kernel" } }
  lines { id: 1 name: "Stream #7" %s }
  lines { id: 2 name: "XLA Modules" events { metadata_id: 1 offset_ps: 0 duration_ps: 9000000000 } }
}
planes { id: 2 name: "/host:CPU" }
"""


def events(*kernels_):
    """(microseconds, is it of the flush), one after the other."""
    parts = []
    for n, (microseconds, flush) in enumerate(kernels_):
        stat = "stats { metadata_id: 1 ref_value: 2 }" if flush else ""
        parts.append(f"events {{ metadata_id: 1 offset_ps: {n * 10**9} duration_ps: {microseconds * 10**6} {stat} }}")
    return PROFILE % " ".join(parts)


def test_seconds_are_of_the_kernels_between_flushes():
    text = events((5, False), (90, True), (2, False), (3, False), (90, True), (1, True), (4, False))
    profile = jax.profiler.ProfileData.from_text_proto(text)
    assert device_time.repetitions(profile) == pytest.approx([5e-6, 4e-6])
    with pytest.raises(RuntimeError, match="CUPTI"):
        device_time.repetitions(jax.profiler.ProfileData.from_text_proto(events((90, True))))
