"""What a caller says about a model's inputs: shapes, sizes of named dimensions, values that never change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import onnx

from eqsat import names
from eqsat.frontends.onnx.table import OnnxError, Unsupported, is_wide, narrow, size_of


def signature(
    graph: Any, name: str, inputs: Mapping[str, Any], dims: Mapping[str, int], constants: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Shapes and dtypes of the inputs that stay open, and the values of those that are bound, by name."""
    declared = {v.name: v for v in graph.input}
    if len(declared) != len(graph.input):
        raise OnnxError(f"{name}: distinct input names required, got {[v.name for v in graph.input]}")
    for key in (*inputs, *constants):
        if key not in declared:
            raise OnnxError(f"{name}: inputs among {list(declared)} required, got {key!r}")
    named = {d.dim_param for v in graph.input for d in v.type.tensor_type.shape.dim if d.dim_param}
    for key in dims:
        if key not in named:
            raise OnnxError(f"{name}: dimensions among {sorted(named)} required, got {key!r}")
    fixed = {key: bound(declared[key].type, value, f"{name}: input {key!r}") for key, value in constants.items()}
    initialised = {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
    found: dict[str, Any] = {}
    unbound: list[str] = []
    for key, v in declared.items():
        if key in fixed or (key in initialised and key not in inputs):
            continue
        found[key] = opened(v.type, inputs.get(key), dims, f"{name}: input {key!r}")
        if isinstance(found[key], tuple):
            unbound.append(f"{key!r} has {list(found[key])}")
    if unbound:
        raise OnnxError(f"{name}: sizes of all dimensions required, got {'; '.join(unbound)}; bind them with dims= or inputs=")
    return found, fixed


def free(graph: Any, constants: Mapping[str, Any]) -> dict[str, Any]:
    """The declared types of the inputs that a call gives: those that are neither bound nor have an initialiser."""
    initialised = {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
    return {v.name: v.type for v in graph.input if v.name not in constants and v.name not in initialised}


def spelled(declared: Any) -> str:
    """A shape as `jax.export.symbolic_shape` reads it: numbers, names where the file has names, "_" where it says nothing."""
    if not declared.tensor_type.HasField("shape"):
        return "..."
    dims = [names.identifier(d.dim_param) if d.dim_param else _size(d) for d in declared.tensor_type.shape.dim]
    return ", ".join("_" if d == "?" else str(d) for d in dims)


def bound(declared: Any, value: Any, subject: str) -> Any:
    """A tensor of the declared dtype, a sequence of them, or None for an optional without value."""
    kind = declared.WhichOneof("value")
    if kind == "optional_type":
        return None if value is None else bound(declared.optional_type.elem_type, value, subject)
    if kind == "sequence_type":
        return [bound(declared.sequence_type.elem_type, v, subject) for v in value]
    array = np.asarray(value)
    dtype = _declared_dtype(declared.tensor_type, subject)
    if array.dtype == dtype or dtype.kind == "O":
        return array
    cast = array.astype(dtype)
    if not np.array_equal(cast.astype(array.dtype), array):
        raise OnnxError(f"{subject}: values of {dtype} required, got {array.dtype} values that it does not hold")
    return cast


def opened(declared: Any, given: Any, dims: Mapping[str, int], subject: str) -> Any:
    """What an input is traced with; only its shape, with names in it, where sizes are missing."""
    kind = declared.WhichOneof("value")
    if kind == "sequence_type" and isinstance(given, list):
        return [opened(declared.sequence_type.elem_type, part, dims, subject) for part in given]
    if kind != "tensor_type":
        raise Unsupported(
            f"{subject}: a tensor required, got {kind or 'no type'}; give a sequence's shapes with inputs= "
            "or its value with constants="
        )
    shape = _shape(declared.tensor_type, given, dims, subject)
    dtype = _declared_dtype(declared.tensor_type, subject)
    if dtype.kind == "O":
        raise Unsupported(f"{subject}: numbers required, got strings")
    if given is None and not all(isinstance(n, int) for n in shape):
        return shape
    return jax.ShapeDtypeStruct(shape, dtype if is_wide() else narrow(dtype, subject))


def _shape(declared: Any, given: Any, dims: Mapping[str, int], subject: str) -> tuple[Any, ...]:
    """Sizes, with a name or "?" for those left open. Files say "unknown" by a name, by nothing and by -1."""
    sizes = list(declared.shape.dim) if declared.HasField("shape") else None
    if given is None:
        return ("?",) if sizes is None else tuple(dims.get(d.dim_param, d.dim_param) if d.dim_param else _size(d) for d in sizes)
    shape = tuple(map(size_of, getattr(given, "shape", given)))
    if sizes is not None and (
        len(sizes) != len(shape) or any(d.dim_value > 0 and d.dim_value != n for d, n in zip(sizes, shape, strict=True))
    ):
        stated = [d.dim_param or _size(d) for d in sizes]
        raise OnnxError(f"{subject}: shape {stated} required, got {list(shape)}")
    return shape


def _size(dimension: Any) -> Any:
    return int(dimension.dim_value) if dimension.HasField("dim_value") and dimension.dim_value >= 0 else "?"


def _declared_dtype(declared: Any, subject: str) -> np.dtype:
    try:
        return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(declared.elem_type))
    except KeyError:
        raise OnnxError(f"{subject}: a dtype required, got code {declared.elem_type}") from None
