"""Ours beside a kernel written by hand, both compiled ahead of time: static reports, and times estimated from them alike."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import eqsat
from benchmarks.handwritten.programs import Choice, Handwritten, Tiles
from eqsat.backends import triton
from eqsat.backends.triton.cycles import RATES
from eqsat.backends.triton.report import StaticReport, report_of
from eqsat.demand import demand
from eqsat.devices import Device, device
from eqsat.lower import lower
from eqsat.program import PlannedKernel
from eqsat.schedule import Schedule
from eqsat.traversal import Traversals, Way
from eqsat.work import Work


@dataclass(frozen=True)
class Compiled:
    """A kernel under a choice of tiles, what the compiler made of it, and how long that should take."""

    choice: Choice
    report: StaticReport
    seconds: float

    @property
    def instructions(self) -> int:
        """Of the hot loop; of everything, if there is none."""
        return self.report.hot_loop.instructions if self.report.hot_loop else self.report.instructions


@dataclass(frozen=True)
class Comparison:
    """Ours, theirs under our tiles, and theirs under the best of their own."""

    ours: Compiled
    same: Compiled
    theirs: Compiled


def compared(hand: Handwritten, target: str) -> Comparison:
    """Raises ValueError if our plan is not one kernel, as theirs is."""
    program = eqsat.optimize(hand.fn, *hand.args, target=target, cache=False)
    if len(program.kernels) != 1 or program.kernels[0].schedule is None:
        raise ValueError(f"{program.name}: one kernel required, got {len(program.kernels)}")
    (planned,) = program.kernels
    assert planned.schedule is not None
    card = device(target)
    tiles = lower(planned.kernel, planned.schedule)
    ours = triton.compile_report(triton.emit(tiles), tiles, card.compute_capability)
    schedule = planned.schedule
    chosen = Choice({t.axis.name: t.tile for t in schedule.axes}, schedule.num_warps, schedule.num_stages)

    def by_hand(choice: Choice) -> Compiled:
        report = report_of(compiled_by_hand(hand, choice, card.compute_capability), card.compute_capability)
        return Compiled(choice, report, estimated(hand, planned, choice, report, card))

    theirs = [by_hand(c) for c in hand.choices]
    fitting = [c for c in theirs if c.report.spills == 0 and c.report.shared_nbytes <= card.shared_nbytes]
    best = min(fitting, key=lambda c: c.seconds)
    return Comparison(Compiled(chosen, ours, estimated(hand, planned, chosen, ours, card)), by_hand(chosen), best)


def compiled_by_hand(hand: Handwritten, choice: Choice, cc: int) -> Any:
    import triton as compiler
    from triton._utils import canonicalize_dtype
    from triton.backends.compiler import GPUTarget

    names, constants = hand.kernel.arg_names, hand.constants(choice.tiles)
    pointers = [n for n in names if n not in constants]
    dtypes = [a.dtype.name for a in hand.args]
    types = {n: f"*{canonicalize_dtype(d)}" for n, d in zip(pointers, [*dtypes, dtypes[0]], strict=True)}
    tree = compiler.compiler.ASTSource(
        hand.kernel,
        signature=types | dict.fromkeys(constants, "constexpr"),
        constexprs={(names.index(n),): value for n, value in constants.items()},
        attrs={(names.index(n),): [["tt.divisibility", triton.compiler.ALIGNMENT]] for n in pointers},
    )
    options = {"num_warps": choice.num_warps, "num_stages": choice.num_stages, "enable_fp_fusion": True}
    return compiler.compile(tree, target=GPUTarget("cuda", cc, 32), options=options)


def estimated(hand: Handwritten, planned: PlannedKernel, choice: Choice, report: StaticReport, card: Device) -> float:
    """Seconds: the multiprocessors by the static report, or the memory by the bytes that the tiles ask for."""
    work = Work(planned.kernel)
    schedule = planned.schedule
    assert schedule is not None
    over = _traversals(work, schedule, choice.tiles)
    programs = float(over.programs[0])
    resident = max(1, report.warps_resident // choice.num_warps) * card.multiprocessors
    waves = programs / resident
    cycles = _loop_cycles(report, hand.trips(choice.tiles)) + report.cycles
    clock = card.tensor_flops["bfloat16"] / (2 * card.multiprocessors * RATES[card.compute_capability].matrix)
    computed = (math.ceil(waves) if waves < 4 else waves) * cycles / clock
    asked = demand(work)
    read = sum(float(over.executed(scope, passes, asked.visited)[0]) * nbytes for scope, passes, nbytes in asked.reads)
    dram = asked.nbytes / (card.dram_bytes_per_second * card.dram_efficiency)
    return card.launch_seconds + max(computed, dram, (read + asked.stored_nbytes) / card.l2_bytes_per_second)


def _traversals(work: Work, schedule: Schedule, tiles: Tiles) -> Traversals:
    axes = tuple((tiles[t.axis.name], t.role) for t in (schedule.of(a) for a in work.axes))
    return Traversals(tuple(a.extent for a in work.axes), [Way(axes, schedule.num_warps, schedule.num_stages, schedule.group)])


def _loop_cycles(report: StaticReport, trips: tuple[float, ...]) -> float:
    """One loop makes all trips where the other kernel has two."""
    if len(report.loops) == len(trips):
        return sum(loop.cycles * n for loop, n in zip(report.loops, trips, strict=True))
    return report.hot_loop.cycles * sum(trips) if report.hot_loop else 0.0
