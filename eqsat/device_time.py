"""Seconds on a GPU with cold caches: what JAX launches, by its profiler; what torch launches, by CUDA events.

Before each repetition memory larger than any card's L2 is overwritten, so that inputs come from DRAM, as they do in a program.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp

FLUSH_NBYTES = 256 << 20  # twice the largest L2 of the table of devices
REPEATS = 15
FLUSH_MODULE = "jit_flush_l2"  # what XLA calls the function below
HOST_COPIES = ("MemcpyD2H", "MemcpyH2D")


def present() -> bool:
    """Does JAX see a GPU here?"""
    return jax.default_backend() == "gpu"


@jax.jit
def flush_l2(x: jax.Array) -> jax.Array:
    return x + 1


def jax_seconds(run: Callable[[], Any], repeats: int = REPEATS) -> float:
    """Median over repetitions of the time that the kernels of one `run()` take; launches and the host are not in it.

    Raises RuntimeError where the profiler saw no kernels.
    """
    sink = flush_l2(jnp.zeros(FLUSH_NBYTES // 4, "float32"))
    jax.block_until_ready(run())  # compiles
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            for _ in range(repeats):
                sink = jax.block_until_ready(flush_l2(sink))
                jax.block_until_ready(run())
        paths = list(Path(folder).rglob("*.xplane.pb"))
        if not paths:
            raise RuntimeError("device time: a profile required, the profiler wrote none")
        return median(repetitions(jax.profiler.ProfileData.from_file(str(paths[0]))))


def repetitions(profile: Any) -> list[float]:
    """Seconds of the kernels after each flush. Raises RuntimeError for a profile without kernels."""
    total: list[float] = []
    for _, seconds, is_flush in sorted(_kernels(profile)):
        if is_flush:
            if not total or total[-1]:
                total.append(0.0)  # a flush of several kernels is one
        elif total:
            total[-1] += seconds
    if not (found := [t for t in total if t]):
        raise RuntimeError("device time: kernels in the profile required, got none; CUPTI may be in use by another tool")
    return found


def _kernels(profile: Any) -> Iterator[tuple[float, float, bool]]:
    """(start, seconds, is it of a flush) of what ran on a stream of the first GPU, copies to and from the host aside."""
    for plane in profile.planes:
        if plane.name == "/device:GPU:0":
            for line in plane.lines:
                if line.name.startswith("Stream"):
                    for event in line.events:
                        flush = dict(event.stats).get("hlo_module") == FLUSH_MODULE
                        if not event.name.startswith(HOST_COPIES):
                            yield event.start_ns, event.duration_ns * 1e-9, flush


def torch_seconds(run: Callable[[], Any]) -> float:
    """Median of CUDA events around `run()`, by Triton's own `do_bench`, which empties L2 before each."""
    from triton.testing import do_bench

    return do_bench(run, return_mode="median") * 1e-3
