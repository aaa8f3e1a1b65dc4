"""Programs: calling, errors, reports, saving; plans are made by hand, a kernel for each tensor of the reading."""

import json
import os
import re
import subprocess
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from planned import COST, program_of

from eqsat.formula import named_formula
from eqsat.graph import Graph
from eqsat.notation import Kernel
from eqsat.program import Program
from eqsat.read import read
from eqsat.regions import kept_steps


def layer(x, w, b):
    """A layer with a dictionary as result."""
    h = jax.nn.gelu(x @ w + b)
    return {"y": h / h.sum(-1, keepdims=True), "top": h.argmax(-1)}


@pytest.fixture(scope="module")
def arguments():
    rng = np.random.default_rng(0)
    return tuple(jnp.asarray(rng.standard_normal(s), jnp.float32) for s in [(4, 8), (8, 6), (6,)])


@pytest.fixture(scope="module")
def compiled(arguments):
    return program_of(layer, *arguments)


def close(a, b):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(np.asarray(x, float), np.asarray(y, float), rtol=2e-5, atol=1e-6), a, b)


def test_it_is_called_like_the_original(compiled, arguments):
    close(compiled(*arguments), layer(*arguments))
    close(compiled(*map(np.asarray, arguments)), layer(*arguments))


def test_keyword_arguments_and_trees():
    def f(p, *, scale):
        return p["a"] * scale, [p["b"]]

    p = {"a": jnp.ones(3), "b": jnp.zeros(2)}
    close(program_of(f, p, scale=2.0)(p, scale=3.0), f(p, scale=3.0))


def test_it_traces(compiled, arguments):
    x, w, b = arguments
    close(jax.jit(lambda x: compiled(x, w, b)["y"] * 2)(x), layer(*arguments)["y"] * 2)
    close(jax.vmap(compiled, (0, None, None))(jnp.stack([x, x + 1]), w, b)["y"][1], layer(x + 1, w, b)["y"])


@pytest.mark.parametrize(
    "used",
    [
        lambda f: jax.jit(lambda x: x * f(2.0 * jnp.ones(3)))(jnp.ones(3)),  # no argument shows that something traces
        lambda f: jax.grad(lambda x: f(x).sum())(jnp.ones(3)),
        lambda f: jax.jacfwd(f)(jnp.ones(3)),
        lambda f: jax.vmap(f)(jnp.ones((2, 3))),
        lambda f: jax.vmap(lambda y: y * f(jnp.ones(3)))(jnp.ones((2, 3))),
        lambda f: jax.lax.scan(lambda c, _: (f(c), c), jnp.ones(3), None, length=2),
    ],
)
def test_under_transformations_also_after_a_call(used):
    x, w = jnp.ones(3), jnp.arange(3.0)
    for fn, constant, weights in ((lambda x: jnp.sin(x) * x, (), ()), (lambda w, x: jnp.sin(x) * jnp.exp(w), (0,), (w,))):
        program = program_of(fn, *weights, x, constant=constant)
        close(program(*weights, x), fn(*weights, x))
        close(used(partial(program, *weights)), used(partial(fn, *weights)))
        close(program(*weights, x), fn(*weights, x))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            lambda x, w, b: (x[:, :7], w, b),
            ValueError,
            "argument x: float32[4,8] required, got float32[4,7]; call eqsat.optimize again",
        ),
        (
            lambda x, w, b: (x, w, b.astype(int)),
            TypeError,
            "argument b: float32[6] required, got int32[6]; call eqsat.optimize again",
        ),
        (lambda x, w, b: (x, w, "b"), TypeError, "argument b: float32[6] required, got 'b'"),
        (lambda x, w, b: (x, w), TypeError, "layer: a call layer(*, *, *) required, got layer(*, *); call"),
        (lambda x, w, b: (x, w, {"b": b}), TypeError, "call eqsat.optimize again for another structure"),
    ],
)
def test_arguments_that_do_not_fit_are_named(compiled, arguments, change, error, message):
    with pytest.raises(error, match=re.escape(message)):
        compiled(*change(*arguments))


def test_opaque_calls_run_in_their_place():
    def f(x):
        return jnp.sort(x * 2)[::-1] + 1

    x = jnp.asarray([3.0, 1.0, 2.0])
    program = program_of(f, x)
    assert [c.name for c in program.calls] == ["sort"]
    close(program(x), f(x))
    assert "call of JAX" in program.report() and "sort" in program.report()


