"""In the exact tier compiled kernels round where JAX does, operation by operation: no product goes unrounded into an addition."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import pytest

import eqsat
from eqsat.lower import lower

compiler = pytest.importorskip("eqsat.backends.triton.compiler")

x, y = (jax.ShapeDtypeStruct((64, 200), "float32") for _ in range(2))
PROGRAMS = {
    "a product plus a number": (lambda x, y: x * y + x, (x, y)),
    "a sum of products along rows": (lambda x, y: jnp.sum(x * y, 1), (x, y)),
    "a variance": (lambda x: jnp.var(x, 1), (x,)),
    "a matrix product and its epilogue": (lambda x, w, y: (x @ w) * 3 + y, (x, jax.ShapeDtypeStruct((200, 200), "float32"), y)),
}


def compiled(fn, arguments, numerics: str) -> tuple[str, str]:
    """The kernel's PTX and its source."""
    (planned,) = eqsat.optimize(fn, *arguments, target="h100", numerics=numerics).kernels
    source = planned.source("triton")
    assert f"FP_FUSION = {numerics != 'exact'}" in source and "enable_fp_fusion=FP_FUSION" in source
    return compiler.machine_code(source, lower(planned.kernel, planned.schedule), 90).asm["ptx"], source


OFTEN = ("a sum of products along rows", "a matrix product and its epilogue")


@pytest.mark.parametrize("name", [n if n in OFTEN else pytest.param(n, marks=pytest.mark.nightly) for n in PROGRAMS])
def test_exact_kernels_round_each_product_before_they_add_it(name):
    (exact, source), (free, _) = (compiled(*PROGRAMS[name], numerics) for numerics in ("exact", "reassociate"))
    assert "fma.rn.f32" in free and "mul.rn.f32" in exact  # .rn: not to be fused
    assert not re.search(r"\b(mul|add|sub)\.f32", exact)
    assert ("fma.rn.f32" in exact) == ("tl.dot" in source)  # which adds as it multiplies, for matrices as JAX does
