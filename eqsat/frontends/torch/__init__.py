"""PyTorch modules as graphs: torch exports and decomposes them, each operator becomes a JAX function, and that is traced.

Parameters and buffers become constants under their names. The call keeps the module's arguments and results, dtypes are exact
(a program with int64 or float64 runs in JAX's 64-bit mode), and sizes are those of the example inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

try:
    import torch
except ImportError as error:
    raise ImportError("Graph.from_torch: the package torch required, got none; pip install 'eqsat[torch]'") from error

from eqsat.frontends.errors import well_formed
from eqsat.frontends.torch import (  # noqa: F401  (each fills the table)
    attention,
    contractions,
    creation,
    elementwise,
    indexing,
    normalization,
    pooling,
    reductions,
    resize,
    views,
)
from eqsat.frontends.torch.export import Exported, exported
from eqsat.frontends.torch.interpreter import Interpreter, missing
from eqsat.frontends.torch.table import TABLE, TorchError, Unsupported
from eqsat.frontends.torch.tensors import dtype_of
from eqsat.graph import Graph, Variable, trace

__all__ = ["TABLE", "TorchError", "Unsupported", "read"]


def read(
    source: Any, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None, *, mutations: bool = False
) -> Graph:
    """The graph of a `torch.nn.Module` or a `torch.export.ExportedProgram`.

    args, kwargs: example inputs of the call: tensors, or anything with a shape and a dtype; an exported program may bring its
    own. They fix the sizes of dynamic dimensions. A keyword argument that holds no tensor is bound to its value.
    mutations: the result is ``(results, {name: value})`` with what the module writes into its buffers and inputs.

    Raises `TorchError`, a ValueError, for a module that cannot be exported or writes into its tensors without `mutations`;
    its subclass `Unsupported` names every operator that is missing here.
    """
    found = exported(source, args, kwargs)
    if found.mutated and not mutations:
        raise Unsupported(
            f"{found.name}: a module that writes into no tensor required, got writes to {', '.join(sorted(found.mutated))}; "
            "call module.eval() first, or pass mutations=True for (results, written values)"
        )
    missing(found.module, found.name)
    with jax.enable_x64(True):
        constants = found.constants()
        interpreter = Interpreter(found.module, found.name, constants)

        def run(*args: Any, **kwargs: Any) -> Any:
            outputs, written = found.results(interpreter.run(found.placeholders(args, kwargs, constants)))
            return (outputs, written) if mutations else outputs

        run.__name__ = found.name
        shapes = jax.tree_util.tree_map(_shape, (found.args, found.kwargs))
        with well_formed(TorchError, found.name, "module"):
            return _named(trace(run, *shapes), found, interpreter)


def _shape(leaf: Any) -> jax.ShapeDtypeStruct:
    if isinstance(leaf, torch.Tensor):
        return jax.ShapeDtypeStruct(tuple(leaf.shape), dtype_of(leaf.dtype))
    return jax.ShapeDtypeStruct(tuple(leaf.shape), np.dtype(leaf.dtype))


def _named(graph: Graph, found: Exported, interpreter: Interpreter) -> Graph:
    """With the module's names on inputs, constants and results that have a key."""
    known = {id(value): name for name, value in interpreter.constants.items()}
    hints = {v: known[id(value)] for v, value in graph.constants.items() if id(value) in known}
    hints |= dict(zip(graph.inputs, jax.tree_util.tree_leaves(found.input_names), strict=True))
    results = jax.tree_util.tree_unflatten(graph.out_tree, range(graph.out_tree.num_leaves))
    for path, n in jax.tree_util.tree_flatten_with_path(results)[0]:
        keys = [str(k.key) for k in path if isinstance(k, jax.tree_util.DictKey)]
        if keys and isinstance(v := graph.outputs[n], Variable):
            hints.setdefault(v, "_".join(keys))
    return replace(graph, hints=hints)
