"""Terms: interned, typed, substituted without capture, and printed as index notation."""

from __future__ import annotations

import gc
import itertools
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eqsat.formula import formula
from eqsat.index import ZERO, Axis, Index
from eqsat.notation import (
    Kernel,
    Stored,
    Tensor,
    Term,
    bound_level,
    cast,
    const,
    const_value,
    dimension_indices,
    is_box,
    level_of,
    load,
    online,
    output_axes,
    pos,
    rebuild,
    reduce,
    scalar,
    substitute,
)

X0, X1 = Axis("x0", 4), Axis("x1", 6)
R0, R1 = Axis("r0", 5), Axis("r1", 5)
A = Tensor("A", (4, 5), "float32")
B = Tensor("B", (5, 6), "float32")
V = Tensor("v", (5,), "float32")


def at(tensor: Tensor, *axes: Axis | Index | int) -> Term:
    return load(tensor, map(Index.of, axes))


def product(axis: Axis = R0) -> Term:
    return reduce("sum", axis, scalar("mul", at(A, X0, axis), at(B, axis, X1)))


# --- interning and facts ----------------------------------------------------------------------------------------


def test_equal_terms_are_one_object():
    assert product() is product()
    assert product() is not product(R1)


def test_terms_go_when_nobody_holds_them():
    term = scalar("add", const(1234.5, "float32"), const(4321.5, "float32"))
    held = [weakref.ref(t) for t in (term, *term.args)]
    # Made again, each is the one in the table; to go through the table is not safe while other threads make terms.
    assert scalar("add", const(1234.5, "float32"), const(4321.5, "float32")) is term
    assert (const(1234.5, "float32"), const(4321.5, "float32")) == term.args
    del term
    gc.collect()
    assert [ref() for ref in held] == [None] * 3


@pytest.mark.parametrize("value", [0.0, -0.0, float("inf"), float("nan"), 1.5, 0.1])
def test_float_literals_keep_sign_and_nan(value):
    term = const(value, "float32")
    assert term is const(value, "float32")
    assert np.array_equal(np.float64(const_value(term)), value, equal_nan=True)
    assert np.signbit(const_value(term)) == np.signbit(value) or value != value


def test_literals_are_distinct_by_sign_and_dtype():
    assert const(0.0, "float32") is not const(-0.0, "float32")
    assert const(1, "float32") is not const(1, "bfloat16")
    assert const(1, "int32") is not const(True, "bool")
    assert const_value(const(3, "float32")) == 3.0 and type(const_value(const(3, "float32"))) is float


def test_free_axes_are_those_not_bound():
    assert product().axes == {X0, X1}
    assert at(A, X0, R0).axes == {X0, R0}
    assert online(R0, at(A, X0, R0), at(B, R0, X1), "float32").axes == {X0, X1}
    assert pos(Index.of(X0) + R0, "int32").axes == {X0, R0}


def test_walk_gives_operands_first_and_each_once():
    shared = scalar("exp", at(V, R0))
    term = reduce("sum", R0, scalar("mul", shared, shared))
    order = list(term.walk())
    assert len(order) == len(set(order)) == 4
    assert all(order.index(arg) < order.index(t) for t in order for arg in t.args)


def test_walk_and_axes_of_a_deep_chain():
    term = at(V, R0)
    for _ in range(5000):
        term = scalar("neg", term)
    assert sum(1 for _ in term.walk()) == 5001


def test_rebuild_with_the_same_operands_is_the_term_itself():
    term = product()
    assert rebuild(term, term.args) is term
    assert rebuild(term, (at(A, X0, R0),)) is reduce("sum", R0, at(A, X0, R0))


def test_cast_to_the_same_dtype_is_nothing():
    assert cast("float32", at(V, R0)) is at(V, R0)
    assert cast("bfloat16", at(V, R0)).dtype == "bfloat16"


# --- types ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: scalar("add", const(1, "float32"), const(1, "bfloat16")), "add: 2 operands of one dtype, got float32, bfloat16"),
        (lambda: scalar("add", const(1, "float32")), "add: 2 operands of one dtype, got float32"),
        (lambda: scalar("exp", const(1, "int32")), "exp: operands of kind float, got int32"),
        (lambda: scalar("where", const(1, "int32"), const(1, "float32"), const(1, "float32")), "where: operands of kind"),
        (lambda: scalar("and", const(1, "float32"), const(1, "float32")), "and: operands of kind bool, int, uint"),
        (lambda: reduce("sum", R0, const(True, "bool")), "reduce sum: operand of kind float, int, uint, got bool"),
    ],
)
def test_wrong_operands_are_refused(build, message):
    with pytest.raises(TypeError, match="^" + message.replace("(", r"\(")):
        build()


