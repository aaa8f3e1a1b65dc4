"""A float32 operand beside a bfloat16 one: three matrix products, in full precision."""

from importlib import import_module

import jax
import numpy as np
import pytest
from lowered import BF16, F32, at, axes_of, f32, op, schedule, statements, stored

from eqsat.cost import price
from eqsat.devices import device
from eqsat.index import Axis
from eqsat.interpret import interpret
from eqsat.lower import lower
from eqsat.notation import Kernel, Tensor, reduce
from eqsat.schedule import schedules
from eqsat.tile import Dot
from eqsat.work import Work

TRITON, TRITON_RUN = import_module("eqsat.backends.triton"), import_module("eqsat.backends.triton.interpret")
PALLAS = import_module("eqsat.backends.pallas")
SHAPE = M, N, K = 37, 18, 45


def product(narrow: str, wide_first: bool = True, shape: tuple[int, int, int] = SHAPE) -> Kernel:
    m, n, k = shape
    (x0, x1), r = axes_of(m, n), Axis("r0", k)
    a, b = at(Tensor("a", (m, k), F32), x0, r), f32(at(Tensor("b", (k, n), narrow), r, x1))
    return Kernel("mixed", (stored("y", (m, n), reduce("sum", r, op("mul", *((a, b) if wide_first else (b, a))))),))


def arrays(kernel: Kernel, a: np.ndarray, b: np.ndarray) -> list[np.ndarray]:
    return [a if t.name == "a" else b.astype(t.dtype) for t in kernel.inputs]


def draw() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((M, K)).astype(np.float32), rng.standard_normal((K, N)).astype(np.float32)


@pytest.mark.parametrize("wide_first", [True, False])
@pytest.mark.parametrize("way", ["resident", "loop 16"])
def test_is_as_precise_as_float32(way: str, wide_first: bool) -> None:
    kernel = product(BF16, wide_first)
    program = lower(kernel, schedule(kernel, r0=way))
    (dot,) = statements(program, Dot)
    assert {dot.a.dtype, dot.b.dtype} == {F32, BF16}
    given = arrays(kernel, *draw())
    a, b = (x.astype(np.float64) for x in (given if wide_first else given[::-1]))
    results = {
        "tiles": interpret(program, given),
        "triton": TRITON_RUN.run(TRITON.emit(program), given, [jax.ShapeDtypeStruct((M, N), F32)])[0],
        "pallas": PALLAS.run(PALLAS.emit(program), given, interpret=True),
    }
    for name, (found,) in results.items():
        assert np.max(np.abs(np.asarray(found, np.float64) - a @ b) / (np.abs(a) @ np.abs(b))) < 2**-22, name


def test_keeps_infinities_and_nan() -> None:
    kernel = product(BF16)
    program = lower(kernel, schedule(kernel, r0="loop 16"))
    a, b = draw()
    largest = np.finfo(np.float32).max
    a[0, 3], a[1, 4], a[2, 5], a[3, 6], a[4], a[5, 0] = np.inf, -np.inf, np.nan, largest, 1.0, 1e-40
    b[7, 2], b[8, 3], b[6] = 0.0, np.inf, 0.5
    given = arrays(kernel, a, b)
    (found,), _ = TRITON_RUN.run(TRITON.emit(program), given, [jax.ShapeDtypeStruct((M, N), F32)])
    with np.errstate(all="ignore"):
        wanted = given[0] @ given[1].astype(np.float32)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    np.testing.assert_array_equal(np.isinf(found), np.isinf(wanted))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_costs_three_products_and_is_cheaper_than_multiply_adds() -> None:
    seconds = {}
    for narrow in (BF16, F32):
        work = Work(product(narrow, shape=(2048, 2048, 2048)))
        seconds[narrow] = price(work, schedules(work), device("h100"))[0].seconds
        assert work.contractions[0].products == (3 if narrow == BF16 else 1)
    assert seconds[BF16] < seconds[F32] / 2
