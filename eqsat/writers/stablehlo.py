"""Programs as StableHLO, by JAX's own exporter."""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING, Any

import jax
from jax import export

from eqsat.places import file_to_write
from eqsat.writers.plan import function_of, specs_of

if TYPE_CHECKING:
    from eqsat.program import Program


def exported(program: Program) -> Any:
    """The program as a `jax.export.Exported`; raises ValueError for what no module can hold, such as a callback."""
    try:
        return export.export(jax.jit(function_of(program), keep_unused=True), platforms=("cpu",))(*specs_of(program))
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        raise ValueError(f"{program.name}: a program that StableHLO can hold required, got one that fails: {reason}") from error


def save(program: Program, path: str | PathLike[str]) -> Any:
    """Write the module and return the `jax.export.Exported`: a portable artifact to `<name>.mlirbc`, text to any other file."""
    place = file_to_write(f"{program.name} as StableHLO", path)
    module = exported(program)
    place.write_bytes(module.mlir_module_serialized if place.suffix == ".mlirbc" else module.mlir_module().encode())
    return module
