"""Whole programs as XLA gets them for a GPU, none being there: the planned launches, and nothing to move data beside them.

With XLA's compiler for CUDA at hand (`benchmarks/peers/xla.py` says which packages; a folder of them in EQSAT_CUDA_PLUGIN) its
own list of launches is read as well.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from test_golden import PROGRAMS

import eqsat
from benchmarks.peers import xla, xla_worker
from benchmarks.workloads import Size
from benchmarks.workloads.transformers import decode_step, llama_decode_step
from eqsat.running import triton_launch

pytest.importorskip("triton")

CUSTOM_CALL = "__gpu$xla.gpu.triton"
# What views become where a kernel takes an array apart from its shape; XLA compiles it to nothing.
FREE = {"custom_call", "optimization_barrier", "constant", "reshape"}


def mlp(x, w, bias, v):
    return jax.nn.gelu(x @ w + bias) @ v


def square(n, dtype="bfloat16"):
    return jax.ShapeDtypeStruct((n, n), dtype)


WHOLE = {
    "mlp": (mlp, (square(256), square(256), jax.ShapeDtypeStruct((256,), "bfloat16"), square(256)), ()),
    "attention": (*PROGRAMS["attention"], ()),
    "attention and its gradient": (*PROGRAMS["attention_gradient"], ()),
    "a decode step": (llama_decode_step, decode_step(2, 128, 256, 64, 2, 512), (2, 3)),
}


def launched(name):
    """The program, and the function of its flat inputs that launches its kernels."""
    fn, args, donate = WHOLE[name]
    program = eqsat.optimize(fn, *args, target="h100", donate=donate)
    return program, lambda *flat: program.inline(*flat, launch=triton_launch("h100"))


@pytest.mark.parametrize("name", [n if n == "attention" else pytest.param(n, marks=pytest.mark.nightly) for n in WHOLE])
def test_xla_is_given_the_planned_launches_and_nothing_else(name):
    program, fn = launched(name)
    flat = [jax.ShapeDtypeStruct(t.shape, t.dtype) for t in program.inputs]
    text = jax.jit(fn).trace(*flat).lower(lowering_platforms=("cuda",)).as_text()
    main = text[text.index("@main") :]
    assert main.count(f"@{CUSTOM_CALL}") == len(program.launches) == program.cost.launches
    assert not program.calls and set(re.findall(r"(?<!#)stablehlo\.(\w+)", main)) <= FREE


@pytest.mark.nightly
@pytest.mark.parametrize("name", WHOLE)
def test_xla_compiles_the_planned_launches_and_nothing_else(name):
    folders = [f for f in (os.environ.get("EQSAT_CUDA_PLUGIN"),) if f]
    if reason := xla.unavailable(folders):
        pytest.skip(reason)
    with xla.Xla("h100", folders) as peer:
        path = os.pathsep.join([*sys.path, *folders])
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": path, **peer.environment()}
        command = [sys.executable, __file__, name, *peer.arguments()]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    launches, planned = json.loads(done.stdout.splitlines()[-1])
    assert len(launches) == planned and {kind for kind, _ in map(str.split, launches)} == {"kCustomKernel"}


def main(name, card, dump):
    """In a process of its own, as flags of XLA are read once: its launches, and how many were planned."""
    program, fn = launched(name)
    flat = tuple(jax.ShapeDtypeStruct(t.shape, t.dtype) for t in program.inputs)
    found = xla_worker.Compiler(card, Path(dump)).compiled(Size(fn, flat), own=True, donate=program.donated)
    print(json.dumps([found["kernels"], len(program.launches)]))


if __name__ == "__main__":
    main(*sys.argv[1:])
