"""ONNX files: reading them, their tensors (external data by reference, never outside the model's folder), their order."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from eqsat.frontends import FILES
from eqsat.frontends.onnx.table import LARGEST, OnnxError
from eqsat.places import there

DOMAINS = {"ai.onnx": ""}  # another spelling of the default domain


def load(source: Any) -> tuple[Any, Path | None, str]:
    """The model, its folder if it has one, and its name."""
    if isinstance(source, onnx.ModelProto):
        return _checked(source, source.graph.name or "model"), None, source.graph.name or "model"
    if not isinstance(source, str | os.PathLike):
        raise TypeError(f"Graph.from_onnx: a path or an onnx.ModelProto required, got {type(source).__name__}")
    path = there(source, *FILES["onnx"])
    model = onnx.ModelProto()
    try:
        model.ParseFromString(path.read_bytes())
    except Exception as error:
        raise OnnxError(
            f"{path.name}: an ONNX model required, got bytes that do not parse ({error}); is the file whole?"
        ) from None
    return _checked(model, path.name), path.resolve().parent, path.stem


def _checked(model: Any, name: str) -> Any:
    if not model.HasField("graph") or not model.ir_version:
        raise OnnxError(f"{name}: an ONNX model with a graph required, got none; is the file whole?")
    if not model.opset_import:
        raise OnnxError(f"{name}: an opset version required, got none; is the file whole?")
    return model


def opsets(imports: Any) -> dict[str, int]:
    return {DOMAINS.get(entry.domain, entry.domain): int(entry.version) for entry in imports}


# --- tensors ----------------------------------------------------------------------------------------------------


def tensor(proto: Any, folder: Path | None) -> np.ndarray:
    """A tensor's values; those in a file of their own are mapped, not read."""
    shape = tuple(int(n) for n in proto.dims)
    count = 1
    for n in shape:
        count *= n
    if min(shape, default=0) < 0 or count > LARGEST:
        raise OnnxError(f"onnx tensor {proto.name!r}: a shape of at most {LARGEST} elements required, got {list(shape)}")
    if proto.data_location == onnx.TensorProto.EXTERNAL:
        return _external(proto, shape, count, folder)
    try:
        return np.asarray(numpy_helper.to_array(proto))
    except Exception as error:
        raise OnnxError(f"onnx tensor {proto.name!r}: data for shape {list(shape)} required, got other data ({error})") from None


def _external(proto: Any, shape: tuple[int, ...], count: int, folder: Path | None) -> np.ndarray:
    subject = f"onnx tensor {proto.name!r}"
    entries = {entry.key: entry.value for entry in proto.external_data}
    if folder is None:
        raise OnnxError(f"{subject}: external data needs the model's folder, got a model in memory; pass its path")
    path = inside(folder, entries.get("location", ""), subject)
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(proto.data_type))
    if dtype.kind == "O" or dtype.name in ("int4", "uint4", "int2", "uint2", "float4_e2m1fn"):
        raise OnnxError(f"{subject}: external data of whole bytes required, got {dtype}; store it in the model")
    try:
        offset = int(entries.get("offset", 0))
        length = int(entries.get("length", 0)) or count * dtype.itemsize
    except ValueError:
        raise OnnxError(f"{subject}: numbers required as offset and length of external data, got {entries}") from None
    if length != count * dtype.itemsize or offset < 0 or offset + length > path.stat().st_size:
        raise OnnxError(
            f"{subject}: {count * dtype.itemsize} bytes required for {dtype}{list(shape)}, got {length} at offset {offset} "
            f"of a file of {path.stat().st_size}"
        )
    if not count:
        return np.zeros(shape, dtype)
    return np.memmap(path, dtype, "r", offset, shape)


def inside(folder: Path, location: str, subject: str) -> Path:
    """A file under the model's folder; links that lead elsewhere are refused as well."""
    path = (folder / location).resolve()
    if not location or os.path.isabs(location) or not path.is_relative_to(folder.resolve()):
        raise OnnxError(f"{subject}: external data inside the model's folder required, got {location!r}")
    if not path.is_file():
        raise OnnxError(f"{subject}: external data required, got no file {location!r} beside the model")
    return path


