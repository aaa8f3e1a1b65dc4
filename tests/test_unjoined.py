"""Heads side by side in the rows that a kernel writes: it runs over the heads and over the places in each."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from interpreters import INTERPRETERS
from lowered import BF16, F32, at, axes_of, check, op, schedule, stored

import eqsat
from eqsat.forms import as_run
from eqsat.index import Axis, Index
from eqsat.lower import lower
from eqsat.notation import Kernel, Tensor, Window, online, reduce
from eqsat.work import Work


def mixed(p, v):
    """p: [heads, rows, keys], v: [heads, keys, depth]; the heads' results side by side in each row."""
    return jnp.swapaxes(jax.nn.softmax(p, axis=-1) @ v, 0, 1).reshape(p.shape[1], -1)


def merged(heads: int, rows: int, keys: int, depth: int, softmax: bool = False, dtype: str = F32) -> Kernel:
    p, v = Tensor("p", (heads, rows, keys), dtype), Tensor("v", (heads, keys, depth), dtype)
    (i, j), r = axes_of(rows, heads * depth), Axis("r0", keys)
    head, place = Index.of(j) // depth, Index.of(j) % depth
    s, w = at(p, head, i, r), at(v, head, r, place)
    term = online(r, s, w, dtype) if softmax else reduce("sum", r, op("mul", s, w))
    return Kernel("merged", (stored("y", (rows, heads * depth), term),))


@pytest.mark.parametrize("way", INTERPRETERS)
@pytest.mark.parametrize("heads, rows, keys, depth", [(3, 19, 13, 5), (2, 16, 32, 16)])
def test_heads_written_side_by_side_are_one_kernel(heads, rows, keys, depth, way):
    rng = np.random.default_rng(0)
    given = [rng.standard_normal(s).astype(F32) for s in ((heads, rows, keys), (heads, keys, depth))]
    program = eqsat.optimize(mixed, *given, target="h100", cache=False)
    (kernel,) = program.kernels
    order = [given["pv".index(t.name)] for t in kernel.kernel.inputs]
    (result,) = INTERPRETERS[way](lower(kernel.kernel, kernel.schedule), order)
    np.testing.assert_allclose(np.asarray(result), mixed(*given), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("way", INTERPRETERS)
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_a_convolution_by_groups_is_a_dot_of_each_group(layout, way):
    def convolved(x, w):
        numbers = (layout, "HWIO", layout)
        return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=numbers, feature_group_count=3)

    rng = np.random.default_rng(0)
    shapes = {"NHWC": (1, 3, 5, 51), "NCHW": (1, 51, 3, 5)}[layout], (3, 1, 17, 60)
    given = [rng.standard_normal(s).astype(F32) for s in shapes]
    (kernel,) = eqsat.optimize(convolved, *given, target="h100", cache=False).kernels
    assert any("_20" in a.name for a in as_run(kernel.kernel).axes)
    order = [given["xw".index(t.name)] for t in kernel.kernel.inputs]
    (result,) = INTERPRETERS[way](lower(kernel.kernel, kernel.schedule), order)
    np.testing.assert_allclose(np.asarray(result), convolved(*given), rtol=1e-4, atol=5e-5)


@pytest.mark.parametrize("softmax", [False, True])
@pytest.mark.parametrize("tile", [16, 64])
def test_a_product_that_meets_digits_is_a_dot_of_each_head(softmax, tile):
    kernel = as_run(merged(3, 37, 50, 24, softmax))
    assert [a.extent for a in kernel.axes] == [37, 3, 24] and isinstance(kernel.outputs[0], Window)
    assert len(Work(merged(3, 37, 50, 24, softmax)).contractions) == 1
    plain = merged(3, 37, 50, 24, softmax)
    check(plain, schedule(kernel, x0=tile, x1_24=1, x1=tile, r0="loop 16"))
    assert Work(plain).nbytes == plain.nbytes


def test_what_no_product_gains_by_stays_as_it_is():
    p, (i, j) = Tensor("p", (3, 8, 16), BF16), axes_of(8, 48)
    copy = Kernel("copy", (stored("y", (8, 48), at(p, Index.of(j) // 16, i, Index.of(j) % 16)),))
    ragged = merged(1, 8, 16, 48)  # one head: no digits
    assert as_run(copy) is copy and as_run(ragged) is ragged
