"""Measured devices: what is kept, what is refused, and that costs of array programs count what they should."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqsat import calibrate, optimize
from eqsat.cli import main
from eqsat.cli_subject import shapes
from eqsat.cost import price
from eqsat.devices import DEVICES, device
from eqsat.notation import Kernel
from eqsat.program import PlannedKernel
from eqsat.schedule import schedules
from eqsat.work import Work

RATES = dict(
    dram_bytes_per_second=1e10, l2_bytes_per_second=1e11, vector_flops=5e10, float64_flops=3e10, special_ops_per_second=1e9,
    tensor_flops={"float32": 1e11, "bfloat16": 1e11}, launch_seconds=1e-6,
)  # fmt: skip


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("EQSAT_CONFIG_DIR", str(tmp_path))
    monkeypatch.setattr(calibrate, "_rates", lambda **sizes: RATES)
    return tmp_path


def test_the_cpu_is_measured_once(own_folder, monkeypatch):
    first = device("cpu")
    assert first.arrays and first.vector_flops == 5e10
    monkeypatch.setattr(calibrate, "_rates", None)
    assert device("cpu") == first and calibrate.measured() == {"cpu": first}


def test_what_is_not_known_is_refused(own_folder):
    with pytest.raises(ValueError, match="target 'h999': a device of the table required; choose one of a100, "):
        device("h999")
    with pytest.raises(ValueError, match="'h100': a name that the table does not have required"):
        calibrate.measure("cpu", "h100")
    with pytest.raises(ValueError, match="device 'h999': a row of the table required"):
        calibrate.measure("h999")
    with pytest.raises(ValueError, match="a GPU that JAX finds required, got none"):
        calibrate.measure("h100")
    (own_folder / "devices.json").write_text('[{"name": "x"}]')
    with pytest.raises(ValueError, match="devices.json: a list of devices in JSON required.*remove the file"):
        device("x")


def test_the_command_measures_and_lists(own_folder, capsys):
    assert main(["devices", "--calibrate", "cpu", "--name", "mine", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == ["mine"]
    assert main(["devices"]) == 0
    assert "mine: measured here" in capsys.readouterr().out
    assert main(["devices", "--calibrate", "h100"]) == 2


def kernel_of(fn, text) -> PlannedKernel:
    return optimize(fn, *shapes(text), target="h100").kernels[0]


def test_an_array_program_computes_each_value_once():
    matmul = kernel_of(lambda a, b: a @ b, "float32[512,512] float32[512,512]")
    cpu = device("cpu")
    cost, _ = price(Work(matmul.kernel), schedules(Work(matmul.kernel)), cpu)
    assert cost.seconds == pytest.approx(2e-6 + 2 * 512**3 / 1e11 + (3 + 2) * 512 * 512 * 4 / 1e11)
    assert cost.bound == "tensor"
    slower = replace(cpu, tensor_flops={"float32": 1e10})
    assert price(Work(matmul.kernel), schedules(Work(matmul.kernel)), slower)[0].seconds > 5 * cost.seconds


def test_an_array_program_pays_for_each_reduction():
    """Two sums along one row are two loops, what is computed from them is part of neither."""
    one, two, fused = (kernel_of(f, "float32[64,64]") for f in (
        lambda x: jnp.sum(x, 1), lambda x: jnp.sum(x, 1) / jnp.max(x, 1), lambda x: jnp.exp(jnp.sum(x, 1)) + 1,
    ))  # fmt: skip
    folds = [Work(k.kernel).as_arrays()[2] for k in (one, two, fused)]
    assert folds == [1, 2, 1]


def test_programs_for_the_cpu_are_validated():
    program = optimize(lambda x, w: jnp.tanh(x @ w).sum(0), *shapes("float32[32,16] float32[16,8]"), target="cpu")
    program.validate()  # raises if it differs
    assert "on cpu" in program.report()
    assert all(isinstance(k.kernel, Kernel) for k in program.kernels)


def test_rates_are_measured(monkeypatch):
    monkeypatch.undo()
    rates = calibrate._rates(dram_nbytes=1 << 20, cache_nbytes=1 << 16, size=32)
    flat = [*rates.pop("tensor_flops").values(), *rates.values()]
    assert all(0 < r < 1e18 for r in flat) and set(rates) < set(DEVICES["h100"].__dataclass_fields__)


def test_softmax_for_the_cpu_is_one_array_program_that_keeps_nan_without_looking_for_it():
    program = optimize(lambda x: jax.nn.softmax(x), *shapes("float32[8,256]"), target="cpu")
    (planned,) = program.launches
    assert len(planned.outputs) == 1 and "any" not in planned.source("jax")
    values = np.random.default_rng(0).standard_normal((8, 256)).astype(np.float32)
    values[3, 7], values[5], values[6, 0] = np.nan, -np.inf, np.inf
    rows = np.isnan(np.asarray(program(values)))
    np.testing.assert_array_equal(rows.sum(1), [0, 0, 0, 256, 0, 256, 256, 0])
