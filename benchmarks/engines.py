"""The engines: ways to run a program on flat lists of arrays. A new engine is a row of the table.

"X, eqsat" is another compiler on the program that eqsat found.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from benchmarks import others
from benchmarks.workloads import Size, Workload
from eqsat.graph import Graph
from eqsat.oracle import evaluate_graph

Array = Any
Run = Callable[[Sequence[Array]], list[Array]]


@dataclass(frozen=True)
class Engine:
    """`prepare` makes a program runnable; `module` and `tool` must be there for that: a package, and a program on PATH."""

    name: str
    prepare: Callable[[Workload, Size, Graph], Run]
    module: str = ""
    tool: str = ""
    default: bool = False

    @property
    def missing(self) -> str:
        """Why the engine cannot run here; empty if it can."""
        if self.module and importlib.util.find_spec(self.module) is None:
            return "not installed"
        return f"needs {self.tool}, which is not on PATH" if self.tool and shutil.which(self.tool) is None else ""


def eqsat_engine(numerics: str) -> Callable[[Workload, Size, Graph], Run]:
    def prepare(workload: Workload, size: Size, graph: Graph) -> Run:
        import eqsat

        program = eqsat.optimize(size.fn, *size.args, target=others.target(), numerics=numerics, constants=workload.constants)
        return called(program, size)

    return prepare


def called(function: Callable[..., Any], size: Size) -> Run:
    """Called with arguments as its user has them."""
    structure = jax.tree.structure(size.args)
    return lambda flat: jax.tree.leaves(function(*jax.tree.unflatten(structure, flat)))


def jit(workload: Workload, size: Size, graph: Graph) -> Run:
    return called(jax.jit(size.fn), size)


def op_by_op(workload: Workload, size: Size, graph: Graph) -> Run:
    return lambda flat: evaluate_graph(graph, flat)


def torch_engine(compiled: bool) -> Callable[[Workload, Size, Graph], Run]:
    def prepare(workload: Workload, size: Size, graph: Graph) -> Run:
        import torch

        from benchmarks.torch_graph import to_numpy, to_torch, torch_function, traced

        device = "cuda" if jax.default_backend() == "gpu" else "cpu"
        called = torch_function(graph, device)
        if compiled:
            called = torch.compile(traced(graph, device), dynamic=False, fullgraph=True)

        def run(flat: Sequence[Array]) -> list[Array]:
            with torch.inference_mode():
                return [to_numpy(t) for t in called(*to_torch(flat))]

        return run

    return prepare


ENGINES: dict[str, Engine] = {
    e.name: e
    for e in [
        Engine("eqsat", eqsat_engine("reassociate"), default=True),
        Engine("eqsat exact", eqsat_engine("exact")),
        Engine("eqsat fast", eqsat_engine("fast")),
        Engine("jax.jit", jit, default=True),
        Engine("op by op", op_by_op, default=True),
        Engine("torch", torch_engine(False), "torch"),
        Engine("torch.compile", torch_engine(True), "torch"),
        Engine("ONNX Runtime", others.onnx_runtime(others.onnx_as_written), "onnxruntime"),
        Engine("ONNX Runtime, eqsat", others.onnx_runtime(others.onnx_rewritten), "onnxruntime"),
        Engine("IREE", others.iree(others.stablehlo_as_written), "iree"),
        Engine("IREE, eqsat", others.iree(others.stablehlo_rewritten), "iree"),
        Engine("TVM", others.tvm, "tvm"),
        Engine("tinygrad", others.tinygrad, "tinygrad", tool="clang"),
    ]
}


def chosen(names: Sequence[str] | None = None) -> list[Engine]:
    """Engines by name, or the default ones. Raises ValueError for one that cannot run."""
    if names is None:
        return [e for e in ENGINES.values() if e.default]
    for name in names:
        if name not in ENGINES:
            raise ValueError(f"engine {name!r}: one of {', '.join(ENGINES)} required")
        if ENGINES[name].missing:
            raise ValueError(f"engine {name!r}: {ENGINES[name].missing}")
    return [ENGINES[name] for name in names]
