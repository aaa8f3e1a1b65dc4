"""This computer: what it is, and the rates that nothing on it exceeds."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

PACKAGES = ("eqsat", "jax", "jaxlib", "egglog", "numpy", "scipy", "triton", "torch", "onnxruntime")
MIN_TURBO_HZ = 4.5e9  # what the clock is taken to be at least: a floor must never be above the truth


@dataclass(frozen=True)
class Peak:
    """Rates of a roofline."""

    bytes_per_second: float
    flops_per_second: float

    def floor_seconds(self, nbytes: float, flops: float) -> float:
        return max(nbytes / self.bytes_per_second, flops / self.flops_per_second)


def description() -> dict[str, Any]:
    return {
        "processor": _processor(),
        "cores": _cores(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown"


def _version(name: str) -> str | None:
    if name == "eqsat":
        import eqsat

        return eqsat.__version__
    try:
        return version(name)
    except PackageNotFoundError:
        return None


@cache
def peak() -> Peak:
    """The widest vector units: per cycle and core, two fused multiply-adds of 16 floats, and 128 bytes."""
    cycles = _cores() * max(MIN_TURBO_HZ, 1.5 * _clock_hz())
    return Peak(128 * cycles, 64 * cycles)


@cache
def usual() -> Peak:
    """What plain code reaches, measured: a copy that does not fit the cache, a product."""
    large, square = np.ones(1 << 23, np.float32), np.ones((512, 512), np.float32)
    out = np.empty_like(large)
    copy = _best(lambda: np.copyto(out, large), 5)
    product = _best(lambda: square @ square, 10)
    return Peak(2 * large.nbytes / copy, 2 * 512**3 / product)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _clock_hz() -> float:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return max(float(line.split(":")[1]) for line in lines if line.startswith("cpu MHz")) * 1e6
    except (OSError, ValueError):
        return 0.0


def _best(run: Callable[[], Any], count: int) -> float:
    times = []
    for _ in range(count):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)
