"""The cost of a kernel: a roofline over its schedules.

A kernel's work (`eqsat.work`) says how many operations each unit does, and over which axes. A schedule turns axes into
padded extents and tile counts. The time is the launch plus the largest of the unit times; a tenth of the others is
added, since overlap is never perfect. All schedules of a kernel are priced at once, as NumPy vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from eqsat.devices import Device
from eqsat.index import Axis
from eqsat.scalars import DTYPES, SCALARS
from eqsat.schedule import Schedule
from eqsat.work import Work

OVERLAP_LOSS = 0.1
REGISTER_NBYTES = 256 * 1024  # of one multiprocessor
COMPUTED = 0.85  # of a contraction's rate, per operand that is computed in registers instead of copied to shared memory
MISS = 0.3  # share of repeated reads that leave L2 when the working set exceeds it


@dataclass(frozen=True)
class Cost:
    """Predicted cost; adds up over kernels."""

    seconds: float
    launches: int
    nbytes: int
    flops: int
    bound: str = ""  # what limits it: launch, dram, l2, tensor, vector, special

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.seconds + other.seconds, self.launches + other.launches, self.nbytes + other.nbytes, self.flops + other.flops
        )

    def __mul__(self, count: int) -> Cost:
        return Cost(self.seconds * count, self.launches * count, self.nbytes * count, self.flops * count)


FREE = Cost(0.0, 0, 0, 0)

Objective = Callable[[Cost, int, Device], float]  # of a kernel's cost and the bytes of temporaries that it stores


def _storing(seconds_per_byte: float) -> Objective:
    return lambda cost, stored, device: cost.seconds + stored * seconds_per_byte


# What a selection of kernels is judged by, in seconds (of which the last term only breaks ties).
OBJECTIVES: dict[str, Objective] = {
    "time": _storing(0.0),
    "launches": lambda cost, stored, device: cost.launches + cost.seconds,
    "traffic": lambda cost, stored, device: cost.nbytes / device.dram_bytes_per_second + 1e-3 * cost.seconds,
    "memory": _storing(1e-6),  # a microsecond for each byte outweighs any kernel
}
# What is tried in turn when time alone needs more memory than there is.
UNDER_A_CAP: dict[str, Objective] = {
    "time, little stored": _storing(1e-11),  # some twenty times what writing and reading it takes
    "time, less stored": _storing(1e-9),
    "memory": OBJECTIVES["memory"],
}


def price(work: Work, schedules: Sequence[Schedule], device: Device) -> tuple[Cost, Schedule | None]:
    """The best schedule and its cost; (a cost of infinite seconds, None) if no schedule fits the device."""
    if not schedules:
        return Cost(float("inf"), 1, work.nbytes, work.flops), None
    if device.arrays:
        return _array_cost(work, device), schedules[0]
    priced = _Pricing(work, schedules, device)
    seconds, bound = priced.seconds()
    best = int(np.argmin(seconds))
    if not np.isfinite(seconds[best]):
        return Cost(float("inf"), 1, work.nbytes, work.flops), None
    return Cost(float(seconds[best]), 1, work.nbytes, work.flops, bound[best]), schedules[best]


def _array_cost(work: Work, device: Device) -> Cost:
    """The cost of running a kernel as array programs: every value once, the operands and results of products in memory."""
    points = lambda scope: prod(a.extent for a in scope)  # noqa: E731
    moved, products = work.nbytes, 0.0
    for c in work.contractions:
        rows, columns, result = c.rows | {c.k}, c.columns | {c.k}, c.rows | c.columns
        moved += sum(2 * points(scope) * DTYPES[c.term.dtype].nbytes for scope in [result, *(rows, columns)[: c.computed]])
        products += 2 * points(c.scope) / device.contraction_flops(c.term.dtype if c.split else c.dtype)
    rate = device.dram_bytes_per_second if moved > device.l2_nbytes else device.l2_bytes_per_second
    units = {"vector": device.vector_flops / 2, "special": device.special_ops_per_second}
    pointwise = sum(points(scope) * operations / units[u] for (scope, u, _), operations in work.work.items() if u in units)
    terms = {"tensor": products, "vector": pointwise, "dram": moved / rate, "launch": device.launch_seconds}
    seconds = device.launch_seconds + products + max(pointwise, moved / rate)
    return Cost(seconds, 1, work.nbytes, work.flops, max(terms, key=lambda name: terms[name]))


class _Pricing:
    """Vectors over schedules."""

    def __init__(self, work: Work, schedules: Sequence[Schedule], device: Device) -> None:
        self.work, self.device = work, device
        self.tile: dict[Axis, np.ndarray] = {}
        self.count: dict[Axis, np.ndarray] = {}
        self.grid: dict[Axis, np.ndarray] = {}
        self.loop: dict[Axis, np.ndarray] = {}
        for n, axis in enumerate(work.axes):
            tiles = [s.axes[n] for s in schedules]
            self.tile[axis] = np.array([t.tile for t in tiles], float)
            self.count[axis] = np.ceil(axis.extent / self.tile[axis])
            self.grid[axis] = np.array([t.role == "grid" for t in tiles])
            self.loop[axis] = np.array([t.role == "loop" for t in tiles])
        self.warps = np.array([s.num_warps for s in schedules], float)
        self.stages = np.array([s.num_stages for s in schedules], float)
        self.one = np.ones(len(schedules))
        self._blocks: dict[frozenset[Axis], np.ndarray] = {}  # many terms have the same axes
        self._executed: dict[tuple[frozenset[Axis], int], np.ndarray] = {}

    def repeats(self, scope: frozenset[Axis]) -> np.ndarray:
        """Programs that redo the same work because the scope lacks their grid axis."""
        total = self.one.copy()
        for axis in self.work.axes:
            if axis not in scope:
                total *= np.where(self.grid[axis], self.count[axis], 1.0)
        return total

    def volume(self, scope: frozenset[Axis]) -> np.ndarray:
        """Points of a scope that are visited, padding included."""
        total = self.one.copy()
        for axis in scope:
            if axis in self.tile:
                total *= self.tile[axis] * self.count[axis]
            if (share := self.work.visited.get(axis)) is not None:  # and half a tile at the edge of the mask
                total *= np.where(self.loop[axis], np.minimum(1.0, share + self.tile[axis] / axis.extent), 1.0)
        return total

    def block(self, scope: frozenset[Axis]) -> np.ndarray:
        """Elements of one block over a scope."""
        if scope not in self._blocks:
            total = self.one.copy()
            for axis in scope:
                if axis in self.tile:
                    total *= self.tile[axis]
            self._blocks[scope] = total
        return self._blocks[scope]

    def seconds(self) -> tuple[np.ndarray, list[str]]:
        d = self.device
        programs = prod((np.where(self.grid[a], self.count[a], 1.0) for a in self.work.axes), start=self.one)
        residents = np.ceil(programs / d.multiprocessors) * d.multiprocessors
        busy = programs / residents
        few = np.minimum(1.0, programs / d.multiprocessors * 2.0)  # two programs a multiprocessor saturate memory
        terms = {
            "dram": self.dram_nbytes() / (d.dram_bytes_per_second * d.dram_efficiency) / few,
            "l2": self.l2_nbytes / d.l2_bytes_per_second / few,
            "tensor": self.tensor_seconds() / busy,
            "vector": self.unit_seconds("vector", d.vector_flops / 2) / busy,
            "special": self.unit_seconds("special", d.special_ops_per_second) / busy,
        }
        stack = np.stack(list(terms.values()))
        top = stack.max(0)
        seconds = d.launch_seconds + top + OVERLAP_LOSS * (stack.sum(0) - top)
        seconds = np.where(self.fits(), seconds, np.inf)
        names = [list(terms)[i] for i in stack.argmax(0)]
        return seconds, [n if t > d.launch_seconds / 2 else "launch" for n, t in zip(names, top, strict=True)]

    def passes(self, scope: frozenset[Axis], passes: int) -> np.ndarray:
        """Repetitions by consecutive loops, which a resident axis does not need."""
        if passes == 1:
            return self.one
        looped = sum((self.loop[a] for a in scope if a in self.loop), start=0.0 * self.one)
        return np.where(looped > 0, float(passes), 1.0)

    def executed(self, scope: frozenset[Axis], passes: int) -> np.ndarray:
        """Points evaluated in all."""
        if (scope, passes) not in self._executed:
            self._executed[scope, passes] = self.volume(scope) * self.repeats(scope) * self.passes(scope, passes)
        return self._executed[scope, passes]

    @cached_property
    def l2_nbytes(self) -> np.ndarray:
        total = self.one * sum(o.nbytes for o in self.work.kernel.outputs)
        for r in self.work.reads:
            total = total + self.executed(r.scope, r.passes) * r.element_nbytes
        return total

    def dram_nbytes(self) -> np.ndarray:
        compulsory = self.work.nbytes
        extra = np.maximum(self.l2_nbytes - compulsory, 0.0)
        overflow = min(1.0, max(0.0, compulsory / self.device.l2_nbytes - 0.6))
        return compulsory + MISS * overflow * extra

    def tensor_seconds(self) -> np.ndarray:
        total = 0.0 * self.one
        for c in self.work.contractions:
            rows, columns = self.block(c.rows), self.block(c.columns)
            peak = self.device.contraction_flops(c.dtype)
            intensity = rows * columns / (rows + columns)
            efficiency = self.device.tensor_efficiency * np.minimum(1.0, intensity / 48.0)
            if c.dtype in self.device.tensor_flops:
                efficiency = efficiency * COMPUTED**c.computed
            products = c.products if c.dtype in self.device.tensor_flops else 1
            total = total + products * 2 * self.executed(c.scope, c.passes) / (peak * efficiency)
        return total

    def unit_seconds(self, unit: str, rate: float) -> np.ndarray:
        total = 0.0 * self.one
        for (scope, u, passes), operations in self.work.work.items():
            if u == unit:
                total = total + self.executed(scope, passes) * operations
        return total / rate

    def folds(self) -> int:
        """Reductions of the block that a contraction makes."""
        blocks = [c.term.axes for c in self.work.contractions]
        made = {c.term for c in self.work.contractions}
        folded = (t for t in self.work.kernel.terms if t.bound is not None and t not in made)
        return sum(any(t.args[0].axes >= block for block in blocks) for t in folded)

    def fits(self) -> np.ndarray:
        """Registers for what is alive at once, shared memory for the operands of contractions."""
        accumulators, shapes, widest = 0.0 * self.one, set[frozenset[Axis]](), 0
        outputs = frozenset(self.work.kernel.axes)
        for t in self.work.kernel.terms:
            if t.head == "const" or (t in self.work.absorbed and t.bound is None):
                continue
            if t.head in ("reduce", "online"):
                accumulators = accumulators + self.block(t.axes) * 4
            else:
                shapes.add(t.axes)
                widest += t.head in SCALARS and sum(a.axes >= outputs for a in t.args) > 1
        largest = np.max([0.0 * self.one, *(self.block(axes) * 4 for axes in shapes)], axis=0)
        operand, unrolled, scalar_dots = 0.0 * self.one, 0.0 * self.one, False
        for c in self.work.contractions:
            nbytes = (self.block(c.rows | {c.k}) + self.block(c.columns | {c.k})) * DTYPES[c.dtype].nbytes
            operand = operand + c.products * nbytes
            if c.split:
                accumulators = accumulators + self.block(c.rows | c.columns) * 4  # the sum of the small parts
            if c.dtype not in self.device.tensor_flops:
                scalar_dots = True
                unrolled = unrolled + 3 * nbytes * bool(c.computed)
        # beside an accumulator a short epilogue is computed in pieces, a long one, or several folds, keep whole blocks
        copies = 2.0 if not self.work.contractions else 1.0 if widest > 3 or self.folds() > 2 else 0.5
        registers = accumulators + copies * largest
        per_thread = 224
        if self.device.compute_capability < 90:  # operands pass through registers
            registers, per_thread = registers + operand, 176
        limit = np.minimum(self.warps * 32 * per_thread * 4, REGISTER_NBYTES * 0.9)
        if scalar_dots:  # unrolled multiply-adds: more than 64 accumulators a thread spill, computed operands sooner
            registers = registers + unrolled
            limit = np.minimum(limit, self.warps * 32 * (64 + 32) * 4)
        return (registers <= limit) & (operand * self.stages <= self.device.shared_nbytes * 0.95)
