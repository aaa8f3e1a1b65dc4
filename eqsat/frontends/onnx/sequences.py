"""ONNX sequences and optionals: lists and None while importing, never values of the program."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from eqsat.frontends.onnx.table import Array, Node, axis_of, ints, op


def _place(position: np.ndarray | None, length: int) -> int:
    number = length if position is None else int(position.item())
    return number + length if number < 0 else number


@op("SequenceConstruct", folds=True)
def sequence_construct(node: Node, *operands: Any) -> tuple[list[Any]]:
    return (list(operands),)


@op("SequenceEmpty", folds=True)
def sequence_empty(node: Node) -> tuple[list[Any]]:
    return ([],)


@op("SequenceAt", folds=True, static=(1,))
def sequence_at(node: Node, sequence: list[Any], position: np.ndarray) -> Any:
    return sequence[_place(position, len(sequence))]


@op("SequenceInsert", folds=True, static=(2,))
def sequence_insert(node: Node, sequence: list[Any], value: Any, position: np.ndarray | None = None) -> tuple[list[Any]]:
    place = _place(position, len(sequence))
    return ([*sequence[:place], value, *sequence[place:]],)


@op("SequenceErase", folds=True, static=(1,))
def sequence_erase(node: Node, sequence: list[Any], position: np.ndarray | None = None) -> tuple[list[Any]]:
    place = _place(position, len(sequence)) if position is not None else len(sequence) - 1
    return (sequence[:place] + sequence[place + 1 :],)


@op("SequenceLength", folds=True)
def sequence_length(node: Node, sequence: list[Any]) -> np.ndarray:
    return np.asarray(len(sequence), np.int64)


@op("SplitToSequence", folds=True, static=(1,))
def split_to_sequence(node: Node, x: Array, sizes: np.ndarray | None = None) -> tuple[list[Any]]:
    axis = axis_of(node, node.get("axis", 0), x.ndim)
    length = x.shape[axis]
    if sizes is None or sizes.ndim == 0:
        each = 1 if sizes is None else int(sizes.item())
        widths = [min(each, length - start) for start in range(0, length, each)]
    else:
        widths = list(ints(sizes))
    ends = np.cumsum(widths)
    parts = [x[(slice(None),) * axis + (slice(int(e - w), int(e)),)] for e, w in zip(ends, widths, strict=True)]
    if sizes is None and not node.get("keepdims", 1):
        parts = [part.reshape((*x.shape[:axis], *x.shape[axis + 1 :])) for part in parts]
    return (parts,)


@op("ConcatFromSequence", folds=True)
def concat_from_sequence(node: Node, sequence: list[Any]) -> Array:
    xp = np if all(isinstance(part, np.ndarray) for part in sequence) else jnp
    return (xp.stack if node.get("new_axis", 0) else xp.concatenate)(sequence, axis=node.get("axis"))


@op("Optional", folds=True)
def optional(node: Node, value: Any = None) -> tuple[Any]:
    return (value,)


@op("OptionalHasElement", folds=True)
def optional_has_element(node: Node, value: Any = None) -> np.ndarray:
    return np.asarray(value is not None)


@op("OptionalGetElement", folds=True)
def optional_get_element(node: Node, value: Any) -> tuple[Any]:
    if value is None:
        raise node.error("an optional with a value required, got an empty one")
    return (value,)
