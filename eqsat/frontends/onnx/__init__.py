"""ONNX models as graphs: the model becomes a JAX function, and that is traced.

Inputs and outputs keep their names and their order; the call returns an `OrderedDict`. Initialisers become constants, shape
arithmetic is done while importing. Without 64-bit JAX, int64 becomes int32 and float64 is refused.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

try:
    import onnx  # noqa: F401  (the package, not this one)
except ImportError as error:
    raise ImportError("Graph.from_onnx: the package onnx required, got none; pip install 'eqsat[onnx]'") from error

from eqsat import names
from eqsat.frontends import labels
from eqsat.frontends.errors import well_formed
from eqsat.frontends.labels import Mark
from eqsat.frontends.onnx import (  # noqa: F401  (each fills the table)
    attention,
    contractions,
    control,
    elementwise,
    indexing,
    microsoft,
    ml,
    normalization,
    pooling,
    quantization,
    recurrent,
    reductions,
    resize,
    sampling,
    sequences,
    signal,
    training,
    views,
)
from eqsat.frontends.onnx import model as files
from eqsat.frontends.onnx.importer import Importer, Scope, definition, lift
from eqsat.frontends.onnx.signature import free, signature, spelled
from eqsat.frontends.onnx.table import OnnxError, Unknown, Unsupported, find
from eqsat.graph import Graph, Source, Variable, trace

__all__ = ["OnnxError", "Unknown", "Unsupported", "function", "read"]


def read(
    source: Any,
    *,
    inputs: Mapping[str, Any] | None = None,
    dims: Mapping[str, int] | None = None,
    constants: Mapping[str, Any] | None = None,
) -> Graph:
    """The graph of a model.

    source: a path or an `onnx.ModelProto`.
    inputs: shapes of inputs (or arrays that have them) where the model leaves them open.
    dims: sizes of the model's named dimensions.
    constants: values of inputs that never change; what depends on them alone is computed while importing.

    Raises `OnnxError`, a ValueError, for a model that is malformed; its subclass `Unsupported` names every node that is
    missing here, and `Unknown` the values that must be bound.
    """
    model = function(source, constants=constants)
    with well_formed(OnnxError, model.name, "model"):
        return _read(model, dict(inputs or {}), dict(dims or {}))


def function(source: Any, *, constants: Mapping[str, Any] | None = None) -> Model:
    """A model as a JAX function of its other inputs, in order, at whatever sizes it is traced for; source, constants as above."""
    return Model(*files.load(source), constants or {})


class Model:
    """A model that JAX may trace. Sizes that the file leaves open may be symbols of `jax.export.symbolic_shape`."""

    def __init__(self, model: Any, folder: Any, name: str, constants: Mapping[str, Any]) -> None:
        with well_formed(OnnxError, name, "model"):
            missing(model, model.graph.node, name, files.opsets(model.opset_import), branches=False)
            self.proto, self.folder, self.name, self.constants = model, folder, name, constants
            self.outputs = [v.name for v in model.graph.output]
            if len(set(self.outputs)) != len(self.outputs):
                raise OnnxError(f"{name}: distinct output names required, got {self.outputs}")
            self.inputs = free(model.graph, constants)
            self.__name__ = names.identifier(name)
            self.__signature__ = names.signature(self.inputs)

    @property
    def shapes(self) -> tuple[str, ...]:
        """The inputs' shapes as the file names them, as `eqsat.jit` takes them."""
        return tuple(map(spelled, self.inputs.values()))

    def __call__(self, *values: Any) -> Any:
        if len(values) != len(self.inputs):
            raise OnnxError(f"{self.name}: inputs {list(self.inputs)} required, got {len(values)} arrays")
        given = dict(zip(self.inputs, values, strict=True))
        wanted, fixed = signature(self.proto.graph, self.name, given, {}, self.constants)
        given = {key: jax.numpy.asarray(value, wanted[key].dtype) for key, value in given.items()}
        with well_formed(OnnxError, self.name, "model"):
            return self.results(Importer(self.proto, self.folder), given | fixed)

    def results(self, importer: Importer, bound: Mapping[str, Any]) -> OrderedDict[str, Any]:
        """The outputs by name."""
        scope = Scope({}, files.opsets(self.proto.opset_import))
        results = importer.graph(self.proto.graph, bound, scope, outermost=True)
        return OrderedDict((key, _result(value, self.name, key)) for key, value in zip(self.outputs, results, strict=True))