def sparse(proto: Any, folder: Path | None) -> np.ndarray:
    """A sparse tensor, made dense."""
    shape = tuple(int(n) for n in proto.dims)
    if min(shape, default=0) < 0 or int(np.prod(shape, dtype=object)) > LARGEST:
        raise OnnxError(f"onnx tensor {proto.values.name!r}: a shape of at most {LARGEST} elements required, got {list(shape)}")
    values, places = tensor(proto.values, folder), tensor(proto.indices, folder)
    dense = np.zeros(shape, values.dtype)
    if places.ndim == 2:
        dense[tuple(places.T)] = values
    else:
        dense.reshape(-1)[places] = values
    return dense


def attributes(node: Any, folder: Path | None, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A node's attributes as Python values; inside a function they may refer to those of the call."""
    found: dict[str, Any] = {}
    for proto in node.attribute:
        if proto.ref_attr_name:
            if given and proto.ref_attr_name in given:
                found[proto.name] = given[proto.ref_attr_name]
            continue
        found[proto.name] = value_of(proto, folder)
    return found


def value_of(proto: Any, folder: Path | None) -> Any:
    value = onnx.helper.get_attribute_value(proto)
    if proto.type == onnx.AttributeProto.TENSOR:
        return tensor(value, folder)
    if proto.type == onnx.AttributeProto.SPARSE_TENSOR:
        return sparse(value, folder)
    if proto.type == onnx.AttributeProto.TENSORS:
        return [tensor(t, folder) for t in value]
    if proto.type == onnx.AttributeProto.STRING:
        return value.decode(errors="replace")
    if proto.type == onnx.AttributeProto.STRINGS:
        return [text.decode(errors="replace") for text in value]
    if proto.type in (onnx.AttributeProto.INTS, onnx.AttributeProto.FLOATS):
        return list(value)
    return value


# --- order ------------------------------------------------------------------------------------------------------


def bodies(node: Any) -> Iterator[Any]:
    """The graphs among a node's attributes."""
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == onnx.AttributeProto.GRAPHS:
            yield from attribute.graphs


def reads(node: Any) -> set[str]:
    """The names a node reads, also those that its bodies take from around them."""
    found = {name for name in node.input if name}
    for body in bodies(node):
        own = {v.name for v in body.input} | {t.name for t in body.initializer}
        own |= {name for n in body.node for name in n.output}
        found |= {name for n in body.node for name in reads(n)} - own
        found |= {v.name for v in body.output} - own
    return found


def label(node: Any, number: int) -> str:
    return node.name or next((name for name in node.output if name), "") or f"{node.op_type} number {number}"


def ordered(nodes: Sequence[Any], known: set[str], subject: str) -> list[tuple[int, Any]]:
    """The nodes with their numbers, in an order in which every operand is computed before it is read."""
    written: dict[str, int] = {}
    for number, node in enumerate(nodes):
        for name in node.output:
            if name and (name in written or name in known):
                raise OnnxError(
                    f"{subject}: one definition of {name!r} required, got a second one by node {label(node, number)!r}"
                )
            if name:
                written[name] = number
    needs = [{written[name] for name in reads(node) if name in written} for node in nodes]
    if all(max(need, default=-1) < number for number, need in enumerate(needs)):
        return list(enumerate(nodes))
    waiting = [len(need) for need in needs]
    users: list[list[int]] = [[] for _ in nodes]
    for number, need in enumerate(needs):
        for other in need:
            users[other].append(number)
    ready = [number for number, count in enumerate(waiting) if not count]
    order: list[int] = []
    for number in ready:  # grows
        order.append(number)
        for user in users[number]:
            waiting[user] -= 1
            if not waiting[user]:
                ready.append(user)
    if len(order) < len(nodes):
        stuck = sorted(set(range(len(nodes))) - set(order))
        named = ", ".join(repr(label(nodes[n], n)) for n in stuck[:5])
        raise OnnxError(
            f"{subject}: a graph without cycles required, got a cycle among nodes {named}{', ...' * (len(stuck) > 5)}"
        )
    return [(number, nodes[number]) for number in order]