def test_outputs_may_be_inputs_constants_and_twice_the_same():
    table = jnp.arange(5.0)

    def f(x):
        y = x + table
        return x, y, table, y

    close(program_of(f, table)(table), f(table))


def test_what_depends_on_constants_runs_once(arguments):
    x, w, _ = arguments
    program = program_of(lambda x, w: jnp.tanh(x @ jnp.exp(w)), x, w, constant=(1,))
    assert any(s.constant for s in program.steps) and len(program.launches) == len(program.steps) - 1
    first = program(x, w)
    kept = program._prepared
    program(x + 1, w)
    assert program._prepared is kept
    close(first, jnp.tanh(x @ jnp.exp(w)))
    close(program(x, w + 1), jnp.tanh(x @ jnp.exp(w + 1)))
    close(jax.jit(program)(x, w), first)
    close(program(x, w), first)


def test_numpy_constants_may_change_in_place(arguments):
    x, w, _ = arguments
    program = program_of(lambda x, w: x @ jnp.exp(w), x, w, constant=(1,))
    weights = np.array(w)
    program(x, weights)
    weights += 1
    close(program(x, weights), x @ jnp.exp(weights))


def test_a_plan_in_the_wrong_order_is_refused(compiled):
    with pytest.raises(ValueError, match="reads .*, which no earlier step writes"):
        Program(compiled.graph, compiled.inputs, {}, compiled.steps[::-1], compiled.outputs, "h100", "exact", COST, COST)


def test_kernels_have_formulas_and_sources(compiled):
    kernel = compiled.kernels[0]
    assert kernel.name in kernel.formula and kernel.cost is COST and kernel.schedule is not None
    assert "def " in kernel.source("jax") and "tl.store" in kernel.source("triton") and "pallas" in kernel.source("pallas")
    with pytest.raises(ValueError, match="backend 'cuda': one of the backends found required; choose from jax, pallas, triton"):
        kernel.source("cuda")


def test_equal_kernels_are_listed_once():
    def f(x):
        return jnp.exp(x).sum()

    program = program_of(f, jnp.ones(3))
    twice = Program(
        program.graph, program.inputs, {}, [*program.steps, *program.steps], program.outputs, "h100", "exact", COST, COST
    )
    assert len(twice.kernels) == len(program.kernels) and len(twice.launches) == 2 * len(program.launches)


def test_formulas_name_what_repeats(arguments):
    def f(x):
        y = jnp.tanh(x * 3 + 1)
        return y * (1 - y)

    reading = read(Graph.from_jax(f, arguments[0]))
    steps, _ = kept_steps(reading.steps, reading.outputs)
    text = named_formula(Kernel("f", (steps[-1],)))
    assert text.count("tanh") == 1 and text.split("\n")[0].startswith("t1[x0, x1] = tanh(")


def test_the_report_fits_the_page_and_says_what_changed(compiled):
    text = compiled.report()
    assert max(map(len, text.split("\n"))) <= 118
    for expected in (
        "layer on h100, numerics reassociate",
        "launches",
        "predicted time",
        "a_law (exact)",
        "views",
        "bound by device memory",
    ):
        assert expected in text
    assert all(k.name in text for k in compiled.kernels)
    assert text == compiled.report()


F32, INF = jnp.float32, float("inf")
BITS = {
    "log of exp": (lambda x: jnp.log(jnp.exp(x)), jnp.asarray([89, -104], F32), [INF, -INF]),
    "times and by": (lambda x: (x * 3) / 3, jnp.asarray([2e38], F32), [INF]),
    "divided twice": (
        lambda x: (x / 1e30) / 1e30,
        jnp.asarray([1e38], F32),
        [np.float32(1e38) / np.float32(1e30) / np.float32(1e30)],
    ),
    "there and back": (lambda x: x.astype(jnp.bfloat16).astype(F32), jnp.asarray([np.pi], F32), [3.140625]),
    "a scale through the maximum": (lambda x: jax.nn.softmax(x * 1e10), jnp.asarray([0.3, -0.2, 0.7], F32), [0, 0, 1]),
    "a square that wraps": (lambda b: jnp.where(b * b < 0, abs(b * b), b * b), jnp.asarray([12, 15], jnp.int8), [112, 31]),
    "narrow ones": (lambda x: x.sum(), jnp.ones(70000, jnp.bfloat16), 70144),
}


