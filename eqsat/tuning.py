"""Schedules by the clock: those that are predicted to be best are timed on a GPU, and the cache keeps the fastest for later.

Beside them stands a persistent form of the best schedule of a product that has more tiles than the device holds programs. By the
model it takes as long: a wave of programs and a round of tiles end together. What it saves, the starts of programs, and what
it costs, loads that wait for the tile before, are of the size of what the model leaves out; so only the clock chooses it.

Last comes what XLA makes of the kernel's formula: for a product or a convolution it calls cuBLAS or cuDNN. Where that is faster,
XLA runs the kernel, so a tuned program has no kernel that XLA would run faster.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice

import jax
import jax.numpy as jnp

from eqsat import device_time, plan_codec
from eqsat.cache import Cache, cache_of, key_of
from eqsat.cost import Cost, ranked
from eqsat.devices import Device, device
from eqsat.inputs import draw
from eqsat.kernels import Candidate
from eqsat.lower import lower
from eqsat.notation import Kernel
from eqsat.program import KEEP_CASTS, PlannedKernel, Program
from eqsat.running import backend, triton_launch
from eqsat.schedule import Schedule
from eqsat.work import Work

Timer = Callable[[PlannedKernel], float]  # seconds of a kernel with its schedule

log = logging.getLogger("eqsat")


def tune(program: Program, count: int = 4, seconds: Timer | None = None) -> Program:
    """The program with the fastest of each kernel's `count` best schedules by prediction; later searches find the same.

    Of a product with many tiles, a form whose programs take several each (`Schedule.persistent`) is timed beside them; of every
    kernel, what XLA makes of it (`Schedule.by_xla`).

    program: what a search made, on a machine with its target, a GPU.
    seconds: a timer to use instead of this machine's GPU, such as `static_timer`.

    Raises ValueError where there is no such GPU, no cache, or `program` was not made by a search.
    """
    cache = cache_of(program.request.cache) if program.request is not None else None
    if program.request is None or cache is None:
        raise ValueError(f"tune {program.name}: a program that a search with a cache made required, got none; set cache=True")
    if count < 1:
        raise ValueError(f"tune {program.name}: at least one schedule for each kernel required, got {count}")
    card = device(program.target)
    seconds = seconds or timer(card)
    for planned in program.kernels:
        if planned.schedule is not None:
            _keep_fastest(planned, card, count, seconds, cache)
    return program.request.optimize(program.graph)


def timer(card: Device) -> Timer:
    """Times kernels with cold caches on this machine's GPU. Raises ValueError where that is none of the device's capability."""
    launch = triton_launch(card.name)
    wanted = f"a GPU of compute capability {card.compute_capability / 10} that JAX finds"
    try:
        gpu = jax.devices("gpu")[0]
    except RuntimeError as error:
        raise ValueError(f"tune for {card.name}: {wanted} required, got none; tune where one is ({error})") from error
    if (found := str(getattr(gpu, "compute_capability", "none"))) != str(card.compute_capability / 10):
        raise ValueError(f"tune for {card.name}: {wanted} required, got {gpu.device_kind} of {found}; choose another target")

    def seconds(planned: PlannedKernel) -> float:
        call = jax.jit(lambda *arrays: launch(planned, list(arrays)), compiler_options=KEEP_CASTS)
        arrays = [jnp.asarray(a) for a in draw(planned.kernel.inputs, 0, None)]
        return device_time.jax_seconds(lambda: call(*arrays))

    return seconds


def static_timer(card: Device) -> Timer:
    """Predicted seconds, infinite for a kernel that spills registers as compiled for the device, which need not be there.

    Nothing static says how long XLA's own take.
    """
    triton = backend("triton")

    def seconds(planned: PlannedKernel) -> float:
        assert planned.schedule is not None
        if planned.schedule.by_xla:
            return float("inf")
        tiles = lower(planned.kernel, planned.schedule)
        report = triton.compile_report(triton.emit(tiles), tiles, card.architecture)
        return float("inf") if report.spills else planned.cost.seconds

    return seconds


def _keep_fastest(planned: PlannedKernel, card: Device, count: int, seconds: Timer, cache: Cache) -> None:
    times = {}
    for cost, schedule in _tried(planned.kernel, card, count):
        try:
            if schedule.persistent:
                schedule = _filling(planned.kernel, schedule, card)
            if schedule not in times:
                times[schedule] = seconds(replace(planned, schedule=schedule, cost=cost))
        except Exception as error:  # of the compiler, for one schedule: the others still compare
            log.warning("tune: %s with %s is left out: %s", planned.name, schedule, error)
    if times:
        best = min(times, key=lambda s: times[s])
        log.info("tune: %s takes %.1f us with %s", planned.name, times[best] * 1e6, best)
        cache.put(_key(planned.kernel, card), plan_codec.encode_schedule(best))


def _tried(kernel: Kernel, card: Device, count: int) -> Iterator[tuple[Cost, Schedule]]:
    """The best by prediction, the best of them that can be persistent with a program on each multiprocessor, and XLA's."""
    found = ranked(kernel, card)[:count]
    yield from found
    if Work(kernel).contractions:
        forms = ((cost, replace(s, persistent=card.multiprocessors)) for cost, s in found)
        yield from islice(((cost, s) for cost, s in forms if lower(kernel, s).tile_count > s.persistent), 1)
    yield from ((cost, replace(s, by_xla=True)) for cost, s in found[:1])


def _filling(kernel: Kernel, schedule: Schedule, card: Device) -> Schedule:
    """A persistent schedule with as many programs as the device holds at once, as compiled; plain where tiles are no more."""
    triton = backend("triton")
    tiles = lower(kernel, schedule)
    report = triton.compile_report(triton.emit(tiles), tiles, card.architecture)
    programs = card.multiprocessors * max(1, int(report.warps_resident) // schedule.num_warps)
    return replace(schedule, persistent=programs if programs < tiles.tile_count else 0)


def _key(kernel: Kernel, card: Device) -> str:
    return key_of("schedule", plan_codec.structure(kernel), card.name)


def recalled(candidate: Candidate, card: Device, cache: Cache) -> Candidate:
    """The candidate with the schedule that was the fastest of its kernel on this device, if the cache has one."""
    if candidate.constant or candidate.schedule is None or (data := cache.get(key := _key(candidate.kernel, card))) is None:
        return candidate
    try:
        schedule = plan_codec.decode_schedule(data)
    except ValueError as error:
        log.info("cache: %s", error)
        cache.drop(key)
        return candidate
    plain = replace(schedule, persistent=0, by_xla=False)  # which has the same price
    costs = [cost for cost, s in ranked(candidate.kernel, card) if s == plain]
    return replace(candidate, schedule=schedule, cost=costs[0]) if costs else candidate
