"""Rates of a device, measured through JAX: what large copies, products and chains of operations reach on it.

The numbers are rates that programs reach, not peaks, so the efficiencies of a measured `Device` are 1. Measured devices are
kept in ``devices.json`` of the user's configuration folder, or of the folder that EQSAT_CONFIG_DIR names.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import platformdirs
from jax import lax

from eqsat.devices import DEVICES, Device

log = logging.getLogger("eqsat")

REPEATS = 7  # the fastest counts: all else is something other than the device
LEAST_LAUNCH = 1e-6  # seconds: a boundary also keeps operations from being done together
MB = 1 << 20
DTYPES = ("float32", "bfloat16", "float16", "int8", "float64")


# --- the user's file -----------------------------------------------------------------------------------------------------


def path() -> Path:
    """The file of measured devices."""
    folder = os.environ.get("EQSAT_CONFIG_DIR")
    return (Path(folder) if folder else platformdirs.user_config_path("eqsat", appauthor=False)) / "devices.json"


def measured() -> dict[str, Device]:
    """The devices that were measured before, by name. Raises ValueError for a file that does not hold such."""
    try:
        return {row["name"]: Device(**row) for row in json.loads(path().read_text())}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, KeyError, OSError) as error:
        raise ValueError(
            f"{path()}: a list of devices in JSON required, got {error}; remove the file and measure again"
        ) from error


def keep(device: Device) -> Device:
    """Write the device to the user's file, in place of one of its name."""
    rows = [asdict(d) for d in {**measured(), device.name: device}.values()]
    path().parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path().parent, delete=False) as file:
        json.dump(rows, file, indent=1)
    os.replace(file.name, path())
    return device


def measure(row: str, name: str = "") -> Device:
    """Measure the CPU ("cpu") or the first GPU (a row of the table) and keep the result, by default as ROW-measured.

    Raises ValueError for an unknown row, a name of the table, or where there is no GPU.
    """
    name = name or ("cpu" if row == "cpu" else f"{row}-measured")
    if name in DEVICES:
        raise ValueError(
            f"device {name!r}: a name that the table does not have required; choose another, such as {name}-measured"
        )
    return keep(replace(measured_cpu(), name=name) if row == "cpu" else measured_card(row, name))


# --- measuring -----------------------------------------------------------------------------------------------------------


def measured_cpu() -> Device:
    """This computer's CPU as a device that runs array programs, in a few seconds."""
    with jax.default_device(jax.devices("cpu")[0]):
        rates = _rates(dram_nbytes=128 * MB, cache_nbytes=1 * MB, size=768)
    cores = os.cpu_count() or 1
    return Device(
        name="cpu",
        compute_capability=90,  # of the card that its kernels are printed for
        multiprocessors=1,
        l2_nbytes=16 * MB,
        shared_nbytes=227 << 10,
        shared_nbytes_per_multiprocessor=228 << 10,
        source=f"measured here with jax {jax.__version__}: {platform.processor() or platform.machine()}, {cores} cores",
        dram_efficiency=1.0,
        tensor_efficiency=1.0,
        arrays=True,
        **rates,
    )


def measured_card(row: str, name: str) -> Device:
    """The first GPU, with the capacities of a row of the table and the rates that were measured on it.

    Raises ValueError where JAX finds no GPU, or for a row that the table lacks.
    """
    if row not in DEVICES:
        raise ValueError(f"device {row!r}: a row of the table required; choose one of {', '.join(DEVICES)}")
    try:
        card = jax.devices("gpu")[0]
    except RuntimeError as error:
        raise ValueError(f"device {row!r}: a GPU that JAX finds required, got none; calibrate where one is ({error})") from error
    with jax.default_device(card):
        rates = _rates(dram_nbytes=2048 * MB, cache_nbytes=16 * MB, size=8192)
    source = f"measured on {card.device_kind} with jax {jax.__version__}; capacities: {DEVICES[row].source}"
    return replace(DEVICES[row], name=name, source=source, dram_efficiency=1.0, tensor_efficiency=1.0, **rates)


def _rates(dram_nbytes: int, cache_nbytes: int, size: int) -> dict[str, Any]:
    """The fields of a `Device` that are rates; sizes should be well beyond its caches, well inside them, and a large matrix."""
    log.info("measuring memory")
    block = jnp.ones(cache_nbytes // 4, "float32")
    dram, cache = _copy(jnp.ones(dram_nbytes // 4, "float32"), rounds=8), _copy(block, rounds=64)
    log.info("measuring arithmetic")
    vector = 2 * _chain(block, lambda x: x * x + x, length=16)
    special = _chain(block, lambda x: jnp.exp(-x), length=2)
    log.info("measuring matrix products")
    products = {dtype: _product(dtype, size) for dtype in DTYPES}
    log.info("measuring launches")
    return {
        "dram_bytes_per_second": dram,
        "l2_bytes_per_second": max(cache, dram),
        "vector_flops": vector,
        "float64_flops": products["float64"],
        "special_ops_per_second": special,
        "tensor_flops": {dtype: rate for dtype, rate in products.items() if dtype != "float64"},
        "launch_seconds": _launch(),
    }


def _copy(x: jax.Array, rounds: int) -> float:
    """Bytes per second, read and written; the loop keeps the allocation of memory out of it."""
    return 2 * rounds * x.nbytes / _seconds(lambda x: lax.fori_loop(0, rounds, lambda _, y: y + 1, x), x)


def _chain(x: jax.Array, step: Callable[[jax.Array], jax.Array], length: int) -> float:
    """Operations per second on what is in a cache, `length` of them between a read and a write."""
    rounds = 32

    def chain(_: Any, x: jax.Array) -> jax.Array:
        for _ in range(length):
            x = step(x)
        return x

    return rounds * length * x.size / _seconds(lambda x: lax.fori_loop(0, rounds, chain, x), x * 0.5)


def _product(dtype: str, size: int) -> float:
    """Flop/s of a square matrix product, accumulated in 32 bits."""
    wide = "int32" if dtype == "int8" else "float64" if dtype == "float64" else "float32"
    with jax.enable_x64(True):
        a = jnp.ones((size, size), dtype)
        return 2 * size**3 / _seconds(lambda a: jnp.matmul(a, a, precision="highest", preferred_element_type=wide), a)


def _launch() -> float:
    """Seconds that one more small kernel costs."""

    def kernels(count: int) -> Callable[[jax.Array], jax.Array]:
        def run(x: jax.Array) -> jax.Array:
            for _ in range(count):
                x = lax.optimization_barrier(x + 1)
            return x

        return run

    x = jnp.ones(256, "float32")
    few, many = 16, 144
    return max(LEAST_LAUNCH, (_seconds(kernels(many), x, 50) - _seconds(kernels(few), x, 50)) / (many - few))


def _seconds(run: Callable[[jax.Array], jax.Array], x: jax.Array, repeats: int = REPEATS) -> float:
    compiled = jax.jit(run)
    jax.block_until_ready(compiled(x))
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(compiled(x))
        best = min(best, time.perf_counter() - start)
    return best
