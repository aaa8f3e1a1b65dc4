"""The official compiler on emitted text: Triton IR for XLA, and machine code for static reports. Needs no GPU."""

from __future__ import annotations

import inspect
import re
from functools import lru_cache
from typing import Any

from eqsat.tile import TileProgram

from .amd import LANES
from .source import kernel, load

ALIGNMENT = 16  # bytes; XLA and torch align every buffer at least so, and wide loads depend on knowing it

Signature = tuple[str, ...]
Architecture = int | str  # a compute capability, or LLVM's name of an AMD GPU


def signature(program: TileProgram) -> Signature:
    """Dtypes of the kernel's parameters, in order."""
    return tuple(t.dtype for t in (*program.inputs, *program.outputs))


def capability(target: str | int) -> int:
    """Compute capability of a target: 90, "90", "sm_90", "sm_90a" or "cuda:90"."""
    found = re.fullmatch(r"(?:sm_?|cuda:)?(\d{2,3})[af]?", str(target))
    if found is None:
        raise ValueError(f"target {target!r}: expected a compute capability, such as sm_90")
    return int(found[1])


def architecture(target: str | int) -> Architecture:
    """What the compiler calls a target: AMD's by LLVM's name, such as "gfx942", NVIDIA's by the compute capability."""
    return str(target) if re.fullmatch(r"gfx9[0-9a-f]{2}", str(target)) else capability(target)


def machine_code(source: str, program: TileProgram, target: Architecture) -> Any:
    """Triton's compiled kernel: `asm` holds "ttir" and "cubin" or, for AMD, "amdgcn"; `metadata` the resources."""
    import triton

    return triton.compile(_ast(source, signature(program)), target=_target(target), options=_options(program))


def triton_ir(source: str, program: TileProgram, cc: int) -> tuple[str, str]:
    """Name of the kernel and its Triton IR as text: the first stage of the compiler only."""
    return _triton_ir(source, signature(program), tuple(_options(program).items()), cc)


@lru_cache(maxsize=1024)
def _triton_ir(source: str, dtypes: Signature, options: tuple[tuple[str, Any], ...], cc: int) -> tuple[str, str]:
    from triton._C.libtriton import ir
    from triton.compiler.compiler import make_backend

    target, tree = _target(cc), _ast(source, dtypes)
    backend = make_backend(target)
    parsed = backend.parse_options(dict(options))
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    stages: dict[str, Any] = {}
    backend.add_stages(stages, parsed, tree.language)
    module = tree.make_ir(target, parsed, backend.get_codegen_implementation(parsed), backend.get_module_map(), context)
    text = stages["ttir"](module, {}).str_nodebug()  # without paths of the machine, so that equal programs lower to equal text
    name = re.search(r"tt\.func public @(\w+)", text)
    if name is None:
        raise ValueError(f"no kernel in the compiler's IR:\n{text[:500]}")
    return name[1], text


def _options(program: TileProgram) -> dict[str, Any]:
    """What `launch` of the emitted file gives, too: whether an addition takes a product unrounded has no default in common."""
    return {"num_warps": program.num_warps, "num_stages": program.num_stages, "enable_fp_fusion": not program.exact}


def _target(target: Architecture) -> Any:
    from triton.backends.compiler import GPUTarget

    return GPUTarget("hip", target, LANES) if isinstance(target, str) else GPUTarget("cuda", target, 32)


def _ast(source: str, dtypes: Signature) -> Any:
    from triton._utils import canonicalize_dtype
    from triton.compiler import ASTSource

    function = kernel(load(source))
    names = inspect.signature(function.fn).parameters
    types = {name: f"*{canonicalize_dtype(dtype)}" for name, dtype in zip(names, dtypes, strict=True)}
    aligned = {(i,): [["tt.divisibility", ALIGNMENT]] for i in range(len(dtypes))}
    return ASTSource(function, signature=types, constexprs={}, attrs=aligned)
