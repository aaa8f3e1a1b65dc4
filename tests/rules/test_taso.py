"""TASO's 120 single-output and 13 two-output rules: consequences of our packs, by index notation or by a few base rules.

Left and right are read into one region and made equal by the default packs; where every operand has the same axes no order is
cheaper than another, so those rules are asked of the packs with `expansion`.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
import reach
import taso

from eqsat.egraph import Engine
from eqsat.rule import select
from eqsat.rules import PACKS, RULES

pytestmark = pytest.mark.slow

LAWS = {law.name: law for law in taso.laws()}
ORDER = {  # the order of equal operands: associativity of element-wise sums and products, and distribution over them
    *map(str, (*range(23, 31), *range(32, 36), 38, 39, *range(41, 47), *range(48, 57), *range(99, 103)))
}
EXPANDED = tuple(rule for pack in PACKS.values() for rule in pack)
GROUPED = ("92", "93", "118", "119")  # their right sides are convolutions with two groups
USED: set[str] = set()


@pytest.fixture(scope="module")
def engines():
    return Engine(select(RULES, "reassociate")), Engine(select(EXPANDED, "reassociate"))


@pytest.fixture(scope="module", autouse=True)
def count():
    yield
    print(f"\n{len(USED)} base rules used: {', '.join(sorted(USED))}")


def cases():
    """Every law; each run of the tests takes a quarter of them, and those with groups."""
    for number, (name, law) in enumerate(LAWS.items()):
        yield pytest.param(law, id=name, marks=[pytest.mark.nightly] if number % 4 and name not in GROUPED else [])


@pytest.mark.parametrize("law", list(cases()))
def test_both_sides_are_one_class(law, engines):
    shapes = taso.shapes(law)
    region, outputs = reach.region_of(taso.sides(law), *shapes)
    done = reach.saturated(engines[law.name in ORDER], region)
    for left, right in zip(outputs[::2], outputs[1::2], strict=True):
        assert reach.equal(done, region, left, right), law.text
    USED.update(reach.used(done))


@pytest.mark.parametrize(
    "law", [pytest.param(law, id=name, marks=[pytest.mark.nightly] * (n % 4 > 0)) for n, (name, law) in enumerate(LAWS.items())]
)
def test_both_sides_have_one_value(law):
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=s.shape).astype(np.float32) for s in taso.shapes(law)]
    values = taso.sides(law)(*map(jnp.asarray, arrays))
    for left, right in zip(values[::2], values[1::2], strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-3, atol=1e-3)


def test_groups_of_unequal_size_are_not_merged(engines):
    """TASO's rule 92 without its condition: with 4 and 2 output channels both sides have one shape and differ."""
    law = LAWS["92"]
    shapes = [(1, 3, 3, 3), (4, 3, 3, 3), (1, 3, 3, 3), (2, 3, 3, 3)]
    rng = np.random.default_rng(0)
    arrays = [jnp.asarray(rng.normal(size=s), jnp.float32) for s in shapes]
    left, right = taso.sides(law)(*arrays)
    assert left.shape == right.shape and not np.allclose(left, right, atol=1)
    region, (one, other) = reach.region_of(taso.sides(law), *arrays)
    assert not reach.equal(reach.saturated(engines[0], region), region, one, other)


def test_shapes_are_unequal_where_they_may_be():
    assert [s.shape for s in taso.shapes(LAWS["1"])] == [(2, 5), (5, 3), (3, 4)]
