"""Kernels compiled ahead of time for AMD's MI300X: nothing spills, products take matrix instructions, loads are wide."""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import eqsat
from eqsat.devices import device
from eqsat.lower import lower
from eqsat.running import triton_launch
from eqsat.work import Work

sys.path.insert(0, str(Path(__file__).parents[1]))
from test_golden import PROGRAMS, shapes  # noqa: E402

triton = pytest.importorskip("eqsat.backends.triton")

from eqsat.backends.triton import amd  # noqa: E402

CARD = device("mi300x")
SHORT = {"softmax", "bias_gelu", "router"}
SPECIAL = (
    jnp.expm1, jnp.log1p, jnp.tanh, jax.lax.erfc, jax.lax.erf_inv, jnp.rint, jnp.atan, jnp.sinh, jax.lax.lgamma,
    lambda x: jax.lax.pow(x, x),
)  # fmt: skip


def reports(fn, args):
    for p in eqsat.optimize(fn, *args, target=CARD.name).kernels:
        if p.schedule is not None:
            tiles = lower(p.kernel, p.schedule)
            yield p, triton.compile_report(p.source("triton"), tiles, CARD.architecture)


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in SHORT else pytest.mark.nightly) for n in PROGRAMS])
def test_kernels_compile_for_an_amd_gpu(name):
    found = list(reports(*PROGRAMS[name]))
    assert found
    for p, report in found:
        said = f"{p.name}, {p.schedule}: {report}"
        assert report.spills == 0 and report.stack_nbytes == 0, said
        assert report.shared_nbytes <= CARD.shared_nbytes and report.warps_resident >= p.schedule.num_warps, said
        if Work(p.kernel).contractions:
            assert report.matrix_instructions > 0 and report.widest_load_bits == 128, said
            assert report.hot_loop is not None and report.hot_loop.matrix_instructions > 0, said


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "float8_e4m3fn", "float64"])
def test_products_take_matrix_instructions(dtype):
    accumulator = {"int8": "int32", "float64": "float64"}.get(dtype, "float32")
    product = lambda a, b: jnp.matmul(a, b, preferred_element_type=accumulator)  # noqa: E731
    ((_, report),) = reports(product, shapes((256, 256), (256, 256), dtype=dtype))
    assert report.spills == 0 and report.matrix_instructions > 0, report


def test_special_functions_are_those_of_the_target():
    def every(x):
        return sum(f(x) for f in SPECIAL)

    ((p, report),) = reports(every, shapes((1024,), dtype="float32"))
    assert p.source("triton").count("libdevice.") == len(SPECIAL) and report.spills == 0


def test_occupancy_is_that_of_a_compute_unit():
    assert amd.resident_waves("gfx942", 189, 0, 8) == (8, "registers"), "512 registers hold two wavefronts on each SIMD"
    assert amd.resident_waves("gfx942", 26, 0, 4) == (32, "warps")
    assert amd.resident_waves("gfx942", 64, 48 * 1024, 4) == (4, "shared memory")
    assert amd.resident_waves("gfx942", 64, 0, 1) == (32, "warps")
    assert amd.resident_waves("gfx90a", 64, 0, 1) == (0, "unknown")


def test_facts_of_the_assembly():
    assert amd.load_bits("global_load_dwordx4") == amd.load_bits("buffer_load_dwordx4") == 128
    assert amd.load_bits("buffer_load_ushort") == 16 and amd.load_bits("scratch_load_dword") == amd.load_bits("ds_read_b128") == 0
    text = "\tv_mov_b32 v0, 0\n.LBB0_1:\n\tglobal_load_dword v1, v0\n\tv_mfma_f32_4x4x1f32 a, b\n\ts_cbranch_scc1 .LBB0_1\n"
    code = amd.read(text + "\ts_endpgm\n    .private_segment_fixed_size: 8\n    .vgpr_count: 24\n")
    assert code.loops == (range(1, 4),) and (code.registers, code.scratch_nbytes, len(code.instructions)) == (24, 8, 5)
    with pytest.raises(ValueError, match="no kernel found"):
        amd.read("nothing")


def test_launching_says_what_it_needs():
    with pytest.raises(ValueError, match="launch for mi300x: a GPU of NVIDIA required, got gfx942"):
        triton_launch("mi300x")
