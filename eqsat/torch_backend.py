"""PyTorch programs run by eqsat: the backend "eqsat" of `torch.compile`.

Each graph that torch traces, forward or backward, is optimised for the sizes it is called with and runs on arrays that share
memory with torch's tensors where both allow it. The program is optimised at the first call with new sizes. A call whose tensors
overlap otherwise than those of the first runs as torch would run it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import torch
from torch._dynamo.backends.common import aot_autograd

from eqsat.frontends.torch import Unsupported
from eqsat.frontends.torch.export import decompositions
from eqsat.frontends.torch.interpreter import Interpreter, missing
from eqsat.frontends.torch.tensors import array_of, dtype_of, tensor_of
from eqsat.graph import trace
from eqsat.optimizer import optimize
from eqsat.program import Program


def torch_compile(module: Any, **options: Any) -> Any:
    """A `torch.nn.Module` or function that runs by eqsat, as ``torch.compile(module, backend="eqsat", options=options)`` does.

    options: those of `eqsat.optimize`: target, numerics, objective, time_limit, rules. Gradients flow; their graph is
    optimised too. Raises `Unsupported` at the first call, naming every operator that is missing.
    """
    return torch.compile(module, backend=eqsat, options=options or None)


def eqsat(module: Any, example_inputs: Sequence[Any], options: Mapping[str, Any] | None = None) -> Callable[..., Any]:
    """The backend that `torch.compile` finds by name; called with a graph of torch functions."""
    given = dict(options or {})

    def compiler(graph: Any, _inputs: Sequence[Any]) -> Callable[..., Any]:
        missing(graph, "torch.compile")
        return Compiled(graph, given).boxed()

    fast = aot_autograd(fw_compiler=compiler, bw_compiler=compiler, decompositions=decompositions())(module, example_inputs)
    first: list[Any] = []  # the overlaps that torch traced for: it compares neither them nor the order of writes in later calls

    def run(*args: Any) -> Any:
        found = overlaps(args)
        first[:] = first or [found]
        return fast(*args) if found == first[0] else module(*args)

    return run


def overlaps(args: Sequence[Any]) -> set[tuple[int, int]]:
    """Pairs of arguments, by position, that may have elements in common."""
    stored: dict[Any, list[tuple[int, int, int]]] = {}
    for n, a in enumerate(args):
        if isinstance(a, torch.Tensor) and a.layout == torch.strided and a.numel():
            extent = 1 + sum((size - 1) * stride for size, stride in zip(a.shape, a.stride(), strict=True))
            start = a.storage_offset() * a.element_size()
            stored.setdefault(a.untyped_storage()._cdata, []).append((n, start, start + extent * a.element_size()))
    return {
        (n, m)
        for places in stored.values()
        for (n, start, stop), (m, begin, end) in itertools.combinations(places, 2)
        if start < end and begin < stop
    }


@dataclass(eq=False)
class Compiled:
    """One functional graph; a program for each combination of sizes it was called with."""

    graph: Any
    options: Mapping[str, Any]
    runs: dict[Any, Callable[..., list[Any]]] = field(default_factory=dict)

    def boxed(self) -> Callable[[list[Any]], list[Any]]:
        """The form that AOTAutograd calls: a list of arguments, which is emptied so that their memory can be freed."""

        def run(args: list[Any]) -> list[Any]:
            values = list(args)
            args.clear()
            return self(values)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    def __call__(self, args: Sequence[Any]) -> list[Any]:
        key = tuple((a.dtype, tuple(a.shape)) if isinstance(a, torch.Tensor) else a for a in args)
        if key not in self.runs:
            self.runs[key] = self.specialised(args)
        return self.runs[key](*(a for a in args if isinstance(a, torch.Tensor)))

    def specialised(self, args: Sequence[Any]) -> Callable[..., list[Any]]:
        """The graph with its numbers bound and its sizes fixed, optimised."""
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        _check_devices(tensors)
        fixed: list[Any] = []  # for each result: None where it is an array, else (value,)
        with jax.enable_x64(True):
            interpreter = Interpreter(self.graph, "torch.compile")

            def forward(*arrays: Any) -> list[Any]:
                flow = iter(arrays)
                results = interpreter.run([next(flow) if isinstance(a, torch.Tensor) else a for a in args])
                fixed[:] = [None if hasattr(r, "dtype") else (r,) for r in results]
                return [r for r in results if hasattr(r, "dtype")]

            shapes = [jax.ShapeDtypeStruct(tuple(t.shape), dtype_of(t.dtype)) for t in tensors]
            graph = trace(forward, shapes, {})
        return _runner(optimize(graph, **self.options), fixed)


def _check_devices(tensors: Sequence[torch.Tensor]) -> None:
    wanted = {"gpu": "cuda"}.get(jax.default_backend(), jax.default_backend())
    if wrong := sorted({t.device.type for t in tensors} - {wanted}):
        raise Unsupported(
            f"torch.compile: tensors on {wanted!r}, where JAX runs, required, got {', '.join(wrong)}; move the module there"
        )


def _runner(program: Program, fixed: Sequence[tuple[Any] | None]) -> Callable[..., list[Any]]:
    """The program over tensors. What it returns shares no memory with what it was given, nor with its constants."""

    def run(*tensors: torch.Tensor) -> list[Any]:
        with jax.enable_x64(True):
            arrays = [array_of(t) for t in tensors]
            results = jax.block_until_ready(program.run(*arrays))  # torch may write into its tensors after this
            taken = {a.unsafe_buffer_pointer() for a in (*arrays, *map(jax.numpy.asarray, program.constants.values())) if a.size}
            made = iter([_owned(r, taken) for r in results])
        return [next(made) if f is None else f[0] for f in fixed]

    return run


def _owned(array: Any, taken: set[int]) -> torch.Tensor:
    """A tensor in memory of its own; the array's where nothing else lies there."""
    tensor = tensor_of(array)
    if array.size and array.unsafe_buffer_pointer() in taken:
        return tensor.clone()
    if array.size:
        taken.add(array.unsafe_buffer_pointer())
    return tensor
