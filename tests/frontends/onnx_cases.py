"""ONNX's own node tests: models with inputs and outputs, which the package `onnx` makes while its modules are imported."""

from __future__ import annotations

import importlib
import pkgutil
import warnings
import zlib
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import jax
import numpy as np
import onnx
from onnx.backend.test.case import node as suite

from eqsat.frontends.onnx import Unknown
from eqsat.graph import Graph

LOOSE = {"bfloat16": 2e-2}  # relative; others as ONNX says
ABSOLUTE = {"DFT": 1e-5}  # zeros among sums of float32 values near 10; ONNX's are sums of float64


def modules() -> list[str]:
    """One for each operator, more or less."""
    prefix = f"{suite.__name__}."
    found = pkgutil.walk_packages(suite.__path__, prefix)
    return sorted(module.name.removeprefix(prefix) for module in found if not module.ispkg)


@lru_cache
def cases(module: str) -> tuple[Any, ...]:
    before = len(suite._NodeTestCases)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module(f"{suite.__name__}.{module}")
    return tuple(suite._NodeTestCases[before:])


def is_sampled(name: str, one_in: int) -> bool:
    return zlib.crc32(name.encode()) % one_in == 0


def array(value: Any) -> Any:
    if isinstance(value, list):
        return [array(v) for v in value]
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def imported(model: Any, given: dict[str, Any]) -> tuple[Graph, list[Any]]:
    """The graph, and the arguments left: what has to be known while importing is bound."""
    constants: dict[str, Any] = {}
    for v in model.graph.input:
        is_text = np.asarray(given[v.name]).dtype.kind in "OUS" if v.type.HasField("tensor_type") else False
        if v.name in given and (is_text or v.type.HasField("optional_type")):
            constants[v.name] = given[v.name]
    while True:
        shapes = {name: value for name, value in given.items() if name not in constants}
        try:
            graph = Graph.from_onnx(model, inputs=shapes, constants=constants)
        except Unknown as error:
            more = {name: given[name] for name in error.names if name not in constants}
            if not more:
                raise
            constants |= more
            continue
        return graph, [value for v in model.graph.input if (value := shapes.get(v.name)) is not None]


def check(case: Any, run: Callable[[Graph], Callable[..., Any]]) -> None:
    """Import a case, run it, compare shapes, dtypes and values."""
    for inputs, outputs in case.data_sets:
        names = [v.name for v in case.model.graph.input]
        graph, arguments = imported(case.model, dict(zip(names, map(array, inputs), strict=False)))
        got = jax.tree_util.tree_leaves(run(graph)(*arguments))
        wanted = jax.tree_util.tree_leaves([array(output) for output in outputs])
        assert len(got) == len(wanted)
        for mine, theirs in zip(map(np.asarray, got), map(np.asarray, wanted), strict=True):
            assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
            rtol = max(case.rtol, LOOSE.get(mine.dtype.name, 0))
            if mine.dtype.kind == "V" or mine.dtype.itemsize == 1:
                mine, theirs = mine.astype(np.float32), theirs.astype(np.float32)
            atol = max(case.atol, ABSOLUTE.get(case.model.graph.node[0].op_type, 0))
            np.testing.assert_allclose(mine, theirs, rtol=rtol, atol=atol)


def operators(model: Any) -> Iterator[str]:
    """Names of the operators a model uses, also in bodies."""
    from eqsat.frontends.onnx.model import bodies

    def inside(nodes: Any) -> Iterator[str]:
        for node in nodes:
            yield f"{node.domain}::{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
            for body in bodies(node):
                yield from inside(body.node)

    yield from inside(model.graph.node)
