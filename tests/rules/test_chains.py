"""Long chains of products and long sums end within their budget, in the best order."""

from __future__ import annotations

import random
from functools import lru_cache, reduce

import jax
import jax.numpy as jnp
import pytest

import eqsat

SAME = 1.02  # of the least time: a chunk longer or shorter
FEW = 1.02  # of the fewest operations: partial sums of chunks
CLOSE = 1.2  # of the least time, for the best order: where sums are cut into chunks, and what is fused, is searched, not proved


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def chain(*xs):
    return reduce(jnp.matmul, xs)


def matrices(extents):
    return [f32(*shape) for shape in zip(extents, extents[1:], strict=False)]


# --- products -------------------------------------------------------------------------------------------------------------


@lru_cache
def seconds(*extents, last_first=False):
    """What two or three matrices take, multiplied in the order written: fused, in chunks, but by no rule."""
    fn = (lambda a, b, c: a @ (b @ c)) if last_first else chain
    return eqsat.optimize(fn, *matrices(extents), rules=()).cost.seconds


def least(count, ways):
    """The least of a chain, by dynamic programming: `ways` are those of a part, given the least of shorter ones."""
    found = {(i, i + 1): 0.0 for i in range(count)}
    for length in range(2, count + 1):
        for i in range(count - length + 1):
            found[i, i + length] = min(ways(found, i, i + length))
    return found[0, count]


def best(extents):
    """The least seconds of a chain: a product stored is of two that are, or of three in either order."""

    def ways(parts, i, j):
        for k in range(i + 1, j):
            yield parts[i, k] + parts[k, j] + seconds(extents[i], extents[k], extents[j])
            for m in range(k + 1, j):
                for last in (False, True):
                    three = seconds(extents[i], extents[k], extents[m], extents[j], last_first=last)
                    yield parts[i, k] + parts[k, m] + parts[m, j] + three

    return least(len(extents) - 1, ways)


def chains(count, length, extents):
    rng = random.Random(length)
    return [tuple(rng.choice(extents) for _ in range(length + 1)) for _ in range(count)]


def fewest(extents):
    """The fewest operations of a chain, over where it is split last."""

    def ways(parts, i, j):
        return (parts[i, k] + parts[k, j] + 2 * extents[i] * extents[k] * extents[j] for k in range(i + 1, j))

    return least(len(extents) - 1, ways)


def check(extents):
    """The order is that of the fewest operations or the least time; fusion and chunks, beside it, leave little to gain."""
    cost, quickest = eqsat.optimize(chain, *matrices(extents), time_limit=120.0).cost, best(extents)
    print(f"{extents}: {cost.flops / fewest(extents):.3f} of the operations, {cost.seconds / quickest:.3f} of the time")
    assert cost.flops <= FEW * fewest(extents) or cost.seconds <= SAME * quickest
    assert cost.seconds <= CLOSE * quickest


@pytest.mark.slow
@pytest.mark.parametrize("extents", chains(1, 5, (64, 1024)))
def test_a_chain_gets_its_best_order(extents):
    check(extents)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("extents", [c for n in range(3, 13) for c in chains(2, n, (16, 256, 2048))])
def test_longer_chains_get_their_best_order(extents):
    check(extents)


# --- sums -----------------------------------------------------------------------------------------------------------------

N = 256
SHAPES = ((N, N), (N,), ())


def total(*xs):
    return sum(xs[1:], xs[0])


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.nightly), pytest.param(2, marks=pytest.mark.nightly)])
def test_forty_terms_are_added_in_the_best_order(seed):
    """As fast as numbers first, then vectors, then matrices, in one launch: memory bounds it, so more additions are free."""
    terms = random.Random(seed).choices(SHAPES, k=40)
    program = eqsat.optimize(total, *[f32(*t) for t in terms])
    ordered = eqsat.optimize(total, *[f32(*t) for t in sorted(terms, key=len)], rules=())
    assert len(program.launches) == 1 and program.cost.flops < program.baseline.flops
    assert program.cost.seconds <= SAME * ordered.cost.seconds
