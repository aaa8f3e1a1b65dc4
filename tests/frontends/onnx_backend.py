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


def runner(kind: str = "Node") -> Iterator[tuple[str, Callable[[], None]]]:
    """(name, test) of every test that ONNX's runner makes of a kind: Node, Simple, PyTorchOperator, PyTorchConverted, Real."""
    case = Runner(Eqsat, __name__).enable_report().test_cases[f"OnnxBackend{kind}ModelTest"]
    for name in unittest.defaultTestLoader.getTestCaseNames(case):
        if name.endswith("_cpu"):
            yield name.removesuffix("_cpu"), case(name).debug


if __name__ == "__main__":
    import sys
    import time

    kinds, first, step = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    n = 0
    start = time.time()
    for i, (name, test) in enumerate(runner(kinds)):
        if i % step != first:
            continue
        t = time.time()
        try:
            test()
            said = "ok"
        except unittest.SkipTest as e:
            said = f"skip {e}"
        except BaseException as e:
            said = f"{type(e).__name__}: {str(e).strip()[:300]!r}"
        print(f"{time.time() - t:.2f} {name} {said}", flush=True)
        n += 1
        if n % 60 == 0:
            jax.clear_caches()
    print("total", n, time.time() - start)
