"""ONNX files that are damaged or made to do harm: one clear error each, in bounded time and memory."""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import eqsat  # noqa: E402
from eqsat.frontends.onnx import OnnxError  # noqa: E402
from eqsat.graph import Graph  # noqa: E402

F32 = TensorProto.FLOAT


def value(name: str, shape: Any, dtype: int = F32) -> Any:
    return helper.make_tensor_value_info(name, dtype, shape)


def model(nodes: list[Any], inputs: list[str], outputs: list[str], initial: list[Any] | None = None) -> Any:
    graph = helper.make_graph(nodes, "g", [value(n, [2]) for n in inputs], [value(n, None) for n in outputs], initial or [])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def relu() -> Any:
    return model([helper.make_node("Relu", ["x"], ["y"])], ["x"], ["y"])


@pytest.mark.parametrize("content", [b"", b"\x00" * 100, b"not a model at all", b"\x08\x08", b"PK\x03\x04" + bytes(50)])
def test_other_files(tmp_path, content):
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(OnnxError, match="m.onnx: an (ONNX model|opset version)"):
        Graph.from_onnx(path)


def test_no_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="none.onnx: an ONNX file required, got none at"):
        Graph.from_onnx(tmp_path / "none.onnx")
    with pytest.raises(TypeError, match=r"a path or an onnx.ModelProto required, got int"):
        Graph.from_onnx(3)


def test_truncated_files_at_every_length(tmp_path):
    content = relu().SerializeToString()
    path = tmp_path / "m.onnx"
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(OnnxError):
            Graph.from_onnx(path)


def test_flipped_bytes_give_a_graph_or_an_error(tmp_path):
    weights = [numpy_helper.from_array(np.ones((2, 2), np.float32), "w")]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Softmax", ["a"], ["y"], axis=0)]
    content = model(nodes, ["x"], ["y"], weights).SerializeToString()
    path = tmp_path / "m.onnx"
    draw = random.Random(0)
    for _ in range(300):
        damaged = bytearray(content)
        for _ in range(draw.randint(1, 3)):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        path.write_bytes(damaged)
        try:
            Graph.from_onnx(path)
        except (OnnxError, NotImplementedError):
            pass


