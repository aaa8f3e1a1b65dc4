"""Running an ONNX graph over JAX values: what is known while importing stays NumPy, the rest is traced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx

from eqsat.frontends.errors import fitting
from eqsat.frontends.onnx import model as files
from eqsat.frontends.onnx.table import (
    FOLD_BYTES,
    Array,
    Defined,
    Node,
    OnnxError,
    Row,
    TooLarge,
    Unknown,
    Unsupported,
    find,
    holds_symbols,
    is_wide,
    narrow,
)

DEEPEST = 64  # functions within functions


@dataclass(frozen=True)
class Scope:
    """The names that nodes see, with the opsets and attributes that hold around them."""

    values: dict[str, Any]
    opsets: Mapping[str, int]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    depth: int = 0


class Importer:
    """Evaluates graphs of one model."""

    def __init__(self, model: Any, folder: Path | None) -> None:
        self.model, self.folder = model, folder
        self.functions = {(files.DOMAINS.get(f.domain, f.domain), f.name): f for f in model.functions}
        self.trail: list[tuple[int, str, str, Any]] = []  # node number, operator, name, value, for the outermost graph
        self.initial: dict[str, np.ndarray] = {}  # of the outermost graph
        self._sources: dict[int, tuple[Any, tuple[str, ...]]] = {}  # by identity; the value is held so that it stays unique
        self.folded = 0

    # --- graphs

    def constants(self, graph: Any) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for proto in graph.initializer:
            if proto.name in values:
                raise OnnxError(f"onnx graph {graph.name!r}: one initialiser {proto.name!r} required, got two")
            values[proto.name] = files.tensor(proto, self.folder)
        for proto in graph.sparse_initializer:
            values[proto.values.name] = files.sparse(proto, self.folder)
        return values

    def graph(self, graph: Any, bound: Mapping[str, Any], scope: Scope, outermost: bool = False) -> list[Any]:
        """The outputs of a graph whose inputs are bound."""
        initial = self.initial if outermost and self.initial else self.constants(graph)
        if outermost:
            self.initial = initial
            self._sources = {id(value): (value, (name,)) for name, value in bound.items() if isinstance(value, jax.core.Tracer)}
        own = {**initial, **bound}
        values = {**scope.values, **own}
        inner = Scope(values, scope.opsets, scope.attributes, scope.depth)
        for number, node in files.ordered(graph.node, set(own), f"onnx graph {graph.name!r}"):
            self.node(node, number, inner, outermost)
        return [self.value(v.name, inner, f"onnx graph {graph.name!r}: output") for v in graph.output]

    def value(self, name: str, scope: Scope, subject: str) -> Any:
        if name not in scope.values:
            raise OnnxError(f"{subject} {name!r}: a value that some node writes required, got none")
        return scope.values[name]

    # --- nodes

    def node(self, proto: Any, number: int, scope: Scope, outermost: bool = False) -> None:
        domain = files.DOMAINS.get(proto.domain, proto.domain)
        name = files.label(proto, number)
        subject = f"onnx node {name!r} ({proto.op_type}): operand"
        operands = [self.value(name, scope, subject) if name else None for name in proto.input]
        given = files.attributes(proto, self.folder, scope.attributes)
        node = Node(
            proto.op_type, domain, name, scope.opsets.get(domain, 1), given, tuple(proto.output), tuple(proto.input),
            jnp, scope, self,
        )  # fmt: skip
        results = self.apply(node, operands, proto)
        self.note(results, operands)
        if len(results) < len(proto.output):
            raise node.error(f"{len(results)} results required, got {len(proto.output)} names", Unsupported)
        for wanted, result in zip(proto.output, results, strict=False):
            if wanted:
                scope.values[wanted] = result
                if outermost:
                    self.trail.append((number, proto.op_type, wanted, result))

    def apply(self, node: Node, operands: list[Any], proto: Any) -> tuple[Any, ...]:
        """The results of an operator: the model's own function, a row of the table, or the operator's definition."""
        function = self.functions.get((node.domain, node.op))
        if function is not None:
            return self.call(function, node, operands)
        row = find(node.domain, node.op, node.opset)
        with fitting(OnnxError, node, lambda: ", ".join(map(described, operands))):
            try:
                return self.define(node, operands, proto) if row is None else self.compute(row, node, operands)
            except Defined:
                return self.define(node, operands, proto)

    def define(self, node: Node, operands: list[Any], proto: Any) -> tuple[Any, ...]:
        """The results by ONNX's own definition in other operators."""
        body = definition(node.domain, node.op, node.opset, resolved(proto, node), operands)
        if body is None:
            raise node.error("an operator of the table required, got one it lacks", Unsupported)
        return self.call(body, replace(node, attributes={**defaults(node), **node.attributes}), operands)

    def call(self, function: Any, node: Node, operands: Sequence[Any]) -> tuple[Any, ...]:
        """A function's body with the call's operands and attributes."""
        if node.scope.depth >= DEEPEST:
            raise node.error(f"at most {DEEPEST} functions within each other required, got more; do they call themselves?")
        values = dict(zip(function.input, operands, strict=False)) | {name: None for name in function.input[len(operands) :]}
        defaults = {proto.name: files.value_of(proto, self.folder) for proto in function.attribute_proto}
        own = {"": onnx.defs.onnx_opset_version(), **node.scope.opsets, **files.opsets(function.opset_import)}
        scope = Scope(values, own, {**defaults, **node.attributes}, node.scope.depth + 1)
        for number, inner in files.ordered(function.node, set(function.input), f"onnx function {function.name!r}"):
            self.node(inner, number, scope)
        subject = f"onnx function {function.name!r}: output"
        wanted = function.output[: len(node.outputs)]
        return tuple(self.value(name, scope, subject) if node.wants(n) else None for n, name in enumerate(wanted))

    def compute(self, row: Row, node: Node, operands: list[Any]) -> tuple[Any, ...]:
        if row.folds and all(map(is_small, operands)):
            try:
                with np.errstate(all="ignore"):
                    results = _tuple(row.function(_over(node, np), *operands))
                self.folded += 1
                return tuple(r if isinstance(r, list | jax.Array) or r is None else np.asarray(r) for r in results)
            except TooLarge:
                pass
        unknown = [n for n in row.static if n < len(operands) and not isinstance(operands[n], np.ndarray | None | list)]
        if unknown:
            raise self.unknown(node, unknown, operands) from None
        lifted = [v if n in row.static else lift(v, node.name) for n, v in enumerate(operands)]
        return _tuple(row.function(node, *lifted))

    # --- what depends on what

    def note(self, results: Sequence[Any], operands: Sequence[Any]) -> None:
        found = self.sources(operands)
        for value in results:
            if isinstance(value, jax.core.Tracer):
                self._sources.setdefault(id(value), (value, found))
            elif isinstance(value, list):
                self.note(value, operands)

    def sources(self, operands: Sequence[Any]) -> tuple[str, ...]:
        """The inputs of the outermost graph that values are computed from."""
        flat = [v for operand in operands for v in (operand if isinstance(operand, list) else [operand])]
        return tuple(dict.fromkeys(name for v in flat for name in self._sources.get(id(v), (v, ()))[1]))

    def unknown(self, node: Node, positions: Sequence[int], operands: Sequence[Any], reason: str = "") -> Unknown:
        values = ", ".join(repr(node.inputs[n]) for n in positions) + (f" ({reason})" if reason else "")
        names = self.sources([operands[n] for n in positions])
        remedy = f"bind {', '.join(map(repr, names))} with constants=" if names else "give it a value that does not change"
        text = f"a known value of {values} required while importing, got one computed from the inputs; {remedy}"
        return Unknown(str(node.error(text)), names)


