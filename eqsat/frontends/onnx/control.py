"""ONNX control flow: decided while importing where the condition is known, else `cond`, `while_loop` and `scan`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from eqsat.frontends.onnx.table import Array, Node, Unknown, Unsupported, axis_of, op

UNROLLED = 16  # a loop of known length over known values, or with states that change shape, runs at most so often while importing


def _run(node: Node, graph: Any, operands: Sequence[Any]) -> list[Any]:
    from eqsat.frontends.onnx import missing

    importer = node.importer
    missing(importer.model, graph.node, f"onnx node {node.name!r} ({node.op})", node.scope.opsets, branches=True)
    if len(operands) != len(graph.input):
        raise node.error(f"a body with {len(operands)} inputs required, got {len(graph.input)}")
    return importer.graph(graph, dict(zip((v.name for v in graph.input), operands, strict=True)), node.scope)


def _are_tensors(values: Sequence[Any]) -> bool:
    return not any(v is None or isinstance(v, list) for v in values)


def _arrays(node: Node, values: Sequence[Any]) -> tuple[Array, ...]:
    from eqsat.frontends.onnx.importer import lift

    if not _are_tensors(values):
        raise node.error("tensors required where the condition is computed, got a sequence or nothing", Unsupported)
    return tuple(jnp.asarray(lift(v, node.name)) for v in values)


def _scalar(node: Node, value: Any) -> Array:
    (array,) = _arrays(node, (value,))
    return jnp.reshape(array, ())


@op("If", folds=True)
def if_(node: Node, condition: Any) -> tuple[Any, ...]:
    branches = node.get("then_branch"), node.get("else_branch")
    if isinstance(condition, np.ndarray):
        return tuple(_run(node, branches[0 if condition.item() else 1], ()))
    made: list[list[Any]] = []

    def branch(graph: Any) -> Any:
        def run() -> tuple[Array, ...]:
            made.append(_run(node, graph, ()))
            return _arrays(node, made[-1]) if _are_tensors(made[-1]) else ()

        return run

    yes, no = (jax.eval_shape(branch(graph)) for graph in branches)
    if not all(map(_are_tensors, made)) or [(a.shape, a.dtype) for a in yes] != [(a.shape, a.dtype) for a in no]:
        raise node.importer.unknown(node, [0], [condition], "branches differ in shape")
    return tuple(lax.cond(jnp.reshape(condition, ()), *map(branch, branches)))


# --- Loop -------------------------------------------------------------------------------------------------------


@op("Loop", static=())
def loop(node: Node, trips: Any, condition: Any, *states: Any) -> tuple[Any, ...]:
    body = node.get("body")
    count = int(trips.item()) if isinstance(trips, np.ndarray) else None
    if count is None and trips is None:
        count = -1  # without end
    states = tuple(states)
    scanned = len(body.output) - 1 - len(states)
    if isinstance(condition, np.ndarray) and not condition.item():
        count = 0
    started = condition is None or isinstance(condition, np.ndarray)
    if started and count is not None and 0 <= count <= UNROLLED:
        done = _unrolled(node, body, count, states, scanned)
        if done is not None:
            return done
    computed = [n for n, v in enumerate((trips, condition)) if isinstance(v, jax.Array)]
    if computed and not _are_tensors(states):
        raise node.importer.unknown(node, computed, (trips, condition), "a state is a sequence")
    try:
        if scanned:
            return _counted_loop(node, body, trips, count, states, scanned)
        return _while(node, body, trips, condition, states)
    except Unknown as error:
        if computed and not error.names:  # what the body needs to know may follow from the number of the turn
            raise node.importer.unknown(node, computed, (trips, condition), str(error)) from error
        raise


def _unrolled(node: Node, body: Any, count: int, states: tuple[Any, ...], scanned: int) -> tuple[Any, ...] | None:
    """The loop one turn after the other; None where the condition is computed."""
    rows: list[tuple[Any, ...]] = []
    for turn in range(count):
        more, *results = _run(node, body, (np.asarray(turn, np.int64), np.asarray(True), *states))
        states, row = tuple(results[: len(results) - scanned]), tuple(results[len(results) - scanned :])
        rows.append(row)
        if not isinstance(more, np.ndarray):
            if turn + 1 == count:
                break
            return None
        if not more.item():
            break
    if not rows and scanned:
        return (*states, *_empty(node, body, states, scanned))
    return (*states, *(_stacked(node, [row[n] for row in rows]) for n in range(scanned)))


def _stacked(node: Node, rows: list[Any]) -> Any:
    return np.stack(rows) if all(isinstance(r, np.ndarray) for r in rows) else jnp.stack(_arrays(node, rows))


def _empty(node: Node, body: Any, states: tuple[Any, ...], scanned: int) -> list[Any]:
    """What a loop collects that takes no turn: no rows, of the shapes that a turn would give."""

    def once() -> tuple[Array, ...]:
        return _arrays(node, _run(node, body, (np.asarray(0, np.int64), np.asarray(True), *states))[-scanned:])

    return [np.zeros((0, *row.shape), row.dtype) for row in jax.eval_shape(once)]


def _index(node: Node) -> np.dtype:
    return node.dtype(np.int64)


def _settled(node: Node, body: Any, states: tuple[Array, ...]) -> None:
    """States must keep their shapes from turn to turn."""

    def once(*states: Array) -> tuple[Array, ...]:
        turn = jnp.zeros((), _index(node))
        return _arrays(node, _run(node, body, (turn, np.asarray(True), *states))[1 : 1 + len(states)])

    new = jax.eval_shape(once, *states)
    if [(s.shape, s.dtype) for s in states] != [(s.shape, s.dtype) for s in new]:
        raise node.error(
            f"states that keep their shapes required in a loop of computed or large length, got {[str(s) for s in new]} "
            f"from {[f'{s.dtype}{list(s.shape)}' for s in states]}",
            Unsupported,
        )


def _counted_loop(node: Node, body: Any, trips: Any, count: int | None, states: tuple[Any, ...], scanned: int) -> tuple[Any, ...]:
    if count is None:
        raise node.importer.unknown(node, [0], [trips], "every turn has an output")
    if count < 0:
        raise node.error("a number of turns required for outputs of every turn, got none", Unsupported)
    first = _arrays(node, states)
    _settled(node, body, first)
    certain: list[bool] = []

    def turn(carried: tuple[Array, ...], number: Array) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        more, *results = _run(node, body, (number, np.asarray(True), *carried))
        certain.append(isinstance(more, np.ndarray) and bool(more.item()))
        values = _arrays(node, results)
        return values[: len(carried)], values[len(carried) :]

    last, rows = lax.scan(turn, first, jnp.arange(count, dtype=_index(node)))
    if not all(certain):
        raise node.error("a condition that stays true required for outputs of every turn, got a computed one", Unsupported)
    return (*last, *rows)


def _while(node: Node, body: Any, trips: Any, condition: Any, states: tuple[Any, ...]) -> tuple[Any, ...]:
    first = _arrays(node, states)
    _settled(node, body, first)
    limit = None if trips is None else _scalar(node, trips)
    go = jnp.asarray(True) if condition is None else _scalar(node, condition)

    def holds(carried: tuple[Any, ...]) -> Array:
        number, more, _ = carried
        return more if limit is None else more & (number < limit)

    def turn(carried: tuple[Any, ...]) -> tuple[Any, ...]:
        number, more, values = carried
        again, *results = _run(node, body, (number, more, *values))
        return number + 1, _scalar(node, again).astype(bool), _arrays(node, results)

    start = jnp.zeros((), _index(node) if limit is None else limit.dtype)
    return tuple(lax.while_loop(holds, turn, (start, go, first))[2])


# --- Scan -------------------------------------------------------------------------------------------------------


@op("Scan", since=9)
def scan(node: Node, *operands: Any) -> tuple[Any, ...]:
    body, inputs = node.get("body"), node.get("num_scan_inputs")
    states, rows = operands[: len(operands) - inputs], operands[len(operands) - inputs :]
    outputs = len(body.output) - len(states)
    axes = node.get("scan_input_axes", [0] * inputs)
    backward = node.get("scan_input_directions", [0] * inputs)
    moved = []
    for row, axis, turned in zip(_arrays(node, rows), axes, backward, strict=True):
        row = jnp.moveaxis(row, axis_of(node, axis, row.ndim), 0)
        moved.append(jnp.flip(row, 0) if turned else row)

    def turn(carried: tuple[Array, ...], row: tuple[Array, ...]) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        values = _arrays(node, _run(node, body, (*carried, *row)))
        return values[: len(carried)], values[len(carried) :]

    last, made = lax.scan(turn, _arrays(node, states), tuple(moved))
    out_axes = node.get("scan_output_axes", [0] * outputs)
    out_backward = node.get("scan_output_directions", [0] * outputs)
    results = []
    for row, axis, turned in zip(made, out_axes, out_backward, strict=True):
        row = jnp.flip(row, 0) if turned else row
        results.append(jnp.moveaxis(row, 0, axis_of(node, axis, row.ndim)))
    return (*last, *results)


@op("Scan")
def batched_scan(node: Node, lengths: Any, *operands: Any) -> tuple[Any, ...]:
    """Opset 8: operands have a batch axis, over which the scan maps."""
    if lengths is not None:
        raise node.error("sequences of full length required, got sequence_lens", Unsupported)
    from dataclasses import replace

    given = {**node.attributes, "scan_input_directions": node.get("directions", [0] * node.get("num_scan_inputs"))}
    inner = replace(node, attributes=given)
    return tuple(jax.vmap(lambda *parts: scan(inner, *parts))(*_arrays(node, operands)))
