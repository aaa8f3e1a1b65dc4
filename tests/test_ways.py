"""Reductions that plain JAX computes as convolutions, shifted slices or several matrix products, against the definition."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_evaluate import I, array, check, mul

from eqsat.evaluate import evaluate, evaluate_all
from eqsat.index import Axis
from eqsat.notation import Tensor, cast, const, load, pos, reduce, scalar, substitute


def traced(term, axes, arrays, numerics="exact"):
    tensors = list(arrays)
    run = lambda *given: evaluate_all([(term, axes)], dict(zip(tensors, given, strict=True)), numerics=numerics)  # noqa: E731
    return str(jax.make_jaxpr(run)(*arrays.values()))


# stride, dilation, start, extent of the image: padding on both sides, none, dimensions that are not read to their ends
WINDOWS = [(1, 1, -1, 5), (2, 1, 0, 11), (1, 2, -2, 4), (2, 3, -1, 9), (1, -1, 1, 5), (3, 2, 2, 20), (1, 1, -9, 5)]


@pytest.mark.parametrize(("stride", "dilation", "start", "extent"), WINDOWS)
@pytest.mark.parametrize("grouped", [False, True], ids=["plain", "grouped"])
def test_convolution(stride, dilation, start, extent, grouped):
    n, h, w, o, g = Axis("x0", 2), Axis("x1", 4), Axis("x2", 3), Axis("x3", 5), Axis("x4", 2)
    r, s, c = Axis("r0", 3), Axis("r1", 2), Axis("r2", 4)
    groups = (g,) if grouped else ()
    image = Tensor("image", (2, *(a.extent for a in groups), 4, extent, 4), "float32")
    weight = Tensor("weight", (*(a.extent for a in groups), 5, 4, 3, 2), "float32")
    rows, columns = I(h) * stride + I(r) * dilation + start, I(w) + I(s)
    product = mul(
        load(image, (I(n), *map(I, groups), I(c), rows, columns)), load(weight, (*map(I, groups), *map(I, (o, c, r, s))))
    )
    term = reduce("sum", r, reduce("sum", s, reduce("sum", c, product)))
    axes = (n, *groups, o, h, w)
    check(term, axes, [image, weight])
    text = traced(term, axes, {t: array(t) for t in (image, weight)})
    assert "conv_general_dilated" in text and "gather" not in text


def test_the_gradient_of_a_convolution_by_its_weight_is_one():
    n, h, r = Axis("r0", 2), Axis("r1", 6), Axis("x0", 3)
    image, out = Tensor("image", (2, 8), "float32"), Tensor("out", (2, 6), "float32")
    term = reduce("sum", n, reduce("sum", h, mul(load(image, (I(n), I(h) + I(r))), load(out, (I(n), I(h))))))
    check(term, (r,), [image, out])
    assert "conv_general_dilated" in traced(term, (r,), {t: array(t) for t in (image, out)})


def test_windows_beside_a_factor_that_moves_with_them_are_no_convolution():
    x, r = Axis("x0", 4), Axis("r0", 3)
    image, weight = Tensor("image", (6,), "float32"), Tensor("weight", (4, 3), "float32")
    check(reduce("sum", r, mul(load(image, (I(x) + I(r),)), load(weight, (I(x), I(r))))), (x,), [image, weight])
    check(reduce("sum", r, mul(load(image, (I(x) + I(r),)), load(image, (I(x) + I(r),)))), (x,), [image])


@pytest.mark.parametrize("name", ["max", "min", "sum"])
def test_pooling_reads_shifted_slices(name):
    h, w, r, s = Axis("x0", 4), Axis("x1", 3), Axis("r0", 3), Axis("r1", 2)
    image = Tensor("image", (8, 6), "float32")
    row = I(h) * 2 + I(r) - 1
    inside = scalar("ge", pos(row, "int32"), const(0, "int32"))
    outside = const({"max": -np.inf, "min": np.inf, "sum": 0.0}[name], "float32")
    term = reduce(name, r, reduce(name, s, scalar("where", inside, load(image, (row, I(w) * 2 + I(s))), outside)))
    check(term, (h, w), [image])
    assert "gather" not in traced(term, (h, w), {image: array(image)})
    holes = array(image)
    holes[3, 3] = np.nan
    got = np.asarray(jax.jit(lambda a: evaluate(term, (h, w), {image: a}))(holes))
    np.testing.assert_array_equal(np.isnan(got), np.isnan(evaluate(term, (h, w), {image: holes}, np)))
    assert np.isnan(got).sum() == 2


@pytest.mark.parametrize(("stride", "start", "extent"), [(1, -1, 6), (2, -1, 9), (2, 0, 8), (1, -2, 11)])
def test_windows_are_masked_once(stride, start, extent):
    """The mask of all windows is one padding of the image, and each place in them one slice of that."""
    x, r = Axis("x0", -(-extent // stride)), Axis("r0", 3)
    image = Tensor("image", (extent,), "float32")
    place = I(x) * stride + I(r) + start
    inside = scalar(
        "and",
        scalar("ge", pos(place, "int32"), const(0, "int32")),
        scalar("gt", const(extent, "int32"), pos(place, "int32")),
    )
    value = scalar("mul", load(image, (place,)), const(2.0, "float32"))
    term = reduce("max", r, scalar("where", inside, value, const(-np.inf, "float32")))
    check(term, (x,), [image])
    text = traced(term, (x,), {image: array(image)})
    assert "iota" not in text and text.count("mul") == 1


@pytest.mark.parametrize(("low", "high"), [(0, 3), (1, 4), (2, 2), (-1, 9), (4, 3)])
def test_a_choice_inside_of_bounds_is_a_padding(low, high):
    x, y = Axis("x0", 7), Axis("x1", 2)
    image = Tensor("image", (2, 5), "float32")
    place = pos(I(x), "int32")
    inside = scalar("and", scalar("le", const(low, "int32"), place), scalar("le", place, const(high, "int32")))
    for shift in (0, -low):
        check(scalar("where", inside, load(image, (I(y), I(x) + shift)), const(np.nan, "float32")), (x, y), [image])


@pytest.mark.parametrize("bound", [3.5, 4.0])
def test_a_position_as_a_float_may_meet_a_bound_between_positions(bound):
    x, image = Axis("x0", 7), Tensor("image", (5,), "float32")
    inside = scalar("lt", pos(I(x), "float32"), const(bound, "float32"))
    check(scalar("where", inside, load(image, (I(x),)), const(1.0, "float32")), (x,), [image])


def test_choices_along_an_axis_are_a_concatenation():
    x, y = Axis("x0", 2), Axis("x1", 12)
    place, zero = pos(I(y), "int32"), const(0.0, "float32")
    left, right = Tensor("left", (2, 5), "float32"), Tensor("right", (3,), "float32")
    parts = scalar(
        "where",
        scalar("lt", place, const(5, "int32")),
        load(left, (I(x), I(y))),
        scalar("where", scalar("lt", place, const(6, "int32")), const(7.0, "float32"), load(right, (I(y) - 6,))),
    )
    term = scalar("where", scalar("lt", place, const(9, "int32")), parts, zero)
    check(term, (x, y), [left, right])
    check(reduce("sum", x, term), (y,), [left, right])
    text = traced(term, (x, y), {t: array(t) for t in (left, right)})
    assert "concatenate" in text and "select" not in text and "gather" not in text


def test_a_sum_over_the_channels_of_groups_stays_a_convolution():
    """In a product that follows, the channel of a grouped convolution is summed, with its group as a quotient."""
    o, x, c, i, r = Axis("x0", 5), Axis("x1", 6), Axis("r0", 8), Axis("r1", 2), Axis("r2", 3)
    image, weight = Tensor("image", (8, 8), "float32"), Tensor("weight", (8, 2, 3), "float32")
    after = Tensor("after", (5, 8), "float32")
    channel = (I(c) // 2) * 2 + i
    grouped = reduce("sum", i, reduce("sum", r, mul(load(image, (channel, I(x) + I(r))), load(weight, (I(c), I(i), I(r))))))
    positive = scalar("max", grouped, const(0.0, "float32"))
    for name in ("sum", "max"):
        term = reduce(name, c, mul(positive, load(after, (I(o), I(c)))))
        check(term, (o, x), [image, weight, after])
        text = traced(term, (o, x), {t: array(t) for t in (image, weight, after)})
        assert "feature_group_count=4" in text and "gather" not in text


@pytest.mark.parametrize("op", ["max", "min"])
@pytest.mark.parametrize("literal", [0.0, -0.0, 2.0, -np.inf, np.nan])
@pytest.mark.parametrize("swapped", [False, True])
def test_extremes_of_a_literal(op, literal, swapped):
    x = Tensor("x", (7,), "float32")
    a, b = load(x, (I(Axis("x0", 7)),)), const(literal, "float32")
    values = np.array([0.0, -0.0, 1.0, -1.0, np.nan, np.inf, -np.inf], np.float32)
    term = scalar(op, b, a) if swapped else scalar(op, a, b)
    want = getattr(jax.lax, op)(values, np.full(7, literal, np.float32))
    for run in (jax.jit, lambda f: f):
        got = np.asarray(run(lambda v: evaluate(term, (Axis("x0", 7),), {x: v}))(values))
        np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(np.signbit(got), np.signbit(np.where(np.isnan(want), got, want)))


def test_a_sum_of_products_is_taken_apart_unless_exact():
    m, n, k = Axis("x0", 8), Axis("x1", 9), Axis("r0", 7)
    a, b = Tensor("a", (8, 7), "float32"), Tensor("b", (7, 9), "float32")
    product = mul(load(a, (I(m), I(k))), load(b, (I(k), I(n))))
    term = reduce("sum", k, scalar("add", product, mul(product, product)))
    arrays = {t: array(t) for t in (a, b)}
    assert "dot_general" in traced(term, (m, n), arrays, "reassociate")
    assert "dot_general" not in traced(term, (m, n), arrays)
    (got,) = evaluate_all([(term, (m, n))], arrays, numerics="reassociate")
    np.testing.assert_allclose(got, evaluate(term, (m, n), arrays), rtol=1e-5)
    x = jnp.float32(1e30)
    large = {a: jnp.full(a.shape, x), b: jnp.ones(b.shape, "float32")}
    cancelled = reduce("sum", k, scalar("sub", product, mul(product, const(1.0, "float32"))))
    assert (evaluate(cancelled, (m, n), large) == 0).all()


def test_a_matrix_times_a_vector_is_a_dot():
    m, k = Axis("x0", 8), Axis("r0", 7)
    a, v = Tensor("a", (8, 7), "float32"), Tensor("v", (7,), "float32")
    term = reduce("sum", k, mul(load(a, (I(m), I(k))), load(v, (I(k),))))
    check(term, (m,), [a, v])
    assert "dot_general" in traced(term, (m,), {t: array(t) for t in (a, v)})


def part(operands, m, n, k, start):
    """Columns of the product of two matrices, from `start` on, over axes m and n."""
    a, b = load(operands[0], (I(m), I(k))), load(operands[1], (I(k), I(n) + start))
    return reduce("sum", k, mul(cast("float32", scalar("neg", a)), cast("float32", b)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_parts_of_a_product_are_cut_from_all_of_it(dtype):
    """As queries, keys and values are: two of them along other axes, one as heads of 4."""
    m, r, k, q, n, head, inside = (Axis(f"x{i}", extent) for i, extent in enumerate((8, 8, 7, 8, 8, 2, 4)))
    operands = [Tensor("a", (8, 7), dtype), Tensor("b", (7, 24), dtype)]
    queries, keys, values = part(operands, m, q, k, 0), part(operands, r, q, k, 8), part(operands, r, n, k, 16)
    heads = substitute(values, {n: 4 * I(head) + inside})
    term = reduce("sum", r, mul(reduce("sum", q, mul(queries, keys)), heads))
    arrays = {t: array(t) for t in operands}
    got, want = (evaluate(term, (m, head, inside), arrays, xp) for xp in (jnp, np))  # NumPy multiplies part by part
    np.testing.assert_allclose(got, want, rtol=1e-4)
    assert traced(term, (m, head, inside), arrays).count("dot_general") == 3


@pytest.mark.parametrize("starts", [(0, 8), (0, 16), (8, 16), (0, 8, 8), (0, 8, 15), (16, 0, 4)])
def test_parts_that_are_not_all_of_a_product_are_products(starts):
    m, n, k = Axis("x0", 8), Axis("x1", 8), Axis("r0", 7)
    operands = [Tensor("a", (8, 7), "float32"), Tensor("b", (7, 24), "float32")]
    term = part(operands, m, n, k, starts[0])
    for start in starts[1:]:
        term = scalar("sub", part(operands, m, n, k, start), mul(term, const(0.5, "float32")))
    check(term, (m, n), operands)
    assert traced(term, (m, n), {t: array(t) for t in operands}).count("dot_general") == len(set(starts))
