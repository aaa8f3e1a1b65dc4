"""What a reading means, said as plainly as possible, and the check that it is what JAX computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from eqsat.evaluate import NUMPY, evaluate
from eqsat.graph import Graph
from eqsat.index import Axis, Dynamic, Index, Quotient, Remainder
from eqsat.notation import Stored, Tensor, Term, const_value
from eqsat.online import spelled
from eqsat.read import Call, Reading, read
from eqsat.scalars import REDUCTIONS

Example = tuple[Callable[..., Any], tuple[Any, ...]]

# --- the meaning of a term, as plainly as it can be said: every value is an array over all axes, free and bound ------


def naive(term: Term, axes: tuple[Axis, ...], arrays: Mapping[Tensor, np.ndarray]) -> np.ndarray:
    shape = tuple(a.extent for a in axes)
    grid = dict(zip(axes, np.meshgrid(*map(np.arange, shape), indexing="ij"), strict=True))
    return np.broadcast_to(_naive(term, grid, arrays, {}), shape)


Known = dict[Term, np.ndarray]  # on one grid: terms share their parts


def _naive(term: Term, grid: dict[Axis, np.ndarray], arrays: Mapping[Tensor, np.ndarray], known: Known) -> np.ndarray:
    if term not in known:
        known[term] = _of_parts(term, grid, arrays, known)
    return known[term]


def _of_parts(term: Term, grid: dict[Axis, np.ndarray], arrays: Mapping[Tensor, np.ndarray], known: Known) -> np.ndarray:
    if term.head == "const":
        return np.asarray(const_value(term), jnp.dtype(term.dtype))
    if term.head == "pos":
        return np.asarray(_place(term.data, grid, ())).astype(jnp.dtype(term.dtype))
    if term.head == "reduce":
        name, axis = term.data
        size = {a: g[..., None] for a, g in grid.items()}
        inner = _naive(term.args[0], size | {axis: np.arange(axis.extent)}, arrays, {})
        inner = np.broadcast_to(inner, (*inner.shape[:-1], axis.extent) if inner.ndim else (axis.extent,))
        return getattr(np, REDUCTIONS[name].numpy).reduce(inner, axis=-1, dtype=inner.dtype)
    if term.head == "online":
        return _naive(spelled(term), grid, arrays, known)
    args = [_naive(a, grid, arrays, known) for a in term.args]
    if term.head == "load":
        array = np.asarray(arrays[term.tensor])
        places = [np.asarray(_place(i, grid, args)) for i in term.indices]
        inside = np.asarray(True)
        for place, n in zip(places, array.shape, strict=True):
            inside = inside & (place >= 0) & (place < n)
        safe = tuple(np.clip(p, 0, n - 1) for p, n in zip(places, array.shape, strict=True))
        return np.where(inside, array[safe], np.zeros((), array.dtype))
    if term.head == "cast":
        return NUMPY.apply("cast", args[0], jnp.dtype(term.dtype))
    return np.asarray(NUMPY.apply(term.head, *args))


def _place(index: Index, grid: dict[Axis, np.ndarray], slots: Any) -> Any:
    total: Any = index.constant
    for atom, coefficient in index.terms:
        if isinstance(atom, Axis):
            value = grid[atom]
        elif isinstance(atom, Dynamic):
            value = slots[atom.slot].astype(np.int64)
            assert value.min() >= atom.low and value.max() <= atom.high, "an operand leaves the range that its index states"
        else:
            inner = np.asarray(_place(atom.index, grid, slots))
            value = inner // atom.divisor if isinstance(atom, Quotient) else inner % atom.divisor
            assert isinstance(atom, Quotient | Remainder)
        total = total + coefficient * value
    return total


def run(reading: Reading, flat: list[Any], meaning: Callable[..., Any]) -> list[np.ndarray]:
    """The reading's outputs, one step after the other."""
    arrays: dict[Tensor, Any] = dict(zip(reading.inputs, map(np.asarray, flat), strict=True))
    arrays |= {t: np.asarray(c) for t, c in reading.constants.items()}
    for step in reading.steps:
        if isinstance(step, Call):
            results = step.eqn.bind(*(jnp.asarray(arrays[x]) if isinstance(x, Tensor) else x for x in step.inputs))
            arrays.update(zip(step.outputs, results, strict=True))
        else:
            arrays[step] = np.asarray(meaning(step.term, step.axes, arrays)).reshape(step.shape)
            assert arrays[step].dtype == jnp.dtype(step.dtype)
    return [arrays[t] for t in reading.outputs]


def by_evaluate(term: Term, axes: tuple[Axis, ...], arrays: Mapping[Tensor, Any]) -> Any:
    return evaluate(term, axes, arrays, np)


def check(fn: Callable[..., Any], args: tuple[Any, ...], *meanings: Callable[..., Any], tolerance: float = 2e-6) -> Reading:
    """The reading of `fn` gives what its equations give one by one."""
    graph = Graph.from_jax(fn, *args)
    reading = read(graph)
    flat = jax.tree_util.tree_leaves(args)
    wanted = [np.asarray(x) for x in graph.evaluate(*flat)]
    for meaning in meanings or (naive, by_evaluate):
        with np.errstate(all="ignore"):
            found = run(reading, flat, meaning)
        for got, want in zip(found, wanted, strict=True):
            same(got, want, tolerance)
    well_formed(reading)
    return reading


def same(got: np.ndarray, want: np.ndarray, tolerance: float) -> None:
    assert got.shape == want.shape and got.dtype == want.dtype
    if want.dtype == bool or np.issubdtype(want.dtype, np.integer):
        np.testing.assert_array_equal(got, want)
        return
    narrow = {"bfloat16": 2**-7, "float16": 2**-9}.get(str(want.dtype), tolerance)
    got, want = got.astype(np.float64), want.astype(np.float64)
    finite = np.abs(want[np.isfinite(want)])
    scale = finite.max() if finite.size else 1.0
    np.testing.assert_allclose(got, want, rtol=4 * narrow, atol=narrow * max(scale, 1e-3))


def well_formed(reading: Reading) -> None:
    """Names are unique identifiers, and every step reads only what stands before it."""
    known = {*reading.inputs, *reading.constants}
    for step in reading.steps:
        loaded = step.inputs if isinstance(step, Call) else [t.tensor for t in step.term.walk() if t.head == "load"]
        assert all(t in known for t in loaded if isinstance(t, Tensor))
        if isinstance(step, Stored):
            assert step.term.axes <= set(step.axes)
        known |= set(step.outputs) if isinstance(step, Call) else {step}
    tensors = [
        *reading.inputs,
        *reading.constants,
        *(t for s in reading.steps for t in (s.outputs if isinstance(s, Call) else (s,))),
    ]
    names = [t.name for t in tensors]
    assert len(set(names)) == len(names) and all(n.isidentifier() for n in names)
    assert str(reading)


# --- arrays


def f32(*shape: int, low: float = -2.0, high: float = 2.0) -> np.ndarray:
    return np.random.default_rng(sum(shape) + len(shape)).uniform(low, high, shape).astype(np.float32)


def ints(*shape: int, low: int = -9, high: int = 9, dtype: Any = np.int32) -> np.ndarray:
    return np.random.default_rng(sum(shape) + 7).integers(low, high, shape).astype(dtype)


def bools(*shape: int) -> np.ndarray:
    return ints(*shape) > 0


def bf16(*shape: int) -> Any:
    return jnp.asarray(f32(*shape), jnp.bfloat16)
