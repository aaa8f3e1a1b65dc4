"""eqsat as a backend of ONNX's own test runner: a model is optimised in the exact tier for the inputs that it is run with."""

from __future__ import annotations

import unittest
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import onnx_cases
from onnx.backend.base import Backend, BackendRep
from onnx.backend.test.runner import Runner

import eqsat


class Optimized(BackendRep):
    """A model; `run` takes its inputs in order and returns its outputs in order, as NumPy arrays and lists of them."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def run(self, inputs: Any, **_: Any) -> tuple[Any, ...]:
        names = [v.name for v in self.model.graph.input]
        with jax.enable_x64(True):
            graph, arguments = onnx_cases.imported(self.model, dict(zip(names, inputs, strict=False)))
            results = eqsat.optimize(graph, numerics="exact", time_limit=5.0)(*arguments)
            return tuple(jax.tree_util.tree_map(np.asarray, list(results.values())))


class Eqsat(Backend):
    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", **_: Any) -> Optimized:
        return Optimized(model)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device == "CPU"


def node_tests() -> Iterator[tuple[str, Callable[[], None]]]:
    """(name, test) of every node test that ONNX's runner makes."""
    case = Runner(Eqsat, __name__).test_cases["OnnxBackendNodeModelTest"]
    for name in unittest.defaultTestLoader.getTestCaseNames(case):
        if name.endswith("_cpu"):
            yield name.removesuffix("_cpu"), case(name).debug


def judged(case: Any) -> None:
    """One case as the runner judges it, which takes a minute to make them all."""
    run = Optimized(case.model).run
    for inputs, outputs in case.data_sets:
        got = run([onnx_cases.array(value) for value in inputs])
        Runner.assert_similar_outputs([onnx_cases.array(value) for value in outputs], got, case.rtol, case.atol)
