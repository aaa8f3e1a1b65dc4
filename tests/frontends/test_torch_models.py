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

LONG = ("encoder", "llama")  # both run under torch.compile on every change
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
@pytest.mark.parametrize("name", [n if n not in LONG else pytest.param(n, marks=pytest.mark.nightly) for n in MODELS])
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

WIDTH = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
TOKENS = {"vocab_size": 32, "max_position_embeddings": 16}
GROUPS = {**WIDTH, **TOKENS, "num_key_value_heads": 2}
IMAGE = {**WIDTH, "image_size": 16, "patch_size": 8}
# The model's class, its configuration's, the settings; the result that is compared, and the inputs beside token numbers.
HUGGING_FACE: dict[str, tuple[str, str, dict[str, Any], str, tuple[str, ...]]] = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", GROUPS, "logits", ("input_ids",)),
    "gpt2": (
        "GPT2LMHeadModel", "GPT2Config", {"vocab_size": 32, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2},
        "logits", ("input_ids",),
    ),
    "bert": ("BertModel", "BertConfig", {**WIDTH, **TOKENS}, "last_hidden_state", ("input_ids", "attention_mask")),
    "vit": ("ViTModel", "ViTConfig", IMAGE, "last_hidden_state", ("pixel_values",)),
    "mistral": ("MistralForCausalLM", "MistralConfig", {**GROUPS, "sliding_window": 3}, "logits", ("input_ids",)),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", GROUPS, "logits", ("input_ids",)),
    "gemma": ("GemmaForCausalLM", "GemmaConfig", {**GROUPS, "head_dim": 4}, "logits", ("input_ids",)),
    "roberta": ("RobertaModel", "RobertaConfig", {**WIDTH, **TOKENS}, "last_hidden_state", ("input_ids",)),
    "distilbert": (
        "DistilBertModel", "DistilBertConfig", {"vocab_size": 32, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24},
        "last_hidden_state", ("input_ids",),
    ),
    "t5": (
        "T5EncoderModel", "T5Config", {"vocab_size": 32, "d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 2, "num_heads": 4},
        "last_hidden_state", ("input_ids",),
    ),
    "deit": ("DeiTModel", "DeiTConfig", IMAGE, "last_hidden_state", ("pixel_values",)),
    "convnext": (
        "ConvNextModel", "ConvNextConfig", {"num_stages": 2, "hidden_sizes": [8, 16], "depths": [1, 1]}, "last_hidden_state",
        ("pixel_values",),
    ),
}  # fmt: skip
OFTEN = ("llama", "bert", "vit")


def hugging_face(name: str) -> tuple[Any, dict[str, Any], str]:
    """A model of random weights, its inputs, and the result to compare."""
    transformers = pytest.importorskip("transformers")
    model, config, settings, key, wanted = HUGGING_FACE[name]
    torch.manual_seed(0)
    module = getattr(transformers, model)(getattr(transformers, config)(**settings)).eval()
    if hasattr(module.config, "use_cache"):
        module.config.use_cache = False
    inputs = {
        "input_ids": torch.randint(3, 32, (2, 5)),
        "attention_mask": torch.tensor([[1] * 5, [1] * 3 + [0] * 2]),
        "pixel_values": torch.randn(2, 3, 16, 16),
    }
    return module, {name: inputs[name] for name in wanted}, key


@pytest.mark.slow
@pytest.mark.parametrize("name", OFTEN)
def test_hugging_face_models_of_random_weights_agree_with_eager(name):
    module, given, key = hugging_face(name)
    program = eqsat.optimize(Graph.from_torch(module, (), given), **LIMIT)
    check([program(**arrays(given))[key]], [getattr(module(**given), key)], 1e-5)


@pytest.mark.nightly
@pytest.mark.parametrize("name", [n for n in HUGGING_FACE if n not in OFTEN])
def test_other_hugging_face_models_agree_with_eager(name):
    test_hugging_face_models_of_random_weights_agree_with_eager(name)


@pytest.mark.nightly
@pytest.mark.parametrize("name", HUGGING_FACE)
def test_compiled_hugging_face_models_agree_with_eager(name):
    torch._dynamo.reset()
    module, given, key = hugging_face(name)
    with torch.no_grad():
        got = torch.compile(module, backend=torch_backend.eqsat, options=LIMIT)(**given)
        torch.testing.assert_close(getattr(got, key), getattr(module(**given), key), rtol=1e-4, atol=1e-5)
