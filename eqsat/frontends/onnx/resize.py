"""ONNX interpolation: every axis is resized by itself, as a contraction with its weights or as a choice of positions."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from eqsat.frontends.onnx.table import Array, Node, Unsupported, axis_of, ints, op


@op("Resize", static=(1, 2, 3), since=11)
def resize(
    node: Node, x: Array, roi: np.ndarray | None = None, scales: np.ndarray | None = None, sizes: np.ndarray | None = None
) -> Array:
    axes = [axis_of(node, a, x.ndim) for a in node.get("axes", range(x.ndim))]
    have_sizes = sizes is not None and sizes.size > 0
    if not have_sizes and (scales is None or not scales.size):
        raise node.error("scales or sizes required, got neither")
    factors, targets = _targets(node, x, axes, sizes if have_sizes else None, scales)
    region = None if roi is None or not roi.size else roi.reshape(2, -1)
    node.shape([targets.get(n, size) for n, size in enumerate(x.shape)], x.dtype)
    for n, axis in enumerate(axes):
        bounds = (0.0, 1.0) if region is None else (float(region[0, n]), float(region[1, n]))
        if targets[axis] != x.shape[axis] or factors[axis] != 1 or _crops(node):
            x = _resized(node, x, axis, targets[axis], factors[axis], bounds)
    return x


def _crops(node: Node) -> bool:
    return node.get("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"


def _targets(
    node: Node, x: Array, axes: list[int], sizes: np.ndarray | None, scales: np.ndarray | None
) -> tuple[dict[int, float], dict[int, int]]:
    """For each axis, its factor and its new size."""
    if sizes is None:
        assert scales is not None
        factors = dict(zip(axes, map(float, scales.reshape(-1)), strict=True))
        return factors, {a: int(np.floor(x.shape[a] * f)) for a, f in factors.items()}
    targets = dict(zip(axes, ints(sizes), strict=True))
    policy = node.get("keep_aspect_ratio_policy", "stretch")
    factors = {a: n / x.shape[a] for a, n in targets.items()}
    if policy == "stretch":
        return factors, targets
    one = (min if policy == "not_larger" else max)(factors.values())
    return dict.fromkeys(axes, one), {a: int(np.floor(one * x.shape[a] + 0.5)) for a in axes}


def _positions(node: Node, size: int, target: int, factor: float, bounds: tuple[float, float]) -> np.ndarray:
    """Where in the input each output lies."""
    mode = node.get("coordinate_transformation_mode", "half_pixel")
    out = np.arange(target, dtype=np.float64)
    if mode == "align_corners":
        return out * (size - 1) / (factor * size - 1) if factor * size != 1 else np.zeros(target)
    if mode == "asymmetric":
        return out / factor
    if mode == "tf_half_pixel_for_nn":
        return (out + 0.5) / factor
    if mode == "pytorch_half_pixel":
        return (out + 0.5) / factor - 0.5 if target > 1 else np.full(target, -0.5)
    if mode == "half_pixel_symmetric":
        centre = size / 2 * (1 - target / (factor * size))
        return centre + (out + 0.5) / factor - 0.5
    if mode == "tf_crop_and_resize":
        low, high = bounds
        if target > 1:
            return low * (size - 1) + out * (high - low) * (size - 1) / (target - 1)
        return np.full(target, 0.5 * (low + high) * (size - 1))
    if mode != "half_pixel":
        raise node.error(f"a known coordinate_transformation_mode required, got {mode!r}", Unsupported)
    return (out + 0.5) / factor - 0.5


def _resized(node: Node, x: Array, axis: int, target: int, factor: float, bounds: tuple[float, float]) -> Array:
    size = x.shape[axis]
    places = _positions(node, size, target, factor, bounds)
    outside = (places < 0) | (places > size - 1) if _crops(node) else np.zeros(target, bool)
    mode = node.get("mode", "nearest")
    if mode == "nearest":
        y = jnp.take(x, np.clip(_nearest(node, places), 0, size - 1).astype(np.int32), axis=axis, mode="clip")
    else:
        weights = _weights(node, places, size, factor, mode).astype(np.float32 if x.dtype.itemsize < 8 else np.float64)
        wide = x.astype(weights.dtype) if jnp.issubdtype(x.dtype, np.integer) else x
        y = jnp.moveaxis(jnp.tensordot(wide, weights.T.astype(wide.dtype), axes=((axis,), (0,))), -1, axis)
        y = jnp.round(y).astype(x.dtype) if wide.dtype != x.dtype else y.astype(x.dtype)
    if not outside.any():
        return y
    fill = np.asarray(node.get("extrapolation_value", 0.0), x.dtype)
    return jnp.where(outside.reshape([-1 if n == axis else 1 for n in range(x.ndim)]), fill, y)


def _nearest(node: Node, places: np.ndarray) -> np.ndarray:
    mode = node.get("nearest_mode", "round_prefer_floor")
    rounding: dict[str, Any] = {
        "round_prefer_floor": lambda p: np.ceil(p - 0.5),
        "round_prefer_ceil": lambda p: np.floor(p + 0.5),
        "floor": np.floor,
        "ceil": np.ceil,
    }
    if mode not in rounding:
        raise node.error(f"a known nearest_mode required, got {mode!r}", Unsupported)
    return rounding[mode](places)


def _weights(node: Node, places: np.ndarray, size: int, factor: float, mode: str) -> np.ndarray:
    """What each output takes from each input: [target, size]. Inputs past the border are its last element."""
    if mode not in ("linear", "cubic"):
        raise node.error(f"mode nearest, linear or cubic required, got {mode!r}", Unsupported)
    reach = 1.0 if mode == "linear" else 2.0
    stretch = 1 / factor if node.get("antialias", 0) and factor < 1 else 1.0
    reach *= stretch
    first = np.floor(places - reach).astype(int)
    taps = first[:, None] + np.arange(int(2 * np.ceil(reach)) + 2)
    distance = (taps - places[:, None]) / stretch
    value = _linear(distance) if mode == "linear" else _cubic(distance, node.get("cubic_coeff_a", -0.75))
    if node.get("exclude_outside", 0):
        value = np.where((taps >= 0) & (taps < size), value, 0)
    if node.get("exclude_outside", 0) or stretch != 1.0:
        value = value / value.sum(1, keepdims=True)
    weights = np.zeros((len(places), size))
    np.add.at(weights, (np.arange(len(places))[:, None], np.clip(taps, 0, size - 1)), value)
    return weights


def _linear(distance: np.ndarray) -> np.ndarray:
    return np.maximum(0, 1 - np.abs(distance))


def _cubic(distance: np.ndarray, a: float) -> np.ndarray:
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0))


@op("Resize", static=(1,), since=10)
@op("Upsample", static=(1,), since=9)
def upsample(node: Node, x: Array, scales: np.ndarray) -> Array:
    from dataclasses import replace

    given = {**node.attributes, "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return resize(replace(node, attributes=given), x, None, scales)


@op("Upsample")
def upsample_by_attribute(node: Node, x: Array) -> Array:
    return upsample(node, x, np.asarray(node.get("scales", ()), np.float32))
