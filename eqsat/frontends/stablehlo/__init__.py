"""StableHLO modules as graphs: the module becomes a JAX function, and that is traced.

Text, MLIR bytecode and portable artifacts are parsed by JAX's own MLIR bindings. Arguments keep their names, results theirs
where the module says them; the call takes the arguments in order and returns one result, or a tuple. 64-bit types need
64-bit JAX: nothing is narrowed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.extend.mlir.ir as ir

from eqsat import names
from eqsat.frontends.errors import well_formed
from eqsat.frontends.labels import Mark, labelled
from eqsat.frontends.stablehlo import (  # noqa: F401  (each fills the table)
    collectives,
    contractions,
    control,
    elementwise,
    reductions,
    views,
)
from eqsat.frontends.stablehlo import module as modules
from eqsat.frontends.stablehlo.importer import Importer, check
from eqsat.frontends.stablehlo.table import StablehloError, Unsupported, structure
from eqsat.graph import Graph, Variable, trace

__all__ = ["StablehloError", "Unsupported", "function", "read"]


def read(source: Any, *, shapes: Mapping[str, Any] | None = None) -> Graph:
    """The graph of a module's function `main`.

    source: text, bytes (MLIR bytecode or a portable artifact), a path to either, or a `jax.export.Exported`.
    shapes: shapes (or arrays that have them) of the arguments whose dimensions the module leaves open, by name or position.

    Raises `StablehloError`, a ValueError, for a module that is malformed; its subclass `Unsupported` names everything that has
    no meaning here: custom calls other than LAPACK's, collectives over other groups than a mesh's axes, quantised types.
    """
    module, file = modules.load(source)
    name = file or _name(module)
    with well_formed(StablehloError, name, "module"):
        module = modules.bound(module, name, shapes)
        with module.context:
            return _read(module, name)


def function(source: Any) -> Callable[..., Any]:
    """A module as a JAX function of its arguments in order, read anew for the shapes it is traced for, which must be numbers."""
    module, file = modules.load(source)
    name, text = file or _name(module), module.operation.get_asm(enable_debug_info=True)

    def run(*values: Any) -> Any:
        if any(jax.export.is_symbolic_dim(n) for v in values for n in v.shape):
            raise StablehloError(
                f"{name}: numbers required as sizes, since StableHLO has no names for open ones; "
                "give eqsat.jit no buckets=, so that each size has a program, or the JAX function itself"
            )
        return read(text, shapes={str(n): v.shape for n, v in enumerate(values)})(*values)

    with module.context:
        run.__signature__ = names.signature(modules.argument_names(module, modules.main_of(module, name)))  # type: ignore
    run.__name__ = names.identifier(name)
    return run


def _read(module: Any, name: str) -> Graph:
    main = modules.main_of(module, name)
    importer = Importer(module, name)
    check(importer, main)
    inputs = modules.argument_names(module, main)
    count = 0

    def run(*values: Any) -> Any:
        nonlocal count
        results = importer.run(main, values)
        count = len(results)
        traced = [value for _, value in importer.trail if isinstance(value, jax.core.Tracer)]
        return [jax.numpy.asarray(r) for r in results], traced

    run.__name__ = names.identifier(name)
    graph = trace(run, [structure(v.type) for v in modules.arguments(main)], {})
    marks = [
        Mark(source, None, v)
        for (source, _), v in zip(
            (t for t in importer.trail if isinstance(t[1], jax.core.Tracer)), graph.outputs[count:], strict=True
        )
    ]
    hints = {v: names.identifier(n) for v, n in zip(graph.inputs, inputs, strict=True)}
    for v, n in zip(graph.outputs, modules.result_names(main, count), strict=False):
        if n is not None and isinstance(v, Variable) and v not in hints:
            hints[v] = names.identifier(n)
    tree = jax.tree_util.tree_structure(0 if count == 1 else (0,) * count)
    return labelled(graph, marks, count, hints, tree)


def _name(module: Any) -> str:
    attributes = module.operation.attributes
    given = ir.StringAttr(attributes["sym_name"]).value if "sym_name" in attributes else "main"
    return re.sub(r"^jit_+", "", given) or "main"
