"""Equivalent programs cost the same: random programs, each rewritten at random by true rules first."""

from __future__ import annotations

import random

import equivalents
import jax
import jax.numpy as jnp
import pytest

import eqsat
from eqsat.egraph import Engine
from eqsat.rule import select
from eqsat.rules import RULES

GROUP = 25  # programs of one test; eight of these make 200
SAME = 5e-3  # relative: forms of equal work differ by an operation in an epilogue

UNEQUAL = {
    176: "a product of matrices is a dot, whose tiles of 16 rows make 6 programs of 96; with its weight inside the sum it is "
    "none, and 48 programs are faster: no law takes a factor into a sum, where it would be computed more often",
}


@pytest.fixture(scope="module")
def engine():
    return Engine(select(RULES, "reassociate"))


@pytest.fixture(scope="module")
def laws():
    return equivalents.both_ways(select(RULES, "reassociate"))


def ratio(engine, laws, seed):
    """Cost of a program over that of the same one written otherwise."""
    term = equivalents.program(seed)
    other, used = equivalents.otherwise(term, laws, seed)
    prices = [equivalents.price(engine, t) for t in (term, other)]
    return prices[0] / prices[1], f"{seed}: {term} by {', '.join(used)}: {other}"


@pytest.mark.parametrize("seed", range(6))
def test_a_program_written_otherwise_costs_the_same(engine, laws, seed):
    found, text = ratio(engine, laws, seed)
    assert found == pytest.approx(1, rel=SAME), text


@pytest.mark.slow
@pytest.mark.parametrize("group", [0, *(pytest.param(n, marks=pytest.mark.nightly) for n in range(1, 8))])
def test_programs_written_otherwise_cost_the_same(engine, laws, group):
    found = {seed: ratio(engine, laws, seed) for seed in range(group * GROUP, (group + 1) * GROUP)}
    unequal = {seed: f"{r:.3f} {text}" for seed, (r, text) in found.items() if r != pytest.approx(1, rel=SAME)}
    assert unequal.keys() == UNEQUAL.keys() & found.keys(), "\n".join(unequal.values())


@pytest.mark.parametrize("seed", range(20))
def test_a_program_written_otherwise_has_the_same_value(laws, seed):
    """The rewriter itself is right: otherwise equal costs would mean nothing."""
    term = equivalents.program(seed, extents=(2, 3, 4))
    other, used = equivalents.otherwise(term, laws, seed)
    one, two = equivalents.values(term, other)
    assert one == pytest.approx(two, rel=1e-9, abs=1e-9), used


# --- long chains ----------------------------------------------------------------------------------------------------------


def best_order(extents):
    """The fewest operations of a chain of products, by dynamic programming over where it is split last."""
    count = len(extents) - 1
    fewest = {(i, i): 0 for i in range(count)}
    for length in range(1, count):
        for i in range(count - length):
            j = i + length
            ways = (fewest[i, k] + fewest[k + 1, j] + 2 * extents[i] * extents[k + 1] * extents[j + 1] for k in range(i, j))
            fewest[i, j] = min(ways)
    return fewest[0, count - 1]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, pytest.param(0, marks=pytest.mark.nightly)])
def test_a_chain_of_twelve_products_gets_its_best_order(seed):
    rng = random.Random(seed)
    extents = [rng.choice([256, 512, 1024, 2048, 4096]) for _ in range(13)]
    shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in zip(extents, extents[1:], strict=False)]

    def chain(first, *rest):
        for x in rest:
            first = first @ x
        return first

    program = eqsat.optimize(chain, *shapes, time_limit=120.0)
    print(f"{program.baseline.flops / 1e9:.1f} -> {program.cost.flops / 1e9:.1f} GFLOP, {program.cost.seconds * 1e6:.0f} us")
    best = best_order(extents)
    assert program.baseline.flops > 1.5 * best
    assert program.cost.flops <= 1.002 * best, "what is chosen is the least time: a few operations more may save a launch"
