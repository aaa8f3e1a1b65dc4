"""GPT-2 in plain JAX, and the demo: from this model to checked Triton and Pallas kernels.

bfloat16 weights and activations; layer norms and softmax in float32. `python -m examples.gpt2` optimises the small model
(12 layers, 768 wide, 1024 tokens) for one device, prints the report, writes the kernels to a folder, validates them at the real
shapes through the plain-JAX backend, and runs a small, ragged model kernel by kernel in Triton's and Pallas' interpreters.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

WIDE = jnp.float32


class Config(NamedTuple):
    """Sizes of a model; the defaults are GPT-2 small."""

    layers: int = 12
    width: int = 768
    heads: int = 12
    sequence: int = 1024
    vocabulary: int = 50257
    batch: int = 1
    dtype: Any = jnp.bfloat16


SMALL = Config()
RAGGED = Config(layers=2, width=96, heads=4, sequence=37, vocabulary=211)


# --- the model --------------------------------------------------------------------------------------------------


def init(config: Config, key: jax.Array) -> dict[str, Any]:
    """Random weights, scaled as GPT-2's are before training."""
    width, keys = config.width, iter(jax.random.split(key, 2 + 4 * config.layers))

    def weight(*shape: int, scale: float = 0.02) -> jax.Array:
        return (scale * jax.random.normal(next(keys), shape, WIDE)).astype(config.dtype)

    def vector(value: float, extent: int = width) -> jax.Array:
        return jnp.full(extent, value, config.dtype)

    def layer() -> dict[str, jax.Array]:
        deep = 0.02 / np.sqrt(2 * config.layers)
        return {
            "gain1": vector(1), "bias1": vector(0), "w_qkv": weight(width, 3 * width), "b_qkv": vector(0, 3 * width),
            "w_out": weight(width, width, scale=deep), "b_out": vector(0),
            "gain2": vector(1), "bias2": vector(0), "w_up": weight(width, 4 * width), "b_up": vector(0, 4 * width),
            "w_down": weight(4 * width, width, scale=deep), "b_down": vector(0),
        }  # fmt: skip

    embedding, positions = weight(config.vocabulary, width), weight(config.sequence, width, scale=0.01)
    layers = [layer() for _ in range(config.layers)]
    return {"embedding": embedding, "positions": positions, "layers": layers, "gain": vector(1), "bias": vector(0)}


def layer_norm(x, gain, bias):
    wide = x.astype(WIDE)
    centred = wide - jnp.mean(wide, axis=-1, keepdims=True)
    variance = jnp.mean(centred * centred, axis=-1, keepdims=True)
    return (centred * jax.lax.rsqrt(variance + 1e-5) * gain + bias).astype(x.dtype)


def attention(x, layer, heads: int):
    batch, sequence, width = x.shape

    def split(y):
        return y.reshape(batch, sequence, heads, width // heads).transpose(0, 2, 1, 3)

    q, k, v = map(split, jnp.split(x @ layer["w_qkv"] + layer["b_qkv"], 3, axis=-1))
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k, preferred_element_type=WIDE) / np.sqrt(width // heads)
    seen = jnp.arange(sequence)[:, None] >= jnp.arange(sequence)[None, :]
    weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1).astype(v.dtype)
    mixed = jnp.einsum("bhqk,bhkd->bhqd", weights, v)
    return mixed.transpose(0, 2, 1, 3).reshape(batch, sequence, width) @ layer["w_out"] + layer["b_out"]


def mlp(x, layer):
    return jax.nn.gelu(x @ layer["w_up"] + layer["b_up"], approximate=True) @ layer["w_down"] + layer["b_down"]


def block(x, layer, heads: int):
    x = x + attention(layer_norm(x, layer["gain1"], layer["bias1"]), layer, heads)
    return x + mlp(layer_norm(x, layer["gain2"], layer["bias2"]), layer)


def forward(params, tokens, *, heads: int = SMALL.heads):
    """tokens: int32[batch, sequence] -> logits: float32[batch, sequence, vocabulary]; the embedding is tied."""
    x = params["embedding"][tokens] + params["positions"][: tokens.shape[1]]
    for layer in params["layers"]:
        x = block(x, layer, heads)
    x = layer_norm(x, params["gain"], params["bias"])
    return jnp.einsum("bse,ve->bsv", x, params["embedding"], preferred_element_type=WIDE)


def loss(params, tokens, *, heads: int = SMALL.heads):
    """Mean negative log likelihood of each next token."""
    likely = jax.nn.log_softmax(forward(params, tokens, heads=heads)[:, :-1], axis=-1)
    return -jnp.mean(jnp.take_along_axis(likely, tokens[:, 1:, None], axis=-1))


def sample_tokens(config: Config, seed: int = 1) -> jax.Array:
    return jax.random.randint(jax.random.key(seed), (config.batch, config.sequence), 0, config.vocabulary, jnp.int32)


def demo(params, tokens):
    """The forward pass of GPT-2 small."""
    return forward(params, tokens)