def test_comparisons_give_bool_and_where_gives_its_branches():
    less = scalar("lt", at(V, R0), const(0, "float32"))
    assert less.dtype == "bool"
    assert scalar("where", less, const(0, "bfloat16"), const(1, "bfloat16")).dtype == "bfloat16"


def test_a_load_needs_an_index_for_each_dimension():
    with pytest.raises(ValueError, match="one index per dimension, got 1"):
        load(A, [Index.of(X0)])


# --- substitution -----------------------------------------------------------------------------------------------


def test_substitution_replaces_free_axes_only():
    term = substitute(product(), {X0: Index.of(X1), R0: Index.of(3)})
    assert term is reduce("sum", R0, scalar("mul", at(A, X1, R0), at(B, R0, X1)))


def test_substitution_that_touches_nothing_is_the_term_itself():
    assert substitute(product(), {R1: ZERO}) is product()
    assert substitute(product(), {}) is product()


def test_a_binder_shadows_an_axis_of_its_name():
    inner = reduce("max", R0, at(A, X0, R0))
    term = scalar("sub", at(A, X0, R0), inner)
    assert substitute(term, {R0: Index.of(2)}) is scalar("sub", at(A, X0, 2), inner)


def test_capture_is_an_error_and_a_name_of_another_level_is_none():
    with pytest.raises(ValueError, match="may not mention the bound axis r0"):
        substitute(product(), {X0: Index.of(R0)})
    assert substitute(product(), {X0: Index.of(R1)}).axes == {R1, X1}
    with pytest.raises(ValueError, match="may not mention the bound axis r0"):
        substitute(online(R0, at(A, X0, R0), at(B, R0, X1), "float32"), {X1: Index.of(R0) + 1})


