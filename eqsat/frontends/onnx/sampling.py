"""ONNX operators that read images at computed positions between pixels."""

from __future__ import annotations

import functools
import itertools

import jax.numpy as jnp
import numpy as np

from eqsat.frontends.onnx.table import Array, Node, Unsupported, op


@op("GridSample")
def grid_sample(node: Node, x: Array, grid: Array) -> Array:
    """x: [batch, channel, *sizes]; grid: [batch, *out, axis], the last axis of x first, from -1 to 1."""
    sizes, mode = x.shape[2:], node.get("mode", "linear")
    corners = node.get("align_corners", 0)
    places = []
    for n, size in enumerate(sizes):
        at = grid[..., len(sizes) - 1 - n]
        at = (at + 1) / 2 * (size - 1) if corners else ((at + 1) * size - 1) / 2
        places.append(_bordered(node, at, size))
    if mode == "nearest":
        return _read(node, x, [jnp.round(p).astype(np.int32) for p in places])
    return _between(node, x, places, mode)


def _taps(place: Array, mode: str) -> list[tuple[Array, Array]]:
    """The pixels that a position reads, with their weights."""
    first = jnp.floor(place)
    part = place - first
    start = first.astype(np.int32)
    if mode in ("linear", "bilinear"):
        return [(start, 1 - part), (start + 1, part)]
    return [(start + k, _cubic(jnp.abs(part - k))) for k in (-1, 0, 1, 2)]


def _cubic(d: Array, a: float = -0.75) -> Array:
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return jnp.where(d <= 1, near, jnp.where(d < 2, far, jnp.zeros_like(d)))


def _is_cubic(node: Node) -> bool:
    return node.get("mode", "linear") in ("cubic", "bicubic")


def _bordered(node: Node, place: Array, size: int) -> Array:
    """Positions outside, moved in; bicubic taps are moved one by one when they are read."""
    padding = node.get("padding_mode", "zeros")
    if _is_cubic(node):
        return place
    if padding == "border":
        return jnp.clip(place, 0, size - 1)
    if padding == "reflection":
        return _reflected(place, size, node.get("align_corners", 0))
    return place


def _reflected(place: Array, size: int, corners: int) -> Array:
    low, high = (0.0, size - 1.0) if corners else (-0.5, size - 0.5)
    span = high - low
    if span <= 0:
        return jnp.zeros_like(place)
    away = jnp.mod(jnp.abs(place - low), 2 * span)
    return jnp.clip(jnp.where(away > span, 2 * span - away, away) + low, 0, size - 1)


def _read(node: Node, x: Array, places: list[Array]) -> Array:
    """[batch, channel, *out]; pixels outside are zero, those of the border, or those of a bicubic tap reflected there."""
    sizes = x.shape[2:]
    if node.get("padding_mode", "zeros") == "reflection" and _is_cubic(node):
        corners = node.get("align_corners", 0)
        places = [_reflected(p.astype(np.float32), n, corners).astype(p.dtype) for p, n in zip(places, sizes, strict=True)]
    inside = jnp.ones((), bool)
    for place, size in zip(places, sizes, strict=True):
        inside = inside & (place >= 0) & (place < size)
    clipped = [jnp.clip(place, 0, size - 1) for place, size in zip(places, sizes, strict=True)]
    batch = np.arange(x.shape[0], dtype=np.int32).reshape(-1, *[1] * (clipped[0].ndim - 1))
    values = jnp.moveaxis(jnp.asarray(x), 1, -1)[(batch, *clipped)]
    if node.get("padding_mode", "zeros") == "zeros":
        values = jnp.where(inside[..., None], values, jnp.zeros((), x.dtype))
    return jnp.moveaxis(values, -1, 1)


