"""Reductions over joined axes are those of their parts; a sum that a select leaves one term is that term."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqsat.arrays import NUMPY
from eqsat.evaluate import evaluate_all
from eqsat.graph import Graph
from eqsat.index import Axis, Index
from eqsat.notation import Tensor, const, load, pos, reduce, scalar
from eqsat.read import Call, read
from eqsat.splitting import split

X, K = Axis("x0", 4), Axis("r0", 7)
A, B = Tensor("a", (4, 7), "float32"), Tensor("b", (4, 7), "float32")
ELEMENT = load(A, [Index.of(X), Index.of(K)])
REVERSED = load(B, [Index.of(X), Index.of(K) * -1 + 6])


def values(*terms):
    rng = np.random.default_rng(0)
    arrays = {t: rng.normal(size=t.shape).astype(np.float32) for t in (A, B)}
    return evaluate_all([(t, (X,)) for t in terms], arrays, NUMPY)


def number(value):
    return const(value, "int32")


CUTS = [
    scalar(op, *pair)
    for op in ("lt", "le", "gt", "ge")
    for pair in (
        (pos(Index.of(K), "int32"), number(3)),
        (number(3), pos(Index.of(K), "int32")),
        (pos(Index.of(K) * -1 + 6, "int32"), number(2)),
        (pos(Index.of(K) + 1, "int32"), number(5)),
    )
]


@pytest.mark.parametrize("name", ["sum", "max", "min", "prod"])
@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_parts_together_are_the_whole(cut, name):
    term = reduce(name, K, scalar("mul", scalar("where", cut, ELEMENT, REVERSED), ELEMENT))
    (parts,) = split(term, lambda t: None)
    assert not any(t.head == "where" for t in parts.walk()), "every select is decided in each part"
    one, two = values(term, parts)
    np.testing.assert_allclose(one, two, rtol=1e-5)


def test_three_parts_and_no_more():
    def chosen(*cuts):
        body = ELEMENT
        for c in cuts:
            body = scalar("where", scalar("lt", pos(Index.of(K), "int32"), number(c)), scalar("neg", body), body)
        return reduce("sum", K, body)

    (parts,) = split(chosen(2, 5), lambda t: None)
    np.testing.assert_allclose(*values(chosen(2, 5), parts), rtol=1e-5)
    assert not list(split(chosen(1, 3, 5), lambda t: None)), "sums of many parts are left whole"
    assert not list(split(chosen(0, 7), lambda t: None)), "a select that never changes cuts nothing"


def test_what_depends_on_another_axis_cuts_nothing():
    causal = scalar("lt", pos(Index.of(K) - Index.of(X), "int32"), number(0))
    assert not list(split(reduce("sum", K, scalar("where", causal, ELEMENT, REVERSED)), lambda t: None))


@pytest.mark.parametrize("place", [Index.of(X), Index.of(X) + 3, Index.of(X) * -1 + 5], ids=str)
def test_a_sum_with_one_term_is_that_term(place):
    here = scalar("eq", pos(Index.of(K), "int32"), pos(place, "int32"))
    term = reduce("sum", K, scalar("where", here, ELEMENT, const(0, "float32")))
    (single,) = split(term, lambda t: None)
    assert not any(t.head == "reduce" for t in single.walk())
    np.testing.assert_array_equal(*values(term, single))


def test_a_place_that_may_lie_outside_is_left_alone():
    here = scalar("eq", pos(Index.of(K), "int32"), pos(Index.of(X) + 4, "int32"))
    assert not list(split(reduce("sum", K, scalar("where", here, ELEMENT, const(0, "float32"))), lambda t: None))


@pytest.mark.parametrize("fn", [jnp.diagonal, lambda a: jnp.diagonal(a, offset=2), jnp.diag], ids=["whole", "offset", "diag"])
def test_a_diagonal_is_a_view(fn):
    reading = read(Graph.from_jax(fn, jax.ShapeDtypeStruct((6, 6), jnp.float32)))
    assert not any(isinstance(step, Call) for step in reading.steps)
    assert all(t.head == "load" and not t.args for step in reading.steps for t in step.term.walk())