def _read(source: Model, inputs: dict[str, Any], dims: dict[str, int]) -> Graph:
    importer = Importer(source.proto, source.folder)
    wanted, fixed = signature(source.proto.graph, source.name, inputs, dims, source.constants)
    tree: list[Any] = []

    def run(*values: Any) -> tuple[list[Any], list[Any]]:
        importer.trail.clear()
        named = source.results(importer, dict(zip(wanted, values, strict=True)) | fixed)
        flat, tree[:] = jax.tree_util.tree_flatten(named)[0], [jax.tree_util.tree_structure(named)]
        return flat, [value for *_, value in importer.trail if isinstance(value, jax.core.Tracer)]

    run.__name__ = source.__name__
    return labelled(trace(run, tuple(wanted.values()), {}), importer, _leaf_names(wanted), tree[0])


def _result(value: Any, name: str, key: str) -> Any:
    if value is None:
        raise Unsupported(f"{name}: tensors required as outputs, got nothing for {key!r}")
    return [_result(v, name, key) for v in value] if isinstance(value, list) else lift(value, key)


def _leaf_names(tree: Any) -> list[str]:
    """A sequence's elements are named after it and numbered."""
    paths, _ = jax.tree_util.tree_flatten_with_path(tree)
    return ["_".join(str(getattr(key, "key", getattr(key, "idx", key))) for key in path) for path, _ in paths]


# --- operators that are missing ---------------------------------------------------------------------------------


def missing(model: Any, nodes: Any, name: str, opsets: Mapping[str, int], branches: bool) -> None:
    """Raise one error for every node without meaning here. Branches of `If` count only where others are missing too."""
    own = {(files.DOMAINS.get(f.domain, f.domain), f.name): f for f in model.functions}
    certain: list[str] = []
    possible: list[str] = []

    def visit(nodes: Any, opsets: Mapping[str, int], found: list[str]) -> None:
        for number, node in enumerate(nodes):
            domain = files.DOMAINS.get(node.domain, node.domain)
            opset = opsets.get(domain, 1)
            known = (domain, node.op_type) in own or find(domain, node.op_type, opset) is not None
            if not known and definition(domain, node.op_type, opset, node, None) is None:
                spelled = f"{domain}::{node.op_type}" if domain else node.op_type
                found.append(f"{spelled} (node {files.label(node, number)!r}, opset {opset})")
            for body in files.bodies(node):
                visit(body.node, opsets, possible if node.op_type == "If" and not branches else found)

    visit(nodes, opsets, certain)
    for function in model.functions:
        visit(function.node, files.opsets(function.opset_import) or opsets, certain)
    if certain:
        listed = list(dict.fromkeys(certain + possible))
        raise Unsupported(f"{name}: operators of the table required, got {len(listed)} nodes without one: {'; '.join(listed)}")


# --- names ------------------------------------------------------------------------------------------------------


def labelled(graph: Graph, importer: Importer, inputs: list[str], tree: Any) -> Graph:
    """The traced graph with the model's names on its variables, and nodes as source lines.

    The trace returns every value of the outermost graph behind the outputs, which tells its variable.
    """
    marks = [entry for entry in importer.trail if isinstance(entry[3], jax.core.Tracer)]
    outputs = _leaf_names(jax.tree_util.tree_unflatten(tree, [0] * tree.num_leaves))
    declared, inner = graph.outputs[: len(outputs)], graph.outputs[len(outputs) :]
    hints = _constant_hints(graph, importer) | dict(zip(graph.inputs, inputs, strict=True))
    for name, v in zip(outputs, declared, strict=True):
        if isinstance(v, Variable):
            hints.setdefault(v, name)
    found = [
        Mark(Source(f"<{graph.name}.onnx>", number + 1, kind), name, v)
        for (number, kind, name, _), v in zip(marks, inner, strict=True)
    ]
    return labels.labelled(graph, found, len(outputs), hints, tree)


def _constant_hints(graph: Graph, importer: Importer) -> dict[Variable, str]:
    """Initialisers' names, found by where their data lies."""
    known = {_address(value): name for name, value in importer.initial.items()}
    return {v: name for v, value in graph.constants.items() if (name := known.get(_address(np.asarray(value)))) is not None}


def _address(value: np.ndarray) -> tuple[Any, ...]:
    return value.__array_interface__["data"][0], value.shape, value.dtype.str
