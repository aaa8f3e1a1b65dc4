"""Arithmetic on positions means what it meant, and choices between them keep what each branch gives where it is chosen."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_index import AXES, expressions

import eqsat
from eqsat.arrays import NUMPY
from eqsat.evaluate import evaluate_all
from eqsat.index import Axis, Index
from eqsat.notation import Tensor, const, load, pos, scalar
from eqsat.primitives import fold

ORDERED = AXES[:3]
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")


def same(written, folded):
    one, two = evaluate_all([(written, ORDERED), (folded, ORDERED)], {}, NUMPY)
    np.testing.assert_array_equal(one, two)


@given(expressions(), expressions(depth=1), st.sampled_from(COMPARISONS))
def test_a_comparison_keeps_its_outcome(one, other, op):
    operands = pos(one[0], "int32"), pos(other[0], "int32")
    same(scalar(op, *operands), fold.scalar(op, *operands))


@given(expressions(), expressions(), st.sampled_from(AXES[:3]), st.integers(-1, 6), st.sampled_from(("lt", "le", "gt", "ge")))
def test_a_choice_by_an_axis_keeps_both_branches(one, other, axis, bound, op):
    predicate = scalar(op, pos(Index.of(axis), "int32"), const(bound, "int32"))
    branches = (
        pos(one[0], "int32"),
        scalar("where", scalar("lt", pos(other[0], "int32"), const(2, "int32")), *map(_number, (7, 9))),
    )
    same(scalar("where", predicate, *branches), fold.scalar("where", predicate, *branches))


def _number(value):
    return const(value, "int32")


GROUP, CHANNEL, X = Axis("g", 6), Axis("c", 4), Axis("x", 24)


@pytest.mark.parametrize(
    "distance, bound, expected",
    [
        (Index.of(GROUP) * 4 + CHANNEL, 8, "(g < 2)"),
        (Index.of(GROUP) * 4 + CHANNEL, 7, "((c+4*g) < 7)"),  # cuts through a group
        (Index.of(GROUP) * 4 + CHANNEL, 23, "((c+4*g) < 23)"),
        (Index.of(X) // 4 * 4 + CHANNEL, 8, "(x < 8)"),
        (Index.of(X) * 3, 7, "(x < 3)"),
    ],
    ids=str,
)
def test_a_channel_of_a_group_is_compared_as_the_group(distance, bound, expected):
    assert str(fold.scalar("lt", pos(distance, "int32"), _number(bound))) == expected


def test_each_branch_is_read_where_it_is_chosen():
    tensor = Tensor("a", (6,), "float32")
    here = fold.scalar("lt", pos(Index.of(X), "int32"), _number(4))
    term = fold.scalar("where", here, load(tensor, [Index.of(X) // 4]), load(tensor, [Index.of(X) % 20]))
    assert str(term) == "where(x < 4, a[0], a[x%20])"


_SEEN = {
    "float mask above 0": lambda s: jnp.where(jnp.tril(jnp.ones(s.shape)) > 0, s, -jnp.inf),
    "float mask is 0": lambda s: jnp.where(jnp.tril(jnp.ones(s.shape)) == 0, -jnp.inf, s),
    "integer mask as bool": lambda s: jnp.where(jnp.tril(jnp.ones(s.shape, int)).astype(bool), s, 0),
    "bool as float above 1/2": lambda s: jnp.where((jnp.arange(5)[:, None] >= jnp.arange(5)).astype(s.dtype) > 0.5, s, 1),
    "1 - mask": lambda s: s + (1 - jnp.tril(jnp.ones(s.shape))) * -1e9,
    "of data": lambda s: jnp.where((s > 0).astype(jnp.float32) == 0, s, 1) + (s < 0).astype(jnp.bfloat16) * 3,
    "not": lambda s: jnp.where(1 - (s > 0).astype(jnp.int32) > 0, s, 1),
    "of negative zero": lambda s: -jnp.where(s > 0, 0.0, 1.0) + s,
    "of infinity": lambda s: jnp.where(1 / (s > 0).astype(jnp.float32) == jnp.inf, s, -s),
}


@pytest.mark.parametrize("name", _SEEN)
def test_what_is_computed_of_a_mask_is_a_choice(name):
    """A choice between literals, or a boolean as a number, that meets literals: the outcome of each branch is one."""
    x = jnp.asarray([[jnp.nan, 1, -jnp.inf, 2, 0]] * 5, jnp.float32)
    program = eqsat.optimize(_SEEN[name], x, numerics="exact")
    np.testing.assert_array_equal(program(x), _SEEN[name](x))
    (kernel,) = program.kernels
    assert "float32(" not in kernel.formula and kernel.formula.count("where(") == (2 if name == "of data" else 1)
