"""ONNX operators of signal processing: Fourier transforms and mel filters."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from eqsat.frontends.onnx.table import Array, Node, Unsupported, axis_of, op


def _complex(x: Array) -> Array:
    """The last axis holds real and imaginary parts, or real parts alone."""
    return x[..., 0] if x.shape[-1] == 1 else x[..., 0] + 1j * x[..., 1]


def _parts(x: Array, dtype: np.dtype) -> Array:
    return jnp.stack([jnp.real(x), jnp.imag(x)], axis=-1).astype(dtype)


@op("DFT", static=(1, 2), since=20)
def dft(node: Node, x: Array, length: np.ndarray | None = None, axis: np.ndarray | None = None) -> Array:
    along = axis_of(node, -2 if axis is None else axis.item(), x.ndim)
    if along == x.ndim - 1:
        raise node.error("an axis before the one of real and imaginary parts required, got the last")
    count = x.shape[along] if length is None else int(length.item())
    one_sided, inverse = node.get("onesided", 0), node.get("inverse", 0)
    values = _complex(x)
    if inverse and one_sided:
        count = 2 * (x.shape[along] - 1) if length is None else count
        return jnp.expand_dims(jnp.fft.irfft(values, count, axis=along), -1).astype(x.dtype)
    if one_sided:
        if x.shape[-1] != 1:
            raise node.error("real values required for a one-sided transform, got complex ones", Unsupported)
        return _parts(jnp.fft.rfft(values, count, axis=along), x.dtype)
    return _parts((jnp.fft.ifft if inverse else jnp.fft.fft)(values, count, axis=along), x.dtype)


@op("DFT", static=(1,), since=17)
def dft_by_attribute(node: Node, x: Array, length: np.ndarray | None = None) -> Array:
    return dft(node, x, length, np.asarray(node.get("axis", 1)))


@op("STFT", static=(1, 3))
def stft(node: Node, x: Array, step: np.ndarray, window: Array | None = None, length: np.ndarray | None = None) -> Array:
    """x: [batch, time, 1 or 2]; a Fourier transform of each frame."""
    if length is None and window is None:
        raise node.error("a window or a frame length required, got neither")
    size = int(length.item()) if length is not None else window.shape[0]  # type: ignore[union-attr]
    stride = int(step.item())
    count = (x.shape[1] - size) // stride + 1
    places = np.arange(count, dtype=np.int32)[:, None] * stride + np.arange(size, dtype=np.int32)
    frames = jnp.take(_complex(x), places, axis=1, mode="clip")
    frames = frames if window is None else frames * window
    if node.get("onesided", 1):
        return _parts(jnp.fft.rfft(frames) if x.shape[-1] == 1 else jnp.fft.fft(frames)[..., : size // 2 + 1], x.dtype)
    return _parts(jnp.fft.fft(frames), x.dtype)


@op("MelWeightMatrix", folds=True, static=(0, 1, 2, 3, 4))
def mel_weight_matrix(
    node: Node, mels: np.ndarray, length: np.ndarray, rate: np.ndarray, low: np.ndarray, high: np.ndarray
) -> np.ndarray:
    """Triangles over the bins of a spectrum, evenly spaced in mels."""
    import onnx

    bands, bins = int(mels.item()), int(length.item()) // 2 + 1
    first, last = (2595 * np.log10(1 + float(edge.item()) / 700) for edge in (low, high))
    edges = np.arange(bands + 2) * ((last - first) / (bands + 2)) + first
    places = ((int(length.item()) + 1) * (700 * (10 ** (edges / 2595) - 1)) // rate.item()).astype(int)
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(node.get("output_datatype", 1)))
    result = np.zeros((bins, bands))
    for band in range(bands):
        left, middle, right = places[band : band + 3]
        up = np.arange(left, middle + 1)
        result[up, band] = (up - left) / (middle - left) if middle > left else 1
        down = np.arange(middle, right)
        result[down, band] = (right - down) / (right - middle) if right > middle else 1
    return result.astype(dtype)
