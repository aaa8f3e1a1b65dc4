"""Random numbers are torch's own: which operators draw them, and which of torch's decompositions would draw others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import torch

# What they draw depends on no tensor's elements: torch can draw it before a program runs.
DRAWN = {
    "bernoulli.p", "cauchy.default", "exponential.default", "geometric.default", "log_normal.default",
    "normal_functional.default", "prims.normal.default", "prims.uniform.default", "rand.default", "rand_like.default",
    "randint.default", "randint.low", "randint_like.default", "randint_like.low_dtype", "randn.default", "randn_like.default",
    "random.default", "random.from", "random.to", "randperm.default", "uniform.default",
}  # fmt: skip
# Their decompositions take uniform numbers where torch's kernels draw otherwise.
KEPT = {
    "bernoulli.default", "cauchy.default", "dropout.default", "exponential.default", "geometric.default", "log_normal.default",
    "_fused_dropout.default",
}  # fmt: skip


def native_dropout(x: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
    """As torch's kernel draws it: a mask of truth values."""
    if train is False or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    mask = torch.ops.aten.bernoulli.p(torch.empty_like(x, dtype=torch.bool), 1 - p)
    return x * mask * (1 / (1 - p) if p < 1 else 0.0), mask


DECOMPOSED = {torch.ops.aten.native_dropout.default: native_dropout}


def is_random(target: Any) -> bool:
    """An operator that takes numbers from torch's generator."""
    return isinstance(target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in target.tags


@dataclass(frozen=True)
class Draw:
    """A draw of torch's generator for known sizes; `args` and `kwargs` hold empty tensors as their sizes, strides and dtype."""

    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __call__(self, device: str | None = None) -> torch.Tensor:
        """On "meta" nothing is drawn: only the result's size and dtype are real."""

        def made(value: Any) -> Any:
            return (
                torch.empty_strided(*value[:2], dtype=value[2], device=device or value[3]) if isinstance(value, _Empty) else value
            )

        kwargs = {k: device if device and k == "device" else made(v) for k, v in self.kwargs.items()}
        if device and any(a.name == "device" for a in self.target._schema.arguments):
            kwargs["device"] = device
        return self.target(*map(made, self.args), **kwargs)


class _Empty(NamedTuple):
    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


def draw_of(node: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Draw:
    """What an fx node of `DRAWN` draws, given the values of its arguments: arrays and numbers."""

    def empty(given: Any, value: Any) -> Any:
        if not isinstance(given, torch.fx.Node) or not isinstance(fake := given.meta["val"], torch.Tensor):
            return value
        size, known = tuple(value.shape), all(isinstance(n, int) for n in (*fake.shape, *fake.stride()))
        stride = tuple(fake.stride()) if known else tuple(prod(size[n + 1 :]) for n in range(len(size)))
        return _Empty(size, stride, fake.dtype, fake.device)

    return Draw(
        node.target, tuple(map(empty, node.args, args)), {name: empty(v, kwargs[name]) for name, v in node.kwargs.items()}
    )
