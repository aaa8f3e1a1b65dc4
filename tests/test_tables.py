"""Every row of the tables in eqsat.scalars, against JAX and NumPy: one loop per claim."""

from __future__ import annotations

import ast
import inspect
import itertools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from eqsat.arrays import NUMPY
from eqsat.scalars import DTYPES, REDUCTIONS, SCALARS, widens_exactly

OPS = list(SCALARS.values())
SAMPLED = {"float": ("float32", "bfloat16"), "int": ("int8", "int32"), "uint": ("uint8", "uint32"), "bool": ("bool",)}
TYPED = [(op, dtype) for op in OPS for kind in op.kinds for dtype in SAMPLED[kind]]


def dtype_of(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name, name))


def samples(dtype: str) -> np.ndarray:
    """Special values and random ones, in rising order, NaN last."""
    kind, rng = DTYPES[dtype].kind, np.random.default_rng(0)
    if kind == "bool":
        return np.array([False, True])
    if kind == "float":
        special = [-np.inf, -1e30, -88.0, -3.5, -1.0, -1e-3, -0.0, 0.0, 1e-3, 0.5, 1.0, 2.0, 88.0, 1e30, np.inf]
        finite = np.concatenate([special, rng.normal(size=20), 10 * rng.normal(size=20)])
        return np.append(np.sort(finite.astype(dtype_of(dtype)).astype(np.float64)), np.nan).astype(dtype_of(dtype))
    info = np.iinfo(dtype)
    special = [info.min, info.max, 0, 1, 2, 3, 7, *([-1, -2] if kind == "int" else [])]
    return np.sort(np.concatenate([np.array(special, dtype), rng.integers(info.min, info.max, 20, dtype)]))


def operands(op, dtype: str, count: int | None = None) -> list[np.ndarray]:
    """All combinations of sample values; the predicate of `where` is bool, a divisor is not 0."""
    values = samples(dtype)
    if op.name in ("quot", "rem"):
        grid = [values, values[values != 0]]
    elif op.name.startswith("shift"):
        grid = [values, np.arange(DTYPES[dtype].nbytes * 8).astype(dtype)]
    elif op.name == "where":
        grid = [np.array([False, True]), values, values]
    else:
        grid = [values] * (count or op.arity)
    return [a.reshape(-1) for a in np.meshgrid(*grid, indexing="ij")]


def same(a, b) -> bool:
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype.kind not in "biu":
        a, b = a.astype(np.float64), b.astype(np.float64)
        return np.array_equal(a, b, equal_nan=True)
    return np.array_equal(a, b)


def named(value) -> str:
    return value.name if hasattr(value, "name") else str(value)


# --- dtypes -----------------------------------------------------------------------------------------------------

SMALL = [d for d in DTYPES if DTYPES[d].nbytes <= 2]


def every_value(dtype: str) -> np.ndarray:
    if dtype == "bool":
        return np.array([False, True])
    unsigned = np.dtype(f"uint{8 * DTYPES[dtype].nbytes}")
    return np.arange(2 ** (8 * unsigned.itemsize), dtype=np.int64).astype(unsigned).view(dtype_of(dtype))


def keeps_every_value(source: str, target: str) -> bool:
    values = every_value(source)
    with np.errstate(all="ignore"):
        before, after = values.astype(np.float64), values.astype(dtype_of(target)).astype(np.float64)
        back = values.astype(dtype_of(target)).astype(dtype_of(source)).astype(np.float64)
    equal = ((before == after) & (np.signbit(before) == np.signbit(after))) | (np.isnan(before) & np.isnan(after))
    return bool(equal.all()) and np.array_equal(before, back, equal_nan=True)


@pytest.mark.parametrize("source", SMALL)
def test_widens_exactly_is_what_every_value_says(source):
    claims = {target: widens_exactly(source, target) for target in DTYPES}
    assert claims == {target: keeps_every_value(source, target) for target in DTYPES}


