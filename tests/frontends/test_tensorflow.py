"""TensorFlow functions, Keras models and SavedModels: the same values as TensorFlow's own."""

from __future__ import annotations

import subprocess
import sys
import zipfile

import jax
import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import eqsat  # noqa: E402
from eqsat.frontends.tensorflow import TensorflowError  # noqa: E402
from eqsat.graph import Graph  # noqa: E402

RNG = np.random.default_rng(0)
X = RNG.normal(size=(4, 8)).astype("float32")


class Layer(tf.Module):
    def __init__(self):
        super().__init__()
        self.w = tf.Variable(RNG.normal(size=(8, 3)).astype("float32"), name="w")
        self.b = tf.Variable(np.ones(3, "float32"), name="b")

    @tf.function(input_signature=[tf.TensorSpec((None, 8), tf.float32, name="x")])
    def __call__(self, x):
        hidden = tf.nn.softmax(tf.matmul(x, self.w) + self.b)
        return {"hidden": hidden, "total": tf.reduce_sum(hidden * hidden, 1)}


def test_a_function_with_variables_optimises():
    layer = Layer()
    graph = Graph.from_tensorflow(layer.__call__, X)
    assert [graph.name_of[v] for v in graph.inputs] == ["x"]
    assert {graph.name_of[v] for v in graph.constants} >= {"w", "b"}
    program = eqsat.optimize(graph)
    got, wanted = program(X), layer(X)
    for key in ("hidden", "total"):
        np.testing.assert_allclose(got[key], wanted[key].numpy(), rtol=1e-5)
    program.validate()


FUNCTIONS = {
    "argmax and top k": lambda x: (tf.cast(tf.argmax(x, 1), tf.int32), *tf.math.top_k(x, 2)),
    "sort and cumulative sum": lambda x: (tf.sort(x, 1), tf.cumsum(x, 1)),
    "gather and one hot": lambda x: (tf.gather(x, [2, 0]), tf.one_hot(tf.cast(x[:, 0] > 0, tf.int32), 2)),
    "einsum": lambda x: tf.einsum("ij,kj->ik", x, x),
    "loop": lambda x: tf.while_loop(lambda i, c: i < 3, lambda i, c: (i + 1, c * 2), (0, x))[1],
    "convolution": lambda x: tf.nn.conv2d(tf.reshape(x, (1, 4, 8, 1)), tf.ones((3, 3, 1, 2)), 1, "SAME"),
    "pooling": lambda x: tf.nn.max_pool2d(tf.reshape(x, (1, 4, 8, 1)), 2, 2, "VALID"),
    "functions": lambda x: tf.math.erf(x) + tf.nn.gelu(x) + tf.nn.sigmoid(x) + tf.math.log1p(tf.abs(x)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_operations(name):
    with jax.enable_x64(True):
        graph = Graph.from_tensorflow(FUNCTIONS[name], X)
        got = jax.tree.leaves(graph(X))
    for a, b in zip(got, tf.nest.flatten(FUNCTIONS[name](tf.constant(X))), strict=True):
        np.testing.assert_allclose(np.asarray(a), b.numpy(), rtol=2e-5, atol=1e-6)


def test_a_keras_model():
    model = tf.keras.Sequential(
        [tf.keras.layers.Dense(16, "relu"), tf.keras.layers.LayerNormalization(), tf.keras.layers.Dense(3)]
    )
    wanted = model(X)
    np.testing.assert_allclose(Graph.from_tensorflow(model, X)(X), wanted.numpy(), rtol=1e-4, atol=1e-5)


def test_a_saved_model(tmp_path):
    layer = Layer()
    tf.saved_model.save(layer, str(tmp_path / "layer"))
    with pytest.raises(TensorflowError, match="arguments of static shape required"):
        Graph.from_tensorflow(tmp_path / "layer")
    graph = Graph.from_tensorflow(tmp_path / "layer", x=jax.ShapeDtypeStruct((4, 8), "float32"))
    np.testing.assert_allclose(graph(x=X)["total"], layer(X)["total"].numpy(), rtol=1e-5)


def test_what_does_not_compile_is_said():
    with pytest.raises(TensorflowError, match="a function that TensorFlow compiles required"):
        Graph.from_tensorflow(lambda x: tf.strings.as_string(x), X)
    with pytest.raises(FileNotFoundError, match="the folder of a SavedModel required"):
        Graph.from_tensorflow("nowhere")


@pytest.mark.nightly
def test_one_network_gives_one_answer_through_three_doors(tmp_path):
    """basic-pitch ships as ONNX, as a SavedModel and as TFLite, which tf2onnx reads."""
    onnx, models = pytest.importorskip("onnx"), pytest.importorskip("test_onnx_models")
    pytest.importorskip("tf2onnx")
    wheels = sorted(models.CACHE.glob("basic_pitch*.whl"))
    if not wheels:
        pytest.skip("basic-pitch is not in the cache: python tests/frontends/test_onnx_models.py")
    zipfile.ZipFile(wheels[0]).extractall(tmp_path)
    folder = tmp_path / "basic_pitch" / "saved_models" / "icassp_2022"
    command = ["-m", "tf2onnx.convert", "--tflite", str(folder / "nmp.tflite"), "--output", str(folder / "lite.onnx")]
    subprocess.run([sys.executable, *command], check=True, capture_output=True)
    sound = np.random.default_rng(0).standard_normal((1, 43844, 1)).astype(np.float32)

    def of_onnx(name):
        model = onnx.load(folder / name)
        return Graph.from_onnx(model, inputs={model.graph.input[0].name: sound})

    def results(graph):
        with jax.enable_x64(True):
            flat = [np.asarray(x) for x in eqsat.optimize(graph).run(sound)]
        return sorted(flat, key=lambda x: (x.shape, float(x.sum())))

    first = results(of_onnx("nmp.onnx"))
    for other in (of_onnx("lite.onnx"), Graph.from_tensorflow(folder / "nmp", input_2=sound)):
        for a, b in zip(first, results(other), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)
