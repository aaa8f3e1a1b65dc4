"""Running an fx graph of ATen operators over JAX values. Sizes are numbers by then, also those that torch kept symbolic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import torch
from jax import lax

from eqsat.frontends.errors import fitting
from eqsat.frontends.torch import frames
from eqsat.frontends.torch.random import DRAWN, Draw, draw_of
from eqsat.frontends.torch.table import TABLE, Array, Node, TorchError, Unsupported, is_number
from eqsat.frontends.torch.tensors import array_of, dtype_of

IGNORED = (torch.device, torch.layout, torch.memory_format)
IGNORED_NAMES = {"device", "layout", "memory_format", "pin_memory", "non_blocking"}
RANDOM = {
    "native_dropout", "dropout", "bernoulli", "rand", "randn", "rand_like", "randn_like", "randint", "randperm", "multinomial",
}  # fmt: skip
STRIDED = {
    "as_strided.default", "as_strided_copy.default", "as_strided_scatter.default", "prims.as_strided_scatter.default",
    "sym_stride.int",
}  # fmt: skip


def op_name(target: Any) -> str:
    """ "add.Tensor" for an operator of ATen, the full name of another."""
    return str(target).removeprefix("aten.")


def missing(module: Any, subject: str) -> None:
    """Raise one error for every operator without a row, in all graphs."""
    found = Counter(op_name(node.target) for node in without_rows(module))
    if not found:
        return
    listed = counted(found)
    remedy = "; random numbers are torch's own: module.eval() turns dropout off" if _is_random(found) else ""
    raise Unsupported(f"{subject}: operators of the table required, got {len(found)} without a row: {listed}{remedy}")


def counted(found: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ({count})" for name, count in sorted(found.items()))


def without_rows(module: Any, drawn: bool = False) -> list[Any]:
    """The nodes, in all graphs of a module, whose operators have no row; `drawn`: random numbers come from without."""
    return [
        node
        for part in module.modules()
        if isinstance(part, torch.fx.GraphModule)
        for node in part.graph.nodes
        if node.op == "call_function" and _lacks_row(node.target) and not (drawn and op_name(node.target) in DRAWN)
    ]


def _is_random(names: Mapping[str, int]) -> bool:
    return any(name.split(".")[0] in RANDOM for name in names)


def _lacks_row(target: Any) -> bool:
    if isinstance(target, torch._ops.HigherOrderOperator):
        return target.name() not in BODIES
    return isinstance(target, torch._ops.OpOverload) and op_name(target) not in TABLE


class Interpreter:
    """Evaluates the graphs of one module. `constants` are arrays for its tensors, by name; `draw` gives random numbers."""

    def __init__(
        self, module: Any, subject: str, constants: Mapping[str, Array] | None = None, draw: Callable[[Draw], Array] | None = None
    ) -> None:
        self.module, self.subject, self.draw = module, subject, draw
        self.constants = dict(constants or {})

    def run(self, values: Sequence[Any], module: Any = None) -> list[Any]:
        """The outputs for the placeholders' values, flat as the graph has them."""
        module = self.module if module is None else module
        known: dict[Any, Any] = {}
        inputs = iter(values)
        for node in module.graph.nodes:
            if node.op == "placeholder":
                known[node] = next(inputs)
            elif node.op == "get_attr":
                known[node] = self.attribute(module, node.target)
            elif node.op == "output":
                results = torch.fx.node.map_arg(node.args[0], known.__getitem__)
                return list(results) if isinstance(results, tuple | list) else [results]
            elif node.op == "call_function":
                try:
                    known[node] = self.apply(node, known)
                except Unsupported as error:
                    error.node = node.name  # the outermost one is set last
                    raise
            else:
                raise Unsupported(f"{self.subject}: calls of functions required, got {node.op} {node.target!r}")
        raise TorchError(f"{self.subject}: a graph with outputs required, got none")

    def attribute(self, module: Any, name: str) -> Any:
        value = module
        for part in name.split("."):
            value = getattr(value, part)
        if not isinstance(value, torch.Tensor):
            return value
        if name not in self.constants:
            self.constants[name] = array_of(value, copy=True)
        return self.constants[name]

    def apply(self, node: Any, known: Mapping[Any, Any]) -> Any:
        args = torch.fx.node.map_arg(node.args, known.__getitem__)
        kwargs = torch.fx.node.map_arg(node.kwargs, known.__getitem__)
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            return BODIES[node.target.name()](self, *args)
        if not isinstance(node.target, torch._ops.OpOverload):
            return node.target(*args, **kwargs)  # of a tuple or of sizes
        if self.draw is not None and op_name(node.target) in DRAWN:
            return self.draw(draw_of(node, args, kwargs))
        source = frames.source_of(node)
        described = self.described(node)
        where = f" at {source}" if source else ""
        with fitting(TorchError, described, lambda: f"others{where}"):
            results = frames.call(source, TABLE[described.op], described, *_converted(args), **_named(kwargs))
        return self.checked(described, results)

    def described(self, node: Any) -> Node:
        value = node.meta.get("val")
        results = value if isinstance(value, tuple | list) else (value,)
        tensors = [v if isinstance(v, torch.Tensor) else None for v in results]
        shapes = tuple(None if t is None or _is_symbolic(t) else tuple(t.shape) for t in tensors)
        dtypes = tuple(None if t is None else dtype_of(t.dtype, f"torch node {node.name!r}") for t in tensors)
        name = op_name(node.target)
        contiguous = name not in STRIDED or _is_plain(node.args[0].meta["val"])
        return Node(name, node.name, dtypes, shapes, _promoted(node.args[:2]), contiguous)

    def checked(self, node: Node, results: Any) -> Any:
        """What a row returns must have the shapes and dtypes that torch foretold."""
        flat = results if isinstance(results, tuple | list) else (results,)
        for value, shape, dtype in zip(flat, node.shapes, node.dtypes, strict=False):
            if value is None or dtype is None or is_number(value):
                continue
            if value.dtype != dtype or (shape is not None and tuple(value.shape) != shape):
                got = f"{value.dtype}{list(value.shape)}"
                raise node.error(f"{dtype}{list(shape or value.shape)} required as torch says, got {got}", TorchError)
        return results