def test_wide_dtypes_widen_only_to_wider():
    mantissa = {"float32": 24, "float64": 53}
    for source, target in itertools.product([d for d in DTYPES if d not in SMALL], DTYPES):
        a, b = DTYPES[source], DTYPES[target]
        expected = source == target
        if a.kind == b.kind:
            expected |= b.nbytes > a.nbytes
        elif a.kind == "int":
            expected |= b.kind == "float" and mantissa.get(target, 0) >= 8 * a.nbytes - 1
        elif a.kind == "uint":
            expected |= (b.kind == "int" and b.nbytes > a.nbytes) or (
                b.kind == "float" and mantissa.get(target, 0) >= 8 * a.nbytes
            )
        assert widens_exactly(source, target) == expected, (source, target)


@pytest.mark.parametrize("row", DTYPES.values(), ids=named)
def test_dtype_row(row):
    dtype = dtype_of(row.name)
    assert dtype.itemsize == row.nbytes
    assert row.kind == {"b": "bool", "i": "int", "u": "uint"}.get(dtype.kind, "float")
    assert widens_exactly(row.name, row.compute)
    assert row.bit.bit_count() == 1


def test_dtype_bits_are_distinct():
    assert len({row.bit for row in DTYPES.values()}) == len(DTYPES)


def test_triton_knows_every_dtype():
    tl = pytest.importorskip("triton.language")
    assert not [row.name for row in DTYPES.values() if not hasattr(tl, row.triton)]


# --- scalar operations ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", OPS, ids=named)
def test_scalar_row_is_well_formed(op):
    assert len(inspect.signature(op.reference).parameters) == op.arity
    for template in (op.jax, op.triton):
        ast.parse(template.format(*"abc"[: op.arity]), mode="eval")
        assert all(f"{{{i}}}" in template for i in range(op.arity))
    assert op.unit in ("vector", "special") and op.weight > 0
    assert set(op.kinds) <= set(SAMPLED) and all(0 <= i < op.arity for i in op.increasing)
    assert not (op.commutative or op.associative) or op.arity == 2


def attribute_names(template: str, arity: int) -> set[tuple[str, str]]:
    tree = ast.walk(ast.parse(template.format(*"abc"[:arity]), mode="eval"))
    return {(n.value.id, n.attr) for n in tree if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)}


@pytest.mark.parametrize("op", OPS, ids=named)
def test_triton_spelling_uses_names_that_exist(op):
    tl = pytest.importorskip("triton.language")
    from triton.language.extra import libdevice

    modules = {"tl": tl, "libdevice": libdevice}
    assert not [name for module, name in attribute_names(op.triton, op.arity) if not hasattr(modules[module], name)]


@pytest.mark.parametrize(("op", "dtype"), TYPED, ids=named)
def test_reference_gives_the_dtype_of_the_row(op, dtype):
    result = jax.eval_shape(op.reference, *(jax.ShapeDtypeStruct((3,), a.dtype) for a in operands(op, dtype)))
    assert result.dtype == ("bool" if op.result == "bool" else dtype)


@pytest.mark.parametrize(("op", "dtype"), [(o, d) for o, d in TYPED if o.commutative], ids=named)
def test_commutative_claims(op, dtype):
    a, b = map(jnp.asarray, operands(op, dtype))
    assert same(op.reference(a, b), op.reference(b, a))


@pytest.mark.parametrize(("op", "dtype"), [(o, d) for o, d in TYPED if o.associative and o.arity == 2], ids=named)
def test_associative_claims(op, dtype):
    """Exactly for integers and for selections; for float sums and products in exact arithmetic, on integers within range."""
    exact = DTYPES[dtype].kind != "float" or op.name in ("max", "min")
    grid = [samples(dtype)] * 3 if exact else [np.arange(-3, 4).astype(dtype_of(dtype))] * 3
    a, b, c = (x.reshape(-1) for x in np.meshgrid(*grid, indexing="ij"))
    f = op.reference
    assert same(f(f(jnp.asarray(a), b), c), f(jnp.asarray(a), f(jnp.asarray(b), c)))


