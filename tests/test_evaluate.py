"""Evaluation against the definition: a plain loop over broadcast NumPy arrays."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from random_programs import BY_PLACE

import eqsat
from eqsat import numpy_lax
from eqsat.arrays import JAX, NUMPY
from eqsat.backends.jax import emit_module
from eqsat.evaluate import evaluate
from eqsat.index import Axis, Index, Quotient, Remainder
from eqsat.notation import Kernel, Stored, Tensor, cast, const, const_value, load, online, output_axes, pos, reduce, scalar
from eqsat.scalars import REDUCTIONS, SCALARS

I = Index.of  # noqa: E741
ONE = const(1.0, "float32")
LIBRARIES = pytest.mark.parametrize("xp", [jnp, np], ids=["jax", "numpy"])
NUMPY_SCALAR = {
    name: eval(f"lambda *a: {op.jax.format('a[0]', 'a[1]', 'a[2]')}", {"jnp": numpy_lax.jnp, "lax": numpy_lax.lax})
    for name, op in SCALARS.items()
}


def by_definition(term, axes, arrays):
    """One element after another, floats in float64, as `notation` defines the forms."""

    def index(i, at, slots):
        total = i.constant
        for atom, c in i.terms:
            if isinstance(atom, Axis):
                total += c * at[atom]
            elif isinstance(atom, Quotient):
                total += c * (index(atom.index, at, slots) // atom.divisor)
            elif isinstance(atom, Remainder):
                total += c * (index(atom.index, at, slots) % atom.divisor)
            else:
                total += c * int(slots[atom.slot])
        return total

    def value(t, at):
        match t.head:
            case "load":
                slots = [value(a, at) for a in t.args]
                where = tuple(index(i, at, slots) for i in t.indices)
                inside = all(0 <= i < n for i, n in zip(where, t.tensor.shape, strict=True))
                return arrays[t.tensor][where] if inside else arrays[t.tensor].dtype.type(0)
            case "const":
                return const_value(t)
            case "pos":
                return index(t.data, at, [])
            case "cast":
                return np.trunc(value(t.args[0], at)) if t.dtype == "int32" else value(t.args[0], at)
            case "reduce":
                name, axis = t.data
                values = [value(t.args[0], {**at, axis: n}) for n in range(axis.extent)]
                return getattr(np, REDUCTIONS[name].numpy).reduce([REDUCTIONS[name].identity(t.dtype), *values])
            case "online":
                axis = t.data[1]
                s = [value(t.args[0], {**at, axis: n}) for n in range(axis.extent)]
                v = [value(t.args[1], {**at, axis: n}) for n in range(axis.extent)]
                return sum(np.exp(a - max(s)) * b for a, b in zip(s, v, strict=True))
        return NUMPY_SCALAR[t.head](*(np.asarray(value(a, at)) for a in t.args))

    result = np.zeros([a.extent for a in axes])
    for point in itertools.product(*(range(a.extent) for a in axes)):
        result[point] = value(term, dict(zip(axes, point, strict=True)))
    return result


def array(tensor, seed=0):
    rng = np.random.default_rng(seed)
    if tensor.dtype.startswith("int"):
        return rng.integers(0, 7, tensor.shape).astype(tensor.dtype)
    return rng.standard_normal(tensor.shape).astype(tensor.dtype)


def check(term, axes, tensors, xp=jnp, tolerance=1e-5):
    arrays = {t: array(t, n) for n, t in enumerate(tensors)}
    want = by_definition(term, axes, {t: a.astype(np.float64) if a.dtype.kind == "f" else a for t, a in arrays.items()})
    got = evaluate(term, axes, arrays, xp)
    assert got.shape == want.shape and got.dtype == jnp.dtype(term.dtype)
    np.testing.assert_allclose(np.asarray(got, np.float64), want, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(evaluate(term, axes, arrays, widen=True), want, rtol=1e-10, atol=1e-10)
    if xp is jnp:
        np.testing.assert_array_equal(printed(term, axes, arrays), got)


def printed(term, axes, arrays):
    """The result of the function that the term is printed as."""
    kernel = Kernel("kernel", (Stored("out", tuple(a.extent for a in axes), term.dtype, term, axes),))
    scope = {}
    exec(emit_module([kernel]), scope)
    return scope["kernel"](*(arrays[t] for t in kernel.inputs))[0]


def mul(*terms):
    result = terms[0]
    for t in terms[1:]:
        result = scalar("mul", result, t)
    return result


@LIBRARIES
def test_matmul_is_a_dot(xp):
    m, n, k = Axis("x0", 5), Axis("x1", 3), Axis("r0", 4)
    a, b = Tensor("a", (5, 4), "float32"), Tensor("b", (4, 3), "float32")
    term = reduce("sum", k, mul(load(a, (I(m), I(k))), load(b, (I(k), I(n)))))
    check(term, (m, n), [a, b], xp)
    check(term, (n, m), [a, b], xp)
    if xp is jnp:
        text = str(jax.make_jaxpr(lambda x, y: evaluate(term, (m, n), {a: x, b: y}))(array(a), array(b)))
        assert "dot_general" in text and "reduce_sum" not in text


@LIBRARIES
def test_a_vector_for_each_matrix_of_a_stack_is_a_dot(xp):
    h, m, k = Axis("x0", 2), Axis("x1", 5), Axis("r0", 4)
    a, v, s = Tensor("a", (2, 5, 4), "float32"), Tensor("v", (2, 4), "float32"), Tensor("s", (2, 5), "float32")
    rows = load(a, (I(h), I(m), I(k)))
    term = reduce("sum", k, mul(rows, load(v, (I(h), I(k)))))
    scaled = reduce("sum", k, mul(rows, load(s, (I(h), I(m)))))  # no vector along k
    for of, tensors, dots in ((term, [a, v], 1), (scaled, [a, s], 0)):
        check(of, (h, m), tensors, xp)
        if xp is jnp:
            text = str(jax.make_jaxpr(lambda x, y: evaluate(of, (h, m), {a: x, tensors[1]: y}))(*map(array, tensors)))  # noqa: B023
            assert text.count("dot_general[") == dots


@LIBRARIES
def test_sums_of_products_of_every_shape(xp):
    m, n, k, j = Axis("x0", 3), Axis("x1", 2), Axis("r0", 4), Axis("r1", 5)
    a, b, c = Tensor("a", (3, 4), "float32"), Tensor("b", (4, 5), "float32"), Tensor("c", (5, 2), "float32")
    s = Tensor("s", (2,), "float32")
    la, lb, lc, ls = load(a, (I(m), I(k))), load(b, (I(k), I(j))), load(c, (I(j), I(n))), load(s, (I(n),))
    for term, axes in [
        (reduce("sum", k, reduce("sum", j, mul(la, lb, lc, ls))), (m, n)),
        (reduce("sum", k, mul(la, ls)), (m, n)),
        (reduce("sum", j, mul(lb, lb)), (k,)),
        (reduce("sum", j, reduce("sum", k, lb)), ()),
        (reduce("sum", j, ls), (n,)),
        (reduce("sum", k, ONE), ()),
        (reduce("sum", k, mul(la, la)), (m, n)),
        (reduce("prod", k, la), (m,)),
        (reduce("prod", j, ls), (n,)),
    ]:
        check(term, axes, [a, b, c, s], xp)


@LIBRARIES
def test_softmax(xp):
    m, n, r = Axis("x0", 3), Axis("x1", 6), Axis("r0", 6)
    x = Tensor("x", (3, 6), "float32")
    score = load(x, (I(m), I(r)))
    top = reduce("max", r, score)
    total = reduce("sum", r, scalar("exp", scalar("sub", score, top)))
    check(scalar("div", scalar("exp", scalar("sub", load(x, (I(m), I(n))), top)), total), (m, n), [x], xp)
    check(scalar("div", online(r, score, ONE, "float32"), total), (m,), [x], xp)


def attention(sequence, heads, width):
    """Causal attention on one packed tensor, with the heads merged in the output."""
    qkv = Tensor("qkv", (sequence, 3 * heads * width), "float32")
    m, x = Axis("x0", sequence), Axis("x1", heads * width)
    d, n = Axis("r0", width), Axis("r1", sequence)
    head, place = I(x) // width, I(x) % width
    key = load(qkv, (I(n), head * width + d + heads * width))
    score = mul(reduce("sum", d, mul(load(qkv, (I(m), head * width + d)), key)), const(0.5, "float32"))
    score = scalar("where", scalar("ge", pos(I(m), "int32"), pos(I(n), "int32")), score, const(float("-inf"), "float32"))
    value = load(qkv, (I(n), head * width + place + 2 * heads * width))
    return scalar("div", online(n, score, value, "float32"), online(n, score, ONE, "float32")), (m, x), qkv


@LIBRARIES
def test_attention_with_merged_heads(xp):
    term, axes, qkv = attention(5, 2, 4)
    check(term, axes, [qkv], xp)


def test_attention_does_not_repeat_scores_within_a_head():
    term, axes, qkv = attention(64, 4, 32)
    text = jax.make_jaxpr(lambda x: evaluate(term, axes, {qkv: x}))(array(qkv))
    assert max(v.aval.size for e in text.eqns for v in e.outvars) <= 4 * 64 * 64
    assert "gather" not in str(text)


@LIBRARIES
def test_convolution_reads_zero_outside(xp):
    n, h, o = Axis("x0", 2), Axis("x1", 5), Axis("x2", 3)
    r, c = Axis("r0", 3), Axis("r1", 2)
    image, weight = Tensor("image", (2, 9, 2), "float32"), Tensor("weight", (3, 2, 3), "float32")
    product = mul(load(image, (I(n), I(h) * 2 + I(r) - 1, I(c))), load(weight, (I(r), I(c), I(o))))
    check(reduce("sum", r, reduce("sum", c, product)), (n, h, o), [image, weight], xp)


@LIBRARIES
@pytest.mark.parametrize(
    "index",
    [
        lambda a, b: (I(a), I(b)),
        lambda a, b: (I(b), I(a)),
        lambda a, b: (I(a) * -1 + 5, I(b)),
        lambda a, b: (I(a) + 3, I(b) - 2),
        lambda a, b: (I(a) + 9, I(b)),
        lambda a, b: (I(a) - 9, Index()),
        lambda a, b: (I(3), I(a) * 2 + 1),
        lambda a, b: (I(9), I(a)),
        lambda a, b: (Index(), I(a) * 3 + b),
        lambda a, b: (Index(), I(a) * 4 + I(b) + 1),
        lambda a, b: (Index(), I(a) * -3 + I(b) + 14),
        lambda a, b: (Index(), I(a) + b),
        lambda a, b: (I(a), I(a)),
        lambda a, b: (I(a) + b, I(a) * 5),
        lambda a, b: ((I(a) * 3 + b) // 4, (I(a) * 3 + b) % 4),
        lambda a, b: (I(a) // 2, I(b) + I(a) % 2 * 3),
        lambda a, b: (I(a) // 4, I(b)),
        lambda a, b: (I(a) % 4, I(a) // 2),
        lambda a, b: (I(a) // 2 % 2, I(b)),
        lambda a, b: ((I(a) * 5 + 7) % 6, I(b)),
    ],
)
def test_indices(index, xp):
    a, b = Axis("x0", 6), Axis("x1", 3)
    x = Tensor("x", (6, 20), "float32")
    check(load(x, index(a, b)), (a, b), [x], xp)
    check(reduce("sum", a, load(x, index(a, b))), (b,), [x], xp)


@LIBRARIES
def test_gathers(xp):
    a, b = Axis("x0", 4), Axis("x1", 3)
    table, rows = Tensor("table", (5, 3), "float32"), Tensor("rows", (4,), "int32")
    row = load(rows, (I(a),))
    dynamic = Index.dynamic(0, -(2**31), 2**31 - 1)
    check(load(table, (dynamic, I(b)), (row,)), (a, b), [table, rows], xp)
    check(load(table, (Index(), Index.dynamic(0, 0, 10)), (row,)), (a,), [table, rows], xp)
    check(load(table, (Index.dynamic(0, -9, 9) + -2, I(a)), (row,)), (a,), [table, rows], xp)
    check(load(table, (Index.dynamic(0, 0, 9) // 2, Index.dynamic(1, 0, 9) % 3), (row, row)), (a,), [table, rows], xp)
    check(load(table, (Index.dynamic(0, 0, 4), I(b)), (const(2, "int32"),)), (b,), [table], xp)


@LIBRARIES
def test_positions_casts_and_integers(xp):
    a, b = Axis("x0", 4), Axis("x1", 6)
    x = Tensor("x", (4,), "int32")
    lx = load(x, (I(a),))
    check(pos(I(a) * 3 + I(b) // 2 - 1, "int32"), (a, b), [], xp)
    check(scalar("quot", lx, const(-2, "int32")), (a,), [x], xp)
    check(scalar("rem", scalar("sub", lx, const(4, "int32")), const(3, "int32")), (a,), [x], xp)
    check(reduce("max", b, scalar("mul", lx, pos(I(b), "int32"))), (a,), [x], xp)
    check(cast("int32", scalar("mul", cast("float32", lx), const(-0.7, "float32"))), (a,), [x], xp)


@LIBRARIES
def test_empty_extents(xp):
    a, k, n = Axis("x0", 3), Axis("r0", 0), Axis("x0", 0)
    x, y = Tensor("x", (3, 0), "float32"), Tensor("y", (0,), "float32")
    for name in ("sum", "max", "prod"):
        got = evaluate(reduce(name, k, load(x, (I(a), I(k)))), (a,), {x: array(x)}, xp)
        assert got.tolist() == [REDUCTIONS[name].identity("float32")] * 3
    assert evaluate(load(y, (I(n),)), (n,), {y: array(y)}, xp).shape == (0,)
    got = evaluate(reduce("sum", k, mul(load(x, (I(a), I(k))), load(y, (I(k),)))), (a,), {x: array(x), y: array(y)}, xp)
    assert got.tolist() == [0, 0, 0]


@LIBRARIES
def test_nan_propagates(xp):
    x = Tensor("x", (3,), "float32")
    r = Axis("r0", 3)
    values = np.array([1, np.nan, 3], np.float32)
    for name in ("max", "min", "sum", "prod"):
        assert np.isnan(evaluate(reduce(name, r, load(x, (I(r),))), (), {x: values}, xp))


@LIBRARIES
def test_narrow_sums_keep_growing(xp):
    x = Tensor("x", (70000,), "bfloat16")
    r = Axis("r0", 70000)
    assert evaluate(reduce("sum", r, load(x, (I(r),))), (), {x: jnp.ones(70000, "bfloat16")}, xp) == 70144


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e5m2", "float8_e4m3fn", "float32", "float64"])
def test_a_rounded_product_has_its_own_dtype_in_numpy_too(dtype):
    a, b, c = (load(Tensor(n, (64,), dtype), [Index.of(Axis("x0", 64))]) for n in "abc")
    rng = np.random.default_rng(0)
    arrays = {t.tensor: rng.uniform(0.5, 2, 64).astype(jnp.dtype(dtype)) for t in (a, b, c)}
    got = evaluate(scalar("add", scalar("mul", a, b), c), (Axis("x0", 64),), arrays, np)
    x, y, z = arrays.values()
    assert got.dtype == x.dtype
    np.testing.assert_array_equal(got.astype(float), (x * y + z).astype(float))


def test_narrow_operations_round_one_by_one():
    x = Tensor("x", (2,), "bfloat16")
    a = Axis("x0", 2)
    values = jnp.asarray([256, 3], "bfloat16")
    term = scalar("sub", scalar("add", load(x, (I(a),)), const(1, "bfloat16")), load(x, (I(a),)))
    for xp in (jnp, np):
        assert evaluate(term, (a,), {x: values}, xp).tolist() == [0, 1]
    assert evaluate(term, (a,), {x: values}, widen=True).tolist() == [1, 1]


def test_float32_operands_multiply_in_full_precision():
    term, axes, qkv = attention(128, 2, 16)
    x = array(qkv)
    exact = evaluate(term, axes, {qkv: x}, widen=True)
    assert np.abs(jax.jit(lambda q: evaluate(term, axes, {qkv: q}))(x) - exact).max() < 3e-6


def test_a_stored_tensor_is_computed_from_its_definition():
    a = Axis("x0", 4)
    x = Tensor("x", (4,), "float32")
    y = Stored("y", (1, 4), "float32", scalar("exp", load(x, (I(a),))), (a,))
    np.testing.assert_allclose(evaluate(load(y, (Index(), I(a) * -1 + 3)), (a,), {x: np.arange(4.0)}), np.exp([3, 2, 1, 0]))


def test_missing_arrays_and_axes_are_named():
    a = Axis("x0", 4)
    x = Tensor("x", (4,), "float32")
    with pytest.raises(KeyError, match="array for x: float32\\[4\\] required"):
        evaluate(load(x, (I(a),)), (a,), {})
    with pytest.raises(ValueError, match="all free axes of the term required, \\(x0\\) missing"):
        evaluate(load(x, (I(a),)), (), {x: array(x)})


def test_deep_terms_do_not_recurse():
    a = Axis("x0", 4)
    x = Tensor("x", (4,), "float32")
    term = load(x, (I(a),))
    for _ in range(3000):
        term = scalar("add", term, ONE)
    assert evaluate(term, (a,), {x: np.zeros(4, np.float32)}, np).tolist() == [3000] * 4


# --- random terms ------------------------------------------------------------------------------------------------

AXES = (Axis("x0", 2), Axis("x1", 6), Axis("r0", 3), Axis("r1", 4))
TENSORS = (Tensor("t", (6, 4), "float32"), Tensor("u", (3,), "float32"), Tensor("v", (2, 12), "float32"))


@st.composite
def indices(draw):
    index = Index.of(draw(st.integers(-2, 3)))
    for axis in draw(st.lists(st.sampled_from(AXES), max_size=2)):
        index = index + Index.of(axis) * draw(st.sampled_from([1, 1, 2, 3, 6, -1]))
    match draw(st.integers(0, 5)):
        case 0:
            return index // draw(st.integers(2, 4))
        case 1:
            return index % draw(st.integers(2, 6))
    return index


@st.composite
def loads(draw):
    tensor = draw(st.sampled_from(TENSORS))
    return load(tensor, tuple(draw(indices()) for _ in tensor.shape))


def combined(children):
    return st.one_of(
        st.builds(lambda a, b: scalar("mul", a, b), children, children),
        st.builds(lambda a, b: scalar("add", a, b), children, children),
        st.builds(lambda n, k, a: reduce(n, k, a), st.sampled_from(["sum", "sum", "max"]), st.sampled_from(AXES[2:]), children),
        st.builds(lambda k, s, v: online(k, s, v, "float32"), st.sampled_from(AXES[2:]), children, children),
    )


@settings(max_examples=200, deadline=None)
@given(st.recursive(loads(), combined, max_leaves=6))
def test_random_terms(term):
    axes = tuple(a for a in AXES if a in term.axes)
    arrays = {t: array(t, n) for n, t in enumerate(TENSORS)}
    want = by_definition(term, axes, {t: a.astype(np.float64) for t, a in arrays.items()})
    for got in (evaluate(term, axes, arrays, widen=True), evaluate(term, axes, arrays, np)):
        tolerance = 1e-9 if got.dtype == np.float64 else 1e-4
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance * max(1, np.abs(want).max(initial=0)))


def test_a_maximum_keeps_not_a_number():
    """XLA:CPU loses it for this shape in jaxlib 0.10.2; JAX itself is no oracle here."""
    shape = (16, 32, 32, 3, 3)
    array = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    array[3, 4, 5, 1, 1] = array[9, 1, 1, 2, 0] = np.nan
    x, axes, k = Tensor("x", shape, "float32"), output_axes(shape)[:4], Axis("r0", 3)
    term = reduce("max", k, load(x, (*map(Index.of, axes), Index.of(k))))
    assert int(np.isnan(np.asarray(evaluate(term, axes, {x: array}))).sum()) == 2


@pytest.mark.parametrize(("dtype", "large"), [("float32", np.inf), ("float64", 1e300), ("float16", 6e4), ("float8_e4m3fn", 448)])
@pytest.mark.parametrize("name", ["max", "min"])
def test_a_maximum_is_not_nan_for_numbers_alone(dtype, large, name):
    with jax.enable_x64(dtype == "float64"):
        rows = jnp.asarray([[large, -large, 1], [1, np.nan, 2], [-large, 0, -large]], dtype)
        x, row, k = Tensor("x", rows.shape, dtype), Axis("x0", 3), Axis("r0", 3)
        want = {"max": [large, np.nan, 0], "min": [-large, np.nan, -large]}[name]
        for sign in (1, -1):
            term = scalar("mul", load(x, (I(row), I(k))), const(sign, dtype))
            got = evaluate(reduce(name, k, term), (row,), {x: sign * rows})
            np.testing.assert_array_equal(np.asarray(got, float), np.asarray(jnp.asarray(want, dtype), float))


def test_reductions_that_differ_in_names_of_axes_are_computed_once():
    m, n, k, r = Axis("x0", 5), Axis("x1", 3), Axis("r0", 4), Axis("r1", 5)
    a, b = Tensor("a", (5, 4), "float32"), Tensor("b", (4, 3), "float32")
    over = lambda axis: reduce("sum", k, mul(load(a, (I(axis), I(k))), load(b, (I(k), I(n)))))  # noqa: E731
    term = scalar("sub", over(m), reduce("sum", r, scalar("tanh", over(r))))
    check(term, (m, n), [a, b], jnp)
    text = str(jax.make_jaxpr(lambda x, y: evaluate(term, (m, n), {a: x, b: y}))(array(a), array(b)))
    assert text.count("dot_general[") == 1 and "transpose[" not in text


def test_elementwise_results_are_laid_out_as_the_output():
    x, y = Axis("x0", 4), Axis("x1", 6)
    labels, rows = Tensor("labels", (4,), "int32"), Tensor("rows", (4, 6), "float32")
    chosen = scalar("eq", pos(I(y), "int32"), load(labels, (I(x),)))
    term = scalar("where", chosen, ONE, load(rows, (I(x), I(y))))
    check(term, (x, y), [labels, rows], jnp)
    assert "transpose" not in str(
        jax.make_jaxpr(lambda a, b: evaluate(term, (x, y), {labels: a, rows: b}))(array(labels), array(rows))
    )


PAIRS = [
    lambda x, y: lax.log(lax.exp(x)), lambda x, y: lax.log(lax.exp2(x)), lambda x, y: lax.log(lax.sqrt(x)),
    lambda x, y: lax.log(lax.rsqrt(x)), lambda x, y: lax.log(lax.pow(lax.abs(x), y)), lambda x, y: lax.log1p(lax.expm1(x)),
    lambda x, y: lax.sqrt(x * x), lambda x, y: lax.exp(x) * lax.exp(y), lambda x, y: lax.square(lax.exp2(x)),
    lambda x, y: lax.exp(x) - lax.exp(y), lambda x, y: x + lax.exp2(y), lambda x, y: lax.exp(x) / lax.exp(x),
    lambda x, y: y / lax.exp(x), lambda x, y: y / lax.exp2(x), lambda x, y: y / lax.sqrt(x), lambda x, y: y / lax.rsqrt(x),
    lambda x, y: y / lax.logistic(x), lambda x, y: lax.logistic(x) / y, lambda x, y: (x / y) / x, lambda x, y: y / (x / y),
    lambda x, y: (x * y) / y, lambda x, y: y / lax.pow(lax.abs(x), y), lambda x, y: x * y + x, lambda x, y: y - x * y,
    lambda x, y: lax.pow(lax.exp(x), y), lambda x, y: (x + 1e8) - 1e8, lambda x, y: 1e8 + (x - 1e8), lambda x, y: 1e8 - (1e8 - x),
    lambda x, y: (x + y) - y, lambda x, y: (x - y) + y, lambda x, y: x - (x - y), lambda x, y: (x + 1e8) + (y - 1e8),
    lambda x, y: lax.max(x + 1e8, y + 1e8) - 1e8, lambda x, y: x * 1e-30 * 1e30 * 1e20, lambda x, y: x * 1e30 * 1e30 * 1e-30,
    lambda x, y: x * (y > 0).astype(x.dtype), lambda x, y: (y > 0).astype(x.dtype) * x - y,
]  # fmt: skip


def test_pairs_that_xla_simplifies_keep_their_bits():
    """Were numbers real, exp(100) / exp(100) and (1 + 1e8) - 1e8 were 1, sqrt(1e-30 ** 2) 1e-30, exp(1e20) - exp(2e20) -inf."""
    special = [0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 100, -104, 1e20, 2e20, 1e-30]
    rng = np.random.default_rng(0)
    x = np.concatenate([3 * rng.standard_normal(200), np.repeat(special, len(special))]).astype(np.float32)
    y = np.concatenate([3 * rng.standard_normal(200), np.tile(special, len(special))]).astype(np.float32)
    program = eqsat.optimize(lambda x, y: [f(x, y) for f in PAIRS], x, y, numerics="exact")
    for n, (got, f) in enumerate(zip(program(x, y), PAIRS, strict=True)):
        np.testing.assert_array_equal(np.asarray(got), np.asarray(f(jnp.asarray(x), jnp.asarray(y))), f"pair {n}")


SIGNED = {
    "maximum": (lambda x, y, n: lax.max(x, y), [0, 0, 0, -0.0]),
    "minimum": (lambda x, y, n: lax.min(x, y), [0, -0.0, -0.0, -0.0]),
    "plus 0": (lambda x, y, n: x + 0.0, [0, 0, 0, 0]),
    "minus -0": (lambda x, y, n: x - lax.full_like(x, -0.0), [0, 0, 0, 0]),
    "plus a 0 that was an integer": (lambda x, y, n: x + lax.full_like(n, 0).astype(x.dtype), [0, 0, 0, 0]),
    "added at one place": (lambda x, y, n: x.at[2].add(0.0), [0, 0, 0, -0.0]),
    "added at places": (lambda x, y, n: x.at[n[:1]].add(0.0), [0, 0, -0.0, -0.0]),
}


@pytest.mark.parametrize("name", SIGNED)
def test_zeros_keep_their_signs(name):
    """Of two zeros -0 is the less, and -0 + 0 is 0 (IEEE 754, 6.3 and 9.6): XLA:CPU takes a known 0 away."""
    f, want = SIGNED[name]
    x, y = np.asarray([0, 0, -0.0, -0.0], np.float32), np.asarray([0, -0.0, 0, -0.0], np.float32)
    got = np.asarray(eqsat.optimize(f, x, y, np.asarray([1, 1, 1, 1], np.int32), numerics="exact")(x, y, np.ones(4, np.int32)))
    np.testing.assert_array_equal(got, np.zeros(4))
    np.testing.assert_array_equal(np.signbit(got), np.signbit(want))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "float8_e5m2"])
@pytest.mark.parametrize("name", ["max", "min"])
def test_the_greater_of_two_is_the_same_in_jax_and_numpy(name, dtype):
    """Also below jit, for which XLA:CPU has other code."""
    special = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, -np.nan]
    x, y = (a.ravel().astype(np.dtype(dtype)) for a in np.meshgrid(special, special))
    want = NUMPY.apply(name, x, y)
    assert np.isnan(want.astype("f4")).sum() == 28 and want.dtype == x.dtype
    with jax.enable_x64(True):
        got = np.asarray(jax.jit(lambda x, y: JAX.apply(name, x, y))(x, y))
    want, got = want.astype("f4"), got.astype("f4")
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got[got == 0]), np.signbit(want[want == 0]))


@pytest.mark.parametrize("axis", [0, 1, 2, (1, 2), (0, 2)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_extremes_along_any_axis_keep_nan(axis, dtype):
    """XLA:CPU's own lose it, unless in rows of few; the sign of a NaN does not matter."""
    x = np.random.default_rng(0).standard_normal((8, 32, 64)).astype(np.dtype(dtype))
    x[0, 3, 5], x[1, 31, 63], x[2, 0, 0], x[3, 1] = np.nan, -np.nan, np.inf, -np.inf
    program = eqsat.optimize(lambda x: (jnp.max(x * 2, axis=axis), jnp.min(-x, axis=axis)), x)
    largest, least = (np.asarray(a, np.float32) for a in program(x))
    want = np.max(np.asarray(x, np.float32), axis=axis)
    assert np.isnan(want).sum() == 2 or axis == (0, 2)
    np.testing.assert_array_equal(largest, 2 * want)
    np.testing.assert_array_equal(least, -want)


