"""The benchmark runner: planted cheats are caught, the honest are not; workloads, results and comparisons hold together."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import __main__ as command
from benchmarks import engines, report, runner, search, spread
from benchmarks.guards import Watch
from benchmarks.measure import Contest, Contestant, Effort, Inputs, measured
from benchmarks.peers import hlo, inductor, xla
from benchmarks.statistics import geometric_mean, paired_ratio
from benchmarks.workloads import Size, Workload, shapes, workloads
from eqsat import device_time
from eqsat.graph import Graph

ROOT = Path(__file__).resolve().parent.parent
SHORT = Effort(seconds=0.05, least=4, most=4)


# --- cheats -----------------------------------------------------------------------------------------------------


def honest(a, b):
    return jax.nn.relu(a @ b) + 0.5


SIZE = Size(honest, shapes("float32[48,64] float32[64,40]"))
GRAPH = Graph.from_jax(honest, *SIZE.args)
COMPUTE = jax.jit(honest)


def whole(flat):
    return np.array(COMPUTE(*flat))


class Cached:
    """Computes once, for the inputs of the first call."""

    def __init__(self):
        self.kept = None

    def __call__(self, flat):
        self.kept = self.kept if self.kept is not None else [COMPUTE(*flat)]
        return self.kept


class PartlyStale:
    """Writes most of a buffer that it keeps; the rest is of the run before."""

    def __init__(self):
        self.buffer = None

    def __call__(self, flat):
        new = whole(flat)
        if self.buffer is None:
            self.buffer = new.copy()
        self.buffer[:-5] = new[:-5]
        return [self.buffer.copy()]


class Nondeterministic:
    """As one that adds in whatever order its threads finish."""

    def __init__(self):
        self.rng = np.random.default_rng(0)

    def __call__(self, flat):
        exact = whole(flat)
        return [np.nextafter(exact, exact + self.rng.choice([-1, 1], exact.shape).astype(np.float32))]


class Promise:
    """An array only when it is looked at, after the clock has stopped."""

    def __init__(self, flat):
        self.flat = flat

    def __array__(self, dtype=None, copy=None):
        return whole(self.flat)


def tail(flat, value):
    out = whole(flat)
    out[-7:] = value
    return [out]


def shifted(flat):
    return [np.roll(whole(flat), 1, axis=0)]


def half(flat):
    a, b = (x.astype(jnp.bfloat16) for x in flat)
    return [jnp.asarray(honest(a, b), jnp.float32)]


def noisy(flat):
    out = whole(flat)
    return [(out + 9e-3 * np.sin(np.arange(out.size)).reshape(out.shape)).astype(np.float32)]


def changes_inputs(flat):
    out = [COMPUTE(*flat)]
    out[0].block_until_ready()
    flat[0].delete()
    return out


CHEATS = {
    "zeros": (lambda flat: [np.zeros((48, 40), np.float32)], "zeros"),
    "the mean everywhere": (lambda flat: [np.full((48, 40), whole(flat).mean())], "constant"),
    "cached": (Cached(), "stale"),
    "last rows not written": (lambda flat: tail(flat, np.nan), "unwritten"),
    "last rows left at zero": (lambda flat: tail(flat, 0), "unwritten"),
    "last rows of the run before": (PartlyStale(), "unwritten"),
    "wrong dtype": (lambda flat: [whole(flat).astype(np.float16)], "wrong type"),
    "wrong shape": (lambda flat: [whole(flat).T], "wrong type"),
    "an output missing": (lambda flat: [], "wrong type"),
    "half precision": (half, "tolerance"),
    "noise below a lax tolerance": (noisy, "tolerance"),
    "off by one row": (shifted, "wrong"),
    "an input": (lambda flat: [np.broadcast_to(np.asarray(flat[0])[:, :40], (48, 40)).copy()], "wrong"),
    "different bits every time": (Nondeterministic(), "nondeterministic"),
    "computed when looked at": (lambda flat: [Promise(flat)], "unfinished"),
    "inputs destroyed": (changes_inputs, "inputs changed"),
}


def held(run, floor: float = 0.0, graph: Graph = GRAPH) -> Contestant:
    """A contestant after a short contest."""
    contestant = Contestant("it", run, Watch(graph))
    contest = Contest(graph, [contestant], Inputs(graph, (), 0), 0, floor)
    contest.hold(SHORT)
    assert not contest.failed, contest.failed
    return contestant


@pytest.mark.parametrize("name", CHEATS)
def test_cheat_is_caught_and_named(name):  # P5-08
    run, kind = CHEATS[name]
    found = {f.kind for f in held(run).findings}
    assert kind in found, found


def test_honest_engine_passes():
    contestant = held(lambda flat: [COMPUTE(*flat)])
    assert not contestant.findings
    assert 0 < contestant.used < 1


def test_faster_than_the_floor_is_flagged():
    found = held(lambda flat: [COMPUTE(*flat)], floor=10.0).findings
    assert [f.kind for f in found] == ["too fast"]


def test_zeros_do_not_pass_where_the_outputs_are_small():
    """A softmax over a long row is below any absolute tolerance (KernelBench 165)."""
    graph = Graph.from_jax(jax.nn.softmax, *shapes("float32[4,65536]"))
    found = held(lambda flat: [np.zeros((4, 65536), np.float32)], graph=graph).findings
    assert "zeros" in {f.kind for f in found}


def test_output_that_is_always_zero_is_said_to_show_nothing():
    size = Size(lambda x: x - x, shapes("float32[8,8]"))
    result = measured(Workload(size, size), size, engines.chosen(["jax.jit"]), SHORT)
    assert result["nothing_shown"] and not result["engines"]["jax.jit"]["findings"]


def test_failing_engine_is_a_result():
    def broken(workload, size, graph):
        raise RuntimeError("no")

    def breaks(workload, size, graph):
        return lambda flat: [][0]

    table = [engines.Engine("a", broken), engines.Engine("b", breaks), engines.ENGINES["jax.jit"]]
    results = measured(Workload(SIZE, SIZE), SIZE, table, SHORT)["engines"]
    assert results["a"] == {"error": "RuntimeError: no"} and "IndexError" in results["b"]["error"]
    assert not results["jax.jit"]["findings"]


def test_times_on_a_gpu_stand_in_a_table_of_their_own(monkeypatch):
    monkeypatch.setattr(device_time, "present", lambda: True)
    monkeypatch.setattr(device_time, "jax_seconds", lambda run: len(run()) * 3e-5)
    result = measured(Workload(SIZE, SIZE), SIZE, engines.chosen(["jax.jit"]), SHORT)
    assert result["engines"]["jax.jit"]["device_seconds"] == 3e-5
    assert "| it | 30 |" in report.device_times({"it": {"run": result}})


def test_constant_arguments_stay_and_others_change():
    inputs = Inputs(GRAPH, (1,), 0)
    (a1, b1), (a2, b2) = inputs.next(), inputs.next()
    assert b1 is b2 and not np.array_equal(a1, a2)


# --- workloads --------------------------------------------------------------------------------------------------


def elements(size: Size) -> float:
    return sum(np.prod(s.shape, dtype=float) for s in jax.tree.leaves(size.args))


@pytest.mark.parametrize("workload", workloads(), ids=lambda w: w.name)
def test_both_sizes_trace(workload):
    for size in (workload.full, workload.small):
        outputs = jax.tree.leaves(jax.eval_shape(size.fn, *size.args))
        assert outputs and all(0 not in o.shape for o in outputs)
    assert all(0 <= n < len(workload.full.args) for n in workload.constants)
    full, small = (
        sum(np.prod(s.shape, dtype=float) for s in jax.tree.leaves(size.args)) for size in (workload.full, workload.small)
    )
    assert small <= full


def test_families_of_the_published_suites_are_there():
    names = {w.name for w in workloads()}
    assert {"NasRNN", "BERT, TENSAT", "ResNeXt-50", "NasNet-A", "SqueezeNet", "VGG-19", "Inception-v3"} <= names
    assert {
        "GQA b1",
        "MHA b1",
        "MQA b1",
        "QKNorm b1",
        "RMSNorm + linear",
        "LoRA, Mirage",
        "GatedMLP",
        "nTrans",
        "MoE block",
    } <= names
    assert {f"L2 {n}" for n in (9, 12, 14, 18, 40, 51, 80, 86)} <= names


def test_pattern_chooses_by_family_and_name():
    assert {w.family for w in workloads("algebra")} == {"algebra"}
    assert [w.name for w in workloads("*/trace*")] == ["trace(A@B)"]


# --- engines, statistics, results -------------------------------------------------------------------------------


@pytest.fixture
def absent(monkeypatch):
    for name, needs in {"absent": {"module": "no_such_package"}, "toolless": {"tool": "no-such-compiler"}}.items():
        monkeypatch.setitem(engines.ENGINES, name, engines.Engine(name, engines.jit, **needs))


def test_absent_engines_are_named(absent):
    with pytest.raises(ValueError, match="engine 'absent': not installed"):
        engines.chosen(["absent"])
    with pytest.raises(ValueError, match="engine 'toolless': needs no-such-compiler"):
        engines.chosen(["toolless"])
    with pytest.raises(ValueError, match="one of eqsat"):
        engines.chosen(["nothing"])


def test_paired_ratio_finds_the_factor_under_common_noise():
    noise = np.exp(np.random.default_rng(0).normal(0, 1, 60))
    ratio = paired_ratio(3.0 * noise, noise)
    assert ratio.low <= ratio.value <= ratio.high and abs(ratio.value - 3) < 1e-9
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Path:
    """A short run through the command."""
    path = tmp_path_factory.mktemp("benchmarks") / "a.json"
    assert command.main(["--only", "low rank", "--quick", "-o", str(path)]) == 0
    return path


def test_run_writes_machine_seed_and_results(results):
    header, records = runner.read(results)
    assert header["machine"]["versions"]["jax"] == jax.__version__ and header["options"]["seed"] == 0
    record = records["low rank"]
    assert record["plan"]["after"]["flops"] < record["plan"]["before"]["flops"] / 100
    eqsat = record["run"]["engines"]["eqsat"]
    assert not eqsat["findings"] and eqsat["ratio"]["low"] <= eqsat["ratio"]["value"]
    assert f"| low rank | 2 → {record['plan']['after']['launches']} |" in report.markdown(header, records)


def test_run_is_resumed(results, capsys):
    before = results.read_text()
    assert command.main(["--only", "low rank", "--quick", "-o", str(results)]) == 0
    assert results.read_text() == before
    assert "low rank" in capsys.readouterr().out


def test_other_options_start_over(results, tmp_path):
    header, records = runner.read(results)
    assert runner.resumable(results, header) == records
    assert runner.resumable(results, {**header, "options": {}}) == {}


def test_line_that_was_cut_off_is_dropped(results, tmp_path):
    copy = tmp_path / "cut.json"
    copy.write_text(results.read_text() + '{"name": "half')
    assert set(runner.read(copy)[1]) == {"low rank"}


def test_compare_names_regressions(results, tmp_path, capsys):
    header, records = runner.read(results)
    worse = json.loads(json.dumps(records))
    worse["low rank"]["plan"]["after"]["launches"] += 1
    worse["low rank"]["run"]["engines"]["eqsat"]["findings"] = ["zeros: it"]
    worse["low rank"]["run"]["engines"]["eqsat"]["ratio"] = dict.fromkeys(("value", "low", "high", "best"), 0.1)
    path = tmp_path / "b.json"
    path.write_text("\n".join(map(json.dumps, [header, *worse.values()])))
    assert command.main(["--compare", str(results), str(path)]) == 1
    text = capsys.readouterr().out
    assert "3 regressions" in text and "planned launches" in text and "wrong or failed" in text
    assert command.main(["--compare", str(path), str(results)]) == 0
    assert command.main(["--compare", str(results), str(results)]) == 0


def test_mistakes_are_one_line(capsys, absent):
    assert command.main(["--only", "no such workload"]) == 2
    assert command.main(["--compare", "no-a.json", "no-b.json"]) == 2
    assert command.main(["--only", "low rank", "--engines", "absent"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3 and all(line.startswith("benchmarks: ") for line in lines)


def test_list_names_workloads_and_engines():
    done = subprocess.run([sys.executable, "-m", "benchmarks", "--list"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "algebra/A@B@v" in done.stdout and all(f"\n{name}: " in done.stdout for name in engines.ENGINES)


# --- other compilers --------------------------------------------------------------------------------------------

HLO = """
ENTRY %main {
  %x = bf16[4096,1024]{1,0} parameter(0)
  %w = bf16[1024,4096]{1,0} parameter(1)
  %call = (bf16[4096,4096]{1,0}, s8[33554432]{0}) custom-call(%x, %w), custom_call_target="__cublas$lt$matmul", config={}
  ROOT %out = bf16[4096,4096]{1,0} get-tuple-element(%call), index=0
}
"""


def test_bytes_of_library_calls_leave_out_scratch():
    assert hlo.library_nbytes(HLO) == 2 * (2 * 4096 * 1024 + 4096 * 4096)
    assert hlo.nbytes("pred[3] f8e4m3fn[2] s32[] f32[2,2]{1,0}") == 3 + 2 + 4 + 16


@pytest.mark.slow
@pytest.mark.parametrize(("module", "kind"), [(xla, xla.Xla), (inductor, inductor.Inductor)], ids=["xla", "inductor"])
def test_other_compiler_says_what_it_launches(module, kind):
    folders = os.environ.get("BENCHMARKS_PEERS", "").split()
    if reason := module.unavailable(folders):
        pytest.skip(f"{kind.name}: {reason}")
    with kind("h100", folders) as compiler:
        answer = compiler.ask("layernorm 8192x4096")
        refusal = compiler.ask("no such workload")
    assert answer[kind.name]["launches"] == 1 and answer[kind.name]["nbytes"] == pytest.approx(134e6, rel=0.01)
    assert refusal == {"error": "KeyError: 'no such workload'"}


OTHERS = [name for name, e in engines.ENGINES.items() if e.module and e.module != "torch"]


@pytest.mark.parametrize("name", OTHERS)
def test_other_engines_run_the_same_program(name):
    if reason := engines.ENGINES[name].missing:
        pytest.skip(f"{name}: {reason}")
    (workload,) = (w for w in workloads() if w.name == "GQA b1")
    result = measured(workload, workload.small, engines.chosen([name]), SHORT)["engines"][name]
    assert "error" not in result and not result["findings"], result


# --- a run spread over machines ---------------------------------------------------------------------------------


class FakeRay:
    """As much of Ray as a run asks for: tasks that run when they are waited for, the last first; one is lost."""

    def __init__(self, lost: str):
        self.lost, self.asked = lost, {}

    def is_initialized(self):
        return True

    def nodes(self):
        return [{"Alive": True, "Resources": {"CPU": 8.0}}, {"Alive": True, "Resources": {"CPU": 4.0}}]

    def remote(self, **options):
        self.asked = options
        return lambda function: SimpleNamespace(remote=lambda *args: (function, args))

    def wait(self, waiting, num_returns):
        return waiting[-num_returns:], waiting[:-num_returns]

    def get(self, task):
        function, args = task
        if self.lost in args:
            raise ConnectionError("node died\nwith all its tasks")
        return function(*args)


def test_run_is_spread_with_ray_and_merged(monkeypatch, tmp_path, capsys):
    ray = FakeRay(lost="trace(A@B)")
    monkeypatch.setitem(sys.modules, "ray", ray)
    path, options = tmp_path / "a.json", ["--predict", "--only", "algebra/*A@B)", "--ray"]
    assert command.main([*options, "-o", str(path)]) == 1  # one is lost
    header, records = runner.read(path)
    assert set(records) == {"trace(A@B)", "sum(A@B)"} and ray.asked["num_cpus"] == 1
    assert records["trace(A@B)"]["errors"] == {"ray": "ConnectionError: node died"}
    assert records["sum(A@B)"]["plan"] and records["sum(A@B)"]["machine"]["cores"] == header["machine"]["cores"]
    assert "trace(A@B): ray failed: ConnectionError" in capsys.readouterr().out
    assert spread._cores(ray.nodes()) == 4  # a task that measures has a machine to itself


@pytest.mark.slow
def test_ray_itself_runs_a_workload(tmp_path):
    pytest.importorskip("ray")
    path = tmp_path / "a.json"
    command_line = [sys.executable, "-m", "benchmarks", "--predict", "--only", "low rank", "--ray", "-o", str(path)]
    done = subprocess.run(command_line, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert runner.read(path)[1]["low rank"]["plan"]["after"]["launches"]


@pytest.mark.parametrize(
    "name", ["GQA b1", "max pool + add", "conv3x3+bias+relu 32x56x56x64", "concat+pad+slice", "Llama-3-8B layer"]
)
def test_programs_are_the_same_in_torch(name):
    pytest.importorskip("torch")
    (workload,) = [w for w in workloads() if w.name == name]
    result = measured(workload, workload.small, engines.chosen(["torch"]), SHORT)["engines"]["torch"]
    assert "error" not in result and not result["findings"], result


def test_products_of_two_dtypes_are_the_same_in_torch():
    """As the gradient of a product has, whose result is wider than its operands."""
    torch = pytest.importorskip("torch")
    from benchmarks.torch_graph import torch_function

    a, b = jax.ShapeDtypeStruct((3, 5), "float32"), jax.ShapeDtypeStruct((5, 4), "bfloat16")
    run = torch_function(Graph.from_jax(lambda a, b: jnp.matmul(a, b, preferred_element_type="float32"), a, b))
    x, y = torch.arange(15.0).reshape(3, 5), torch.arange(20.0).reshape(5, 4).bfloat16()
    (found,) = run(x, y)
    assert found.dtype == torch.float32 and torch.equal(found, x @ y.float())


def test_numbers_are_folded_before_torch_runs(monkeypatch):
    """torch.compile cannot look into JAX, which computes them."""
    torch = pytest.importorskip("torch")
    from benchmarks import torch_graph

    graph = Graph.from_jax(lambda x: x / jnp.sqrt(x.shape[-1]), jax.ShapeDtypeStruct((2, 16), "float32"))
    run = torch_graph.torch_function(graph)
    monkeypatch.setattr(torch_graph, "_folded", None)
    torch.testing.assert_close(run(torch.ones(2, 16))[0], torch.full((2, 16), 0.25))


# --- seconds of the search --------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_depth_takes_no_longer_search(tmp_path, capsys):
    """In CPU seconds, each search in a process of its own."""
    names = ["GPT-2, 12 layers", "GPT-2, 48 layers", "Llama, 24 layers"]
    output = tmp_path / "search.json"
    assert search.main(["--only", *names, "-o", str(output)]) == 0
    shallow, deep, llama = (json.loads(output.read_text())[name] for name in names)
    assert deep["seconds"] <= 1.5 * shallow["seconds"]
    assert llama["seconds"] <= 10
    assert max(r["memory_nbytes"] for r in (shallow, deep, llama)) <= 2e9
    assert "| GPT-2, 48 layers |" in capsys.readouterr().out


def test_recorded_seconds_name_every_program():
    text = search.markdown(json.loads((ROOT / search.RESULTS).read_text()))
    assert all(f"| {name} |" in text for name in search.SUBJECTS)