def test_cycles():
    nodes = [helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Relu", ["a"], ["b"])]
    with pytest.raises(OnnxError, match="a graph without cycles required, got a cycle among nodes 'a', 'b'"):
        Graph.from_onnx(model(nodes, ["x"], ["b"]))


def test_nodes_out_of_order_are_put_in_order():
    nodes = [helper.make_node("Relu", ["a"], ["y"]), helper.make_node("Neg", ["x"], ["a"])]
    graph = Graph.from_onnx(model(nodes, ["x"], ["y"]))
    np.testing.assert_array_equal(graph(np.array([-1, 1], np.float32))["y"], [1, 0])


def test_a_value_that_nobody_writes():
    with pytest.raises(OnnxError, match=r"onnx node 'y' \(Relu\): operand 'lost': a value that some node writes required"):
        Graph.from_onnx(model([helper.make_node("Relu", ["lost"], ["y"])], ["x"], ["y"]))
    with pytest.raises(OnnxError, match="output 'z': a value that some node writes required"):
        Graph.from_onnx(model([helper.make_node("Relu", ["x"], ["y"])], ["x"], ["z"]))


def test_colliding_names():
    twice = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Neg", ["x"], ["y"])]
    with pytest.raises(OnnxError, match="one definition of 'y' required, got a second one"):
        Graph.from_onnx(model(twice, ["x"], ["y"]))
    with pytest.raises(OnnxError, match="distinct input names required"):
        Graph.from_onnx(model([helper.make_node("Relu", ["x"], ["y"])], ["x", "x"], ["y"]))
    with pytest.raises(OnnxError, match="distinct output names required"):
        Graph.from_onnx(model([helper.make_node("Relu", ["x"], ["y"])], ["x"], ["y", "y"]))
    alike = [helper.make_node("Add", ["a.b", "a/b"], ["a b"])]
    graph = Graph.from_onnx(model(alike, ["a.b", "a/b"], ["a b"]))
    assert len({graph.name_of[v] for v in (*graph.inputs, *graph.outputs)}) == 3
    assert list(graph(np.ones(2, np.float32), np.ones(2, np.float32))) == ["a b"]


EVIL = [
    '__import__("os").system("true")',
    "x\n    raise SystemExit",
    "lambda: 0",
    "*/ #include",
    "import",
    "x0",
    "名前",
    "'); DROP",
]


@pytest.mark.parametrize("name", EVIL)
def test_names_that_would_be_code(name):
    graph = Graph.from_onnx(model([helper.make_node("Exp", [name], [name + "!"], name=name)], [name], [name + "!"]))
    program = eqsat.optimize(graph)
    assert all(graph.name_of[v].isidentifier() for v in (*graph.inputs, *graph.outputs))
    for kernel in program.kernels:
        text = kernel.source("pallas")
        compile(text, "kernel", "exec")
        assert name not in text or name.isidentifier()
    assert name + "!" in program(np.ones(2, np.float32))


@pytest.mark.parametrize("location", ["../secret.bin", "/etc/passwd", "a/../../secret.bin", "", "link.bin", "folder"])
def test_external_data_stays_in_the_folder(tmp_path, location):
    folder = tmp_path / "model"
    (folder / "folder").mkdir(parents=True)
    (tmp_path / "secret.bin").write_bytes(bytes(8))
    os.symlink(tmp_path / "secret.bin", folder / "link.bin")
    onnx.save(model([helper.make_node("Add", ["x", "w"], ["y"])], ["x"], ["y"], [external(location)]), folder / "m.onnx")
    with pytest.raises(OnnxError, match="onnx tensor 'w': external data"):
        Graph.from_onnx(folder / "m.onnx")


def external(location: str, **entries: Any) -> Any:
    weights = TensorProto(name="w", data_type=F32, dims=[2], data_location=TensorProto.EXTERNAL)
    for key, text in {"location": location, **entries}.items():
        weights.external_data.add(key=key, value=str(text))
    return weights


@pytest.mark.parametrize("entries", [{"offset": 4}, {"offset": -8}, {"length": 4}, {"length": 1 << 60}, {"offset": "many"}])
def test_external_data_of_another_size(tmp_path, entries):
    (tmp_path / "w.bin").write_bytes(bytes(8))
    onnx.save(
        model([helper.make_node("Add", ["x", "w"], ["y"])], ["x"], ["y"], [external("w.bin", **entries)]), tmp_path / "m.onnx"
    )
    with pytest.raises(OnnxError, match="onnx tensor 'w': (8 bytes|numbers) required"):
        Graph.from_onnx(tmp_path / "m.onnx")


@pytest.mark.parametrize("dims", [[1 << 62, 1 << 62], [-3], [5], [1 << 50]])
def test_tensors_of_absurd_shapes(dims):
    weights = TensorProto(name="w", data_type=F32, dims=dims, raw_data=bytes(8))
    with pytest.raises(OnnxError, match="onnx tensor 'w': (a shape|data for shape)"):
        Graph.from_onnx(model([helper.make_node("Add", ["x", "w"], ["y"])], ["x"], ["y"], [weights]))


@pytest.mark.parametrize("sizes", [[1 << 60], [1 << 30, 1 << 30], [-5]])
@pytest.mark.parametrize("op", ["ConstantOfShape", "Expand", "Reshape"])
def test_results_of_absurd_shapes(op, sizes):
    shape = [numpy_helper.from_array(np.array(sizes), "s")]
    node = helper.make_node(op, ["s"] if op == "ConstantOfShape" else ["x", "s"], ["y"])
    with pytest.raises(OnnxError, match="required"):
        Graph.from_onnx(model([node], ["x"], ["y"], shape))


def test_functions_that_call_themselves():
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    function = helper.make_function("own", "again", ["a"], ["b"], [helper.make_node("again", ["a"], ["b"], domain="own")], opsets)
    made = model([helper.make_node("again", ["x"], ["y"], domain="own")], ["x"], ["y"])
    made.functions.append(function)
    made.opset_import.append(helper.make_opsetid("own", 1))
    with pytest.raises(OnnxError, match="functions within each other required, got more; do they call themselves"):
        Graph.from_onnx(made)


def test_bodies_within_bodies():
    body = helper.make_graph([helper.make_node("Neg", ["x"], ["z"])], "inner", [], [value("z", [2])])
    condition = [numpy_helper.from_array(np.array(True), "c")]
    for _ in range(20):
        node = helper.make_node("If", ["c"], ["z"], then_branch=body, else_branch=body)
        body = helper.make_graph([node], "outer", [], [value("z", [2])])
        if len(body.SerializeToString()) > 1 << 20:
            break
    made = model([*body.node], ["x"], ["z"], condition)
    np.testing.assert_array_equal(Graph.from_onnx(made)(np.ones(2, np.float32))["z"], [-1, -1])


def test_operands_that_do_not_fit_name_the_node():
    weights = [numpy_helper.from_array(np.ones((3, 3), np.float32), "w")]
    with pytest.raises(
        OnnxError, match=r"onnx node 'mm' \(MatMul\): operands that fit together required, got float32\[2\], float"
    ):
        Graph.from_onnx(model([helper.make_node("MatMul", ["x", "w"], ["y"], name="mm")], ["x"], ["y"], weights))


def test_ten_thousand_nodes_in_bounded_time():
    names = ["x", *(f"v{n}" for n in range(10_000))]
    nodes = [helper.make_node("Neg", [a], [b]) for a, b in zip(names, names[1:], strict=False)]
    assert len(Graph.from_onnx(model(nodes, ["x"], [names[-1]])).equations) == 10_000
