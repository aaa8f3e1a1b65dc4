"""The ONNX importer: names, opsets, shape arithmetic, control flow, and models that are wrong."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import jax
import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import eqsat  # noqa: E402
from eqsat.frontends.onnx import OnnxError, Unknown, Unsupported  # noqa: E402
from eqsat.graph import Graph  # noqa: E402

F32, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def value(name: str, shape: Any, dtype: int = F32) -> Any:
    return helper.make_tensor_value_info(name, dtype, shape)


def model(nodes: list[Any], inputs: list[Any], outputs: list[Any], constants: dict[str, Any] | None = None, **more: Any) -> Any:
    initial = [numpy_helper.from_array(np.asarray(array), name) for name, array in (constants or {}).items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, initial)
    opset = more.pop("opset", 18)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8, **more)


def single(op: str, *arrays: Any, opset: int = 18, dtype: int = F32, outputs: int = 1, **attributes: Any) -> list[np.ndarray]:
    """The results of one operator, its operands being inputs."""
    arrays = tuple(np.asarray(a) for a in arrays)
    names = [f"in{n}" for n in range(len(arrays))]
    inputs = [value(n, a.shape, helper.np_dtype_to_tensor_dtype(a.dtype)) for n, a in zip(names, arrays, strict=True)]
    results = [f"out{n}" for n in range(outputs)]
    made = model(
        [helper.make_node(op, names, results, **attributes)], inputs, [value(r, None, dtype) for r in results], opset=opset
    )
    constants: dict[str, Any] = {}
    while True:
        try:
            graph = Graph.from_onnx(made, constants=constants)
        except Unknown as error:
            constants |= {n: arrays[names.index(n)] for n in error.names}
            continue
        return [np.asarray(v) for v in graph(*(a for n, a in zip(names, arrays, strict=True) if n not in constants)).values()]


# --- names ------------------------------------------------------------------------------------------------------


def mlp() -> Any:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["hidden"], name="first"),
        helper.make_node("Relu", ["hidden"], ["active"]),
        helper.make_node("Add", ["active", "b"], ["y"]),
    ]
    constants = {"w": np.ones((3, 4), np.float32), "b": np.arange(4, dtype=np.float32)}
    return model(nodes, [value("x", ["batch", 3])], [value("y", ["batch", 4]), value("hidden", ["batch", 4])], constants)


def test_inputs_outputs_and_values_keep_their_names():
    graph = Graph.from_onnx(mlp(), dims={"batch": 2})
    assert [graph.name_of[v] for v in graph.inputs] == ["x"]
    assert [graph.name_of[v] for v in graph.outputs] == ["y", "hidden"]
    assert {graph.name_of[v] for v in graph.constants} == {"w", "b"}
    assert "active: float32[2,4] = max(hidden, 0.0)   # <g.onnx>:2" in str(graph)


def test_results_are_in_a_dictionary_in_the_order_declared():
    result = Graph.from_onnx(mlp(), dims={"batch": 2})(np.ones((2, 3), np.float32))
    assert isinstance(result, OrderedDict) and list(result) == ["y", "hidden"]
    np.testing.assert_array_equal(result["y"], [[3, 4, 5, 6]] * 2)


def test_optimized_model_gives_the_same():
    graph = Graph.from_onnx(mlp(), inputs={"x": (2, 3)})
    program = eqsat.optimize(graph, numerics="exact")
    x = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
    for mine, theirs in zip(program(x).values(), graph(x).values(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)


def test_from_a_file(tmp_path):
    onnx.save(mlp(), tmp_path / "two words.onnx")
    assert Graph.from_onnx(tmp_path / "two words.onnx", dims={"batch": 1}).name == "two_words"


def test_unknown_sizes_are_named_at_once():
    with pytest.raises(
        OnnxError, match=r"g: sizes of all dimensions required, got 'x' has \['batch', 3\]; bind them with dims= or"
    ):
        Graph.from_onnx(mlp())


def test_an_input_that_is_bound_is_none_of_the_graph():
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"])]
    made = model(nodes, [value("x", [2, 3]), value("shape", [1], I64)], [value("y", None)])
    with pytest.raises(Unknown, match="bind 'shape' with constants=") as found:
        Graph.from_onnx(made)
    assert found.value.names == ("shape",)
    graph = Graph.from_onnx(made, constants={"shape": [6]})
    assert [graph.name_of[v] for v in graph.inputs] == ["x"] and graph.outputs[0].shape == (6,)


def test_what_the_caller_says_must_fit():
    with pytest.raises(OnnxError, match=r"g: dimensions among \['batch'\] required, got 'size'"):
        Graph.from_onnx(mlp(), dims={"size": 2})
    with pytest.raises(OnnxError, match=r"g: inputs among \['x'\] required, got 'y'"):
        Graph.from_onnx(mlp(), inputs={"y": (2, 3)})
    with pytest.raises(OnnxError, match=r"g: input 'x': shape \['batch', 3\] required, got \[2, 4\]"):
        Graph.from_onnx(mlp(), inputs={"x": (2, 4)})
    with pytest.raises(OnnxError, match="g: input 'c': values of bool required, got float64 values that it does not hold"):
        Graph.from_onnx(branching(), constants={"c": 0.5})


# --- shape arithmetic -------------------------------------------------------------------------------------------


def test_shape_arithmetic_is_done_while_importing():
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["batch"]),
        helper.make_node("Concat", ["batch", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["flat"]),
        helper.make_node("ReduceSum", ["flat", "one"], ["y"]),
    ]
    constants = {"zero": np.array([0]), "rest": np.array([-1]), "one": np.array([1])}
    graph = Graph.from_onnx(model(nodes, [value("x", [2, 3, 4])], [value("y", None)], constants))
    assert [e.name for e in graph.equations] == ["reshape", "reduce_sum", "broadcast_in_dim"] or len(graph.equations) <= 3
    assert graph.outputs[0].shape == (2, 1)


def test_large_constants_are_not_folded():
    nodes = [
        helper.make_node("ConstantOfShape", ["big"], ["ones"], value=helper.make_tensor("v", F32, [1], [1.0])),
        helper.make_node("Tile", ["ones", "times"], ["tiled"]),
        helper.make_node("Add", ["tiled", "x"], ["y"]),
    ]
    constants = {"big": np.array([1024, 1024]), "times": np.array([64, 1])}
    graph = Graph.from_onnx(model(nodes, [value("x", [1])], [value("y", None)], constants))
    assert sum(np.asarray(c).nbytes for c in graph.constants.values()) < 100


def test_weights_are_by_reference(tmp_path):
    made = mlp()
    onnx.save(made, tmp_path / "m.onnx", save_as_external_data=True, location="m.bin", size_threshold=0)
    graph = Graph.from_onnx(tmp_path / "m.onnx", dims={"batch": 2})
    x = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(graph(x)["y"], Graph.from_onnx(mlp(), dims={"batch": 2})(x)["y"])


# --- what an operator means, by opset (reports of others' faults) ---------------------------------------------------


def test_softmax_flattens_before_opset_13():
    zeros = np.zeros((2, 3, 4), np.float32)
    np.testing.assert_allclose(single("Softmax", zeros, opset=11)[0], 1 / 12)
    np.testing.assert_allclose(single("Softmax", zeros, opset=13)[0], 1 / 4)


def test_reshape_keeps_zeros_where_allowed():
    empty = np.zeros((0, 6, 2), np.float32)
    step = single("Reshape", empty, np.array([3, 2, -1]), allowzero=1)[0]
    assert single("Reshape", step, np.array([0, 0, 3]), allowzero=1)[0].shape == (0, 0, 3)


def test_cast_chain_truncates_in_between():
    nodes = [helper.make_node("Cast", ["x"], ["i"], to=TensorProto.INT32), helper.make_node("Cast", ["i"], ["y"], to=BOOL)]
    graph = Graph.from_onnx(model(nodes, [value("x", [5])], [value("y", [5], BOOL)]))
    assert not np.asarray(graph(np.array([-0.2, -0.1, 0, 0.1, 0.2], np.float32))["y"]).any()


def test_identity_transpose_of_a_square():
    nodes = [helper.make_node("Transpose", ["a"], ["t"], perm=[0, 1]), helper.make_node("MatMul", ["t", "b"], ["y"])]
    graph = Graph.from_onnx(model(nodes, [value("a", [3, 3]), value("b", [3, 3])], [value("y", [3, 3])]))
    a = np.arange(9, dtype=np.float32).reshape(3, 3)
    np.testing.assert_array_equal(graph(a, a + 1)["y"], [[18, 21, 24], [54, 66, 78], [90, 111, 132]])


def test_bias_that_widens_the_product():
    nodes = [helper.make_node("MatMul", ["a", "b"], ["p"]), helper.make_node("Add", ["p", "c"], ["y"])]
    graph = Graph.from_onnx(model(nodes, [value("a", [3, 3]), value("b", [3, 1]), value("c", [4])], [value("y", [3, 4])]))
    a = np.arange(9, dtype=np.float32).reshape(3, 3)
    result = np.asarray(graph(a, np.ones((3, 1), np.float32), np.arange(4, dtype=np.float32))["y"])
    np.testing.assert_array_equal(result[:2], [[3, 4, 5, 6], [12, 13, 14, 15]])


def test_batch_normalization_after_convolutions():
    def run(op: str, w: list[list[float]], gamma: Any, beta: Any, mean: Any, var: Any, epsilon: float) -> np.ndarray:
        filters = np.array(w, np.float32)[..., None, None]
        nodes = [
            helper.make_node(op, ["x", "w"], ["c"]),
            helper.make_node("BatchNormalization", ["c", "gamma", "beta", "mean", "var"], ["y"], epsilon=epsilon),
        ]
        parts = {"gamma": gamma, "beta": beta, "mean": mean, "var": var}
        constants = {"w": filters} | {name: np.asarray(part, np.float32) for name, part in parts.items()}
        graph = Graph.from_onnx(model(nodes, [value("x", [1, 1, 1, 1])], [value("y", None)], constants))
        return np.asarray(graph(np.ones((1, 1, 1, 1), np.float32))["y"]).reshape(-1)

    np.testing.assert_allclose(run("Conv", [[2]], [3], [1], [0.5], [0.25], 0.0), [10])
    np.testing.assert_allclose(run("Conv", [[2]], [3], [1], [0.5], [0.25], 0.01), [9.825], rtol=1e-4)
    np.testing.assert_allclose(run("ConvTranspose", [[2, 3]], [1, 10], [0, 0], [0, 0], [1, 1], 0.0), [2, 30])


@pytest.mark.parametrize("corners", [0, 1])
def test_each_bicubic_tap_outside_is_reflected(corners):
    """As torch has it, and ONNX's reference; at a corner's place all of the value is that pixel's."""
    from onnx.reference import ReferenceEvaluator

    image = np.random.default_rng(0).standard_normal((1, 2, 4, 5)).astype(np.float32)
    grid = np.linspace(-1.3, 1.3, 24, dtype=np.float32).reshape(1, 4, 3, 2)
    node = helper.make_node("GridSample", ["x", "g"], ["y"], mode="cubic", padding_mode="reflection", align_corners=corners)
    made = model([node], [value("x", image.shape), value("g", grid.shape)], [value("y", None)], opset=20)
    (got,) = Graph.from_onnx(made).evaluate(image, grid)
    np.testing.assert_allclose(np.asarray(got), ReferenceEvaluator(made).run(None, {"x": image, "g": grid})[0], atol=1e-5)


