"""Small models in PyTorch, each with example inputs, for the tests of the front end and of the backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    """Grouped heads with rotary positions."""

    def __init__(self, width: int, heads: int, groups: int) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, groups * self.size, bias=False)
        self.v = nn.Linear(width, groups * self.size, bias=False)
        self.o = nn.Linear(width, width, bias=False)
        self.register_buffer("rates", 1.0 / 10000 ** (torch.arange(0, self.size, 2) / self.size))

    def rotated(self, x: Any) -> Any:
        angle = torch.arange(x.shape[-2])[:, None] * self.rates
        cos, sin = angle.cos().repeat(1, 2).to(x.dtype), angle.sin().repeat(1, 2).to(x.dtype)
        low, high = x.chunk(2, dim=-1)
        return x * cos + torch.cat([-high, low], -1) * sin

    def forward(self, x: Any) -> Any:
        batch, length, width = x.shape
        q = self.rotated(self.q(x).view(batch, length, self.heads, -1).transpose(1, 2))
        k = self.rotated(self.k(x).view(batch, length, self.groups, -1).transpose(1, 2))
        v = self.v(x).view(batch, length, self.groups, -1).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o(y.transpose(1, 2).reshape(batch, length, width))


class Llama(nn.Module):
    """One block: RMS norm, rotary grouped attention, SwiGLU."""

    def __init__(self, width: int = 16, heads: int = 4, groups: int = 2, hidden: int = 24) -> None:
        super().__init__()
        self.before, self.after = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention = Attention(width, heads, groups)
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Any) -> Any:
        x = x + self.attention(self.before(x))
        h = self.after(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norm1, self.norm2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x: Any) -> Any:
        return F.relu(x + self.norm2(self.second(F.relu(self.norm1(self.first(x))))))


class ResNet(nn.Module):
    """A stem with a maximum pool, one residual block, an average pool, a classifier."""

    def __init__(self, channels: int = 4) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, channels, 5, stride=2, padding=2, bias=False), nn.BatchNorm2d(channels)
        self.pool, self.block = nn.MaxPool2d(3, 2, 1), Residual(channels)
        self.head = nn.Linear(channels, 5)

    def forward(self, x: Any) -> Any:
        h = self.block(self.pool(F.relu(self.norm(self.stem(x)))))
        return self.head(F.adaptive_avg_pool2d(h, 1).flatten(1))


class Norms(nn.Module):
    """The norms over groups and instances, an activation of each kind, and padding."""

    def __init__(self) -> None:
        super().__init__()
        self.group, self.instance = nn.GroupNorm(2, 4), nn.InstanceNorm2d(4, affine=True)

    def forward(self, x: Any) -> Any:
        x = F.pad(self.group(x), (1, 2, 0, 1), mode="reflect") + F.pad(self.instance(x), (1, 2, 0, 1), mode="replicate")
        x = F.gelu(x) + F.gelu(x, approximate="tanh") + F.elu(x) + F.leaky_relu(x) + F.hardswish(x) + F.softplus(x) + F.mish(x)
        return F.pad(x, (1, 1), value=2.0)


class Resize(nn.Module):
    def forward(self, x: Any) -> Any:
        return (
            F.interpolate(x, scale_factor=2, mode="nearest"),
            F.interpolate(x, size=(7, 5), mode="bilinear"),
            F.interpolate(x, size=(3, 9), mode="bilinear", align_corners=True),
            F.interpolate(x, size=(7, 9), mode="bicubic"),
            F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
            F.adaptive_avg_pool2d(x, (3, 4)),
        )


class Lookups(nn.Module):
    """Rows by number, gathers, scatters, masks, order, running sums."""

    def forward(self, x: Any, places: Any) -> Any:
        rows = x[places[:, 0]]
        taken = x.gather(1, places)
        added = torch.zeros_like(x).scatter_add(1, places, taken)
        masked = x.masked_fill(x > 0.5, -1.0)
        values, order = x.sort(dim=1, descending=True)
        top, best = x.topk(2, dim=-1)
        return rows, taken, added, masked, values, order, top, best, x.cumsum(1), torch.where(x > 0, x, 2 * x).tril(), x.argmax(1)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.lstm = nn.Embedding(10, 6), nn.LSTM(6, 4, batch_first=True)

    def forward(self, tokens: Any) -> Any:
        y, (h, c) = self.lstm(self.embed(tokens))
        return {"y": y, "state": (h, c)}


def _encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)


def _encoder_inputs() -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (torch.randn(2, 5, 16),), {"src_key_padding_mask": torch.tensor([[False] * 5, [False] * 3 + [True] * 2])}


def _image() -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (torch.randn(2, 4, 6, 8),), {}


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]]] = {
    "encoder": (_encoder, _encoder_inputs),
    "llama": (Llama, lambda: ((torch.randn(2, 6, 16),), {})),
    "resnet": (ResNet, lambda: ((torch.randn(2, 3, 16, 16),), {})),
    "norms": (Norms, _image),
    "resize": (Resize, _image),
    "lookups": (Lookups, lambda: ((torch.randn(4, 6), torch.randint(0, 4, (4, 3))), {})),
    "lstm": (Recurrent, lambda: ((torch.randint(0, 10, (2, 3)),), {})),
}


def made(name: str, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """The model in evaluation mode, and its inputs, with floats of a dtype."""
    torch.manual_seed(0)
    module, inputs = MODELS[name][0]().eval().to(dtype), MODELS[name][1]()
    args, kwargs = torch.utils._pytree.tree_map(lambda t: t.to(dtype) if t.is_floating_point() else t, inputs)
    return module, args, kwargs
