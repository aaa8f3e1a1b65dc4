"""A static report of an emitted kernel: what the compiler made of it for a card that need not be there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from eqsat.tile import TileProgram

from . import amd
from .compiler import Architecture, architecture, machine_code
from .cycles import cycles
from .machine import Instruction, disassemble

REGISTERS = 65536  # 32-bit registers of a multiprocessor
REGISTER_UNIT = 256  # registers a warp is given at a time
SHARED_RESERVE = 1024  # bytes of shared memory that the system takes for each program
SHARED_UNIT = 128  # bytes


@dataclass(frozen=True)
class Multiprocessor:
    """Limits on resident programs (CUDA C++ Programming Guide, table of technical specifications)."""

    shared_nbytes: int
    warps: int
    programs: int


MULTIPROCESSORS = {
    80: Multiprocessor(164 * 1024, 64, 32),
    89: Multiprocessor(100 * 1024, 48, 24),
    90: Multiprocessor(228 * 1024, 64, 32),
    100: Multiprocessor(228 * 1024, 64, 32),
}


@dataclass(frozen=True)
class LoopReport:
    """An innermost loop that loads or multiplies matrices."""

    instructions: int
    matrix_instructions: int
    cycles: float  # of one pass by all programs that a multiprocessor holds; 0 if the card's rates are not known


@dataclass(frozen=True)
class StaticReport:
    """Resources and instructions of a kernel as compiled for one target."""

    target: Architecture
    registers: int  # per thread
    spill_loads: int  # LDL and STL, or loads and stores of scratch: registers that went to local memory and came back
    spill_stores: int
    stack_nbytes: int  # per thread
    shared_nbytes: int  # per program
    matrix_instructions: int  # of the tensor cores: mma, wgmma, tcgen05 or mfma
    widest_load_bits: int  # widest load from global memory, per thread; 0 if it loads by bulk copies only
    instructions: int
    warps_resident: int  # per multiprocessor
    occupancy: float  # resident warps over the limit
    limited_by: str  # "registers", "shared memory", "warps" or "programs"
    loops: tuple[LoopReport, ...] = ()  # in order
    cycles: float = 0.0  # outside of these loops, as theirs

    @property
    def hot_loop(self) -> LoopReport | None:
        """The shortest loop of those with the most matrix instructions."""
        return max(self.loops, key=lambda loop: (loop.matrix_instructions, -loop.instructions), default=None)

    @property
    def spills(self) -> int:
        return self.spill_loads + self.spill_stores


def compile_report(source: str, program: TileProgram, target: str | int) -> StaticReport:
    """Compile emitted text for a target (80, "sm_90", "gfx942", ...) and read the result; kept in memory per text and target."""
    key = (source, architecture(target))
    if key not in _reports:
        _reports[key] = _report(source, program, key[1])
    return _reports[key]


_reports: dict[tuple[str, Architecture], StaticReport] = {}


def _report(source: str, program: TileProgram, target: Architecture) -> StaticReport:
    compiled = machine_code(source, program, target)
    return _report_of_amd(compiled, target) if isinstance(target, str) else report_of(compiled, target)


def report_of(compiled: Any, cc: int) -> StaticReport:
    """The report of what Triton compiled for a compute capability."""
    code, num_warps = disassemble(compiled.asm["cubin"]), compiled.metadata.num_warps
    names = Counter(x.stem for x in code.instructions)
    shared, registers = max(int(compiled.metadata.shared), code.resources.get("SHARED", 0)), code.resources["REG"]
    warps, limit = resident_warps(cc, registers, shared, num_warps)
    loops = [code.instructions[r.start : r.stop] for r in code.loops]
    inside = {n for r in code.loops for n in r}
    outside = [x for n, x in enumerate(code.instructions) if n not in inside]
    return StaticReport(
        target=cc,
        registers=registers,
        spill_loads=names["LDL"],
        spill_stores=names["STL"],
        stack_nbytes=code.resources.get("STACK", 0),
        shared_nbytes=shared,
        matrix_instructions=sum(x.of_matrix_unit for x in code.instructions),
        widest_load_bits=max(load_bits(x.name) for x in code.instructions),
        instructions=len(code.instructions),
        warps_resident=warps,
        occupancy=warps / MULTIPROCESSORS[cc].warps if cc in MULTIPROCESSORS else 0.0,
        limited_by=limit,
        loops=tuple(LoopReport(len(x), sum(i.of_matrix_unit for i in x), cycles(x, warps, cc)) for x in loops),
        cycles=cycles(outside[: _end(outside)], warps, cc, repeats=False),
    )


def _report_of_amd(compiled: Any, target: str) -> StaticReport:
    """The report of what Triton compiled for an AMD GPU. Its rates are not known, so no cycles are estimated."""
    code, num_warps = amd.read(compiled.asm["amdgcn"]), compiled.metadata.num_warps
    shared = int(compiled.metadata.shared)
    warps, limit = amd.resident_waves(target, code.registers, shared, num_warps)
    loops = [code.instructions[r.start : r.stop] for r in code.loops]
    return StaticReport(
        target=target,
        registers=code.registers,
        spill_loads=sum(x.startswith("scratch_load") for x in code.instructions),
        spill_stores=sum(x.startswith("scratch_store") for x in code.instructions),
        stack_nbytes=code.scratch_nbytes,
        shared_nbytes=shared,
        matrix_instructions=sum(map(amd.is_matrix, code.instructions)),
        widest_load_bits=max(map(amd.load_bits, code.instructions)),
        instructions=len(code.instructions),
        warps_resident=warps,
        occupancy=warps / (amd.WAVES * amd.SIMDS),
        limited_by=limit,
        loops=tuple(LoopReport(len(x), sum(map(amd.is_matrix, x)), 0.0) for x in loops),
    )


def _end(code: Sequence[Instruction]) -> int:
    """How many instructions there are up to where every thread ends; what lies behind waits for barriers."""
    return next((n + 1 for n, x in enumerate(code) if x.stem == "EXIT" and not x.predicate), len(code))


def load_bits(operation: str) -> int:
    """Bits that one thread loads from global memory with an operation; 0 if it does not."""
    name, *modifiers = operation.split(".")
    if name not in ("LDG", "LDGSTS"):
        return 0
    widths = {"U8": 8, "S8": 8, "U16": 16, "S16": 16, "64": 64, "128": 128, "256": 256}
    return max((widths[m] for m in modifiers if m in widths), default=32)


def resident_warps(cc: int, registers: int, shared_nbytes: int, num_warps: int) -> tuple[int, str]:
    """Warps of one kernel that a multiprocessor holds, and what limits them; (0, "unknown") for a card not in the table."""
    card = MULTIPROCESSORS.get(cc)
    if card is None:
        return 0, "unknown"
    per_warp = -(-max(registers, 1) * 32 // REGISTER_UNIT) * REGISTER_UNIT
    per_scheduler = REGISTERS // 4 // per_warp  # each of the four schedulers has a quarter of the registers
    per_program = -(-(shared_nbytes + SHARED_RESERVE) // SHARED_UNIT) * SHARED_UNIT
    limits = {
        "registers": per_scheduler * 4 // num_warps,
        "shared memory": card.shared_nbytes // per_program,
        "warps": card.warps // num_warps,
        "programs": card.programs,
    }
    limit = min(limits, key=lambda name: limits[name])
    return limits[limit] * num_warps, limit
