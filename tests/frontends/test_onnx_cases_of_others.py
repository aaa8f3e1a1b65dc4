"""Models that other ONNX optimisers were reported to compute wrongly, with their right values, as written and optimised."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import eqsat  # noqa: E402
from eqsat.graph import Graph  # noqa: E402

F32, I32, U8, I8, BOOL, I64 = (
    TensorProto.FLOAT, TensorProto.INT32, TensorProto.UINT8, TensorProto.INT8, TensorProto.BOOL, TensorProto.INT64,
)  # fmt: skip


def check(nodes: Any, feeds: dict[str, np.ndarray], wanted: dict[str, Any], opset: int = 18, initial: Any = ()) -> None:
    """Compare every output with its right value, evaluated as written and after optimising in the exact tier."""
    inputs = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in feeds.items()]
    outputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(np.asarray(v).dtype), None) for n, v in wanted.items()
    ]
    graph = helper.make_graph(
        [helper.make_node(op, list(i), list(o), **a) for op, i, o, a in nodes], "g", inputs, outputs,
        [numpy_helper.from_array(np.asarray(v), n) for n, v in initial],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    imported = Graph.from_onnx(model)
    for call in (imported, eqsat.optimize(imported, numerics="exact")):
        got = call(*feeds.values())
        assert list(got) == list(wanted)
        for name, value in wanted.items():
            np.testing.assert_allclose(np.asarray(got[name]), value, rtol=1e-6)


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