@op("DeformConv")
def deformable_convolution(
    node: Node, x: Array, w: Array, offset: Array, b: Array | None = None, mask: Array | None = None
) -> Array:
    """A convolution whose taps are moved by `offset` [batch, group * tap * axis, *out], between pixels, and weighed by `mask`."""
    if x.ndim != 4:
        raise node.error(f"images of two axes required, got {x.ndim - 2}", Unsupported)
    batch, kernel, out = x.shape[0], w.shape[2:], offset.shape[2:]
    groups, parts, taps = node.get("group", 1), node.get("offset_group", 1), int(np.prod(kernel))
    pads, strides, dilations = node.get("pads", [0] * 4), node.get("strides", [1, 1]), node.get("dilations", [1, 1])
    moved = jnp.reshape(offset, (batch * parts, taps, 2, *out))
    places = []
    for d in range(2):
        tap = np.indices(kernel)[d].reshape(-1, 1, 1) * dilations[d]
        start = np.indices(out)[d] * strides[d] - pads[d]
        places.append(moved[:, :, d] + (tap + start).astype(x.dtype))
    pixels = jnp.reshape(x, (batch * parts, -1, *x.shape[2:]))
    values = _between(node, pixels, places)  # [batch * part, channel, tap, *out]
    if mask is not None:
        values = values * jnp.reshape(mask, (batch * parts, 1, taps, *out))
    values = jnp.reshape(values, (batch, groups, -1, taps, *out))
    filters = jnp.reshape(w, (groups, w.shape[0] // groups, w.shape[1], taps))
    result = jnp.reshape(jnp.einsum("ngckhw,gock->ngohw", values, filters), (batch, w.shape[0], *out))
    return result if b is None else result + jnp.reshape(b, (-1, 1, 1))


@op("RoiAlign")
def roi_align(node: Node, x: Array, rois: Array, batches: Array) -> Array:
    """Means, or maxima of weighed pixels, over a grid of points in each bin of each region [x1, y1, x2, y2] of an image."""
    half = node.opset >= 16 and node.get("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    ratio, mode, bins = (
        node.get("sampling_ratio", 0),
        node.get("mode", "avg"),
        (node.get("output_height", 1), node.get("output_width", 1)),
    )
    if not ratio and not isinstance(rois, np.ndarray):
        raise node.importer.unknown(node, [1], [x, rois], "a sampling_ratio of 0 takes more points for larger regions")
    xp = np if isinstance(rois, np.ndarray) else jnp
    edges = rois * np.asarray(node.get("spatial_scale", 1.0), rois.dtype) - np.asarray(0.5 if half else 0, rois.dtype)
    points, counts = [], []  # along y, then x: [region, bin, point], [region]
    for d, (count, size) in enumerate(zip(bins, x.shape[2:], strict=True)):
        start, stop = edges[:, 1 - d], edges[:, 3 - d]
        extent = (stop - start if half else xp.maximum(stop - start, 1)) / count
        per = np.full(len(rois), ratio) if ratio else np.ceil(np.asarray(extent)).astype(int)
        steps = (np.arange(max(per.max(initial=1), 1)) + 0.5) / np.maximum(per, 1)[:, None]
        place = start[:, None, None] + (np.arange(count)[:, None] + steps[:, None]).astype(rois.dtype) * extent[:, None, None]
        used = np.arange(steps.shape[1]) < per[:, None]
        inside = (place >= -1) & (place <= size) & used[:, None]
        points.append((jnp.clip(place, 0, size - 1), inside, used))
        counts.append(per)
    (y, y_inside, y_used), (z, z_inside, z_used) = points
    shape = (len(rois), *bins, y.shape[-1], z.shape[-1])
    places = [jnp.broadcast_to(y[:, :, None, :, None], shape), jnp.broadcast_to(z[:, None, :, None, :], shape)]
    inside = (y_inside[:, :, None, :, None] & z_inside[:, None, :, None, :])[:, None]
    images = jnp.asarray(x)[batches]
    if mode == "max":
        return _greatest(node, images, places, inside, (y_used[:, :, None] & z_used[:, None])[:, None, None, None])
    values = jnp.where(inside, _between(node, images, places), jnp.zeros((), x.dtype))
    return values.sum((-2, -1)) / np.maximum(counts[0] * counts[1], 1).astype(x.dtype)[:, None, None, None]


def _parts(node: Node, x: Array, places: list[Array], mode: str = "linear") -> list[Array]:
    """The weighed pixels around a position."""
    found = []
    for choice in itertools.product(*[_taps(p, mode) for p in places]):
        weight = functools.reduce(jnp.multiply, [part for _, part in choice])
        found.append(_read(node, x, [place for place, _ in choice]) * jnp.expand_dims(weight, 1).astype(x.dtype))
    return found


def _between(node: Node, x: Array, places: list[Array], mode: str = "linear") -> Array:
    """Values at positions between pixels, [batch, channel, *out]; pixels outside are zero or those of the border."""
    return functools.reduce(jnp.add, _parts(node, x, places, mode))


def _greatest(node: Node, x: Array, places: list[Array], inside: Array, used: Array) -> Array:
    """The greatest weighed pixel, as ONNX takes it, not the greatest value between pixels; a region without points has zero."""
    best = jnp.where(inside, functools.reduce(jnp.maximum, _parts(node, x, places)), jnp.zeros((), x.dtype))
    best = jnp.where(used, best, -np.inf).max((-2, -1))
    return jnp.where(used.any((-2, -1)), best, jnp.zeros((), x.dtype)).astype(x.dtype)
