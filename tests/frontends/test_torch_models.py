"""Whole models of PyTorch: each imports, optimises, validates, and agrees with eager, also under torch.compile."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils import _pytree as pytree  # noqa: E402
from torch_models import MODELS, made  # noqa: E402

import eqsat  # noqa: E402
from eqsat import torch_backend  # noqa: E402
from eqsat.graph import Graph  # noqa: E402

LIMIT = {"time_limit": 1.0}  # seconds of search: what is tested here is the way in and out


def arrays(tree: Any) -> Any:
    return pytree.tree_map(lambda t: np.asarray(t.float().numpy(), "bfloat16") if t.dtype == torch.bfloat16 else t.numpy(), tree)


def leaves(results: Any) -> list[Any]:
    """Results in the order in which JAX has them: that of a dictionary's keys."""
    results = dict(sorted(results.items())) if isinstance(results, dict) else results
    return [t for t in pytree.tree_leaves(results) if t is not None]


def check(got: Any, wanted: Any, tolerance: float) -> None:
    got = jax.tree_util.tree_leaves(got)
    for x, y in zip(got, leaves(wanted), strict=True):
        assert str(x.dtype) == str(y.dtype).removeprefix("torch.")
        y = y.detach().double().numpy()
        scale = max(1.0, float(np.abs(y).max()))
        np.testing.assert_allclose(np.asarray(x, np.float64), y, rtol=0, atol=tolerance * scale)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_optimised_models_validate_and_agree_with_eager(name):
    module, args, kwargs = made(name)
    program = eqsat.optimize(Graph.from_torch(module, args, kwargs), **LIMIT)
    given = arrays((args, kwargs))
    check(program(*given[0], **given[1]), module(*args, **kwargs), 1e-5)
    if name not in ("lookups", "lstm"):  # whose random positions would be out of range
        program.validate()
    else:
        program.validate(*given[0], **given[1])


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_graphs_agree_with_eager_in_every_dtype(name, dtype):
    module, args, kwargs = made(name, dtype)
    graph = Graph.from_torch(module, args, kwargs)
    leaves, tree = jax.tree_util.tree_flatten(arrays((args, kwargs)))
    assert tree == graph.in_tree
    with graph.mode():
        results = jax.jit(graph.evaluate)(*leaves)
    check(
        jax.tree_util.tree_unflatten(graph.out_tree, results), module(*args, **kwargs), 1e-13 if dtype == torch.float64 else 2e-2
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "resnet"])
def test_compiled_models_agree_with_eager(name):
    torch._dynamo.reset()
    module, args, kwargs = made(name)
    with torch.no_grad():
        got = torch.compile(module, backend=torch_backend.eqsat, options=LIMIT)(*args, **kwargs)
        torch.testing.assert_close(got, module(*args, **kwargs), rtol=1e-4, atol=1e-5)


@pytest.mark.nightly
@pytest.mark.parametrize("name", [n for n in MODELS if n not in ("llama", "resnet")])
def test_other_compiled_models_agree_with_eager(name):
    test_compiled_models_agree_with_eager(name)


# --- Hugging Face -----------------------------------------------------------------------------------------------


def _llama(transformers: Any) -> Any:
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2
        )
    )


def _gpt2(transformers: Any) -> Any:
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=2, n_head=2))


def _bert(transformers: Any) -> Any:
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    return transformers.BertModel(transformers.BertConfig(vocab_size=32, max_position_embeddings=16, **sizes))


HUGGING_FACE = {
    "llama": (_llama, {"use_cache": False}, "logits"),
    "gpt2": (_gpt2, {"use_cache": False}, "logits"),
    "bert": (_bert, {}, "last_hidden_state"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HUGGING_FACE)
def test_hugging_face_models_of_random_weights_agree_with_eager(name):
    transformers = pytest.importorskip("transformers")
    build, options, key = HUGGING_FACE[name]
    torch.manual_seed(0)
    module, tokens = build(transformers).eval(), torch.randint(0, 32, (2, 5))
    graph = Graph.from_torch(module, (), {"input_ids": tokens, **options})
    program = eqsat.optimize(graph, **LIMIT)
    result = program(input_ids=tokens.numpy())
    check([result[key]], [getattr(module(tokens, **options), key)], 1e-5)
