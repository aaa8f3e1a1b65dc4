"""What is compared: a function, the kernel written by hand, and the tiles among which its writer would let a card choose."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax

from benchmarks.handwritten import attention, layer_norm, matmul, softmax
from eqsat.shapes import shapes
from examples.attention import causal_attention
from examples.norms import layer_norm as layer_norm_example
from examples.softmax import softmax_wide

Tiles = Mapping[str, int]  # by the name of our axis


@dataclass(frozen=True)
class Choice:
    """Tiles, warps and stages."""

    tiles: Tiles
    num_warps: int
    num_stages: int = 2


@dataclass(frozen=True)
class Handwritten:
    """A function and a kernel that computes it in one launch.

    `constants` of the kernel and the `trips` of its loops follow from tiles, which are given for our names of the axes.
    """

    fn: Callable[..., Any]
    args: tuple[jax.ShapeDtypeStruct, ...]
    kernel: Any
    constants: Callable[[Tiles], dict[str, int]]
    trips: Callable[[Tiles], tuple[float, ...]]
    choices: tuple[Choice, ...]


SIZE, ROWS, COLUMNS, SEQUENCE = 4096, 8192, 4096, 2048


def _rows(kernel: Any, fn: Callable[..., Any], args: str) -> Handwritten:
    return Handwritten(
        fn,
        shapes(args),
        kernel,
        lambda tiles: {"N": COLUMNS, "BLOCK": COLUMNS, "ROWS": tiles["x0"]},
        lambda tiles: (),
        tuple(Choice({"x0": rows, "x1": COLUMNS, "r0": COLUMNS}, warps) for rows in (1, 2) for warps in (4, 8, 16)),
    )


def _attention(depth: int) -> Handwritten:
    def trips(tiles: Tiles) -> tuple[float, float]:
        """Tiles of keys before the diagonal, on average, and on it."""
        blocks, on_diagonal = SEQUENCE // tiles["x2"], tiles["x2"] / tiles["r1"]
        return on_diagonal * (blocks - 1) / 2, max(1.0, on_diagonal)

    blocks = ((64, 64, 4), (128, 64, 4), (128, 64, 8), (128, 128, 8), (256, 64, 8))
    return Handwritten(
        causal_attention,
        shapes(" ".join([f"bfloat16[4,16,{SEQUENCE},{depth}]"] * 3)),
        attention.attention,
        lambda tiles: {"SEQUENCE": SEQUENCE, "DEPTH": depth, "BLOCK_M": tiles["x2"], "BLOCK_N": tiles["r1"]},
        trips,
        tuple(
            Choice({"x0": 1, "x1": 1, "x2": m, "x3": depth, "r0": depth, "r1": n}, warps, stages)
            for m, n, warps in blocks
            for stages in (2, 3)
        ),
    )


PROGRAMS = {
    "matmul 4096×4096×4096": Handwritten(
        lambda a, b: a @ b,
        shapes(f"bfloat16[{SIZE},{SIZE}] bfloat16[{SIZE},{SIZE}]"),
        matmul.matmul,
        lambda tiles: (
            {"M": SIZE, "N": SIZE, "K": SIZE, "GROUP": 8}
            | {"BLOCK_M": tiles["x0"], "BLOCK_N": tiles["x1"], "BLOCK_K": tiles["r0"]}
        ),
        lambda tiles: (SIZE / tiles["r0"],),
        tuple(
            Choice({"x0": m, "x1": n, "r0": 64}, warps, stages)
            for m, n, warps in ((128, 256, 8), (256, 128, 8), (128, 128, 8), (128, 128, 4), (64, 256, 4), (128, 64, 4))
            for stages in (3, 4)
        ),
    ),
    "softmax 8192×4096": _rows(softmax.softmax, softmax_wide, f"bfloat16[{ROWS},{COLUMNS}]"),
    "layer norm 8192×4096": _rows(
        layer_norm.layer_norm, layer_norm_example, f"bfloat16[{ROWS},{COLUMNS}] bfloat16[{COLUMNS}] bfloat16[{COLUMNS}]"
    ),
    "causal attention, depth 64": _attention(64),
    "causal attention, depth 128": _attention(128),
}
