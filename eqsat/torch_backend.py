"""PyTorch programs run by eqsat: the backend "eqsat" of `torch.compile`.

Each graph that torch traces, forward or backward, is optimised for the sizes it is called with and runs on arrays that share
memory with torch's tensors where both allow it. The program is optimised at the first call with new sizes. A call whose tensors
overlap otherwise than those of the first runs as torch would run it.
"""

from __future__ import annotations

import itertools
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import torch
from torch._dynamo.backends.common import aot_autograd

from eqsat.frontends.torch import Unsupported
from eqsat.frontends.torch.export import decompositions
from eqsat.frontends.torch.interpreter import Interpreter, counted, op_name, without_rows
from eqsat.frontends.torch.random import DRAWN, Draw
from eqsat.frontends.torch.tensors import array_of, dtype_of, tensor_of
from eqsat.graph import trace
from eqsat.optimizer import optimize
from eqsat.program import Program
from eqsat.torch_parts import Run, Split, theirs


def torch_compile(module: Any, **options: Any) -> Any:
    """A `torch.nn.Module` or function that runs by eqsat, as ``torch.compile(module, backend="eqsat", options=options)`` does.

    options: those of `eqsat.optimize`: target, numerics, objective, time_limit, rules. Gradients flow; their graph is
    optimised too. What eqsat cannot read torch runs itself, between programs, and a warning names it. Random numbers are those
    that torch draws.
    """
    return torch.compile(module, backend=eqsat, options=options or None)


def eqsat(module: Any, example_inputs: Sequence[Any], options: Mapping[str, Any] | None = None) -> Callable[..., Any]:
    """The backend that `torch.compile` finds by name; called with a graph of torch functions."""
    given = dict(options or {})

    def compiler(graph: Any, _inputs: Sequence[Any]) -> Callable[..., Any]:
        return _boxed(_run_of(graph, given))

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


def _boxed(run: Run) -> Run:
    """The form that AOTAutograd calls: it gives a list of arguments, which is emptied so that their memory can be freed."""

    def boxed(args: list[Any]) -> list[Any]:
        return run(args)

    boxed._boxed_call = True  # type: ignore[attr-defined]
    return boxed


def _run_of(graph: Any, options: Mapping[str, Any]) -> Run:
    """Programs of a graph; what has no row is run by torch."""
    lacking = without_rows(graph, drawn=True)
    if not lacking:
        return Compiled(graph, options)
    names = counted(Counter(op_name(n.target) for n in lacking))
    return _split(graph, lacking, options, f"operators without a row are run by torch: {names}")


def _split(graph: Any, nodes: Collection[Any], options: Mapping[str, Any], why: str) -> Run:
    warnings.warn(f"torch.compile: {why}", stacklevel=2)
    return Split(graph, theirs(graph, nodes), lambda part: Compiled(part, options))


@dataclass(eq=False)
class Compiled:
    """One functional graph; a program for each combination of sizes it was called with."""

    graph: Any
    options: Mapping[str, Any]
    runs: dict[Any, Callable[..., list[Any]]] = field(default_factory=dict)
    split: Run | None = None  # what runs instead, once a row has refused an operator

    def __call__(self, args: list[Any]) -> list[Any]:
        if self.split is None:
            key = tuple((a.dtype, tuple(a.shape)) if isinstance(a, torch.Tensor) else a for a in args)
            try:
                if key not in self.runs:
                    self.runs[key] = self.specialised(args)
            except Unsupported as error:
                if error.node is None:
                    raise
                refused = next(n for n in self.graph.graph.nodes if n.name == error.node)
                self.split = _split(self.graph, [refused], self.options, f"an operator is run by torch: {error}")
            else:
                tensors = [a for a in args if isinstance(a, torch.Tensor)]
                args.clear()
                return self.runs[key](*tensors)
        return self.split(args)

    def specialised(self, args: Sequence[Any]) -> Callable[..., list[Any]]:
        """The graph with its numbers bound and its sizes fixed, optimised; random numbers are further arguments."""
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        _check_devices(tensors)
        fixed: list[Any] = []  # for each result: None where it is an array, else (value,)
        draws: list[Draw] = []

        def drawn(draw: Draw) -> Any:
            draws.append(draw)
            like = draw("meta")
            return jax.numpy.zeros(tuple(like.shape), dtype_of(like.dtype))

        with jax.enable_x64(True):
            interpreter = Interpreter(self.graph, "torch.compile", draw=drawn)

            def forward(*arrays: Any) -> list[Any]:
                flow = iter(arrays)
                results = interpreter.run([next(flow) if isinstance(a, torch.Tensor) else a for a in args])
                fixed[:] = [None if hasattr(r, "dtype") else (r,) for r in results]
                return [r for r in results if hasattr(r, "dtype")]

            def forward_drawn(given: Sequence[Any], numbers: Sequence[Any]) -> list[Any]:
                flow = iter(numbers)
                interpreter.draw = lambda _: next(flow)
                return forward(*given)

            shapes = [_shape(t) for t in tensors]
            if any(n.op == "call_function" and op_name(n.target) in DRAWN for n in self.graph.graph.nodes):
                jax.eval_shape(forward, *shapes)
            graph = trace(forward_drawn, (shapes, [_shape(d("meta")) for d in draws]), {})
        return _runner(optimize(graph, **self.options), fixed, draws)


def _shape(tensor: torch.Tensor) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(tuple(tensor.shape), dtype_of(tensor.dtype))


def _check_devices(tensors: Sequence[torch.Tensor]) -> None:
    wanted = {"gpu": "cuda"}.get(jax.default_backend(), jax.default_backend())
    if wrong := sorted({t.device.type for t in tensors} - {wanted}):
        raise Unsupported(
            f"torch.compile: tensors on {wanted!r}, where JAX runs, required, got {', '.join(wrong)}; move the module there"
        )


def _runner(program: Program, fixed: Sequence[tuple[Any] | None], draws: Sequence[Draw]) -> Callable[..., list[Any]]:
    """The program over tensors. What it returns shares no memory with what it was given, nor with its constants."""

    def run(*tensors: torch.Tensor) -> list[Any]:
        with jax.enable_x64(True):
            arrays = [array_of(t) for t in (*tensors, *(draw() for draw in draws))]
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