@pytest.mark.parametrize("name", [name for name, op in SCALARS.items() if op.arity == 2])
def test_operands_of_lower_rank_broadcast(name):
    dtype = {"bool": "bool", "float": "float32", "int": "int32", "uint": "uint32"}[(SCALARS[name].kinds or ("float",))[0]]
    x, y = Axis("x0", 2), Axis("x1", 3)
    rows, row = Tensor("a", (2, 3), dtype), Tensor("b", (3,), dtype)
    arrays = {rows: np.asarray([[3, 2, 5], [1, 4, 9]]).astype(dtype), row: np.asarray([1, 2, 1]).astype(dtype)}
    term = scalar(name, load(rows, (I(x), I(y))), load(row, (I(y),)))
    want = [evaluate(term, (x, y), {rows: arrays[rows][n : n + 1].repeat(2, 0), row: arrays[row]}, np)[0] for n in range(2)]
    last_bits = 4e-7 if name in BY_PLACE else 0  # which are not NumPy's to the last bit
    np.testing.assert_allclose(evaluate(term, (x, y), arrays, jnp), want, rtol=last_bits)
    swapped = scalar(name, load(row, (I(y),)), load(rows, (I(x), I(y))))
    np.testing.assert_allclose(evaluate(swapped, (x, y), arrays, jnp), evaluate(swapped, (x, y), arrays, np), rtol=last_bits)


HELD = {
    "product": (lambda x: lax.reduce_prod(x, (0,)), [300, 300, 0, 1], 0),
    "products from the front": (lambda x: lax.cumprod(x), [300, 300, 0.5, 1], [300, np.inf, 45000, 45000]),
    "sum": (lambda x: lax.reduce_sum(x, (0,)), [60000, 60000, -60000, -59008], 992),
    "sums from the front": (lambda x: lax.cumsum(x), [60000, 60000, -60000, -59008], [60000, np.inf, 60000, 992]),
}


@pytest.mark.parametrize("name", HELD)
def test_what_overflows_on_its_way_alone_stays_finite(name):
    """The one departure of the exact tier from JAX's primitives, which round each step in an order of their own."""
    function, values, want = HELD[name]
    x = np.asarray(values, np.float16)
    np.testing.assert_array_equal(eqsat.optimize(function, x, numerics="exact", time_limit=5.0)(x), np.asarray(want, np.float16))
