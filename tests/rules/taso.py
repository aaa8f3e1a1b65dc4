"""TASO's rules (OSDI 2019) as pairs of JAX functions: the notation of `taso.txt`, shapes that fit, both sides.

`·` matrix product, `∘` element-wise product, `⊛` convolution (stride 1, SAME; with `ʳ` a relu on it), `[x ∥1 y]` concatenation
along an axis. A convolution whose weight has fewer input channels than the image is grouped.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Array = Any
Tree = Any  # a name, or (operation, operands, axis)
TOKEN = re.compile(r"\s*(relu|split[01]\.[01]|⊛ʳ|∥[01]|[a-z]|[·∘⊛+()\[\]])")


@dataclass(frozen=True)
class Law:
    """One numbered rule: its sides, as trees, and the rank of its tensors."""

    name: str
    rank: int
    pairs: tuple[tuple[Tree, Tree], ...]
    text: str

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(sorted(set().union(*(names(t) for pair in self.pairs for t in pair))))


def laws() -> Iterator[Law]:
    for line in Path(__file__).with_name("taso.txt").read_text().splitlines():
        name, rank, *pairs = (part.strip() for part in line.split("|") if part.strip())
        yield Law(name, 4 if rank == "4d" else 2, tuple(_pair(p) for p in pairs), " and ".join(pairs))


def _pair(text: str) -> tuple[Tree, Tree]:
    left, right = text.split("->")
    return parse(left), parse(right)


def names(tree: Tree) -> set[str]:
    return {tree} if isinstance(tree, str) else set().union(*(names(t) for t in tree[1]))


def parse(text: str) -> Tree:
    tokens = TOKEN.findall(text)
    assert "".join(tokens) == re.sub(r"\s", "", text), text
    tree, rest = _sum(tokens)
    assert not rest, text
    return tree


def _sum(tokens: list[str]) -> tuple[Tree, list[str]]:
    tree, tokens = _product(tokens)
    while tokens and tokens[0] == "+":
        other, tokens = _product(tokens[1:])
        tree = ("+", (tree, other), 0)
    return tree, tokens


def _product(tokens: list[str]) -> tuple[Tree, list[str]]:
    tree, tokens = _atom(tokens)
    while tokens and tokens[0] in "·∘⊛⊛ʳ" and not tokens[0].startswith("∥"):
        operation = tokens[0]
        other, tokens = _atom(tokens[1:])
        tree = (operation, (tree, other), 0)
    return tree, tokens


def _atom(tokens: list[str]) -> tuple[Tree, list[str]]:
    head, tokens = tokens[0], tokens[1:]
    if head == "(":
        tree, tokens = _sum(tokens)
        return tree, tokens[1:]
    if head == "[":
        first, tokens = _sum(tokens)
        axis = int(tokens[0][1])
        second, tokens = _sum(tokens[1:])
        return ("∥", (first, second), axis), tokens[1:]
    if head == "relu" or head.startswith("split"):
        tree, tokens = _sum(tokens[1:])
        part = tuple(map(int, re.findall(r"\d", head)))
        return (head[:5].rstrip("u") if head == "relu" else "split", (tree,), part), tokens[1:]
    return head, tokens


# --- meaning --------------------------------------------------------------------------------------------------------------


def run(tree: Tree, arrays: dict[str, Array]) -> Array:
    if isinstance(tree, str):
        return arrays[tree]
    operation, operands, axis = tree
    if operation == "split":
        return _split(operands[0], *axis, arrays)
    values = [run(t, arrays) for t in operands]
    match operation:
        case "+":
            return values[0] + values[1]
        case "∘":
            return values[0] * values[1]
        case "·":
            return values[0] @ values[1]
        case "∥":
            return jnp.concatenate(values, axis)
        case "⊛":
            return convolution(*values)
        case "⊛ʳ":
            return jnp.maximum(convolution(*values), 0)
    return jnp.maximum(values[0], 0)


def _split(tree: Tree, axis: int, part: int, arrays: dict[str, Array]) -> Array:
    """A part of what a concatenation below makes, cut where that was joined."""
    whole, cut = run(tree, arrays), run(_joined(tree)[0], arrays)
    extent = cut.shape[_cut_axis(tree)]
    parts = (slice(0, extent), slice(extent, None))
    return whole[(slice(None),) * axis + (parts[part],)]


def _joined(tree: Tree) -> Any:
    return tree[1] if tree[0] == "∥" else next(j for t in tree[1] if not isinstance(t, str) and (j := _joined(t)))


def _cut_axis(tree: Tree) -> int:
    return tree[2] if tree[0] == "∥" else next(_cut_axis(t) for t in tree[1] if not isinstance(t, str))


def convolution(x: Array, w: Array) -> Array:
    groups = x.shape[1] // w.shape[1]
    if x.shape[1] % w.shape[1] or w.shape[0] % groups:
        raise TypeError(f"convolution of {x.shape} and {w.shape}: channels and groups must fit")
    return lax.conv_general_dilated(x, w, (1, 1), "SAME", feature_group_count=groups)


def sides(law: Law) -> Callable[..., tuple[Array, ...]]:
    """A function that gives left and right of each pair, one after the other."""

    def both(*arrays: Array) -> tuple[Array, ...]:
        given = dict(zip(law.inputs, arrays, strict=True))
        return tuple(run(tree, given) for pair in law.pairs for tree in pair)

    return both


def shapes(law: Law, equal_outputs: bool = True) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Shapes on which both sides are defined and agree, as unequal as can be; kernels and images are 3 x 3."""
    rng = random.Random(0)
    best: tuple[int, tuple[jax.ShapeDtypeStruct, ...]] | None = None
    for attempt in range(4000):
        choices = range(2, 2 + rng.choice([1, 2, 3, 4]))
        tail = (3, 3) if law.rank == 4 else ()
        given = tuple((rng.choice(choices), rng.choice(choices), *tail) for _ in law.inputs)
        spread = len({n for s in given for n in s[:2]})
        if best is not None and spread <= best[0]:
            continue
        if _fits(law, given):
            best = spread, tuple(jax.ShapeDtypeStruct(s, jnp.float32) for s in given)
        if attempt > 1500 and best is not None:
            break
    assert best is not None, f"{law.text}: no shapes fit"
    return best[1]