def test_zero_padding_before_a_maximum():
    nodes = [
        helper.make_node("Pad", ["x", "pads"], ["p"]),
        helper.make_node("MaxPool", ["p"], ["y"], kernel_shape=[2, 2], strides=[2, 2]),
    ]
    made = model(nodes, [value("x", [1, 1, 2, 2])], [value("y", None)], {"pads": np.array([0, 0, 1, 1, 0, 0, 1, 1])})
    assert not np.asarray(Graph.from_onnx(made)(-np.ones((1, 1, 2, 2), np.float32))["y"]).any()


def test_integer_products_with_zero_points():
    a, b = np.array([[238, 115], [245, 111]], np.uint8), np.array([[25, 36], [42, -123]], np.int8)
    (y,) = single("MatMulInteger", a, b, np.uint8(42), np.int8(-26), dtype=TensorProto.INT32)
    np.testing.assert_array_equal(y, [[14960, 5071], [15045, 5893]])


def test_norm_in_the_precision_that_is_written():
    x = np.full((1, 4), 8000, np.float16)
    with_cast = [
        helper.make_node("Cast", ["x"], ["w"], to=F32), helper.make_node("Mul", ["w", "w"], ["s"]),
        helper.make_node("ReduceMean", ["s"], ["m"], axes=[-1]), helper.make_node("Sqrt", ["m"], ["r"]),
        helper.make_node("Div", ["w", "r"], ["n"]), helper.make_node("Cast", ["n"], ["y"], to=TensorProto.FLOAT16),
    ]  # fmt: skip
    half = TensorProto.FLOAT16
    made = model(with_cast, [value("x", [1, 4], half)], [value("y", None, half)], opset=17)
    np.testing.assert_array_equal(np.asarray(Graph.from_onnx(made)(x)["y"]), 1)