@pytest.mark.parametrize(("op", "dtype"), [(o, d) for o, d in TYPED if o.increasing and d != "bool"], ids=named)
def test_increasing_claims(op, dtype):
    """Along sorted operands the result never falls, but for NaN and the last bits of an approximation."""
    wraps = DTYPES[dtype].kind != "float" and op.name in ("add", "sub")
    values = samples(dtype)[:-1]
    values = values[(values >= -60) & (values <= 60)] if wraps and DTYPES[dtype].kind == "int" else values
    values = values[(values >= 0) & (values <= 100)] if wraps and DTYPES[dtype].kind == "uint" else values
    predicate = [np.array([False, True])] if op.name == "where" else []
    for operand in op.increasing:
        others = [*predicate, *([values] * (op.arity - len(predicate)))]
        rest = [x.reshape(-1) for x in np.meshgrid(*(others[:operand] + others[operand + 1 :]), indexing="ij")] or []
        for row in zip(*rest, strict=True) if rest else [()]:
            fixed = [np.asarray(v) for v in row]
            if wraps and op.name == "sub" and DTYPES[dtype].kind == "uint":
                moving = values[values >= fixed[0]]
            else:
                moving = values
            result = op.reference(*(jnp.asarray(a) for a in (*fixed[:operand], moving, *fixed[operand:])))
            wide = np.asarray(result).astype(np.float64)
            wide = wide[~np.isnan(wide)]
            with np.errstate(invalid="ignore"):
                fall = wide[:-1] - wide[1:]
            fall = np.where(wide[:-1] == wide[1:], 0, fall)
            assert (fall <= 1e-6 * np.abs(wide[1:])).all(), (op.name, operand, row)


# --- reductions -------------------------------------------------------------------------------------------------

FOLDS = [(r, dtype) for r in REDUCTIONS.values() for kind in r.kinds for dtype in SAMPLED[kind]]


@pytest.mark.parametrize(("row", "dtype"), FOLDS, ids=named)
def test_identity_changes_nothing(row, dtype):
    values = jnp.asarray(samples(dtype))
    identity = jnp.full_like(values, np.array(row.identity(dtype)).astype(dtype_of(dtype)))
    combine = SCALARS[row.combine].reference
    assert same(combine(values, identity), values) and same(combine(identity, values), values)


@pytest.mark.parametrize(("row", "dtype"), FOLDS, ids=named)
def test_identity_is_a_value_of_the_dtype(row, dtype):
    kind, value = DTYPES[dtype].kind, row.identity(dtype)
    assert type(value) is {"bool": bool, "float": float}.get(kind, int)
    if kind in ("int", "uint"):
        assert np.iinfo(dtype).min <= value <= np.iinfo(dtype).max


@pytest.mark.parametrize(("row", "dtype"), FOLDS, ids=named)
def test_reduction_combines_with_a_commutative_and_associative_operation(row, dtype):
    combine = SCALARS[row.combine]
    assert combine.commutative and combine.associative and DTYPES[dtype].kind in combine.kinds


@pytest.mark.parametrize(("row", "dtype"), [(r, d) for r, d in FOLDS if d not in ("bfloat16",)], ids=named)
def test_numpy_fold_is_the_combination(row, dtype):
    values = samples(dtype)[:7]
    folded = values[0]
    with np.errstate(all="ignore"):
        for value in values[1:]:
            folded = np.asarray(SCALARS[row.combine].reference(jnp.asarray(folded), jnp.asarray(value)))
        direct = getattr(np, row.numpy).reduce(values, dtype=values.dtype)
    assert same(folded, direct) or np.allclose(folded, direct)


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_numpy_has_every_operation(op):
    dtype = {"float": "float32", "int": "int32", "uint": "uint32", "bool": "bool"}
    kind = next(k for k in op.kinds if k in dtype)
    operands = [np.ones(3, dtype[kind])] * op.arity
    if op.name == "where":
        operands[0] = np.ones(3, bool)
    with np.errstate(divide="ignore"):  # atanh of 1
        got = NUMPY.apply(op.name, *operands)
    atol = 1e-6 if op.name == "lgamma" else 0  # JAX's of 1 is not 0
    np.testing.assert_allclose(got, op.reference(*map(jnp.asarray, operands)), rtol=1e-6, atol=atol)
