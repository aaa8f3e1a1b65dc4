"""The process that asks Inductor for its kernels: requests on standard input, one JSON line of launches and bytes for each.

Programs are translated from JAX equation by equation, so Inductor sees products and sums; its patterns for attention fire where
they match those.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from typing import Any

os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
warnings.simplefilter("ignore")

import torch  # noqa: E402

from benchmarks.peers import fake_cuda  # noqa: E402
from benchmarks.peers.process import serve  # noqa: E402
from benchmarks.torch_graph import DTYPES, traced  # noqa: E402
from benchmarks.workloads import Size, workloads  # noqa: E402
from eqsat.graph import Graph  # noqa: E402

OWN = re.compile(r"(triton_\w+)\.run\(")
LIBRARY = re.compile(r"(extern_kernels\.\w+|torch\.ops\.\w+\.\w+(?:\.\w+)?|aten\.\w+\.\w+)\(")


class Planned(Exception):
    """Inductor has written its code; nothing of it is to run."""


def grab(self: Any, wrapper: Any) -> None:
    nbytes, _, _ = self.count_bytes()
    raise Planned(wrapper.value, int(nbytes))


class Compiler:
    def __init__(self, card: str) -> None:
        import torch._functorch.config as functorch
        import torch._inductor.config as inductor
        from torch._inductor.graph import GraphLowering

        fake_cuda.install(card)
        inductor.compile_threads, inductor.fx_graph_cache = 1, False
        functorch.enable_autograd_cache = False
        GraphLowering._compile_to_module_lines = grab  # type: ignore[assignment]

    def routes(self, size: Size) -> dict[str, Any]:
        source, nbytes = self._source(Graph.from_jax(size.fn, *size.args))
        call = source[source.index("def call(self, args)") :]
        call = call[: call.index("\nrunner =")]
        kernels = [*OWN.findall(call), *LIBRARY.findall(call)]
        return {"Inductor": {"launches": len(kernels), "nbytes": nbytes, "kernels": kernels}}

    def _source(self, graph: Graph) -> tuple[str, int]:
        from torch._inductor.compile_fx import compile_fx
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.fx.experimental.proxy_tensor import make_fx

        torch._dynamo.reset()
        with FakeTensorMode(allow_non_fake_inputs=True):
            on_card = [torch.empty(tuple(v.shape), dtype=DTYPES[v.dtype], device="cuda") for v in graph.inputs]
            moved = make_fx(_moved(traced(graph)), tracing_mode="real")(*on_card)
            try:
                compile_fx(moved, on_card)(*on_card)
            except Exception as error:
                found = _cause(error)
                if found is None:
                    raise
                return found.args[0], found.args[1]
        raise RuntimeError("Inductor wrote no code")


def _moved(graph: Any) -> Any:
    """A graph traced on the CPU, as a function of tensors on the card."""
    card = torch.device("cuda", 0)
    for node in graph.graph.nodes:
        if node.kwargs.get("device") is not None:
            node.kwargs = {**node.kwargs, "device": card}
        node.args = tuple(card if isinstance(x, torch.device) else x for x in node.args)
    graph.recompile()
    return torch.fx.Interpreter(graph).run


def _cause(error: BaseException | None) -> Planned | None:
    while error is not None and not isinstance(error, Planned):
        error = getattr(error, "inner_exception", None) or error.__cause__ or error.__context__
    return error


def main() -> None:
    compiler, known = Compiler(sys.argv[1]), {w.name: w for w in workloads()}
    serve(lambda name: compiler.routes(known[name].full))


if __name__ == "__main__":
    main()
