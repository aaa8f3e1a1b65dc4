"""The model against the clock: for three kernels, the three best schedules by estimate and two bad ones.

What the best take, over what was estimated, is one factor for each unit that bounds a kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import eqsat
from benchmarks.card.kernels import jax_call
from benchmarks.card.steps import Context, Record, describe
from benchmarks.statistics import geometric_mean
from benchmarks.workloads import shapes
from eqsat import device_time
from eqsat.backends import triton
from eqsat.cost import Cost, ranked
from eqsat.devices import Device
from eqsat.inputs import draw
from eqsat.lower import lower
from eqsat.notation import Kernel
from eqsat.schedule import Schedule
from examples.attention import causal_attention
from examples.softmax import softmax_wide

HEADS = "bfloat16[4,16,2048,64]"
CASES: dict[str, tuple[Callable[..., Any], str]] = {
    "matmul 4096": (jnp.matmul, "bfloat16[4096,4096] bfloat16[4096,4096]"),
    "softmax 8192x4096": (softmax_wide, "bfloat16[8192,4096]"),
    "causal attention 4x16x2048x64": (causal_attention, f"{HEADS} {HEADS} {HEADS}"),
}
BEST = 3
BAD = (0.7, 0.95)  # places in the ranking, as shares of its length


def timed(context: Context) -> tuple[dict[str, Record], str]:
    """The step: seconds of each schedule, estimated and measured (None in a dry run), and the factors."""
    results = context.each(CASES.items(), lambda case: _case(context, *case))
    ratios = ", ".join(f"{bound} {factor:.2f}" for bound, factor in factors(results).items())
    count = sum(len(r["tiles"]) for r in results.values())
    return results, f"{count} schedules, " + (f"measured / estimated: {ratios}" if ratios else "estimated only")


def _case(context: Context, fn: Callable[..., Any], specs: str) -> Record:
    program = eqsat.optimize(fn, *shapes(specs), target=context.row)
    kernel = max(program.launches, key=lambda p: p.cost.seconds).kernel
    tiles = []
    for name, (place, cost, schedule) in context.within((str(c[2]), c) for c in to_time(kernel, context.device)):
        tile: Record = {"schedule": name, "place": place, "bound": cost.bound, "estimated": cost.seconds, "measured": None}
        if not context.dry:
            try:
                tile["measured"] = _measured(kernel, schedule, context.row)
            except Exception as error:  # a bad schedule may not compile
                context.failed[f"{kernel.name}, {name}"] = describe(error)
        tiles.append(tile)
    return {"kernel": kernel.name, "tiles": tiles}


def to_time(kernel: Kernel, device: Device) -> list[tuple[int, Cost, Schedule]]:
    """(place in the ranking, cost, schedule): the best, then the bad."""
    order = ranked(kernel, device)
    places = dict.fromkeys([*range(min(BEST, len(order))), *(int(share * (len(order) - 1)) for share in BAD)])
    return [(place, *order[place]) for place in places]


def _measured(kernel: Kernel, schedule: Schedule, row: str) -> float:
    tiles = lower(kernel, schedule)
    call = jax.jit(jax_call(triton.emit(tiles), tiles, row))
    arrays = [jnp.asarray(a) for a in draw(tiles.inputs, 0, None)]
    return device_time.jax_seconds(lambda: call(*arrays))


def factors(results: dict[str, Record]) -> dict[str, float]:
    """measured / estimated of the best schedules, one geometric mean for each unit that bounds them."""
    found: dict[str, list[float]] = {}
    for record in results.values():
        for tile in record["tiles"]:
            if tile["place"] < BEST and tile["measured"]:
                found.setdefault(tile["bound"], []).append(tile["measured"] / tile["estimated"])
    return {bound: geometric_mean(ratios) for bound, ratios in sorted(found.items())}
