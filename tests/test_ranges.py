"""Bounds hold for every value that a term can have."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from eqsat.arrays import NUMPY
from eqsat.check_sample import leaf
from eqsat.evaluate import evaluate_all
from eqsat.index import Axis, Index
from eqsat.notation import cast as cast_
from eqsat.notation import const, pos, reduce, scalar, scan
from eqsat.ranges import range_of
from eqsat.scalars import DTYPES, REDUCTIONS, SCALARS

X, K = Axis("x0", 40), Axis("r0", 7)
INF = float("inf")
SPECIAL = np.array([np.nan, INF, -INF, 0.0, -0.0, 1.0, -1.0, 1e-3, 88.0, -104.0, 3e38, 1e-45])


class Draw:
    """Random terms of one dtype with the arrays that they load."""

    def __init__(self, seed: int, dtype: str) -> None:
        self.rng, self.dtype, self.arrays = np.random.default_rng(seed), dtype, {}
        kind = DTYPES[dtype].kind
        self.ops = [o for o in SCALARS.values() if kind in o.kinds and o.result == "same" and o.name not in ("quot", "rem")]

    def term(self, depth):
        choice = self.rng.random()
        if depth == 0 or choice < 0.1:
            return self.leaf()
        if choice < 0.25:
            names = [n for n, r in REDUCTIONS.items() if DTYPES[self.dtype].kind in r.kinds]
            return reduce(str(self.rng.choice(names)), K, self.term(depth - 1))
        if choice < 0.35:
            return cast_(self.dtype, scalar("lt", self.term(depth - 1), self.term(depth - 1)))
        row = self.ops[self.rng.integers(len(self.ops))]
        first = [scalar("lt", self.leaf(), self.leaf())] if row.name == "where" else []
        return scalar(row.name, *first, *(self.term(depth - 1) for _ in range(row.arity - len(first))))

    def leaf(self):
        choice = self.rng.random()
        number = float(self.rng.choice([0.0, 1.0, -2.0, 0.5, 7.0]))
        if choice < 0.4:
            return const(number, self.dtype)
        if choice < 0.6:
            return pos(Index.of(X) + int(self.rng.integers(-3, 3)), self.dtype)
        axes = (X, K)
        if DTYPES[self.dtype].kind == "float":
            values = np.where(self.rng.random((40, 7)) < 0.3, self.rng.choice(SPECIAL, (40, 7)), self.rng.normal(size=(40, 7)))
        else:
            values = self.rng.integers(-128, 128, (40, 7))
        with np.errstate(all="ignore"):
            return leaf(f"t{len(self.arrays)}", axes, values.astype(jnp.dtype(self.dtype)), self.arrays)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "int8"])
def test_no_value_leaves_its_bounds(dtype):
    narrowed = 0
    for seed in range(250):
        draw = Draw(seed, dtype)
        term = draw.term(3)
        if any(t.head in ("erfc", "erf", "rint", "shift_left", "pow", "prod") for t in term.walk()):
            continue
        with np.errstate(all="ignore"):
            (array,) = evaluate_all([(term, (X, K))], draw.arrays, NUMPY)
        found, values = range_of(term), np.asarray(array).astype(float)
        narrowed += found.low > -INF or found.high < INF or found.finite
        known = values[~np.isnan(values)]
        assert np.all((known >= found.low) & (known <= found.high)), f"{term}: {found}, got {known.min()} .. {known.max()}"
        assert not found.finite or np.all(np.isfinite(values)), f"{term}: {found}"
    assert narrowed > 50


def test_signs_are_known():
    x = leaf("x", (X,), np.zeros(40, np.float32), {})
    assert range_of(scalar("exp", x))[:2] == (0, INF)
    assert range_of(scalar("mul", x, x)).low == 0
    assert range_of(scalar("sqrt", scalar("add", scalar("mul", x, x), const(1e-5, "float32")))).low > 0
    assert range_of(reduce("sum", X, scalar("abs", x))).low == 0
    assert not range_of(scalar("logistic", x)).finite, "an input may be NaN"
    assert range_of(cast_("int8", const(200, "int32"))).high == 127
    eight = const(100, "int8")
    assert range_of(scalar("add", eight, eight)).low == -128, "integers wrap"


def test_running_folds_have_folded_one_element_at_least():
    ones = scan("sum", K, const(1, "int32"), False)
    assert range_of(ones)[:2] == (1, 7)
    assert range_of(scan("sum", K, const(-2.0, "float32"), True)).high == pytest.approx(-2, rel=1e-4)
    assert range_of(scan("max", K, const(3, "int32"), False))[:2] == (3, 3)