def _over(node: Node, xp: Any) -> Node:
    return replace(node, xp=xp)


def _tuple(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


def is_small(value: Any) -> bool:
    """True for what is known and small enough to fold."""
    if isinstance(value, list):
        return all(map(is_small, value))
    return value is None or (isinstance(value, np.ndarray) and value.nbytes <= FOLD_BYTES)


def lift(value: Any, subject: str) -> Array:
    """A known value as an operand of JAX. An array repeated by strides becomes a broadcast."""
    if isinstance(value, list):
        return [lift(v, subject) for v in value]
    if not isinstance(value, np.ndarray):
        return value
    if holds_symbols(value):
        return jnp.reshape(jnp.stack([jnp.asarray(n, int) for n in value.flat]), value.shape)
    if value.dtype.kind == "O":
        raise OnnxError(f"onnx value used by {subject!r}: numbers required, got strings, which do not run on an accelerator")
    if value.size > 1 and 0 in value.strides:
        once = value[tuple(slice(0, 1) if step == 0 else slice(None) for step in value.strides)]
        return jnp.broadcast_to(lift(once.copy(), subject), value.shape)
    if not is_wide() and value.dtype.itemsize >= 8:
        dtype = narrow(value.dtype, f"onnx value used by {subject!r}")
        if dtype != value.dtype:
            if value.size and not (np.iinfo(dtype).min <= value.min() and value.max() <= np.iinfo(dtype).max):
                raise OnnxError(
                    f"onnx value used by {subject!r}: values of {dtype} required without 64-bit JAX, got up to {value.max()}; "
                    "call jax.config.update('jax_enable_x64', True) first"
                )
            return value.astype(dtype)
    return value


def described(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, list):
        return f"a sequence of {len(value)}"
    return f"{value.dtype}[{','.join(map(str, value.shape))}]"


def definition(domain: str, name: str, opset: int, proto: Any, operands: Sequence[Any] | None) -> Any:
    """The body by which ONNX itself defines an operator, if it does; without operands, whether it may."""
    try:
        schema = onnx.defs.get_schema(name, opset, domain)
    except onnx.defs.SchemaError:
        return None
    since = schema.since_version
    if operands is None:
        return True if schema.has_function or schema.has_context_dependent_function else None
    if schema.has_function:
        version = max((v for v in schema.function_opset_versions if v <= opset), default=since)
        body = schema.get_function_with_opset_version(version)
    elif schema.has_context_dependent_function:
        version = max((v for v in schema.context_dependent_function_opset_versions if v <= opset), default=since)
        types = [type_of(v).SerializeToString() for v in operands]
        body = schema.get_context_dependent_function_with_opset_version(version, proto.SerializeToString(), types)
    else:
        return None
    function = onnx.FunctionProto()
    function.ParseFromString(body if isinstance(body, bytes) else body.SerializeToString())
    if not function.opset_import:
        function.opset_import.add(domain="", version=opset)
    return function


def resolved(proto: Any, node: Node) -> Any:
    """The node with attributes that refer to its caller's replaced by their values."""
    if not any(a.ref_attr_name for a in proto.attribute):
        return proto
    copy = onnx.NodeProto()
    copy.CopyFrom(proto)
    del copy.attribute[:]
    for a in proto.attribute:
        if not a.ref_attr_name:
            copy.attribute.append(a)
        elif a.name in node.attributes:
            value = node.attributes[a.name]
            value = onnx.numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value
            copy.attribute.append(onnx.helper.make_attribute(a.name, value, attr_type=a.type))
    return copy


def defaults(node: Node) -> dict[str, Any]:
    """Attributes that ONNX gives a value where the node does not."""
    schema = onnx.defs.get_schema(node.op, node.opset, node.domain)
    found = {name: attribute.default_value for name, attribute in schema.attributes.items()}
    return {name: files.value_of(proto, None) for name, proto in found.items() if proto.type}


def type_of(value: Any) -> Any:
    if value is None:
        return onnx.TypeProto()
    if isinstance(value, list):
        return onnx.helper.make_sequence_type_proto(type_of(value[0]) if value else onnx.TypeProto())
    return onnx.helper.make_tensor_type_proto(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(value.dtype)), value.shape)