def test_substitution_reaches_indices_positions_and_operands():
    table = Tensor("T", (9,), "float32")
    token = load(Tensor("tokens", (4,), "int32"), [Index.of(X0)])
    term = load(table, [Index.dynamic(0, 0, 8)], (token,))
    assert term.axes == {X0}
    moved = substitute(term, {X0: Index.of(X1) // 2})
    assert moved.args[0].indices == (Index.of(X1) // 2,) and moved.indices == term.indices
    assert substitute(pos(Index.of(X0) * 2, "int32"), {X0: Index.of(X1) + 1}) is pos(Index.of(X1) * 2 + 2, "int32")


def test_a_shared_memo_gives_the_same_terms():
    memo: dict = {}
    values = {X0: Index.of(X1)}
    assert substitute(product(), values, memo) is substitute(product(), values)
    assert substitute(product(), values, memo) is substitute(product(), values, memo)


AXES = (X0, X1, R0, R1)


@st.composite
def terms(draw, depth: int = 3) -> Term:
    """A term whose value is easy to compute: loads of one vector of integers, sums, maxima."""
    vector = Tensor("w", (40,), "int32")
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        index = sum(
            (Index.of(axis) for axis in draw(st.lists(st.sampled_from(AXES), max_size=3))), Index.of(draw(st.integers(0, 9)))
        )
        return load(TENSORS.setdefault("w", vector), [index])
    match draw(st.sampled_from(["add", "max", "sum", "fold"])):
        case "add" | "max" as op:
            return scalar(op, draw(terms(depth=depth - 1)), draw(terms(depth=depth - 1)))
        case kind:
            axis = draw(st.sampled_from([R0, R1]))
            return reduce("sum" if kind == "sum" else "max", axis, draw(terms(depth=depth - 1)))


TENSORS: dict[str, Tensor] = {}
DATA = np.arange(40) * 7 % 11


def value_of(term: Term, point: dict[Axis, int]) -> int:
    """The meaning of the terms above at a point, in plain Python."""
    match term.head:
        case "load":
            return int(DATA[sum(point[a] * c for a, c in term.indices[0].terms) + term.indices[0].constant])
        case "reduce":
            axis = term.data[1]
            values = [value_of(term.args[0], point | {axis: n}) for n in range(axis.extent)]
            return sum(values) if term.data[0] == "sum" else max(values)
    a, b = (value_of(arg, point) for arg in term.args)
    return a + b if term.head == "add" else max(a, b)


@given(terms(), st.sampled_from(AXES), st.sampled_from([Index.of(1), Index.of(X1), Index.of(R1), Index.of(2) + R0]))
def test_substitution_commutes_with_evaluation_or_is_refused(term, axis, value):
    try:
        moved = substitute(term, {axis: value})
    except ValueError:
        assert any(t.bound in value.axes for t in term.walk() if t.bound)
        return
    for numbers in itertools.product((0, 1, 3), repeat=4):
        point = dict(zip(AXES, numbers, strict=True))
        number = sum(point[a] * c for a, c in value.terms) + value.constant
        assert value_of(moved, point) == value_of(term, point | {axis: number})


@given(terms())
def test_only_free_axes_matter(term):
    for axis in set(AXES) - term.axes:
        at_zero = dict.fromkeys(AXES, 0)
        assert value_of(term, at_zero) == value_of(term, at_zero | {axis: 3})


# --- levels -----------------------------------------------------------------------------------------------------


def test_levels_rise_only_where_a_binder_would_capture():
    assert level_of([at(A, X0, X1)], [X0]) == 0
    assert level_of([product()], [X0]) == 1
    assert level_of([product(R1)], [X0]) == 2
    assert level_of([reduce("sum", R1, at(V, R1))], [X0]) == 0  # does not mention x0
    assert level_of([scalar("add", at(A, X0, 0), reduce("sum", R1, at(V, R1)))], [X0]) == 0
    assert bound_level(Axis("r12", 3)) == 12


def test_the_level_that_was_asked_for_captures_nothing():
    for inner in (product(), product(R1)):
        level = level_of([inner], [X0])
        bound = Axis(f"r{level}", 4)
        outer = reduce("max", bound, substitute(inner, {X0: Index.of(bound)}))
        assert outer.axes == {X1}


# --- tensors and kernels ----------------------------------------------------------------------------------------


def test_dimensions_of_extent_one_have_no_axis():
    assert output_axes((4, 1, 6)) == (Axis("x0", 4), Axis("x2", 6))
    axes = output_axes((4, 1, 6))
    assert dimension_indices((4, 1, 6), axes) == (Index.of(axes[0]), ZERO, Index.of(axes[1]))


def test_tensors_are_compared_by_identity():
    assert Tensor("A", (4, 5), "float32") != A
    assert str(A) == "A: float32[4,5]" and A.size == 20 and A.nbytes == 80


def test_a_kernel_knows_its_inputs_bytes_and_formula():
    out = Stored("C", (4, 6), "float32", product(), (X0, X1))
    kernel = Kernel("multiply", (out,))
    assert kernel.inputs == (A, B) and kernel.axes == (X0, X1)
    assert kernel.nbytes == 4 * (20 + 30 + 24)
    assert kernel.formula == "C[x0, x1] = sum[r0:5](A[x0, r0] * B[r0, x1])"


def test_a_box_has_no_quotients_remainders_or_values():
    assert is_box(Index.of(X0) * 2 + X1 + 3)
    assert not is_box(Index.of(X1) // 4) and not is_box(Index.of(X1) % 4) and not is_box(Index.dynamic(0, 0, 3))


# --- text -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("term", "text"),
    [
        (product(), "sum[r0:5](A[x0, r0] * B[r0, x1])"),
        (scalar("exp", scalar("sub", at(V, R0), reduce("max", R0, at(V, R0)))), "exp(v[r0] - max[r0:5](v[r0]))"),
        (scalar("add", scalar("mul", at(V, R0), at(V, R0)), const(0.5, "float32")), "((v[r0] * v[r0]) + 0.5)"),
        (scalar("mul", scalar("add", at(V, 0), at(V, 1)), scalar("add", at(V, 2), at(V, 3))), "((v[0] + v[1]) * (v[2] + v[3]))"),
        (cast("bfloat16", at(V, R0)), "bfloat16(v[r0])"),
        (pos(Index.of(X0) + 1, "int32"), "(x0+1)"),
        (pos(Index.of(X0), "int32"), "x0"),
        (online(R0, at(A, X0, R0), at(B, R0, X1), "float32"), "softsum[r0:5](A[x0, r0]; B[r0, x1])"),
        (online(R0, at(A, X0, R0), at(B, R0, X1), "bfloat16"), "softsum[r0:5](A[x0, r0]; B[r0, x1], bfloat16)"),
        (const(float("-inf"), "float32"), "-inf"),
        (const(True, "bool"), "True"),
    ],
)
def test_formula_is_index_notation(term, text):
    assert formula(term) == text == repr(term)


def test_a_gather_prints_the_value_in_its_place():
    token = load(Tensor("tokens", (4,), "int32"), [Index.of(X0)])
    table = Tensor("E", (9, 6), "float32")
    assert formula(load(table, [Index.dynamic(0, 0, 8), Index.of(X1)], (token,))) == "E[tokens[x0], x1]"


def test_formula_abbreviates_beyond_the_limit():
    term = at(V, R0)
    for _ in range(60):  # 2**60 leaves when written out, one deep chain
        term = scalar("add", term, term)
    assert len(formula(term, 100)) <= 100 and "..." in formula(term, 100)


def test_formula_of_a_long_chain():
    term = at(V, R0)
    for _ in range(3000):
        term = scalar("neg", term)
    assert "..." in formula(term)
