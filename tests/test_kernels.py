"""Every kernel of the example programs: run by Triton's and Pallas' interpreters, and compiled for real cards."""

import jax.numpy as jnp
import numpy as np
import pytest

import eqsat
import examples
from benchmarks.workloads import workloads
from eqsat.lower import lower
from eqsat.notation import Kernel
from eqsat.scalars import DTYPES
from eqsat.work import Work

pytest.importorskip("triton")
pytestmark = pytest.mark.slow

from eqsat.backends import pallas, triton  # noqa: E402
from eqsat.backends.jax import run_kernel  # noqa: E402
from eqsat.backends.triton import interpret  # noqa: E402

RAGGED = examples.tables("RAGGED")
PROGRAMS = examples.tables("PROGRAMS")
TARGETS = {"a100": 80, "h100": 90, "b200": 100}
SPILLS = {"lora": 8, "chain_of_four": 2}  # too few to be felt


def given(kernel: Kernel, generator: np.random.Generator):
    """Inputs for a kernel, drawn at random."""
    arrays = {}
    for t in kernel.inputs:
        if t.dtype.startswith("int"):
            arrays[t] = jnp.asarray(generator.integers(0, 5, t.shape), t.dtype)
        elif t.dtype == "bool":
            arrays[t] = jnp.asarray(generator.random(t.shape) < 0.5)
        else:
            arrays[t] = jnp.asarray(0.5 * generator.standard_normal(t.shape)).astype(t.dtype)
    return arrays


def agree(found, wanted, name):
    found, wanted = (np.asarray(x).astype(np.float64) for x in (found, wanted))
    scale = max(1e-6, float(np.max(np.abs(wanted), initial=0.0, where=np.isfinite(wanted))))
    assert np.any(wanted != 0), f"{name}: a kernel of zeros proves nothing"
    np.testing.assert_allclose(found, wanted, rtol=2e-2, atol=2e-2 * scale, err_msg=name)


def idle(program):
    """What is stored, and neither loaded nor an output."""
    used = {t for step in program.steps for t in step.inputs} | set(program.outputs)
    return [t for step in program.steps for t in step.outputs if t not in used]


@pytest.mark.parametrize("name", RAGGED)
def test_interpreters_agree_with_jax(name):
    fn, specs = RAGGED[name]
    program = eqsat.optimize(fn, *specs)
    assert not idle(program)
    generator = np.random.default_rng(0)
    for planned in program.kernels:
        arrays = given(planned.kernel, generator)
        wanted = run_kernel(planned.kernel, arrays)
        tiles = lower(planned.kernel, planned.schedule)
        inputs = [arrays[t] for t in tiles.inputs]
        by_triton, report = interpret.run(triton.emit(tiles), [np.asarray(a) for a in inputs], tiles.outputs, check=True)
        assert report.ok, report
        by_pallas = pallas.run(pallas.emit(tiles), inputs, interpret=True)
        for a, b, c in zip(by_triton, by_pallas, wanted, strict=True):
            agree(a, c, f"{planned.name} by triton")
            agree(b, c, f"{planned.name} by pallas")


def turns():
    """Every program on one target; on the others with -m nightly."""
    for n, name in enumerate(PROGRAMS):
        for m, target in enumerate(TARGETS):
            yield pytest.param(name, target, marks=[] if n % len(TARGETS) == m else pytest.mark.nightly)


@pytest.mark.parametrize(("name", "target"), list(turns()))
def test_kernels_compile_without_spills(name, target):  # P4-11
    fn, args = PROGRAMS[name]
    for planned in eqsat.optimize(fn, *args, target=target).kernels:
        tiles = lower(planned.kernel, planned.schedule)
        report = triton.compile_report(triton.emit(tiles), tiles, TARGETS[target])
        assert report.spills <= SPILLS.get(name, 0), (planned.name, str(planned.schedule), report)
        if any(DTYPES[c.dtype].nbytes < 4 for c in Work(planned.kernel).contractions):
            assert report.matrix_instructions > 0, planned.name


def test_output_axes_are_never_bound_inside():
    """A stored part has the axes of the reductions that use it, which its own reductions may bind anew."""
    low_rank = next(w for w in workloads() if w.name == "low rank").full
    program = eqsat.optimize(low_rank.fn, *low_rank.args, target="h100", cache=False)
    assert any("part" in o.name for k in program.kernels for o in k.kernel.outputs)
    for planned in program.kernels:
        bound = {t.bound.name for t in planned.kernel.terms if t.bound is not None}
        written = {a.name for o in planned.kernel.outputs for a in o.axes}
        assert not bound & written, planned.formula
