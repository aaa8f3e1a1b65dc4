"""Bytecode on standard input to text on standard output, as a process of its own: damaged bytecode crashes MLIR's reader."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import jax.extend.mlir.ir as ir
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters.mlir import make_ir_context

ARTIFACT = b"StableHLO_v"
MEMORY_BYTES = 32 << 30  # of addresses; JAX alone takes a few


def parsed(data: bytes) -> Any:
    """A module from MLIR's bytecode or from a portable artifact."""
    context = make_ir_context()
    if ARTIFACT in data[:64]:
        return stablehlo.deserialize_portable_artifact(context, data)
    return ir.Module.parse(data, context)


def main() -> None:
    with contextlib.suppress(ImportError, ValueError, OSError):  # where the system has no such limit
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    parsed(sys.stdin.buffer.read()).operation.print(file=sys.stdout.buffer, binary=True, enable_debug_info=True)


if __name__ == "__main__":
    main()