def _fits(law: Law, given: tuple[tuple[int, ...], ...]) -> bool:
    shape_of = dict(zip(law.inputs, given, strict=True))
    try:
        return all(shape(a, shape_of) == shape(b, shape_of) for a, b in law.pairs)
    except ValueError:
        return False


def shape(tree: Tree, given: dict[str, tuple[int, ...]]) -> tuple[int, ...]:
    """The shape of a tree; raises ValueError where it has none. Groups of a convolution have equally many outputs."""
    if isinstance(tree, str):
        return given[tree]
    operation, operands, axis = tree
    parts = [shape(t, given) for t in operands]
    a, b = parts[0], parts[-1]
    if operation == "·" and a[1] == b[0]:
        return a[0], b[1]
    if operation in "+∘" and a == b:
        return a
    if operation == "∥" and a[:axis] + a[axis + 1 :] == b[:axis] + b[axis + 1 :]:
        return (*a[:axis], a[axis] + b[axis], *a[axis + 1 :])
    if operation.startswith("⊛") and _groups_fit(a, operands[1], b, given):
        return a[0], b[0], *a[2:]
    if operation in ("rel", "relu"):
        return a
    if operation == "split":
        cut = shape(_joined(operands[0])[axis[1]], given)[_cut_axis(operands[0])]
        return (*a[: axis[0]], cut, *a[axis[0] + 1 :])
    raise ValueError


def _groups_fit(image: tuple[int, ...], weight: Tree, kernel: tuple[int, ...], given: dict[str, tuple[int, ...]]) -> bool:
    if image[1] == kernel[1]:
        return True
    joined = not isinstance(weight, str) and weight[0] == "∥" and weight[2] == 0
    return joined and image[1] == 2 * kernel[1] and len({shape(t, given)[0] for t in weight[1]}) == 1
