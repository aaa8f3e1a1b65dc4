"""Comparison of one output with both oracles, row by row, and what is said about the worst place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from eqsat.scalars import DTYPES

FACTOR = 8.0  # how much further from the truth than the original a program may be
BLOCK = 1 << 22  # elements compared at a time


class ValidationError(AssertionError):
    """The program does not compute what the original does, or nothing was shown."""


@dataclass(frozen=True)
class OutputCheck:
    """The worst place of one output; errors are absolute, against float64 (for integers: against the original)."""

    name: str
    type: str
    error: float
    original_error: float
    magnitude: float
    ratio: float  # of the error to the allowed one
    note: str = ""


def compare(
    name: str, got: np.ndarray, plain: np.ndarray, wide: np.ndarray, spread: np.ndarray | None = None
) -> tuple[OutputCheck, int | None]:
    """The worst place of a float output, and the flat position of a failure (None: it passes)."""
    width = plain.shape[-1] if plain.ndim > 1 else max(plain.size, 1)
    typical = _rms_error(plain, wide)
    worst = (0.0, 0.0, 0.0, 0.0)  # ratio, error, original error, magnitude
    failure: int | None = None
    for start, rows in _blocks(plain.size, width):
        here = slice(start, start + rows * width)
        a, b, c = (x.reshape(-1)[here].astype(np.float64).reshape(rows, width) for x in (got, plain, wide))
        with np.errstate(all="ignore"):
            finite = np.isfinite(b)
            misplaced = ~same_class(a, b)
            truth = np.where(np.isfinite(c), c, b)
            own = np.where(finite, np.abs(b - truth), 0)
            size = np.abs(np.where(finite, truth, 0)).max(axis=1, keepdims=True)
            allowed = np.maximum(own.max(axis=1, keepdims=True), np.maximum(typical, unit(plain.dtype) * size))
            if spread is not None:
                moved = spread.reshape(-1)[here].reshape(rows, width)
                allowed = np.maximum(allowed, moved)
            error = np.where(finite & ~misplaced, np.abs(a - truth), 0)
            allowed = np.broadcast_to(FACTOR * np.maximum(allowed, _tiny(plain.dtype)), error.shape)
            ratio = np.where(misplaced, np.inf, error / allowed)
        at = int(ratio.argmax())
        if ratio.flat[at] > worst[0]:
            worst = (float(ratio.flat[at]), float(error.flat[at]), float(own.flat[at]), worst[3])
        worst = (*worst[:3], max(worst[3], float(size.max(initial=0))))
        if failure is None and ratio.flat[at] > 1:
            failure = start + at
    ratio_, error_, own_, magnitude = worst
    return OutputCheck(name, array_type(plain), error_, own_, magnitude, ratio_), failure


def _blocks(size: int, width: int) -> Iterator[tuple[int, int]]:
    """(first element, rows) of blocks of whole rows."""
    rows = size // max(width, 1)
    step = max(1, BLOCK // max(width, 1))
    for first in range(0, rows, step):
        yield first * width, min(step, rows - first)


def _rms_error(plain: np.ndarray, wide: np.ndarray) -> float:
    """Root mean square of the original's own error where it is finite."""
    total, count = 0.0, 0
    for start, rows in _blocks(plain.size, 1):
        b = plain.reshape(-1)[start : start + rows].astype(np.float64)
        c = wide.reshape(-1)[start : start + rows].astype(np.float64)
        with np.errstate(all="ignore"):
            error = (b - c)[np.isfinite(b) & np.isfinite(c)]
        total, count = total + float((error * error).sum()), count + error.size
    return float(np.sqrt(total / count)) if count else 0.0


def same_class(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Both finite, both not-a-number, or the same infinity."""
    return np.where(np.isfinite(b), np.isfinite(a), np.where(np.isnan(b), np.isnan(a), a == b))


def check_equal(name: str, got: np.ndarray, plain: np.ndarray) -> OutputCheck:
    wrong = np.flatnonzero((got != plain).reshape(-1)) if got.dtype.name in DTYPES else np.zeros(0)
    if wrong.size:
        where = position(int(wrong[0]), plain.shape)
        a, b = got.reshape(-1)[wrong[0]], plain.reshape(-1)[wrong[0]]
        raise ValidationError(f"{name}{where}: {b} required (op by op), got {a}; {wrong.size} of {plain.size} elements differ")
    return OutputCheck(name, array_type(plain), 0.0, 0.0, float(np.abs(plain.astype(np.float64)).max(initial=0)), 0.0)


def complaint(name: str, at: int, got: np.ndarray, plain: np.ndarray, wide: np.ndarray, check: OutputCheck) -> str:
    a, b, c = (float(x.reshape(-1)[at]) for x in (got, plain, wide))
    allowed = f"; {check.ratio:.3g} times the allowed error" if np.isfinite(check.ratio) else ""
    return f"{name}{position(at, plain.shape)}: {c:.9g} in float64 and {b:.9g} op by op required, got {a:.9g}{allowed}"


def position(at: int, shape: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, np.unravel_index(at, shape)))}]" if shape else ""


def unit(dtype: np.dtype) -> float:
    return float(jnp.finfo(dtype).eps)


def _tiny(dtype: np.dtype) -> float:
    """The smallest error worth looking at: subnormals may be flushed to zero."""
    return float(jnp.finfo(dtype).tiny)


def array_type(array: np.ndarray) -> str:
    return f"{array.dtype}[{','.join(map(str, array.shape))}]"
