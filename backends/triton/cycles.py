"""Cycles that code takes on a scheduler of a multiprocessor, by a model of how instructions issue.

Warps issue in order, one instruction of all of them a cycle, as the compiler's own schedule allows: stalls, and barriers that a
result sets when it is there. A unit takes one instruction at a time and holds it for the cycles of its 32 lanes. The result ranks
kernels; of memory it knows a mean latency, and of bank conflicts nothing.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .machine import BARRIERS, Instruction

SCHEDULERS = 4
ISSUED_AHEAD = 64  # cycles by which products of warp groups are queued
COPY = 600  # cycles until an asynchronous copy to shared memory is there
PASSES = 3  # simulated once and twice: what the second half takes is the steady state
OF_WARPS = 0.62  # of the rate of products of warp groups, that products of one warp reach on Hopper


class Rates(NamedTuple):
    """Multiply-adds a cycle and multiprocessor: of bfloat16 matrices, and of float32 lanes (the vendors' whitepapers)."""

    matrix: int
    lanes: int


RATES = {80: Rates(1024, 64), 89: Rates(512, 128), 90: Rates(2048, 128)}  # Blackwell's products do not say their size


@dataclass(frozen=True)
class _Kind:
    """What holds an instruction: a unit, for cycles a warp; the latency of the result."""

    unit: str
    cycles: float
    latency: float


_ALU = re.compile(r"FMNMX|FSETP|FSEL|FSET|F2FP|I2FP")
_FMA = re.compile(r"FADD|FFMA|FMUL|FSWZADD|HADD|HFMA|HMUL|IMAD|IDP")
_SPECIAL = re.compile(r"MUFU|F2F|I2F|F2I|FRND")
_MEMORY = re.compile(r"LD[GSL]|LDGSTS|ST[GSL]|RED|ATOM|SHFL|LDSM|STSM")
_OTHER = re.compile(r"U[A-Z]|R2UR|S2UR|VOTEU|BRA|EXIT|BSSY|BSYNC|CALL|RET|BAR|SYNCS|DEPBAR|LDGDEPBAR|WARP|ARRIVES|MEMBAR|FENCE")
_LATENCY = {"LDG": 500, "LDL": 33, "LDS": 29, "LDSM": 33, "SHFL": 25, "MUFU": 22}
_DEPTH = {"1688": 1024, "16816": 2048, "16832": 4096, "16864": 8192, "884": 256}  # multiply-adds of a warp's product


def _kind(x: Instruction, rates: Rates, cc: int) -> _Kind:
    stem = x.stem
    if x.of_matrix_unit:
        return _product(x, rates, cc)
    if _SPECIAL.match(stem) and not _ALU.match(stem):
        return _Kind("special", 8, 30)
    if stem.startswith("D") and stem[1:4] in ("ADD", "MUL", "FMA", "SET"):
        return _Kind("double", 2 if cc in (80, 90) else 64, 30)
    if _MEMORY.match(stem):
        return _Kind("memory", _lanes(x), _LATENCY.get(stem, 20))
    if _ALU.match(stem):
        return _Kind("alu", 2, 6)
    if _FMA.match(stem):
        return _Kind("fma", 2 if stem in ("IMAD", "IDP") else 32 * SCHEDULERS / rates.lanes, 6)
    return _Kind("", 1, 6) if _OTHER.match(stem) else _Kind("alu", 2, 6)


def _product(x: Instruction, rates: Rates, cc: int) -> _Kind:
    narrow = x.stem[0] in "IQ"
    if shape := re.search(r"\.(\d+)x(\d+)x(\d+)", x.name):  # of a group of four warps
        rows, columns, depth = map(int, shape.groups())
        return _Kind("matrix", rows * columns * depth / rates.matrix / (2 if narrow else 1), 20)
    found = re.search(r"\.(\d{3,5})\b", x.name)
    rate = rates.matrix / SCHEDULERS * (OF_WARPS if cc == 90 else 1.0) * (2 if narrow else 1)
    return _Kind("matrix", _DEPTH.get(found[1] if found else "", 2048) / rate, 33)


def _lanes(x: Instruction) -> float:
    """Cycles that a unit of memory takes for the lanes of a warp."""
    if x.stem == "LDSM":
        return 4 if ".4" in x.name else 2 if ".2" in x.name else 1
    wide = 4 if ".128" in x.name else 2 if ".64" in x.name else 1
    return 1 if x.stem == "SHFL" else wide if x.stem in ("LDS", "STS", "STSM") else 2 * wide


def cycles(code: Sequence[Instruction], warps: int, cc: int, repeats: bool = True) -> float:
    """Cycles of one pass over the code by the warps of a multiprocessor; 0 where nothing is known of the card.

    A loop's body `repeats`, so its cycles are those of the steady state, and no less than its busiest unit takes.
    """
    if cc not in RATES or not code:
        return 0.0
    kinds = [_kind(x, RATES[cc], cc) for x in code]
    resident = max(1, -(-warps // SCHEDULERS))
    if not repeats:
        return _Scheduler(code, kinds, resident).run(1)
    units: dict[str, float] = defaultdict(float)
    for kind in kinds:
        units[kind.unit] += kind.cycles * resident
    units.pop("", None)
    steady = (_Scheduler(code, kinds, resident).run(2 * PASSES) - _Scheduler(code, kinds, resident).run(PASSES)) / PASSES
    return max([steady, *units.values()])


class _Warp:
    def __init__(self) -> None:
        self.place, self.ready, self.product = 0, 0.0, 0.0
        self.barriers = [0.0] * BARRIERS
        self.copied = 0.0
        self.groups: deque[float] = deque()  # of copies, when they are there


class _Scheduler:
    """Issues the warp that can go first, one instruction after the other."""

    def __init__(self, code: Sequence[Instruction], kinds: Sequence[_Kind], warps: int) -> None:
        self.code, self.kinds = code, kinds
        self.warps = [_Warp() for _ in range(warps)]
        self.free: dict[str, float] = defaultdict(float)

    def run(self, passes: int) -> float:
        time, total = 0.0, len(self.code) * passes
        while waiting := [w for w in self.warps if w.place < total]:
            start, _, warp = min((self.earliest(w), n, w) for n, w in enumerate(waiting))
            time = max(time, start)
            self.issue(warp, time)
            time += 1
        return time

    def earliest(self, w: _Warp) -> float:
        x, kind = self.at(w)
        start = max([w.ready, *(w.barriers[b] for b in range(BARRIERS) if x.waits >> b & 1)])
        if kind.unit:
            start = max(start, self.free[kind.unit] - (ISSUED_AHEAD if x.name.startswith(("HGMMA", "QGMMA", "IGMMA")) else 0))
        kept = int(found[1], 16) if (found := re.search(r"0x([0-9a-f]+)$", x.operands)) else 0
        if x.name.startswith("WARPGROUP.DEPBAR") and kept == 0:
            start = max(start, w.product)
        if x.stem == "DEPBAR" and len(w.groups) > kept:
            start = max(start, w.groups[-kept - 1])
        return start

    def at(self, w: _Warp) -> tuple[Instruction, _Kind]:
        place = w.place % len(self.code)
        return self.code[place], self.kinds[place]

    def issue(self, w: _Warp, time: float) -> None:
        x, kind = self.at(w)
        if kind.unit:
            self.free[kind.unit] = max(self.free[kind.unit], time) + kind.cycles
        if kind.unit == "matrix":
            w.product = self.free["matrix"] + kind.latency
        if x.stem == "LDGSTS":
            w.copied = time + COPY
        if x.stem == "LDGDEPBAR":
            w.groups.append(w.copied)
        there = time + kind.latency + (kind.cycles if kind.unit in ("matrix", "special") else 0)
        for barrier, when in zip(x.sets, (there, min(there, time + 25)), strict=True):
            if barrier < BARRIERS:
                w.barriers[barrier] = max(w.barriers[barrier], when)
        w.ready, w.place = time + max(1, x.stall), w.place + 1