# --- control flow -----------------------------------------------------------------------------------------------


def branching() -> Any:
    yes = helper.make_graph([helper.make_node("Mul", ["same", "two"], ["a"])], "yes", [], [value("a", [2])])
    no = helper.make_graph([helper.make_node("Neg", ["same"], ["b"])], "no", [], [value("b", [2])])
    nodes = [
        helper.make_node("Identity", ["x"], ["same"]),
        helper.make_node("If", ["c"], ["y"], then_branch=yes, else_branch=no),
    ]
    return model(nodes, [value("c", [], BOOL), value("x", [2])], [value("y", [2])], {"two": np.float32(2)})


@pytest.mark.parametrize("condition, result", [(True, [2, 4]), (False, [-1, -2])])
def test_branches_see_the_names_around_them(condition, result):
    x = np.array([1, 2], np.float32)
    graph = Graph.from_onnx(branching())
    np.testing.assert_array_equal(graph(np.bool_(condition), x)["y"], result)
    known = Graph.from_onnx(branching(), constants={"c": condition})
    assert len(known.equations) == 1
    np.testing.assert_array_equal(known(x)["y"], result)


@pytest.mark.parametrize("trips", [0, 3])
def test_loops_of_a_computed_length(trips):
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["more"]), helper.make_node("Add", ["state", "x"], ["next"])],
        "body", [value("i", [], I64), value("go", [], BOOL), value("state", [2])], [value("more", [], BOOL), value("next", [2])],
    )  # fmt: skip
    nodes = [helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)]
    graph = Graph.from_onnx(model(nodes, [value("n", [], I64), value("x", [2])], [value("y", [2])]))
    assert [e.name for e in graph.equations][-1] == "while"
    np.testing.assert_array_equal(graph(np.int32(trips), np.ones(2, np.float32))["y"], [trips + 1] * 2)


