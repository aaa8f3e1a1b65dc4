"""Constants of a module as NumPy arrays."""

from __future__ import annotations

import re
from typing import Any

import jax.extend.mlir.ir as ir
import jax.numpy as jnp
import numpy as np

from eqsat.frontends.stablehlo.table import DTYPES, Array, StablehloError, Unsupported

# Numbers as MLIR prints them: decimal, or the bits of a float in hexadecimal where it has no short decimal.
NUMBER = re.compile(r"0x[0-9A-Fa-f]+|[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?)|true|false")


def value_of(operation: Any, name: str) -> Array:
    """The array; only its one value, of rank 0, where all elements are the same."""
    kind = operation.results[0].type
    dtype = np.dtype(jnp.dtype(DTYPES[str(kind.element_type)]))
    shape = tuple(kind.shape)
    try:
        dense: Any = ir.DenseElementsAttr(operation.attributes["value"])
    except TypeError:  # complex numbers, which the bindings do not read
        return _from_text(operation, name, shape, dtype)
    except ValueError:
        raise Unsupported(f"{name}: constants written in the module required, got {kind} in a resource") from None
    if dense.is_splat:
        return np.asarray(dense.get_splat_value().value).astype(dtype)
    array = np.asarray(dense)
    if array.dtype == dtype:
        return array.reshape(shape).copy()  # the bindings' buffer lives no longer than the module
    return _from_text(operation, name, shape, dtype)


def _from_text(operation: Any, name: str, shape: tuple[int, ...], dtype: np.dtype) -> Array:
    """Through the text, for dtypes that Python's buffers do not have: bytes in hexadecimal, or numbers."""
    text = operation.get_asm(large_elements_limit=None)
    found = re.search(r"dense<(.*)> : tensor<", text, re.DOTALL)
    if found is None:
        raise StablehloError(f"{name}: a constant that can be read required, got {operation.results[0].type}")
    inside = found.group(1)
    if inside.startswith('"0x'):
        return np.frombuffer(bytes.fromhex(inside[3:-1]), dtype).reshape(shape).copy()
    part = np.dtype(np.float32 if dtype == np.complex64 else np.float64) if dtype.kind == "c" else dtype
    numbers = np.array([_number(word, part) for word in NUMBER.findall(inside)], part)
    if dtype.kind == "c":
        numbers = (numbers[::2] + 1j * numbers[1::2]).astype(dtype)
    return numbers.reshape(shape if len(numbers) > 1 else ())


def _number(word: str, dtype: np.dtype) -> Any:
    if word.startswith("0x"):
        return np.frombuffer(int(word, 16).to_bytes(dtype.itemsize, "little"), dtype)[0]
    if word in ("true", "false"):
        return dtype.type(word == "true")
    return dtype.type(int(word) if dtype.kind in "iu" else float(word))
