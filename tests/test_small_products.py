"""Small products are multiplied point by point where the tiles of a dot would be mostly padding; large ones stay dots."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqsat
from eqsat.cost import by_dot, price
from eqsat.demand import demand
from eqsat.devices import device
from eqsat.lower import lower
from eqsat.schedule import schedules
from eqsat.tile import Dot, results
from eqsat.work import Work

pytest.importorskip("triton")


def spec(*shape, dtype="float32"):
    return jax.ShapeDtypeStruct(shape, dtype)


def planned(fn, *args):
    return eqsat.optimize(fn, *args, target="h100").kernels


def attention(q, k, v):
    return jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", q, k), -1) @ v


def network(x, w, v):
    return jnp.tanh(x @ w) @ v


def integers(*shape):
    return spec(*shape, dtype="int32")


SMALL = {
    "matrices of 3 by 3": (jnp.matmul, spec(70, 3, 3), spec(70, 3, 3)),
    "matrices of 4 by 4, narrow": (jnp.matmul, spec(800, 4, 4, dtype="bfloat16"), spec(800, 4, 4, dtype="bfloat16")),
    "rotated points": (lambda p, r, t: p @ r.T + t, spec(131, 3), spec(3, 3), spec(3)),
    "points, each group by its own": (lambda p, r: jnp.einsum("bni,bij->bnj", p, r), spec(2, 70, 3), spec(2, 3, 3)),
    "two rows": (jnp.matmul, spec(2, 300), spec(300, 37)),
    "two rows, by columns": (lambda a, b: a @ b.T, spec(2, 300), spec(37, 300)),
    "a network of points": (network, spec(40, 3), spec(3, 20), spec(20, 3)),
    "whole numbers": (jnp.matmul, integers(19, 33), integers(33, 35)),
    "whole numbers, 3 by 3": (jnp.matmul, integers(20, 3, 3), integers(20, 3, 3)),
    "three vectors each": (lambda x: x.T @ x, spec(1000, 3)),
    "attention of few positions": (attention, spec(2, 20, 3), spec(2, 20, 3), spec(2, 20, 3)),
    "two channels": (
        lambda x, w: jax.lax.conv_general_dilated(x, w, (1, 1), "SAME"),
        spec(1, 2, 5, 18),
        spec(3, 2, 3, 3),
    ),
}


@pytest.mark.parametrize("name", SMALL)
def test_a_small_product_is_no_dot_and_right(name):
    fn, *args = SMALL[name]
    program = eqsat.optimize(fn, *args, target="h100")
    for k in program.kernels:
        assert not any(isinstance(s, Dot) for s in lower(k.kernel, k.schedule).statements()), k.schedule
    program.validate(level="kernels")  # by Triton's interpreter and by Pallas'


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_large_product_is_a_dot(dtype):
    (k,) = planned(jnp.matmul, spec(1024, 512, dtype=dtype), spec(512, 1024, dtype=dtype))
    assert any(isinstance(s, Dot) for s in lower(k.kernel, k.schedule).statements())


@pytest.mark.parametrize("name", ["rotated points", "two rows", "a network of points", "whole numbers", "two channels"])
def test_what_is_priced_as_a_dot_is_lowered_as_one(name):
    fn, *args = SMALL[name]
    for k in planned(fn, *args):
        work = Work(k.kernel)
        tried = schedules(work)
        for n in range(0, len(tried), 5):
            made = sum(isinstance(s, Dot) for s in lower(k.kernel, tried[n]).statements())
            assert made == sum(by_dot(c, tried.traversals)[n] for c in demand(work).products), tried[n]


@pytest.mark.parametrize("extent", [128, 1024])
def test_whole_numbers_fit_into_registers(extent):
    """They are no dot at any size: a block over rows, columns and k would hold 131072 numbers as tiles of a dot have them."""
    (k,) = planned(jnp.matmul, integers(extent, extent), integers(extent, extent))
    values = [v for s in lower(k.kernel, k.schedule).statements() for v in results(s)]
    assert max(np.prod([k.schedule.of(a).tile for a in v.axes]) for v in values) <= 8192


def test_a_weight_inside_or_outside_of_a_sum_of_products_costs_the_same():
    """The weight makes three factors of two, which is no product of two matrices: as many points, and no fewer passes."""
    prices = []
    for fn in (
        lambda a, b, w: (jnp.einsum("kr,ir->ikr", a, b) * w[:, :, None]).sum(2).max(1),
        lambda a, b, w: (jnp.einsum("kr,ir->ik", a, b) * w).max(1),
    ):
        program = eqsat.optimize(fn, spec(96, 96), spec(96, 96), spec(96, 96), target="h100", rules=())
        (k,) = program.kernels
        prices.append(price(Work(k.kernel), schedules(Work(k.kernel)), device("h100"))[0].seconds)
    assert prices[0] == pytest.approx(prices[1], rel=0.01)