def test_functions_of_the_model_with_attributes_of_the_call():
    function = helper.make_function(
        "local", "scaled", ["a"], ["b"],
        [helper.make_node("LeakyRelu", ["a"], ["b"])], [helper.make_opsetid("", 18)], ["slope"],
    )  # fmt: skip
    function.node[0].attribute.add(name="alpha", type=onnx.AttributeProto.FLOAT, ref_attr_name="slope")
    made = model([helper.make_node("scaled", ["x"], ["y"], domain="local", slope=0.5)], [value("x", [2])], [value("y", [2])])
    made.functions.append(function)
    made.opset_import.append(helper.make_opsetid("local", 1))
    np.testing.assert_array_equal(Graph.from_onnx(made)(np.array([-2, 2], np.float32))["y"], [-1, 2])


# --- numbers ----------------------------------------------------------------------------------------------------


def test_64_bit_numbers_are_never_cut_silently():
    made = model(
        [helper.make_node("Exp", ["x"], ["y"])], [value("x", [1], TensorProto.DOUBLE)], [value("y", [1], TensorProto.DOUBLE)]
    )
    with pytest.raises(OnnxError, match="float64 needs 64-bit JAX"):
        Graph.from_onnx(made)
    with jax.enable_x64(True):
        assert Graph.from_onnx(made).outputs[0].dtype == "float64"
    large = model(
        [helper.make_node("Add", ["x", "c"], ["y"])], [value("x", [1], I64)], [value("y", [1], I64)], {"c": np.array([2**40])}
    )
    with pytest.raises(OnnxError, match="values of int32 required without 64-bit JAX, got up to 1099511627776"):
        Graph.from_onnx(large)


