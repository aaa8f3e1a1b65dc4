"""Models as functions of any sizes (`eqsat.function`): one program a bucket, results of the true sizes; or a clear refusal."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqsat


def check(got, wanted):
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


@pytest.fixture
def model():
    """Attention over tokens, spelt as exporters do: sizes come out of Shape, are computed with, and go into Reshape."""
    parser = pytest.importorskip("onnx.parser")
    found = parser.parse_model(
        """
        <ir_version: 8, opset_import: ["" : 17]>
        tokens (float[batch, seq, 6] x, float[6, 6] w) => (float[batch, seq, 6] y, float[batch, "?"] last) {
            shape = Shape (x)
            zero = Constant <value = int64 {0}> ()
            one = Constant <value = int64 {1}> ()
            axis = Constant <value = int64[1] {0}> ()
            b = Gather (shape, zero)
            s = Gather (shape, one)
            rows = Unsqueeze (b, axis)
            length = Unsqueeze (s, axis)
            heads = Constant <value = int64[2] {2, 3}> ()
            apart = Concat <axis = 0> (rows, length, heads)
            h = MatMul (x, w)
            split = Reshape (h, apart)
            q = Transpose <perm = [0, 2, 1, 3]> (split)
            k = Transpose <perm = [0, 2, 3, 1]> (split)
            scores = MatMul (q, k)
            weights = Softmax <axis = -1> (scores)
            mixed = MatMul (weights, q)
            back = Transpose <perm = [0, 2, 1, 3]> (mixed)
            width = Constant <value = int64[1] {-1}> ()
            joined = Concat <axis = 0> (rows, length, width)
            o = Reshape (back, joined)
            square = Mul (s, s)
            scale = Cast <to = 1> (square)
            places = Range (zero, s, one)
            position = Cast <to = 1> (places)
            column = Unsqueeze (position, width)
            offset = Div (column, scale)
            y = Add (o, offset)
            all = Constant <value = int64[1] {9223372036854775807}> ()
            end = Slice (y, width, all, one_row)
            last = Squeeze (end, one_row)
        }""".replace("one_row", "second").replace("zero = ", "second = Constant <value = int64[1] {1}> ()\n            zero = ")
    )
    return found


def test_an_onnx_model_serves_all_sizes_by_its_buckets(model):
    runtime = pytest.importorskip("onnxruntime")
    function = eqsat.function(model)
    assert function.shapes == ("batch, seq, 6", "6, 6")
    fast = eqsat.jit(function, buckets={"batch": (4,), "seq": (4, 8)}, time_limit=5.0)
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    w = rng.standard_normal((6, 6), np.float32)
    for batch, seq in ((3, 5), (4, 8), (1, 2), (2, 4)):
        x = rng.standard_normal((batch, seq, 6), np.float32)
        got = fast(x, w)
        assert list(got) == ["y", "last"]
        for mine, theirs in zip(got.values(), session.run(None, {"x": x, "w": w}), strict=True):
            assert mine.shape == theirs.shape
            check(mine, theirs)
    assert len(fast.programs) == 2


def test_an_onnx_model_without_buckets_has_a_program_for_each_size(model):
    fast = eqsat.jit(eqsat.function(model, constants={"w": np.eye(6, dtype=np.float32)}), time_limit=1.0)
    for seq in (3, 5):
        x = np.random.default_rng(0).standard_normal((2, seq, 6)).astype(np.float32)
        check(fast(x)["y"], eqsat.Graph.from_onnx(model, inputs={"x": x}, constants={"w": np.eye(6, dtype=np.float32)})(x)["y"])
    with pytest.raises(ValueError, match=re.escape("shape ['batch', 'seq', 6] required, got [2, 3, 7]")):
        fast(np.zeros((2, 3, 7), np.float32))


def test_an_exported_program_serves_all_rows_by_its_buckets():
    torch = pytest.importorskip("torch")

    class Heads(torch.nn.Module):
        def forward(self, x):
            return (x[:, :-1] * torch.arange(x.shape[1] - 1)[:, None]).reshape(x.shape[0], -1, 2, 2).sum(-1)

    module, dynamic = Heads(), torch.export.Dim.DYNAMIC
    exported = torch.export.export(module, (torch.zeros(3, 5, 4),), dynamic_shapes=({0: dynamic, 1: dynamic},))
    function = eqsat.function(exported)
    with pytest.raises(ValueError, match="64-bit mode required"):
        jax.eval_shape(function, jax.ShapeDtypeStruct((2, 3, 4), np.float32))
    with jax.enable_x64(True):
        fast = eqsat.jit(function, shapes=("b, s, 4",), buckets={"b": (4,), "s": (8,)}, time_limit=1.0)
        for b, s in ((3, 5), (4, 8)):
            x = torch.rand(b, s, 4)
            check(fast(x.numpy()), module(x))
        assert len(fast.programs) == 1


@pytest.mark.nightly
def test_an_exported_program_serves_all_sizes_by_its_buckets():
    torch = pytest.importorskip("torch")

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.rows, self.places = torch.nn.Embedding(9, 8), torch.nn.Embedding(16, 8)
            self.norm, self.mix = torch.nn.LayerNorm(8), torch.nn.Linear(8, 24)

        def forward(self, ids):
            batch, length = ids.shape
            x = self.rows(ids) + self.places(torch.arange(length))
            q, k, v = (t.view(batch, length, 2, 4).transpose(1, 2) for t in self.mix(self.norm(x)).chunk(3, -1))
            a = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return x + a.transpose(1, 2).reshape(batch, length, 8)

    torch.manual_seed(0)
    module = Block().eval()
    dynamic = torch.export.Dim.DYNAMIC
    exported = torch.export.export(module, (torch.zeros(3, 5, dtype=torch.int64),), dynamic_shapes=({0: dynamic, 1: dynamic},))
    function = eqsat.function(exported)
    with jax.enable_x64(True):
        fast = eqsat.jit(function, shapes=("b, s",), buckets={"b": (4,), "s": (8,)}, time_limit=5.0)
        for shape in ((3, 5), (4, 8), (1, 2)):
            ids = torch.randint(0, 9, shape)
            check(fast(ids.numpy()), module(ids).detach())
        assert len(fast.programs) == 1


def test_stablehlo_has_a_program_for_each_size_and_refuses_buckets():
    def normal(x):
        return x / jnp.sqrt((x * x).mean(-1, keepdims=True))

    (n,) = jax.export.symbolic_shape("n")
    text = jax.export.export(jax.jit(normal))(jax.ShapeDtypeStruct((n, 4), "float32")).mlir_module()
    fast = eqsat.jit(eqsat.function(text))
    for rows in (2, 3):
        x = np.random.default_rng(0).standard_normal((rows, 4)).astype(np.float32)
        check(fast(x), normal(x))
    assert len(fast.programs) == 2
    with pytest.raises(ValueError, match="since StableHLO has no names for open ones"):
        eqsat.jit(eqsat.function(text), shapes=("n, 4",), buckets={"n": (4,)})(np.zeros((2, 4), np.float32))
