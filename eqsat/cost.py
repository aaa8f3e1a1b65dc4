"""The cost of a kernel: a roofline over its schedules.

A kernel's work (`eqsat.work`) says how many operations each unit does, and over which axes. A schedule turns axes into
padded extents and tile counts. The time is the launch plus the largest of the unit times; a tenth of the others is
added, since overlap is never perfect. All schedules of a kernel are priced at once, as NumPy vectors, and kernels that ask
for the same once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod

import numpy as np

from eqsat.demand import Demand, Product, demand
from eqsat.devices import Device
from eqsat.notation import Kernel
from eqsat.scalars import DTYPES
from eqsat.schedule import SMALLEST_DOT, Schedule, Schedules, schedules
from eqsat.traversal import Traversals
from eqsat.work import Work

OVERLAP_LOSS = 0.1
ALONE_LOSS = 0.4  # and of units that compute, where too few warps are resident for one to compute while another waits
ENOUGH_WARPS = 16.0
REGISTER_NBYTES = 256 * 1024  # of one multiprocessor
COMPUTED = 0.85  # of a contraction's rate, per operand that is computed in registers instead of copied to shared memory
# Of products in registers, as static reports for Hopper say. Operations for each point where both operands are spread over an
# axis of the other: they come through shared memory, sums through other lanes; one position of k after the other takes neither.
SPREAD, SPREAD_ONCE = 10.0, 4.0
ENTRY = 100.0  # operations of each lane for addresses and masks
TRIP_SECONDS, TRIP_SECONDS_ONCE = 300e-9, 35e-9  # the latency of a loop's pass, of which the compiler unrolls the shorter ones
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


def price(work: Work, schedules: Schedules, device: Device) -> tuple[Cost, Schedule | None]:
    """The best schedule and its cost; (a cost of infinite seconds, None) if no schedule fits the device."""
    if not schedules:
        return Cost(float("inf"), work.launches, work.nbytes, work.flops), None
    if device.arrays:
        return _array_cost(work, device), schedules[0]
    seconds, best, bound = _best(demand(work), schedules.traversals, device)
    seconds += (work.launches - 1) * device.launch_seconds
    return Cost(seconds, work.launches, work.nbytes, work.flops, bound), schedules[best] if bound else None


def ranked(kernel: Kernel, device: Device) -> list[tuple[Cost, Schedule]]:
    """A kernel's schedules that fit the device, each with its cost, the cheapest first."""
    work = Work(kernel)
    found = schedules(work)
    priced = (price(work, found.alone(n), device) for n in range(len(found)))
    return sorted(((cost, s) for cost, s in priced if s is not None), key=lambda found: found[0].seconds)


@lru_cache(maxsize=1 << 14)
def _best(asked: Demand, traversals: Traversals, device: Device) -> tuple[float, int, str]:
    """The least seconds, the number of the schedule that takes them, and what bounds it (nothing if no schedule fits)."""
    seconds, names, terms = _Pricing(asked, traversals, device).seconds()
    best = int(np.argmin(seconds))
    if not np.isfinite(seconds[best]):
        return float("inf"), best, ""
    top = int(terms[:, best].argmax())
    return float(seconds[best]), best, names[top] if terms[top, best] > device.launch_seconds / 2 else "launch"


def _array_cost(work: Work, device: Device) -> Cost:
    """The cost of running a kernel as array programs: every value once, the operands and results of products in memory."""
    points = lambda scope: prod(a.extent for a in scope)  # noqa: E731
    moved, products = work.nbytes, 0.0
    pieces, contractions, folds = work.as_arrays()
    for c in contractions:
        rows, columns, result = c.rows | {c.k}, c.columns | {c.k}, c.rows | c.columns
        moved += sum(2 * points(scope) * DTYPES[c.term.dtype].nbytes for scope in [result, *(rows, columns)[: c.computed]])
        products += 2 * points(c.scope) / device.contraction_flops(c.term.dtype if c.split else c.dtype)
    rate = device.dram_bytes_per_second if moved > device.l2_nbytes else device.l2_bytes_per_second
    units = {"vector": device.vector_flops / 2, "special": device.special_ops_per_second}
    pointwise = sum(points(scope) * operations / units[u] for (scope, u, _), operations in pieces.items() if u in units)
    terms = {"tensor": products, "vector": pointwise, "dram": moved / rate, "launch": device.launch_seconds * (1 + folds)}
    most, least = max(pointwise, moved / rate), min(pointwise, moved / rate)
    seconds = terms["launch"] + products + most + OVERLAP_LOSS * least
    return Cost(seconds, 1, work.nbytes, work.flops, max(terms, key=lambda name: terms[name]))


