"""Inception-v3 of TASO and TENSAT, without batch norm, batch 1."""

from __future__ import annotations

from benchmarks.workloads import Expected, Table, network, pair
from benchmarks.workloads.layers import average_pool, conv_relu, joined, max_pool

Kernel = int | tuple[int, int]
ROW, COLUMN = (1, 7), (7, 1)


class Builder:
    """Chains of convolutions; widths are divided for the small size."""

    def __init__(self, w, divisor: int) -> None:
        self.w, self.divisor = w, divisor

    def __call__(self, x, *steps: tuple[Kernel, int], stride: int = 1):
        """The stride, with VALID padding, belongs to the last step."""
        for n, (kernel, out) in enumerate(steps):
            last = n == len(steps) - 1 and stride > 1
            x = conv_relu(self.w, x, out // self.divisor, kernel, stride if last else 1, 1, "VALID" if last else "SAME")
        return x


def stem(conv: Builder, x):
    x = conv_relu(conv.w, conv(x, (3, 32), stride=2), 32 // conv.divisor, 3, padding="VALID")
    x = max_pool(conv(x, (3, 64)), 3, 2, "VALID")
    x = conv_relu(conv.w, conv(x, (1, 80)), 192 // conv.divisor, 3, padding="VALID")
    return max_pool(x, 3, 2, "VALID")


def block_a(conv: Builder, x, pool: int):
    return joined(
        conv(x, (1, 64)), conv(x, (1, 48), (5, 64)), conv(x, (1, 64), (3, 96), (3, 96)), conv(average_pool(x, 3, 1), (1, pool))
    )


def first_reduction(conv: Builder, x):
    pooled = average_pool(x, 3, 2, "VALID")
    return joined(pooled, conv(x, (3, 384), stride=2), conv(x, (1, 64), (3, 96), (3, 96), stride=2))


def block_c(conv: Builder, x, c: int):
    return joined(
        conv(x, (1, 192)),
        conv(x, (1, c), (ROW, c), (COLUMN, 192)),
        conv(x, (1, c), (COLUMN, c), (ROW, c), (COLUMN, c), (ROW, 192)),
        conv(average_pool(x, 3, 1), (1, 192)),
    )


def second_reduction(conv: Builder, x):
    deep = conv(x, (1, 192), (ROW, 192), (COLUMN, 192), (3, 192), stride=2)
    return joined(conv(x, (1, 192), (3, 320), stride=2), deep, max_pool(x, 3, 2, "VALID"))


def block_e(conv: Builder, x):
    middle, deep = conv(x, (1, 384)), conv(x, (1, 448), (3, 384))
    split = [conv(y, (kernel, 384)) for y in (middle, deep) for kernel in ((1, 3), (3, 1))]
    return joined(conv(x, (1, 320)), *split, conv(max_pool(x, 3, 1), (1, 192)))


def inception(w, x, *, divisor: int = 1, pools=(32, 64, 64), columns=(128, 160, 160, 192), ends: int = 2):
    conv = Builder(w, divisor)
    x = stem(conv, x)
    for pool in pools:
        x = block_a(conv, x, pool)
    x = first_reduction(conv, x)
    for c in columns:
        x = block_c(conv, x, c)
    x = second_reduction(conv, x)
    for _ in range(ends):
        x = block_e(conv, x)
    return average_pool(x, x.shape[2], 1, "VALID")


PROGRAMS: Table = {
    "Inception-v3": pair(
        network(inception, "float32[1,3,299,299]"),
        network(inception, "float32[1,3,79,79]", divisor=8, pools=(32,), columns=(128,), ends=1),
        Expected(why="1x1 convolutions of one input join"),
        constants=(1,),
    ),
}