def test_missing_operators_are_listed_at_once():
    nodes = [
        helper.make_node("NonMaxSuppression", ["x", "x"], ["a"]),
        helper.make_node("Relu", ["x"], ["b"]),
        helper.make_node("Frobnicate", ["b"], ["y"], name="last", domain="com.example"),
    ]
    with pytest.raises(
        Unsupported, match=r"got 2 nodes without one: NonMaxSuppression \(node 'a', opset 18\); com.example::Frob"
    ):
        Graph.from_onnx(model(nodes, [value("x", [2])], [value("y", [2])]))


# --- large files ------------------------------------------------------------------------------------------------


def test_gigabytes_of_weights_are_not_read(tmp_path):  # P3-09
    """Three files of 1 GB, sparse on disk; their sum is not folded."""
    resource = pytest.importorskip("resource")
    side, weights = 1 << 14, []
    for name in ("w0", "w1", "w2"):
        with open(tmp_path / f"{name}.bin", "wb") as file:
            file.truncate(4 * side * side)
        tensor = TensorProto(name=name, data_type=F32, dims=[side, side], data_location=TensorProto.EXTERNAL)
        tensor.external_data.add(key="location", value=f"{name}.bin")
        weights.append(tensor)
    nodes = [helper.make_node("Sum", ["w0", "w1", "w2"], ["w"]), helper.make_node("MatMul", ["x", "w"], ["y"])]
    graph = helper.make_graph(nodes, "g", [value("x", [1, side])], [value("y", None)], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), tmp_path / "m.onnx")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert len(Graph.from_onnx(tmp_path / "m.onnx").equations) == 3
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kilobytes


# --- ONNX Runtime's own operators -------------------------------------------------------------------------------