def by_dot(c: Product, over: Traversals) -> np.ndarray:
    """True where a product is one of two matrices, as lowering makes it: of their tiles, and of one position of all else."""
    sides = [over.widest(side) for side in (c.rows, c.columns, c.k)]
    return c.dot & (np.min(sides, axis=0) >= SMALLEST_DOT) & (np.prod(sides, axis=0) == over.block(c.scope))


class _Pricing:
    """Vectors over schedules."""

    def __init__(self, asked: Demand, traversals: Traversals, device: Device) -> None:
        self.asked, self.over, self.device = asked, traversals, device
        self._by_dot: dict[Product, np.ndarray] = {}

    def seconds(self) -> tuple[np.ndarray, list[str], np.ndarray]:
        """Seconds of each schedule; the names of the units, and the seconds that each takes."""
        d, programs, busy = self.device, self.over.programs, self.busy
        few = np.minimum(1.0, programs / d.multiprocessors * 2.0)  # programs on half of the multiprocessors saturate memory
        terms = {
            "dram": self.dram_nbytes() / (d.dram_bytes_per_second * d.dram_efficiency) / few,
            "l2": self.l2_nbytes / d.l2_bytes_per_second / few,
            "tensor": self.tensor_seconds() / busy,
            "vector": self.unit_seconds("vector", d.vector_flops / 2) / busy + self.unrolled_seconds(),
            "special": self.unit_seconds("special", d.special_ops_per_second) / busy,
        }
        stack = np.stack(list(terms.values()))
        top = stack.max(0)
        seconds = d.launch_seconds + top + OVERLAP_LOSS * (stack.sum(0) - top)
        most = stack[2:].max(0)
        rest = stack[2:].sum(0) - most  # of the units that compute; a little fits between the instructions of the busiest
        seconds = seconds + ALONE_LOSS * self.alone * np.maximum(0.0, rest - most / 4)
        return np.where(self.fits, seconds, np.inf), list(terms), stack

    @cached_property
    def busy(self) -> np.ndarray:
        """The share of the multiprocessors that have work, on average until all is done."""
        programs, multiprocessors = self.over.programs, self.device.multiprocessors
        return programs / (np.ceil(programs / multiprocessors) * multiprocessors)

    @cached_property
    def resident(self) -> np.ndarray:
        """Programs that a multiprocessor holds at once."""
        resident = np.maximum(1.0, np.floor(REGISTER_NBYTES * 0.9 / np.maximum(self.registers, 1.0)))
        return np.minimum(resident, np.maximum(1.0, np.ceil(self.over.programs / self.device.multiprocessors)))

    @property
    def alone(self) -> np.ndarray:
        """How far the warps of a multiprocessor are from enough for one to compute while another waits; 0: enough."""
        return np.maximum(0.0, 1.0 - self.resident * self.over.warps / ENOUGH_WARPS)

    def executed(self, scope: int, passes: int) -> np.ndarray:
        return self.over.executed(scope, passes, self.asked.visited)

    @cached_property
    def l2_nbytes(self) -> np.ndarray:
        total = self.over.one * self.asked.stored_nbytes
        for scope, passes, element_nbytes in self.asked.reads:
            total = total + self.executed(scope, passes) * element_nbytes
        return total

    def dram_nbytes(self) -> np.ndarray:
        compulsory = self.asked.nbytes
        extra = np.maximum(self.l2_nbytes - compulsory, 0.0)
        overflow = min(1.0, max(0.0, compulsory / self.device.l2_nbytes - 0.6))
        return compulsory + MISS * overflow * extra

    def tensor_seconds(self) -> np.ndarray:
        total = 0.0 * self.over.one
        for c in self.asked.products:
            rows, columns = self.over.block(c.rows), self.over.block(c.columns)
            peak = self.device.contraction_flops(c.dtype)
            intensity = rows * columns / (rows + columns)
            efficiency = self.device.tensor_efficiency * np.minimum(1.0, intensity / 48.0)
            if c.dtype in self.device.tensor_flops:
                efficiency = efficiency * COMPUTED**c.computed
            products = c.products if c.dtype in self.device.tensor_flops else 1
            seconds = products * 2 * self.executed(c.scope, c.passes) / (peak * efficiency)
            total = total + np.where(self.by_dot(c), seconds, 0.0)
        return total

    def by_dot(self, c: Product) -> np.ndarray:
        if c not in self._by_dot:
            self._by_dot[c] = by_dot(c, self.over)
        return self._by_dot[c]

    def unrolled_seconds(self) -> np.ndarray:
        """Of products that are no dots: multiplied point by point and added up, on the units of all other sums."""
        over, total = self.over, 0.0 * self.over.one
        for c in self.asked.products:
            rate = (self.device.float64_flops if c.dtype == "float64" else self.device.vector_flops) / 2
            spread = (over.block(c.rows) > 1) & (over.block(c.columns) > 1)
            folded = over.block(c.k) > 1
            idle = np.maximum(1.0, over.warps * self.device.lanes / over.block(c.scope))
            operations = self.executed(c.scope, c.passes) * idle * np.where(spread, np.where(folded, SPREAD, SPREAD_ONCE), 2.0)
            for scope in c.widened:
                operations = operations + self.executed(scope, c.passes)
            busy = operations + over.programs * over.warps * self.device.lanes * ENTRY
            waves = np.ceil(over.programs / (self.resident * self.device.multiprocessors))
            waits = (over.trips(c.scope) - 1) * np.where(folded, TRIP_SECONDS, TRIP_SECONDS_ONCE) * waves
            total = total + np.where(self.by_dot(c), 0.0, np.maximum(busy / rate / self.busy, waits))
        return total

    def unit_seconds(self, unit: str, rate: float) -> np.ndarray:
        total = 0.0 * self.over.one
        for u, scope, passes, operations in self.asked.work:
            if u == unit:
                total = total + self.executed(scope, passes) * operations
        return total / rate

    @cached_property
    def operand_nbytes(self) -> np.ndarray:
        """Operands of contractions, each once."""
        operands = ((self.by_dot(c), c.products * self._sides_nbytes(c)) for c in self.asked.products)
        return sum((np.where(dot, nbytes, 0.0) for dot, nbytes in operands), start=0.0 * self.over.one)

    def _sides_nbytes(self, c: Product) -> np.ndarray:
        """A contraction's two operands, as wide as the hardware sees them."""
        return (self.over.block(c.rows | c.k) + self.over.block(c.columns | c.k)) * DTYPES[c.dtype].nbytes

    @cached_property
    def shared_nbytes(self) -> np.ndarray:
        """Operands in shared memory: those that a loop loads once for each stage."""
        total = self.operand_nbytes
        for c in self.asked.products:
            for scope in c.loaded:
                more = self.over.copies(scope) - 1
                total = total + self.by_dot(c) * more * c.products * self.over.block(scope) * DTYPES[c.dtype].nbytes
        return total

    @cached_property
    def registers(self) -> np.ndarray:
        """Bytes of registers that a program needs for what is alive at once."""
        asked, block, nothing = self.asked, self.over.block, 0.0 * self.over.one
        accumulators = sum((block(scope) * 4 for scope in asked.accumulators), start=nothing)
        largest = np.max([nothing, *(block(scope) * 4 for scope in asked.blocks)], axis=0)
        for c in asked.products:
            if c.split:
                accumulators = accumulators + self.by_dot(c) * block(c.rows | c.columns) * 4  # the sum of the small parts
            unrolled = block(c.scope) * max(4, DTYPES[c.dtype].nbytes)
            largest = np.where(self.by_dot(c), largest, np.maximum(largest, unrolled))
        # Beside an accumulator a short epilogue is computed in pieces; a long one, or several folds, keep whole blocks. Long is
        # what static reports for Hopper say of 128 accumulators a thread: a product with bias and GELU takes 178 to 193
        # registers where its loop stays a loop, but 255 and 54 spills where it is unrolled (256 by 128, depth 1024).
        # What is loaded beside the scores of attention waits whole: with a bias of float32, 256 by 64 scores, as many results and
        # weights in half of their registers (128 + 64 + 32 a thread) spill 67 on sm_100.
        dots = np.any([nothing > 0, *map(self.by_dot, asked.products)], axis=0)
        copies = np.where(dots, 1.0 if asked.widest > 3 or asked.folds > 2 else 0.5 + asked.beside, 2.0)
        through = self.operand_nbytes if self.device.compute_capability < 90 else nothing  # operands pass through registers
        return accumulators + copies * largest + through

    @cached_property
    def fits(self) -> np.ndarray:
        """True where registers hold what is alive at once, and shared memory the operands of contractions."""
        per_thread = 224 if self.device.compute_capability >= 90 else 176
        registers, warps = self.registers, self.over.warps
        limit = np.minimum(warps * self.device.lanes * per_thread * 4, REGISTER_NBYTES * 0.9)
        unrolled = [c for c in self.asked.products if c.dtype not in self.device.tensor_flops]
        for c in unrolled:  # multiply-adds: more than 64 accumulators a thread spill, computed operands sooner
            copies = 3.0 * bool(c.computed)
            if self.asked.folds > 1 and len(unrolled) > 1:  # the operands of one wait while another is multiplied
                copies += self.asked.folds
            registers = registers + np.where(self.by_dot(c), copies * self._sides_nbytes(c), 0.0)
            limit = np.where(self.by_dot(c), np.minimum(limit, warps * self.device.lanes * (64 + 32) * 4), limit)
        return (registers <= limit) & (self.shared_nbytes <= self.device.shared_nbytes * 0.95)
