"""Building an ONNX graph: nodes, initialisers and names, and the table of primitives that fill it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import helper, numpy_helper

from eqsat.graph import Equation, Literal, Variable
from eqsat.names import Namer

OPSET = 20
IR_VERSION = 9  # what goes with that opset


class Lacking(Exception):
    """What ONNX, or this writer, has no words for."""


@dataclass(frozen=True)
class Value:
    """A tensor of the ONNX graph."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype


class Builder:
    """Collects nodes; each method that adds one returns its value."""

    def __init__(self, taken: Sequence[str]) -> None:
        self.fresh = Namer(taken)
        self.nodes: list[Any] = []
        self.initial: dict[tuple[Any, ...], Any] = {}

    def node(self, kind: str, inputs: Sequence[Value | None], shape: Sequence[int], dtype: Any, **attributes: Any) -> Value:
        """One node of one result."""
        return self.several(kind, inputs, [(shape, dtype)], **attributes)[0]

    def several(
        self, kind: str, inputs: Sequence[Value | None], results: Sequence[tuple[Sequence[int], Any]], **attributes: Any
    ) -> list[Value]:
        made = [Value(self.fresh(kind.lower()), tuple(int(n) for n in shape), np.dtype(dtype)) for shape, dtype in results]
        names = ["" if v is None else v.name for v in inputs]
        self.nodes.append(helper.make_node(kind, names, [v.name for v in made], **attributes))
        return made

    def constant(self, value: Any, dtype: Any = None, name: str = "") -> Value:
        """An initialiser; small ones are shared."""
        array = np.ascontiguousarray(np.asarray(value, dtype)).reshape(np.shape(value))
        key = (array.shape, str(array.dtype), array.tobytes()) if array.size <= 64 else (id(value), name)
        if key not in self.initial:
            self.initial[key] = (tensor(array, self.fresh(name or "constant")), value)
        proto = self.initial[key][0]
        return Value(proto.name, array.shape, array.dtype)

    def integers(self, values: Sequence[int]) -> Value:
        return self.constant(np.asarray(values, np.int64).reshape(-1))

    # --- what many primitives need

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        if tuple(shape) == x.shape:
            return x
        return self.node("Reshape", [x, self.integers(shape)], shape, x.dtype, allowzero=1 if 0 in shape else 0)

    def transpose(self, x: Value, permutation: Sequence[int]) -> Value:
        if list(permutation) == list(range(len(x.shape))):
            return x
        return self.node("Transpose", [x], [x.shape[p] for p in permutation], x.dtype, perm=list(permutation))

    def expand(self, x: Value, shape: Sequence[int]) -> Value:
        return x if tuple(shape) == x.shape else self.node("Expand", [x, self.integers(shape)], shape, x.dtype)

    def cast(self, x: Value, dtype: Any) -> Value:
        dtype = np.dtype(dtype)
        return x if dtype == x.dtype else self.node("Cast", [x], x.shape, dtype, to=code(dtype))

    def binary(self, kind: str, a: Value, b: Value, dtype: Any = None) -> Value:
        return self.node(kind, [a, b], np.broadcast_shapes(a.shape, b.shape), dtype or a.dtype)

    def unary(self, kind: str, x: Value, dtype: Any = None) -> Value:
        return self.node(kind, [x], x.shape, dtype or x.dtype)

    def like(self, x: Value, number: float) -> Value:
        """A scalar of the dtype of x."""
        return self.constant(np.asarray(number).astype(x.dtype))

    def where(self, which: Value, yes: Value, no: Value) -> Value:
        return self.node("Where", [which, yes, no], np.broadcast_shapes(which.shape, yes.shape, no.shape), yes.dtype)

    def slice(self, x: Value, starts: Sequence[int], limits: Sequence[int], strides: Sequence[int]) -> Value:
        """The half-open range of each dimension, as `lax.slice`."""
        dims = [d for d, n in enumerate(x.shape) if (starts[d], limits[d], strides[d]) != (0, n, 1)]
        if not dims:
            return x
        shape = [len(range(a, b, s)) for a, b, s in zip(starts, limits, strides, strict=True)]
        parts = [self.integers([v[d] for d in dims]) for v in (starts, limits)]
        return self.node("Slice", [x, *parts, self.integers(dims), self.integers([strides[d] for d in dims])], shape, x.dtype)


def code(dtype: Any) -> int:
    """ONNX's number of a dtype; raises Lacking."""
    try:
        return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
    except (KeyError, ValueError, TypeError):
        raise Lacking(f"ONNX has no dtype {dtype}") from None


def tensor(array: np.ndarray, name: str) -> Any:
    code(array.dtype)
    return numpy_helper.from_array(array, name)


# --- the table --------------------------------------------------------------------------------------------------

Writer = Callable[..., Any]
TABLE: dict[str, Writer] = {}


def writes(*primitives: str) -> Callable[[Writer], Writer]:
    """Declare how primitives are written: a function of builder, equation and operands."""

    def declare(function: Writer) -> Writer:
        TABLE.update(dict.fromkeys(primitives, function))
        return function

    return declare


def result(equation: Equation, number: int = 0) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and dtype of a result."""
    v = equation.outputs[number]
    return v.shape, np.dtype(v.aval.dtype)


def declared(name: str, atom: Variable | Literal) -> Any:
    return helper.make_tensor_value_info(name, code(atom.aval.dtype), tuple(atom.aval.shape))
