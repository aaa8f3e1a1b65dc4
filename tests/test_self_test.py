"""A saved kernel's file needs Triton alone to be launched, and compares itself with JAX when it is run."""

import os
import subprocess
import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqsat
from eqsat.lower import lower

pytest.importorskip("triton")
pytest.importorskip("torch")

from eqsat.backends.triton import emit, interpret  # noqa: E402

x, w = jax.ShapeDtypeStruct((33, 100), "float32"), jax.ShapeDtypeStruct((100, 20), "float32")


def softmax(x):
    return jax.nn.softmax(x, -1)


def updated(cache, i):
    return jax.lax.dynamic_update_slice(cache, jnp.ones((2, 100), cache.dtype), (i, 0))


def segments(x, i):
    return jax.ops.segment_sum(x, i, 2000)


def draw(x):
    tensor = x * 2
    return tensor + 1


PROGRAMS = {
    "softmax": (softmax, (x,), {}),
    "matrices": (jnp.matmul, (x, w), {}),
    "in place": (updated, (x, np.int32(0)), {"donate": (0,)}),
    "sums by places": (segments, (x, jax.ShapeDtypeStruct((33,), "int32")), {}),
    "a name of the file's own": (draw, (x,), {}),
}


FROM_TORCH = """
import sys
sys.modules.update(jax=None, jaxlib=None)
import torch
from {0} import launch
x = torch.randn(33, 100)
y = torch.empty_like(x)
launch(x, y)
torch.testing.assert_close(y, torch.softmax(x, -1))
"""


def run(path, *code):
    environment = {**os.environ, "TRITON_INTERPRET": "1", "JAX_PLATFORMS": "cpu", "PYTHONPATH": ""}
    return subprocess.run([sys.executable, *(code or [path])], env=environment, cwd=path.parent, capture_output=True, text=True)


@pytest.mark.parametrize("name", [n if n == "softmax" else pytest.param(n, marks=pytest.mark.nightly) for n in PROGRAMS])
def test_a_saved_kernel_agrees_with_its_reference(name, tmp_path):
    fn, args, options = PROGRAMS[name]
    program = eqsat.optimize(fn, *args, target="h100", **options)
    program.save(tmp_path / "saved")
    paths = [*(tmp_path / "saved").glob("*_triton.py")]
    assert len(paths) == len(program.kernels)
    for path in paths:
        assert "us on h100, bound by " in path.read_text()
        done = run(path)
        assert done.returncode == 0 and done.stdout.endswith("agrees with JAX\n"), done.stderr[-2000:]
        if name == "softmax":
            done = run(path, "-c", FROM_TORCH.format(path.stem))
            assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["matrices", "sums by places"])
def test_a_file_with_several_schedules_runs(name, tmp_path):
    fn, args, options = PROGRAMS[name]
    eqsat.optimize(fn, *args, **options).save(tmp_path / "saved", autotune=8)
    (path,) = (tmp_path / "saved").glob("*_triton.py")
    assert path.read_text().count("triton.Config(") > 1
    done = run(path)
    assert done.stdout.endswith("agrees with JAX\n"), done.stderr[-2000:]


def test_a_kernel_takes_no_name_of_its_file():
    (planned,) = eqsat.optimize(softmax, x).kernels
    rows = np.random.default_rng(0).standard_normal(x.shape, np.float32)
    for name in ("tl", "launch", "tensors"):
        tiles = lower(replace(planned.kernel, name=name), planned.schedule)
        outputs, _ = interpret.run(emit(tiles), [rows], tiles.outputs)
        np.testing.assert_allclose(outputs[0], softmax(rows), rtol=1e-5)


@pytest.mark.nightly
def test_a_wrong_kernel_is_noticed(tmp_path):
    program = eqsat.optimize(softmax, x)
    program.save(tmp_path / "saved")
    path = tmp_path / "saved" / f"{program.kernels[0].name}_triton.py"
    path.write_text(path.read_text().replace("tl.sum(", "tl.max("))
    assert "Mismatched elements" in run(path).stderr
