"""The smallest counterexample to a wrong rule, and its spelling."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from eqsat.arrays import NUMPY
from eqsat.check import Disagreement, disagreement
from eqsat.check_sample import Instance, Value, is_value, leaf
from eqsat.evaluate import evaluate_all
from eqsat.index import Axis
from eqsat.notation import Tensor, Term, const_value
from eqsat.pattern import Pattern

Array = Any
SIMPLE = (0.0, 1.0, 2.0, -1.0, 3.0, 0.5)
BUDGET = 300  # evaluations


def counterexample(instance: Instance) -> str:
    """The law, what its variables stand for, and both values, as a person would write them."""
    small = shrunk(instance)
    found = disagreement(small)
    assert found is not None
    return spelled(small, found)


def shrunk(instance: Instance) -> Instance:
    """A simpler instance that still fails: plain loads, few and short axes, simple values."""
    plain = _plain(instance)
    best = plain if _fails(plain) else instance
    budget = BUDGET
    progress = best is plain
    while progress and budget > 0:
        progress = False
        for candidate in _simpler(best):
            budget -= 1
            if _fails(candidate):
                best, progress = candidate, True
                break
            if budget <= 0:
                break
    return best


def _fails(instance: Instance) -> bool:
    try:
        return instance.admitted and disagreement(instance) is not None
    except (TypeError, ValueError, OverflowError):
        return False


def _plain(instance: Instance) -> Instance:
    """Every variable as a load over its own axes."""
    values, arrays = dict(instance.values), dict[Tensor, Array]()
    for name, value in instance.values.items():
        if isinstance(value, Term):
            axes = tuple(sorted(value.axes))
            (array,) = evaluate_all([(value, axes)], instance.arrays, NUMPY)
            values[name] = leaf(name, axes, np.asarray(array), arrays)
    return dataclasses.replace(instance, values=values, arrays=arrays)


def _simpler(instance: Instance) -> Iterator[Instance]:
    """Steps towards the simplest instance, largest first."""
    for axis in _axes_of(instance):
        for extent in dict.fromkeys((1, 2, axis.extent // 2, axis.extent - 1)):
            if 0 < extent < axis.extent:
                yield from _with_extent(instance, axis, extent)
    leaves = {n: v for n, v in instance.values.items() if isinstance(v, Term)}
    for name, term in leaves.items():
        for d in range(len(term.axes)):
            yield _with_leaf(instance, name, _axes(term)[:d] + _axes(term)[d + 1 :], np.take(_array(instance, term), 0, axis=d))
    for name, value in instance.values.items():
        if isinstance(value, float):
            for number in SIMPLE:
                if _simpler_number(number, value):
                    yield dataclasses.replace(instance, values={**instance.values, name: number})
    for name, term in leaves.items():
        yield from _simpler_values(instance, name, term)


def _simpler_number(new: float, old: float) -> bool:
    rank = {v: n for n, v in enumerate(SIMPLE)}
    return new in rank and rank[new] < rank.get(old, len(SIMPLE))


def _simpler_values(instance: Instance, name: str, term: Term) -> Iterator[Instance]:
    array = _array(instance, term)
    numbers = [v for v in SIMPLE if is_value(v, term.dtype)]
    for value in numbers:
        if not np.all(array.astype(float) == value) and all(
            _simpler_number(value, float(x)) or float(x) == value for x in array.flat
        ):
            yield _with_leaf(instance, name, _axes(term), np.full_like(array, value))
    if array.size > 16:
        return
    for place in itertools.product(*map(range, array.shape)):
        for value in numbers:
            if _simpler_number(value, float(array[place])):
                changed = array.copy()
                changed[place] = value
                yield _with_leaf(instance, name, _axes(term), changed)


def _axes_of(instance: Instance) -> list[Axis]:
    found = {a for v in instance.values.values() if isinstance(v, Term) for a in v.axes}
    found |= {v for v in instance.values.values() if isinstance(v, Axis)}
    return sorted(a for a in found if a.extent > 1)


def _axes(term: Term) -> tuple[Axis, ...]:
    """The axis of each dimension of a plain load."""
    return tuple(next(iter(i.axes)) for i in term.indices)


def _array(instance: Instance, term: Term) -> Array:
    return instance.arrays[term.tensor]


def _with_leaf(instance: Instance, name: str, axes: tuple[Axis, ...], array: Array) -> Instance:
    arrays = dict(instance.arrays)
    values = {**instance.values, name: leaf(name, axes, np.asarray(array), arrays)}
    return dataclasses.replace(instance, values=values, arrays=arrays)


def _with_extent(instance: Instance, axis: Axis, extent: int) -> Iterator[Instance]:
    """The instance with an axis cut to its first or last values."""
    new = Axis(axis.name, extent)
    for start in (0, axis.extent - extent):
        values: dict[str, Value] = {}
        arrays: dict[Tensor, Array] = {}
        for name, value in instance.values.items():
            if isinstance(value, Term):
                array, axes = _array(instance, value), _axes(value)
                if axis in axes:
                    array = np.take(array, range(start, start + extent), axis=axes.index(axis))
                kept = tuple(new if a == axis else a for a in axes if a != axis or extent > 1)
                values[name] = leaf(name, kept, array.reshape([a.extent for a in kept]), arrays)
            else:
                values[name] = new if value == axis else value
        yield dataclasses.replace(instance, values=values, arrays=arrays)


# --- spelling ------------------------------------------------------------------------------------------------------------


def spelled(instance: Instance, found: Disagreement) -> str:
    """Several lines: law, variables, both values."""
    rule = instance.rule
    lines = [f"law      {rule.law}", f"tier     {rule.tier}: {found.claim} required"]
    bindings = [b for name, value in instance.values.items() if (b := _binding(instance, name, value))]
    lines.append(f"with     {', '.join(bindings)}")
    if found.position:
        lines.append(f"at       {', '.join(f'{a} = {i}' for a, i in found.position.items())}")
    lines.append(f"left     {bare(rule.equation.left)} = {number(found.left)}")
    lines.append(f"right    {bare(rule.equation.right)} = {number(found.right)}")
    return "\n".join(lines)


def bare(pattern: Pattern) -> str:
    text = str(pattern)
    return text[1:-1] if text.startswith("(") and text.endswith(")") else text


def _binding(instance: Instance, name: str, value: Value) -> str:
    if isinstance(value, Axis):
        return f"{name} of extent {value.extent}" + (f" (the same axis as {value.name})" if value.name != name else "")
    if not isinstance(value, Term):
        return f"{name} = {value if isinstance(value, str) else number(value)}"
    if value.head == "const":
        return f"{name} = {number(const_value(value))} ({value.dtype})"
    if value.head == "load" and not value.args and value.tensor in instance.arrays:
        index = ", ".join(str(i) for i in value.indices)
        return f"{name}{f'[{index}]' if index else ''} = {_numbers(_array(instance, value))} ({value.dtype})"
    return f"{name} = {value} ({value.dtype})"


def _numbers(array: Array) -> str:
    if array.ndim == 0:
        return number(array.item())
    if array.size > 24:
        return f"{array.size} values"
    return f"[{', '.join(_numbers(np.asarray(x)) for x in array)}]"


def number(value: Any) -> str:
    """The shortest spelling that tells a number from its neighbours."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:g}" if float(f"{value:g}") == value or value != value else f"{value:.17g}"
