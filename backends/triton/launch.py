"""Call an emitted kernel inside `jax.jit`, without torch: its Triton IR goes to XLA in the custom call that Pallas uses.

XLA compiles the IR with its own Triton and schedules the kernel as one of its own. The program that holds the call runs
on CUDA devices only; it can be traced and lowered anywhere.
"""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np

from eqsat.tile import TileProgram

from .compiler import capability, triton_ir

CUSTOM_CALL = "__gpu$xla.gpu.triton"


def call(source: str, program: TileProgram, *arrays: jax.Array, target: str | int = "sm_90") -> tuple[jax.Array, ...]:
    """Outputs of the kernel on arrays with the shapes and dtypes of `program.inputs`; `target` is the card's capability."""
    _check(program, arrays)
    if program.programs == 0:
        return tuple(jnp.zeros(t.shape, t.dtype) for t in program.outputs)
    name, text = triton_ir(source, program, capability(target))
    zeros = [jnp.zeros(program.outputs[n].shape, program.outputs[n].dtype) for n in program.zeroed]
    text = _with_unused(text, len(arrays), len(zeros))
    results = tuple(jax.ShapeDtypeStruct(t.shape, np.dtype(t.dtype)) for t in program.outputs)  # type: ignore[no-untyped-call]
    aliases = {taken: n for n, taken in program.in_place.items()}  # XLA copies the input first if it is needed later
    aliases |= {len(arrays) + k: n for k, n in enumerate(program.zeroed)}
    outputs = jax.ffi.ffi_call(CUSTOM_CALL, results, input_output_aliases=aliases)(
        *arrays,
        *zeros,
        name=name,
        ir=text,
        num_warps=np.int32(program.num_warps),
        num_stages=np.int32(program.num_stages),
        grid_x=np.int32(program.programs),
        grid_y=np.int32(1),
        grid_z=np.int32(1),
        debug=False,
    )
    return tuple(outputs)


def _with_unused(ir: str, place: int, count: int) -> str:
    """The kernel with parameters at a place that it does not use, as each operand of the call is one."""
    head = re.search(r"(tt\.func public @\w+\()(.*?)(\) attributes)", ir)
    if head is None:
        raise ValueError(f"no kernel in the compiler's IR:\n{ir[:500]}")
    parameters = re.findall(r"%\w+: [^{]*\{[^}]*\}", head[2])
    parameters[place:place] = [f"%unused_{n}: !tt.ptr<i8> {{tt.divisibility = 16 : i32}}" for n in range(count)]
    return f"{ir[: head.start(2)]}{', '.join(parameters)}{ir[head.end(2) :]}"


def _check(program: TileProgram, arrays: tuple[jax.Array, ...]) -> None:
    """The kernel takes addresses only: a wrong shape would read past the end."""
    given = [(tuple(a.shape), np.dtype(a.dtype).name) for a in arrays]
    wanted = [(t.shape, t.dtype) for t in program.inputs]
    if given != wanted:
        raise TypeError(f"{program.name}: expected arrays {wanted}, got {given}")
