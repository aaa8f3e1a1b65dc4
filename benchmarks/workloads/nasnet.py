"""NasNet-A of TASO and TENSAT: normal and reduction cells of separable convolutions, batch 1."""

from __future__ import annotations

from benchmarks.workloads import Expected, Table, network, pair
from benchmarks.workloads.layers import average_pool, conv_relu, convolution, joined, max_pool


def separable(w, x, out: int, kernel: int, stride: int = 1):
    groups = x.shape[1]
    return convolution(w, convolution(w, x, out, kernel, stride, groups), out, 1)


def fitted(w, prev, cur, width: int):
    """Both inputs at the size and width of the cell."""
    cur = conv_relu(w, cur, width, 1)
    kernel, stride = (1, 1) if prev.shape[2:] == cur.shape[2:] else (3, 2)
    return conv_relu(w, prev, cur.shape[1], kernel, stride), cur


def normal(w, prev, cur, width: int):
    prev, cur = fitted(w, prev, cur, width)
    return joined(
        separable(w, cur, width, 3) + cur,
        separable(w, prev, width, 3) + separable(w, cur, width, 3),
        average_pool(cur, 3, 1) + prev,
        average_pool(prev, 3, 1) + average_pool(prev, 3, 1),
        separable(w, prev, width, 3) + separable(w, prev, width, 3),
    )


def reduction(w, prev, cur, width: int):
    prev, cur = fitted(w, prev, cur, width)
    o0 = separable(w, prev, width, 7, 2) + separable(w, cur, width, 5, 2)
    o1 = max_pool(cur, 3, 2) + separable(w, prev, width, 7, 2)
    o2 = average_pool(cur, 3, 2) + separable(w, prev, width, 5, 2)
    o3 = max_pool(cur, 3, 2) + separable(w, o0, width, 3)
    o4 = average_pool(o0, 3, 1) + o1
    return joined(o0, o1, o2, o3, o4)


def nasnet(w, x, *, width: int, stages: int, cells: int):
    x = max_pool(conv_relu(w, x, width // 2, 7, 2), 3, 2)
    for _ in range(stages):
        prev = cur = x
        for _ in range(cells):
            prev, cur = cur, normal(w, prev, cur, width)
        width *= 2
        x = reduction(w, prev, cur, width)
    return x


PROGRAMS: Table = {
    "NasNet-A": pair(
        network(nasnet, "float32[1,3,224,224]", width=128, stages=3, cells=5),
        network(nasnet, "float32[1,3,32,32]", width=16, stages=1, cells=2),
        Expected(why="separable convolutions of one input join; twice the same pool is one"),
        constants=(1,),
    ),
}