def arguments():
    """Shapes of the arguments of `demo`."""
    tokens = jax.ShapeDtypeStruct((SMALL.batch, SMALL.sequence), jnp.int32)
    return jax.eval_shape(lambda key: init(SMALL, key), jax.random.key(0)), tokens


# --- the demo ---------------------------------------------------------------------------------------------------


def optimized(config: Config, params: Any, options: argparse.Namespace) -> Any:
    """The model's forward pass as a program, with its weights as constants."""
    import eqsat

    function = forward if config.heads == SMALL.heads else partial(forward, heads=config.heads)
    tokens = sample_tokens(config)
    return eqsat.optimize(function, params, tokens, target=options.target, constants=(0,), time_limit=options.time_limit)


def kernel_inputs(kernel: Any, seed: int) -> list[np.ndarray]:
    """Random arrays for a kernel's inputs; integers are small enough to be positions and tokens."""
    from examples import draw

    return [np.asarray(a) for a in draw(tuple(jax.ShapeDtypeStruct(t.shape, t.dtype) for t in kernel.inputs), seed)]


def worst_error(results: Any, expected: Any) -> float:
    """The largest difference, relative to the largest expected value.

    Infinite where one is finite and one is not, and where zeros or NaN would have passed.
    """
    worst = 0.0
    for result, reference in zip(results, expected, strict=True):
        a, b = np.asarray(result, np.float64), np.asarray(reference, np.float64)
        finite = np.isfinite(b)
        largest = np.abs(b[finite]).max(initial=0)
        if a.shape != b.shape or largest == 0 or not np.array_equal(np.isfinite(a), finite):
            return float("inf")
        worst = max(worst, float(np.abs(a - b)[finite].max() / largest))
    return worst


def interpret(program: Any, advance: Any) -> dict[str, float]:
    """Run each kernel in both interpreters against the plain-JAX backend; the worst relative error of each."""
    from importlib import import_module

    plain = import_module("eqsat.backends.jax").run_kernel
    triton = import_module("eqsat.backends.triton.interpret").run
    pallas = import_module("eqsat.backends.pallas").run
    worst = {"triton": 0.0, "pallas": 0.0}
    for number, compiled in enumerate(program.kernels):
        kernel = compiled.kernel
        arrays = kernel_inputs(kernel, number)
        expected = plain(kernel, dict(zip(kernel.inputs, arrays, strict=True)))
        outputs = [jax.ShapeDtypeStruct(o.shape, o.dtype) for o in kernel.outputs]
        results = {
            "triton": triton(compiled.source("triton"), arrays, outputs)[0],
            "pallas": pallas(compiled.source("pallas"), arrays, interpret=True),
        }
        worst = {name: max(worst[name], worst_error(result, expected)) for name, result in results.items()}
        advance()
    return worst


@contextmanager
def phase(console: Any, name: str) -> Iterator[None]:
    """A spinner while it runs, its time when it is done."""
    start = time.perf_counter()
    with console.status(name):
        yield
    console.print(f"[green]✓[/] {name} [dim]{time.perf_counter() - start:6.1f} s[/]")


def main() -> None:
    from rich.console import Console
    from rich.progress import Progress

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="h100")
    parser.add_argument("--folder", default="demo-out", help="where the kernels are written")
    parser.add_argument("--time-limit", type=float, default=300.0, metavar="SECONDS")
    options = parser.parse_args()
    console = Console(highlight=False)

    with phase(console, "import"):  # the engine too, which is imported when first needed
        import egglog.bindings  # noqa: F401

        import eqsat  # noqa: F401
    with phase(console, "draw the weights of GPT-2 small"):
        params = jax.block_until_ready(init(SMALL, jax.random.key(0)))
    with phase(console, f"optimise GPT-2 small for {options.target}"):
        program = optimized(SMALL, params, options)
    console.print(program.report(), markup=False, soft_wrap=True)
    with phase(console, f"write {len(program.kernels)} kernels to {options.folder}/"):
        program.save(options.folder)
    with phase(console, "validate at the real shapes, in plain JAX"):
        validation = program.validate()
    console.print(str(validation), markup=False, soft_wrap=True)

    small = RAGGED
    with phase(console, f"optimise a ragged model: {small.layers} layers, width {small.width}, sequence {small.sequence}"):
        ragged = optimized(small, init(small, jax.random.key(0)), options)
    start = time.perf_counter()
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("its kernels in the interpreters", total=len(ragged.kernels))
        worst = interpret(ragged, lambda: progress.advance(task))
    console.print(f"[green]✓[/] {len(ragged.kernels)} kernels in the interpreters [dim]{time.perf_counter() - start:6.1f} s[/]")
    for name, error in worst.items():
        console.print(f"  {name}: worst error {error:.1e} of the largest value")
    if max(worst.values()) > 0.02:
        raise SystemExit("a kernel differs from the plain-JAX backend by more than bfloat16 rounding explains")


if __name__ == "__main__":
    main()
