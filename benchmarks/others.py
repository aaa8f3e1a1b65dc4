"""Other compilers as engines. They get the program as ONNX or StableHLO: as it was written, or as eqsat rewrote it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from benchmarks.workloads import Size, Workload
from eqsat.graph import Graph

Array = Any
Run = Callable[[Sequence[Array]], list[Array]]
Prepare = Callable[[Workload, Size, Graph], Run]
Writer = Callable[[Size, Graph], Any]


def target() -> str:
    """The device whose costs guide eqsat's choice, whoever runs the result."""
    return "cpu" if jax.default_backend() == "cpu" else "h100"


def _optimized(size: Size) -> Any:
    import eqsat

    return eqsat.optimize(size.fn, *size.args, target=target())


def onnx_as_written(size: Size, graph: Graph) -> Any:
    from eqsat.writers.onnx import model_of_graph

    return model_of_graph(graph)


def onnx_rewritten(size: Size, graph: Graph) -> Any:
    return _optimized(size).to_onnx()


def stablehlo_as_written(size: Size, graph: Graph) -> str:
    return jax.export.export(jax.jit(flat_function(size), keep_unused=True))(*jax.tree.leaves(size.args)).mlir_module()


def stablehlo_rewritten(size: Size, graph: Graph) -> str:
    return str(_optimized(size).to_stablehlo())


def flat_function(size: Size) -> Callable[..., list[Array]]:
    """The program as a function of its leaves, one argument each."""

    def function(*flat: Array) -> list[Array]:
        return jax.tree.leaves(size.fn(*jax.tree.unflatten(jax.tree.structure(size.args), flat)))

    return function


def onnx_runtime(write: Writer) -> Prepare:
    def prepare(workload: Workload, size: Size, graph: Graph) -> Run:
        import onnxruntime

        session = onnxruntime.InferenceSession(write(size, graph).SerializeToString(), providers=["CPUExecutionProvider"])
        names = [i.name for i in session.get_inputs()]
        return lambda flat: session.run(None, dict(zip(names, map(np.asarray, flat), strict=True)))

    return prepare


def iree(write: Writer) -> Prepare:
    def prepare(workload: Workload, size: Size, graph: Graph) -> Run:
        import iree.compiler
        import iree.runtime

        options = ["--iree-llvmcpu-target-cpu=host"]
        compiled = iree.compiler.compile_str(
            write(size, graph), input_type="stablehlo", target_backends=["llvm-cpu"], extra_args=options
        )
        entry = iree.runtime.load_vm_flatbuffer(compiled, driver="local-task").main
        return lambda flat: [r.to_host() for r in _several(entry(*map(np.asarray, flat)))]

    return prepare


def tvm(workload: Workload, size: Size, graph: Graph) -> Run:
    import tvm as package
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    built = package.compile(from_onnx(onnx_as_written(size, graph)), target="llvm")
    entry = relax.VirtualMachine(built, package.cpu())["main"]
    return lambda flat: [r.numpy() for r in _several(entry(*(package.runtime.tensor(np.asarray(x)) for x in flat)))]


def tinygrad(workload: Workload, size: Size, graph: Graph) -> Run:
    from tinygrad import Tensor, TinyJit
    from tinygrad.nn.onnx import OnnxRunner

    model = onnx_as_written(size, graph)
    runner, names = OnnxRunner(Tensor(np.frombuffer(model.SerializeToString(), np.uint8))), [i.name for i in model.graph.input]

    @TinyJit
    def entry(*tensors: Any) -> list[Any]:
        return [t.realize() for t in runner(dict(zip(names, tensors, strict=True))).values()]

    return lambda flat: [t.numpy() for t in entry(*(Tensor(np.asarray(x)).realize() for x in flat))]


def _several(results: Any) -> Sequence[Any]:
    return list(results) if isinstance(results, list | tuple) or type(results).__name__ == "Array" else [results]