@pytest.mark.parametrize("case", BITS)
def test_compiling_changes_no_bits(case):
    """Each of these but the last differs under a plain `jax.jit`."""
    fn, x, want = BITS[case]
    program = program_of(fn, x, numerics="exact")
    np.testing.assert_array_equal(np.asarray(program(x), np.float64), want)


# --- saving -------------------------------------------------------------------------------------------------------

RUN_SAVED = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("eqsat", "egglog", "triton"):
            raise ImportError(name)
sys.meta_path.insert(0, Blocker())
import numpy as np
import program
arrays = np.load("arrays.npz")
np.savez("results.npz", *map(np.asarray, program.run(*arrays.values())))
"""


def run_saved(folder, arrays):
    np.savez(folder / "arrays.npz", *map(np.asarray, arrays))
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", RUN_SAVED], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return list(np.load(folder / "results.npz").values())


def test_a_saved_program_runs_without_eqsat(compiled, arguments, tmp_path):
    folder = tmp_path / "a" / "saved"
    compiled.save(folder)
    names = {p.name for p in folder.iterdir()}
    first = compiled.kernels[0].name
    assert {"program.py", "report.txt", "plan.json", f"{first}_triton.py", f"{first}_pallas.py"} <= names
    assert (folder / "report.txt").read_text() == compiled.report()
    plan = json.loads((folder / "plan.json").read_text())
    assert plan["kernels"][0]["axes"] and plan["after"]["launches"] == len(compiled.launches)
    for got, want in zip(run_saved(folder, arguments), jax.tree.leaves(layer(*arguments)), strict=True):
        close(got, want)


def test_a_saved_program_keeps_its_constants(tmp_path):
    table = jnp.asarray(np.random.default_rng(1).standard_normal((3, 4)), jnp.bfloat16)

    def f(x):
        return (x[:, None] * table).astype(jnp.float32)

    x = jnp.asarray([1, 2, 3], jnp.bfloat16)
    program_of(f, x).save(tmp_path / "saved")
    np.testing.assert_array_equal(run_saved_bfloat16(tmp_path / "saved", x), f(x))


def run_saved_bfloat16(folder, x):
    script = RUN_SAVED.replace("*arrays.values()", "*[a.astype('bfloat16') for a in arrays.values()]").replace(
        "import program", "import jax, program"
    )
    np.savez(folder / "arrays.npz", np.asarray(x, np.float32))
    subprocess.run([sys.executable, "-c", script], cwd=folder, check=True, timeout=120)
    return np.load(folder / "results.npz")["arr_0"]


def test_a_saved_program_keeps_its_opaque_calls(tmp_path):
    pytest.importorskip("flatbuffers")

    def f(x):
        return jnp.sort(x * 2) + 1

    x = jnp.asarray([3.0, 1.0, 2.0])
    program_of(f, x).save(tmp_path / "saved")
    close(run_saved(tmp_path / "saved", [x])[0], f(x))


def test_calls_that_cannot_be_saved_are_refused_before_anything_is_written(tmp_path):
    program = program_of(lambda key: jax.random.uniform(key, (3,)), jax.random.key(0))
    with pytest.raises(ValueError, match="a dtype that cannot be saved"):
        program.save(tmp_path / "saved")
    assert list(tmp_path.iterdir()) == []


def test_saving_replaces_an_earlier_save_and_nothing_else(compiled, tmp_path):
    compiled.save(tmp_path / "saved")
    (tmp_path / "saved" / "report.txt").write_text("old")
    compiled.save(tmp_path / "saved")
    assert (tmp_path / "saved" / "report.txt").read_text() == compiled.report()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    with pytest.raises(FileExistsError, match="an empty folder or an earlier save required, got one with other files"):
        compiled.save(tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "precious"
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileExistsError, match="a folder required, got a file"):
        compiled.save(tmp_path / "file")
    with pytest.raises(OSError, match="a folder that can be written required"):
        compiled.save(tmp_path / "file" / "below")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "mine", "saved"]


def test_a_failed_save_leaves_nothing(compiled, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises(OSError, match="disk full"):
        compiled.save(tmp_path / "saved")
    assert list(tmp_path.iterdir()) == []