def f32(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


CONTRIB = {
    "BiasGelu": ([f32(2, 8), f32(8)], {}),
    "FastGelu": ([f32(2, 8), f32(8)], {}),
    "QuickGelu": ([f32(2, 8)], {"alpha": 1.5}),
    "SkipLayerNormalization": ([f32(1, 3, 8), f32(1, 3, 8, seed=1), f32(8), f32(8, seed=2), f32(8, seed=3)], {"epsilon": 1e-5}),
    "SkipSimplifiedLayerNormalization": ([f32(1, 3, 8), f32(1, 3, 8, seed=1), f32(8)], {"epsilon": 1e-5}),
    "FusedMatMul": ([f32(4, 3), f32(4, 5)], {"transA": 1, "alpha": 0.5}),
    "MatMulIntegerToFloat": (
        [
            np.arange(12, dtype=np.uint8).reshape(3, 4),
            np.arange(20, dtype=np.int8).reshape(4, 5),
            np.float32(0.1),
            np.float32(0.2),
        ],
        {},
    ),
    "DynamicQuantizeMatMul": ([f32(3, 4), np.arange(20, dtype=np.int8).reshape(4, 5), np.float32(0.2)], {}),
}


ROIS = np.asarray([[0.5, 1, 7, 6], [-3, 2, 4, 20], [2, 2, 2.5, 9]], np.float32)
BATCHES = np.asarray([0, 1, 0], np.int64)
GRAMS = {
    "min_gram_length": 1,
    "max_gram_length": 2,
    "max_skip_count": 1,
    "ngram_counts": [0, 2],
    "pool_int64s": [2, 5, 1, 2, 5, 1],
}
WORDS = np.asarray([[2, 5, 1, 2, 9, 5, 1], [1, 9, 2, 2, 2, 2, 5]], np.int64)
CLASSIC = {
    "regions of their own grids": ("RoiAlign", [f32(2, 3, 8, 9), ROIS, BATCHES], {"output_height": 2, "output_width": 3}),
    "regions without half pixels": (
        "RoiAlign",
        [f32(2, 3, 8, 9), ROIS, BATCHES],
        {"output_height": 3, "spatial_scale": 0.7, "coordinate_transformation_mode": "output_half_pixel"},
    ),
    "weighed n-grams": (
        "TfIdfVectorizer",
        [WORDS],
        {**GRAMS, "mode": "TFIDF", "ngram_indexes": [1, 3, 0, 2], "weights": [0.5, 2.0, 3.0, 4.0]},
    ),
    "n-grams that occur": ("TfIdfVectorizer", [WORDS[1]], {**GRAMS, "mode": "IDF", "ngram_indexes": [0, 1, 2, 3]}),
    "labels of numbers": (
        "ai.onnx.ml::LabelEncoder",
        [np.asarray([1.5, np.nan, 7.0], np.float32)],
        {"keys_floats": [np.nan, 1.5], "values_int64s": [4, 5], "default_int64": -2},
    ),
    **{
        f"trees, aggregate {kind}": (
            "ai.onnx.ml::TreeEnsemble",
            [np.vstack([f32(9, 3), [[np.nan, 0.5, np.nan]]]).astype(np.float32)],
            {
                "n_targets": 2,
                "aggregate_function": kind,
                "tree_roots": [0, 3],
                "nodes_modes": numpy_helper.from_array(np.asarray([0, 0, 0, 0], np.uint8)),
                "nodes_featureids": [0, 1, 2, 1],
                "nodes_splits": numpy_helper.from_array(np.asarray([0.1, 0.5, -0.2, 0.0], np.float32)),
                "nodes_truenodeids": [1, 0, 2, 4],
                "nodes_trueleafs": [0, 1, 1, 1],
                "nodes_falsenodeids": [2, 1, 3, 5],
                "nodes_falseleafs": [0, 1, 1, 1],
                "nodes_missing_value_tracks_true": [1, 0, 0, 0],
                "leaf_targetids": [0, 1, 1, 0, 0, 1],
                "leaf_weights": numpy_helper.from_array(np.asarray([1, 2, -4, 8, 16, -32], np.float32)),
            },
        )
        for kind in (1, 2, 3)
    },
}


@pytest.mark.parametrize("name", [*CONTRIB, *CLASSIC])
def test_operators_agree_with_onnx_runtime(name):
    runtime = pytest.importorskip("onnxruntime")
    op, arrays, attributes = CLASSIC.get(name) or (f"com.microsoft::{name}", *CONTRIB[name])
    domain, _, op = op.rpartition("::")
    names = [f"in{n}" for n in range(len(arrays))]
    given = dict(zip(names, map(np.asarray, arrays), strict=True))
    inputs = [value(n, a.shape, helper.np_dtype_to_tensor_dtype(a.dtype)) for n, a in given.items()]
    dtype = I64 if "values_int64s" in attributes else F32
    made = model([helper.make_node(op, names, ["y"], domain=domain, **attributes)], inputs, [value("y", None, dtype)])
    if domain:
        made.opset_import.append(helper.make_opsetid(domain, {"ai.onnx.ml": 5}.get(domain, 1)))
    session = runtime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    (wanted,) = session.run(None, given)
    bound = {"in1": given["in1"]} if op == "RoiAlign" else {}
    got = Graph.from_onnx(made, constants=bound)(*(a for n, a in given.items() if n not in bound))["y"]
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("child", "said"), [(0, "trees required, got nodes that lead back to themselves"), (9, "nodes_truenodeids within")]
)
def test_trees_that_do_not_end_are_refused(child, said):
    tensors = {
        "nodes_modes": np.zeros(1, np.uint8),
        "nodes_splits": np.zeros(1, np.float32),
        "leaf_weights": np.ones(1, np.float32),
    }
    with pytest.raises(OnnxError, match=said):
        node = helper.make_node(
            "TreeEnsemble", ["x"], ["y"], domain="ai.onnx.ml", n_targets=1, tree_roots=[0], nodes_featureids=[0],
            nodes_truenodeids=[child], nodes_trueleafs=[0], nodes_falsenodeids=[0], nodes_falseleafs=[1], leaf_targetids=[0],
            **{name: numpy_helper.from_array(array) for name, array in tensors.items()},
        )  # fmt: skip
        made = model([node], [value("x", [2, 1])], [value("y", None)])
        made.opset_import.append(helper.make_opsetid("ai.onnx.ml", 5))
        Graph.from_onnx(made)
