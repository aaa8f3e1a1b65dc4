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

from eqsat import names
from eqsat.frontends.errors import well_formed
from eqsat.frontends.torch import (  # noqa: F401  (each fills the table)
    attention,
    contractions,
    creation,
    elementwise,
    fourier,
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

__all__ = ["TABLE", "TorchError", "Unsupported", "function", "read"]


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


def function(source: Any) -> Model:
    """A `torch.export.ExportedProgram` as a JAX function of its tensors in order. It needs 64-bit JAX: dtypes are exact."""
    return Model(source)


class Model:
    """An exported program that JAX may trace. Dimensions that it was exported with as dynamic ones may be symbols."""

    def __init__(self, source: Any) -> None:
        if not isinstance(source, torch.export.ExportedProgram):
            raise TypeError(
                f"eqsat.function: a torch.export.ExportedProgram required, got {type(source).__name__}; "
                "torch.export.export(module, args, dynamic_shapes=...) makes one"
            )
        self._found = exported(source, None, None)
        self.__name__ = self._found.name
        if self._found.mutated:
            written = ", ".join(sorted(self._found.mutated))
            raise Unsupported(f"{self.__name__}: a module that writes into no tensor required, got writes to {written}")
        missing(self._found.module, self.__name__)
        with jax.enable_x64(True):
            self._constants = self._found.constants()
        self._interpreter = Interpreter(self._found.module, self.__name__, self._constants)
        self._inputs, self._tree = jax.tree_util.tree_flatten((self._found.args, self._found.kwargs))
        self.__signature__ = names.signature(jax.tree_util.tree_leaves(self._found.input_names))

    @property
    def shapes(self) -> tuple[str, ...]:
        """Of the tensors, with torch's names for dynamic sizes."""
        return tuple(", ".join(map(str, fake.shape)) for fake in self._found.tensors)

    def __call__(self, *values: Any) -> Any:
        if jax.dtypes.canonicalize_dtype(np.float64) != np.float64:
            raise Unsupported(
                f"{self.__name__}: JAX's 64-bit mode required, since torch's dtypes are exact; "
                "call jax.config.update('jax_enable_x64', True) first, or this under jax.enable_x64(True)"
            )
        for value, fake in zip(values, self._found.tensors, strict=True):
            if value.dtype != dtype_of(fake.dtype):
                raise TypeError(f"{self.__name__}: a tensor of {dtype_of(fake.dtype)} required, got {value.dtype}")
        args, kwargs = jax.tree_util.tree_unflatten(self._tree, values)
        with well_formed(TorchError, self.__name__, "module"):
            return self._found.results(self._interpreter.run(self._found.placeholders(args, kwargs, self._constants)))[0]


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
