"""SqueezeNet 1.1 and VGG-19 of TASO and TENSAT, batch 1."""

from __future__ import annotations

import jax

from benchmarks.workloads import Expected, Table, network, pair
from benchmarks.workloads.layers import average_pool, conv_relu, joined, max_pool


def fire(w, x, squeezed: int, out1: int, out3: int):
    x = conv_relu(w, x, squeezed, 1)
    return joined(conv_relu(w, x, out1, 1), conv_relu(w, x, out3, 3))


def squeezenet(w, x, *, divisor: int = 1, classes: int = 1000):
    def fires(x, squeezed: int, out: int, count: int):
        for _ in range(count):
            x = fire(w, x, squeezed // divisor, out // divisor, out // divisor)
        return x

    x = max_pool(conv_relu(w, x, 64 // divisor, 3, 2, padding="VALID"), 3, 2, "VALID")
    x = max_pool(fires(x, 16, 64, 2), 3, 2, "VALID")
    x = max_pool(fires(x, 32, 128, 2), 3, 2, "VALID")
    x = fires(fires(x, 48, 192, 2), 64, 256, 2)
    x = conv_relu(w, x, classes, 1)
    return average_pool(x, x.shape[2], 1, "VALID").reshape(x.shape[0], classes)


VGG19 = ((64, 64), (128, 128), (256,) * 4, (512,) * 4, (512,) * 4)


def vgg(w, x, *, groups: tuple[tuple[int, ...], ...] = VGG19, hidden: int = 4096, classes: int = 1000):
    for widths in groups:
        for width in widths:
            x = conv_relu(w, x, width, 3)
        x = max_pool(x, 2, 2, "VALID")
    x = x.reshape(x.shape[0], -1)
    x = jax.nn.relu(x @ w(x.shape[1], hidden))
    x = jax.nn.relu(x @ w(hidden, hidden))
    return x @ w(hidden, classes)


PROGRAMS: Table = {
    "SqueezeNet": pair(
        network(squeezenet, "float32[1,3,224,224]"),
        network(squeezenet, "float32[1,3,63,63]", divisor=4, classes=40),
        Expected(launches=30, why="the two convolutions of a fire module write one tensor"),
        constants=(1,),
    ),
    "VGG-19": pair(
        network(vgg, "float32[1,3,224,224]"),
        network(vgg, "float32[1,3,32,32]", groups=((8, 8), (16,)), hidden=64, classes=10),
        Expected(launches=24, why="relu joins its convolution, pooling may"),
        constants=(1,),
    ),
}
