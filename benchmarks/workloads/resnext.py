"""ResNeXt-50 and ResNet-50 of TASO and TENSAT, without batch norm and classifier, batch 1."""

from __future__ import annotations

import jax

from benchmarks.workloads import Expected, Table, network, pair
from benchmarks.workloads.layers import conv_relu, convolution, max_pool


def bottleneck(w, x, width: int, out: int, stride: int, groups: int):
    y = conv_relu(w, x, width, 1)
    y = conv_relu(w, y, width, 3, stride, groups)
    y = convolution(w, y, out, 1)
    if stride > 1 or x.shape[1] != out:
        x = conv_relu(w, x, out, 1, stride)
    return jax.nn.relu(x + y)


def stages(w, x, depths: tuple[int, ...], width: int, expansion: int, groups: int):
    for stage, depth in enumerate(depths):
        for block in range(depth):
            stride = 2 if stage and not block else 1
            x = bottleneck(w, x, width << stage, expansion * (width << stage), stride, groups)
    return x


def resnext(w, x, *, depths: tuple[int, ...], width: int, groups: int):
    x = max_pool(conv_relu(w, x, 64, 7, 2), 3, 2)
    return stages(w, x, depths, width, 2, groups)


def resnet(w, x, *, depths: tuple[int, ...], width: int):
    return stages(w, x, depths, width, 4, 1)


PROGRAMS: Table = {
    "ResNeXt-50": pair(
        network(resnext, "float32[1,3,224,224]", depths=(3, 4, 6, 3), width=128, groups=32),
        network(resnext, "float32[1,3,32,32]", depths=(1, 2), width=32, groups=8),
        Expected(launches=54, why="relu and the sum join their convolution"),
        constants=(1,),
    ),
    "ResNet-50": pair(
        network(resnet, "float32[1,64,56,56]", depths=(3, 4, 6, 3), width=64),
        network(resnet, "float32[1,16,14,14]", depths=(1, 2), width=8),
        Expected(launches=52, why="nothing to do beyond joining relu and the sum to a convolution"),
        constants=(1,),
    ),
}
