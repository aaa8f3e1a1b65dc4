"""Models that other ONNX optimisers were reported to compute wrongly, with their right values, as written and optimised."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import eqsat  # noqa: E402
from eqsat.graph import Graph  # noqa: E402

F32, F16, I32, U8, I8, BOOL, I64 = (
    TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT32, TensorProto.UINT8, TensorProto.INT8, TensorProto.BOOL,
    TensorProto.INT64,
)  # fmt: skip


def model(nodes: Any, feeds: dict[str, np.ndarray], wanted: dict[str, Any], opset: int = 18, initial: Any = ()) -> Any:
    inputs = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in feeds.items()]
    outputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(np.asarray(v).dtype), None) for n, v in wanted.items()
    ]
    graph = helper.make_graph(
        [helper.make_node(op, list(i), list(o), **a) for op, i, o, a in nodes], "g", inputs, outputs,
        [numpy_helper.from_array(np.asarray(v), n) for n, v in initial],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def check(
    nodes: Any, feeds: dict[str, np.ndarray], wanted: dict[str, Any], opset: int = 18, initial: Any = (), rtol: float = 1e-6
) -> None:
    """Compare every output with its right value, evaluated as written and after optimising in the exact tier."""
    imported = Graph.from_onnx(model(nodes, feeds, wanted, opset, initial))
    for call in (imported, eqsat.optimize(imported, numerics="exact")):
        got = call(*feeds.values())
        assert list(got) == list(wanted)
        for name, value in wanted.items():
            np.testing.assert_allclose(np.asarray(got[name]), value, rtol=rtol)


def arange(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype="float32").reshape(shape)


def test_a_chain_of_casts_keeps_its_middle():  # P3-01
    x = np.array([-0.2, -0.1, 0, 0.1, 0.2], "float32")
    check([("Cast", "x", "i", {"to": I32}), ("Cast", "i", "y", {"to": BOOL})], {"x": x}, {"y": np.zeros(5, bool)})


def test_an_identity_transpose_is_none():  # P3-02
    a = arange(3, 3)
    wanted = np.array([[18, 21, 24], [54, 66, 78], [90, 111, 132]], "float32")
    check([("Transpose", "a", "t", {"perm": [0, 1]}), ("MatMul", "tb", "y", {})], {"a": a, "b": a + 1}, {"y": wanted})


def test_a_bias_that_widens_the_product():  # P3-03
    wanted = np.array([[3, 4, 5, 6], [12, 13, 14, 15], [21, 22, 23, 24]], "float32")
    feeds = {"a": arange(3, 3), "b": np.ones((3, 1), "float32"), "c": arange(4)}
    check([("MatMul", "ab", "m", {}), ("Add", "mc", "y", {})], feeds, {"y": wanted})


def test_what_is_fused_away_stays_an_output():  # P3-04
    a, b = arange(2, 2), np.ones((2,), "float32")
    check([("MatMul", "aa", "y", {}), ("Add", "yb", "z", {})], {"a": a, "b": b}, {"y": a @ a, "z": a @ a + 1})


@pytest.mark.parametrize("opset, share", [(11, 1 / 12), (13, 1 / 4)])
def test_softmax_by_opset(opset, share):  # P3-05
    x = np.zeros((2, 3, 4), "float32")
    check([("Softmax", "x", "y", {})], {"x": x}, {"y": np.full_like(x, share)}, opset)


def test_reshape_with_allowzero():  # P3-08
    x = np.zeros((0, 6, 2), "float32")
    shapes = [("s", np.array([3, 2, -1], "int64")), ("t", np.array([0, 0, 3], "int64"))]
    nodes = [("Reshape", "xs", "r", {}), ("Reshape", "rt", "y", {"allowzero": 1})]
    check(nodes, {"x": x}, {"y": np.zeros((0, 0, 3), "float32")}, initial=shapes)


def test_padding_with_zeros_stays_outside_a_maximum():  # P3-13
    x = np.full((1, 1, 2, 2), -1, "float32")
    nodes = [("Pad", "xp", "w", {}), ("MaxPool", "w", "y", {"kernel_shape": [2, 2], "strides": [2, 2]})]
    pads = [("p", np.array([0, 0, 1, 1, 0, 0, 1, 1], "int64"))]
    check(nodes, {"x": x}, {"y": np.zeros((1, 1, 2, 2), "float32")}, initial=pads)


def test_integer_products_with_zero_points():  # P3-14
    feeds = {"a": np.array([[238, 115], [245, 111]], "uint8"), "b": np.array([[25, 36], [42, -123]], "int8")}
    points = [("m", np.uint8(42)), ("n", np.int8(-26))]
    wanted = np.array([[14960, 5071], [15045, 5893]], "int32")
    check([("MatMulInteger", "abmn", "y", {})], feeds, {"y": wanted}, initial=points)


def test_squeeze_wants_extent_one():  # P6-08
    check([("Squeeze", "xa", "y", {})], {"x": arange(1, 4, 3, 1)}, {"y": arange(1, 4, 3)}, initial=[("a", np.array([-1]))])
    with pytest.raises(ValueError, match="Squeeze"):
        check([("Squeeze", "xa", "y", {})], {"x": arange(2, 3)}, {"y": arange(2, 3)}, initial=[("a", np.array([0]))])


@pytest.mark.parametrize("epsilon, wanted", [(1e-30, 10), (0.01, 9.825)])
def test_a_batch_norm_after_a_convolution(epsilon, wanted):  # P3-06
    statistics = [(n, np.array([v], "float32")) for n, v in (("s", 3), ("b", 1), ("m", 0.5), ("v", 0.25))]
    nodes = [("Conv", "xw", "c", {}), ("BatchNormalization", "csbmv", "y", {"epsilon": epsilon})]
    feeds, w = {"x": np.ones((1, 1, 1, 1), "float32")}, ("w", np.full((1, 1, 1, 1), 2, "float32"))
    check(nodes, feeds, {"y": np.full((1, 1, 1, 1), wanted, "float32")}, initial=[w, *statistics], rtol=1e-4)


def test_a_batch_norm_after_a_transposed_convolution():  # P3-06
    statistics = [("s", [1, 10]), ("b", [0, 0]), ("m", [0, 0]), ("v", [1, 1])]
    nodes = [("ConvTranspose", "xw", "c", {}), ("BatchNormalization", "csbmv", "y", {"epsilon": 1e-30})]
    initial = [("w", np.array([2, 3], "float32").reshape(1, 2, 1, 1)), *((n, np.array(v, "float32")) for n, v in statistics)]
    wanted = np.array([2, 30], "float32").reshape(1, 2, 1, 1)
    check(nodes, {"x": np.ones((1, 1, 1, 1), "float32")}, {"y": wanted}, initial=initial)


def layer_norm(power: bool, reciprocal: bool, cast: bool) -> tuple[Any, Any]:
    """One of the ways in which exporters spell it."""
    nodes = [("ReduceMean", "xa", "m", {}), ("Sub", "xm", "d", {})]
    nodes += [("Pow", "dt", "q", {}) if power else ("Mul", "dd", "q", {}), ("ReduceMean", "qa", "v", {}), ("Add", "ve", "w", {})]
    nodes += [("Cast", "w", "u", {"to": F32})] if cast else [("Identity", "w", "u", {})]
    nodes += [("Sqrt", "u", "s", {})]
    nodes += [("Reciprocal", "s", "r", {}), ("Mul", "dr", "y", {})] if reciprocal else [("Div", "ds", "y", {})]
    return nodes, [("a", np.array([1])), ("t", np.float32(2)), ("e", np.float32(1e-5))]


@pytest.mark.parametrize("spelling", [(False, False, False), (True, False, True), (False, True, False), (True, True, True)])
def test_a_layer_norm_is_one_kernel_however_it_is_spelt(spelling):  # P3-07
    nodes, initial = layer_norm(*spelling)
    program = eqsat.optimize(Graph.from_onnx(model(nodes, {"x": arange(64, 256)}, {"y": arange(64, 256)}, initial=initial)))
    plain = eqsat.optimize(Graph.from_onnx(model(layer_norm(False, False, False)[0], {"x": arange(64, 256)},
                                                 {"y": arange(64, 256)}, initial=initial)))  # fmt: skip
    assert program.cost.launches == plain.cost.launches == 1 and program.cost.nbytes == plain.cost.nbytes


@pytest.mark.parametrize("taken", [True, False])
def test_branches_find_the_names_around_them(taken):  # P3-10
    def branch(op: str) -> Any:
        out = helper.make_tensor_value_info("r", F32, None)
        return helper.make_graph([helper.make_node(op, ["k", "k"], ["r"])], op, [], [out])

    nodes = [("Identity", "x", "k", {}), ("If", "c", "y", {"then_branch": branch("Add"), "else_branch": branch("Mul")})]
    x = arange(3)
    check(nodes, {"x": x, "c": np.array(taken)}, {"y": x + x if taken else x * x})


@pytest.mark.parametrize("trips", [0, 3])
def test_a_loop_that_only_collects(trips):  # P3-10
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Identity", ["p"], ["q"]), helper.make_node("Add", ["x", "x"], ["s"])], "body",
        [info("i", I64, []), info("p", BOOL, [])], [info("q", BOOL, []), info("s", F32, None)],
    )  # fmt: skip
    x = arange(3)
    check([("Loop", "nt", "y", {"body": body})], {"x": x}, {"y": np.stack([x + x] * trips) if trips else np.zeros((0, 3), "f4")},
          initial=[("n", np.array(trips)), ("t", np.array(True))])  # fmt: skip


@pytest.mark.parametrize("wide", [True, False])
def test_an_rms_norm_overflows_in_float16_only_where_it_is_written_so(wide):  # P3-11
    nodes = [("Cast", "x", "z", {"to": F32 if wide else F16}), ("Mul", "zz", "q", {}), ("ReduceMean", "qa", "m", {})]
    nodes += [("Add", "me", "v", {}), ("Sqrt", "v", "s", {}), ("Div", "zs", "r", {}), ("Cast", "r", "y", {"to": F16})]
    x = np.full((2, 64), 8000, "float16")
    initial = [("a", np.array([1])), ("e", np.array(1e-5, "float32" if wide else "float16"))]
    check(nodes, {"x": x}, {"y": np.full_like(x, 1 if wide else 0)}, initial=initial)


def test_a_cast_that_does_nothing_before_a_product_with_one():  # P3-12
    x = arange(4)
    nodes = [("Cast", "x", "c", {"to": F32}), ("Mul", "co", "y", {}), ("Add", "yc", "z", {})]
    check(nodes, {"x": x}, {"y": x, "z": x + x}, initial=[("o", np.float32(1))])


def test_constants_behind_an_open_size_are_folded():  # P3-15
    """Once the size is bound, nothing of the shape arithmetic is left."""
    nodes = [("Shape", "x", "s", {}), ("ConstantOfShape", "s", "o", {}), ("Add", "ok", "p", {}), ("Add", "xp", "y", {})]
    x = arange(2, 3)
    graph = Graph.from_onnx(model(nodes, {"x": x}, {"y": x}, initial=[("k", np.float32(2)), ("l", np.float32(3))]))
    assert len(eqsat.optimize(graph).launches) == 1
    check(nodes, {"x": x}, {"y": x + 2}, initial=[("k", np.float32(2))])


def test_an_epsilon_that_vanishes_in_float16():  # P3-18
    """0 / 0 where all is float16, 0 where the norm is float32 inside."""
    x, eps = np.ones((1, 4), "float16"), ("e", np.array(1e-8, "float32"))
    narrow = [("Cast", "e", "h", {"to": F16}), ("ReduceMean", "xa", "m", {}), ("Sub", "xm", "d", {}), ("Mul", "dd", "q", {})]
    narrow += [("ReduceMean", "qa", "v", {}), ("Add", "vh", "w", {}), ("Sqrt", "w", "s", {}), ("Div", "ds", "y", {})]
    check(narrow, {"x": x}, {"y": np.full_like(x, np.nan)}, initial=[("a", np.array([1])), eps])
    ones = [("g", np.ones(4, "float16"))]
    check([("LayerNormalization", "xg", "y", {"epsilon": 1e-8})], {"x": x}, {"y": np.zeros_like(x)}, initial=ones)


def test_unknown_operators_are_named_and_nothing_is_skipped():  # P5-07
    nodes = [("Erf", "x", "e", {}), ("Mystery", "e", "m", {}), ("Add", "mx", "y", {})]
    with pytest.raises(ValueError, match=r"operators of the table required, got 1 nodes without one: Mystery"):
        Graph.from_onnx(model(nodes, {"x": arange(3)}, {"y": arange(3)}))


def test_a_split_and_a_slice_by_computed_sizes():  # P6-04
    """Sizes that follow from shapes are known while importing; those that follow from values are refused by name."""
    nodes = [("Shape", "x", "s", {}), ("Slice", "xzs", "y", {})]
    x = arange(4)
    check(nodes, {"x": x}, {"y": x}, initial=[("z", np.array([0]))])
    with pytest.raises(ValueError, match=r"Slice.*known value of 'n' required.*bind 'n' with constants="):
        Graph.from_onnx(
            model([("Slice", "xzn", "y", {})], {"x": x, "n": np.array([2])}, {"y": x}, initial=[("z", np.array([0]))])
        )