def _converted(args: Sequence[Any]) -> list[Any]:
    return [dtype_of(a) if isinstance(a, torch.dtype) else a for a in args if not isinstance(a, IGNORED)]


def _named(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    kept = {k: v for k, v in kwargs.items() if k not in IGNORED_NAMES}
    return {k: dtype_of(v) if isinstance(v, torch.dtype) else v for k, v in kept.items()}


def _is_symbolic(tensor: torch.Tensor) -> bool:
    return any(not isinstance(n, int) for n in tensor.shape)


def _is_plain(tensor: torch.Tensor) -> bool:
    return bool(tensor.is_contiguous() and tensor.storage_offset() == 0)


def _promoted(args: Sequence[Any]) -> Any:
    """What torch promotes two operands to; None where they are not two tensors or numbers."""
    values = [a.meta.get("val") if isinstance(a, torch.fx.Node) else a for a in args]
    values = [1 if isinstance(v, torch.SymInt) else 1.0 if isinstance(v, torch.SymFloat) else v for v in values]
    if len(values) != 2 or not all(isinstance(v, torch.Tensor) or is_number(v) for v in values):
        return None
    return dtype_of(torch.result_type(*values))


# --- operators with graphs of their own -------------------------------------------------------------------------


def _branch(interpreter: Interpreter, chosen: Any, then: Any, otherwise: Any, operands: Sequence[Any]) -> list[Any]:
    def body(module: Any) -> Callable[..., Any]:
        return lambda *values: [jnp.asarray(v) for v in interpreter.run(values, module)]

    if isinstance(chosen, bool | int):
        return interpreter.run(operands, then if chosen else otherwise)
    return list(lax.cond(jnp.reshape(chosen, ()).astype(bool), body(then), body(otherwise), *operands))


def _loop(
    interpreter: Interpreter, goes_on: Any, body: Any, carried: Sequence[Any], other: Sequence[Any] = ()
) -> list[Any]:  # fmt: skip
    def step(values: Any) -> list[Any]:
        results = interpreter.run([*values, *other], body)
        return [jnp.asarray(r).astype(v.dtype) for r, v in zip(results, values, strict=True)]

    def holds(values: Any) -> Array:
        return jnp.reshape(interpreter.run([*values, *other], goes_on)[0], ())

    return list(lax.while_loop(holds, step, [jnp.asarray(v) for v in carried]))


def _inlined(interpreter: Interpreter, _enabled: bool, body: Any, *operands: Any) -> list[Any]:
    return interpreter.run(operands, body)


BODIES: dict[str, Callable[..., Any]] = {
    "cond": _branch,
    "while_loop": _loop,
    "wrap_with_set_grad_enabled": _inlined,
}
