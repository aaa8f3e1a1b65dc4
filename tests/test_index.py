"""Index expressions: the normal form means what was written, its bounds hold, and views compose."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from eqsat.index import ZERO, Axis, Dynamic, Index, Quotient, Remainder, flatten, unflatten

AXES = tuple(Axis(name, extent) for name, extent in (("i", 4), ("j", 6), ("k", 5), ("u", 1)))


def value_of(index: Index, at: Mapping[Axis, int], operands: Mapping[int, int] | None = None) -> int:
    """The meaning of an index at a point."""
    total = index.constant
    for atom, coefficient in index.terms:
        match atom:
            case Quotient(inner, divisor):
                value = value_of(inner, at, operands) // divisor
            case Remainder(inner, divisor):
                value = value_of(inner, at, operands) % divisor
            case Dynamic(slot):
                value = (operands or {})[slot]
            case _:
                value = at[atom]
        total += coefficient * value
    return total


def points(axes=AXES) -> list[dict[Axis, int]]:
    found: list[dict[Axis, int]] = [{}]
    for axis in axes:
        found = [{**p, axis: v} for p in found for v in range(axis.extent)]
    return found


POINTS = points()
DIVISORS = st.integers(1, 8)
FACTORS = st.integers(-6, 6)


@st.composite
def expressions(draw, depth: int = 4):
    """An index, and the plain Python function it was written as."""
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        if draw(st.booleans()):
            axis = draw(st.sampled_from(AXES))
            return Index.of(axis), lambda at: at[axis]
        number = draw(st.integers(-9, 9))
        return Index.of(number), lambda at: number
    index, mean = draw(expressions(depth=depth - 1))
    match draw(st.sampled_from(["+", "-", "*", "//", "%"])):
        case "+":
            other, other_mean = draw(expressions(depth=depth - 1))
            return index + other, lambda at: mean(at) + other_mean(at)
        case "-":
            other, other_mean = draw(expressions(depth=depth - 1))
            return index - other, lambda at: mean(at) - other_mean(at)
        case "*":
            factor = draw(FACTORS)
            return index * factor, lambda at: mean(at) * factor
        case "//":
            divisor = draw(DIVISORS)
            return index // divisor, lambda at: mean(at) // divisor
        case _:
            divisor = draw(DIVISORS)
            return index % divisor, lambda at: mean(at) % divisor


@given(expressions())
def test_normal_form_means_what_was_written(expression):
    index, mean = expression
    assert [value_of(index, p) for p in POINTS] == [mean(p) for p in POINTS]


@given(expressions())
def test_range_bounds_every_value(expression):
    index, _ = expression
    low, high = index.range
    assert all(low <= value_of(index, p) <= high for p in POINTS)


@given(st.lists(st.tuples(st.sampled_from(AXES[:3]), FACTORS), max_size=4), st.integers(-9, 9))
def test_range_of_an_affine_index_is_exact(parts, constant):
    index = sum((Index.of(axis) * factor for axis, factor in parts), Index.of(constant))
    values = [value_of(index, p) for p in POINTS]
    assert index.range == (min(values), max(values))


@given(expressions())
def test_normal_form_is_sorted_without_zeros(expression):
    index, _ = expression
    atoms = [atom for atom, _ in index.terms]
    assert all(coefficient for _, coefficient in index.terms) and len(set(atoms)) == len(atoms)
    assert index == index + 0 == 0 + index and hash(index) == hash(index + 0)


@given(expressions())
def test_axes_are_those_that_matter(expression):
    index, _ = expression
    for axis in set(AXES) - index.axes:
        seen: dict[tuple[int, ...], int] = {}
        for p in POINTS:
            key = tuple(v for a, v in p.items() if a != axis)
            assert seen.setdefault(key, value_of(index, p)) == value_of(index, p)


@given(expressions(), expressions(depth=2), expressions(depth=2))
def test_substitution_commutes_with_evaluation(expression, for_i, for_k):
    index, _ = expression
    i, _, k, _ = AXES
    values = {i: for_i[0] % i.extent, k: for_k[0] % k.extent}
    replaced = index.substitute(values)
    for p in POINTS:
        moved = p | {axis: value_of(value, p) for axis, value in values.items()}
        assert value_of(replaced, p) == value_of(index, moved)


@given(expressions(), st.sampled_from(AXES[:3]), st.data())
def test_an_index_within_positions_has_its_values_there(expression, axis, data):
    index, _ = expression
    low = data.draw(st.integers(0, axis.extent - 1))
    high = data.draw(st.integers(low, axis.extent - 1))
    there = [p for p in POINTS if low <= p[axis] <= high]
    assert [value_of(index.within(axis, low, high), p) for p in there] == [value_of(index, p) for p in there]


def test_a_quotient_is_decided_within_positions():
    x = Index.of(AXES[1])
    assert (x // 3).within(AXES[1], 3, 5) == Index.of(1)
    assert (x % 3).within(AXES[1], 3, 5) == x - 3
    assert (x // 3).within(AXES[1], 2, 5) == x // 3


@given(expressions())
def test_substituting_axes_by_themselves_changes_nothing(expression):
    index, _ = expression
    assert index.substitute({axis: Index.of(axis) for axis in AXES}) == index


@given(expressions(), expressions())
def test_addition_is_commutative_and_cancels(a, b):
    assert a[0] + b[0] == b[0] + a[0]
    assert a[0] - a[0] == ZERO
    assert all(value_of(a[0] + b[0] - b[0], p) == value_of(a[0], p) for p in POINTS)


# --- views ------------------------------------------------------------------------------------------------------

SHAPES = st.lists(st.integers(1, 6), min_size=1, max_size=4).map(tuple)


def named(shape, prefix="x") -> tuple[Axis, ...]:
    return tuple(Axis(f"{prefix}{d}", n) for d, n in enumerate(shape))


@given(SHAPES)
def test_flatten_and_unflatten_are_inverse(shape):
    indices = tuple(map(Index.of, named(shape)))
    assert unflatten(flatten(indices, shape), shape) == indices
    whole = Index.of(Axis("n", prod(shape)))
    assert flatten(unflatten(whole, shape), shape) == whole


@given(SHAPES)
def test_flatten_counts_in_row_major_order(shape):
    axes = named(shape)
    offset = flatten(map(Index.of, axes), shape)
    assert [value_of(offset, p) for p in points(axes)] == list(range(prod(shape)))


@st.composite
def refinements(draw):
    """A shape, and one of the same size that splits its dimensions."""
    split = draw(st.lists(st.lists(st.sampled_from([1, 2, 3, 4, 5, 64]), min_size=1, max_size=3), min_size=1, max_size=3))
    return tuple(prod(part) for part in split), tuple(n for part in split for n in part)


def reshaped(shape: tuple[int, ...], to: tuple[int, ...], at: tuple[Index, ...]) -> tuple[Index, ...]:
    """Where the element `at` of the reshaped array lies in the original."""
    return unflatten(flatten(at, to), shape)


@given(refinements())
def test_reshape_there_and_back_is_the_identity(shapes):
    coarse, fine = shapes
    for first, second in ((coarse, fine), (fine, coarse)):
        at = tuple(map(Index.of, named(first)))
        assert reshaped(first, second, reshaped(second, first, at)) == at


@given(refinements(), st.randoms())
def test_reshape_and_transpose_there_and_back_is_the_identity(shapes, random):
    coarse, fine = shapes
    order = list(range(len(fine)))
    random.shuffle(order)
    at = tuple(map(Index.of, named(coarse)))
    split = reshaped(fine, coarse, at)
    moved = [split[d] for d in order]
    back = tuple(moved[order.index(d)] for d in range(len(fine)))
    assert reshaped(coarse, fine, back) == at


@given(st.sampled_from([((2, 6), (3, 4)), ((6, 10), (4, 15)), ((4, 9), (6, 6)), ((2, 3, 4), (4, 6)), ((24,), (2, 3, 4))]))
def test_any_reshape_there_and_back_has_the_same_meaning(shapes):
    a, b = shapes
    axes = named(a)
    back = reshaped(a, b, reshaped(b, a, tuple(map(Index.of, axes))))
    for p in points(axes):
        assert tuple(value_of(i, p) for i in back) == tuple(p[axis] for axis in axes)


def test_known_simplifications():
    x, y = Axis("x", 12), Axis("y", 64)
    flat = Index.of(x) * 64 + y
    assert flat // 64 == Index.of(x)
    assert flat % 64 == Index.of(y)
    assert flat // 16 == Index.of(x) * 4 + Index.of(y) // 16
    assert (flat // 64) * 64 + flat % 64 == flat
    long = flat * 7 + Index.of(y) * 3  # of which the remainder keeps less than the quotient
    assert (long // 64) * 64 + long % 64 == long
    assert Index.of(y) // 64 == ZERO and Index.of(y) % 64 == Index.of(y)
    assert (Index.of(y) // 4) // 4 == Index.of(y) // 16
    assert (Index.of(y) % 16) % 4 == Index.of(y) % 4
    assert (Index.of(y) % 16) // 4 == (Index.of(y) // 4) % 4


def test_an_axis_of_extent_one_is_zero():
    assert Index.of(Axis("u", 1)) == ZERO


def test_text_is_readable():
    x, y = Axis("x", 12), Axis("y", 64)
    assert str(Index.of(x) * 64 + y + 1) == "64*x+y+1"
    assert str(Index.of(x) - 1) == "x-1"
    assert str(ZERO) == "0"
    assert str((Index.of(y) + 3) // 4) == "(y+3)//4"


# --- values of terms --------------------------------------------------------------------------------------------


def test_dynamic_atoms_keep_their_bounds_and_can_be_renumbered():
    x = Axis("x", 3)
    index = (Index.dynamic(0, 0, 9) + x) // 4 + Index.dynamic(1, -1, 1)
    assert index.slots == {0, 1} and index.axes == {x}
    assert index.range == (-1, 3)
    moved = index.renumber({0: 5, 1: 2})
    assert moved.slots == {5, 2}
    for p in points((x,)):
        assert value_of(index, p, {0: 7, 1: -1}) == value_of(moved, p, {5: 7, 2: -1})


@given(expressions(), st.integers(-4, 4), st.integers(0, 5))
def test_dynamic_atoms_take_part_in_arithmetic(expression, low, width):
    index, mean = expression
    assume(index.terms)
    mixed = (index + Index.dynamic(0, low, low + width)) // 3
    bounds = mixed.range
    for p in POINTS[::7]:
        for value in range(low, low + width + 1):
            assert value_of(mixed, p, {0: value}) == (mean(p) + value) // 3
            assert bounds[0] <= value_of(mixed, p, {0: value}) <= bounds[1]


def test_division_by_zero_is_refused():
    with pytest.raises(ZeroDivisionError):
        Index.of(Axis("x", 3)) // 0
