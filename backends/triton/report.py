"""A static report of an emitted kernel: what the compiler made of it for a card that need not be there."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from eqsat.tile import TileProgram

from .compiler import capability, machine_code

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
class StaticReport:
    """Resources and instructions of a kernel as compiled for one compute capability."""

    cc: int
    registers: int  # per thread
    spill_loads: int  # LDL and STL: registers that went to local memory and came back
    spill_stores: int
    stack_nbytes: int  # per thread
    shared_nbytes: int  # per program
    matrix_instructions: int  # of the tensor cores: mma, wgmma or tcgen05
    widest_load_bits: int  # widest load from global memory, per thread; 0 if it loads by bulk copies only
    instructions: int
    warps_resident: int  # per multiprocessor
    occupancy: float  # resident warps over the limit
    limited_by: str  # "registers", "shared memory", "warps" or "programs"

    @property
    def spills(self) -> int:
        return self.spill_loads + self.spill_stores


def compile_report(source: str, program: TileProgram, target: str | int) -> StaticReport:
    """Compile emitted text for a target (80, "sm_90", ...) and read the result; kept in memory per text and target."""
    key = (source, capability(target))
    if key not in _reports:
        _reports[key] = _report(source, program, key[1])
    return _reports[key]


_reports: dict[tuple[str, int], StaticReport] = {}


def _report(source: str, program: TileProgram, cc: int) -> StaticReport:
    compiled = machine_code(source, program, cc)
    operations, resources = disassemble(compiled.asm["cubin"])
    names = Counter(op.partition(".")[0] for op in operations)
    shared = max(int(compiled.metadata.shared), resources.get("SHARED", 0))
    warps, limit = resident_warps(cc, resources["REG"], shared, program.num_warps)
    return StaticReport(
        cc=cc,
        registers=resources["REG"],
        spill_loads=names["LDL"],
        spill_stores=names["STL"],
        stack_nbytes=resources.get("STACK", 0),
        shared_nbytes=shared,
        matrix_instructions=sum(n for name, n in names.items() if _MATRIX.fullmatch(name)),
        widest_load_bits=max((load_bits(op) for op in operations), default=0),
        instructions=len(operations),
        warps_resident=warps,
        occupancy=warps / MULTIPROCESSORS[cc].warps if cc in MULTIPROCESSORS else 0.0,
        limited_by=limit,
    )


_MATRIX = re.compile(r"[HIDQF]MMA|[HIQ]GMMA|UTC\w*MMA")
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)[^/]*;")


def disassemble(cubin: bytes) -> tuple[list[str], dict[str, int]]:
    """Operations of a cubin in order (LDG.E.128, ...), and its registers (REG), STACK, SHARED and LOCAL bytes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        operations = _INSTRUCTION.findall(_tool("nvdisasm", "-c", str(path)))
        usage = _tool("cuobjdump", "-res-usage", str(path))
    resources = {key: int(value) for key, value in re.findall(r"(REG|STACK|SHARED|LOCAL):(\d+)", usage)}
    if not operations or "REG" not in resources:
        raise ValueError(f"no kernel found in a cubin of {len(cubin)} bytes")
    return operations, resources


def _tool(name: str, *arguments: str) -> str:
    return subprocess.run([_tools() / name, *arguments], capture_output=True, text=True, check=True).stdout


@lru_cache(maxsize=1)
def _tools() -> Path:
    """Triton's wheel carries the disassemblers."""
    import triton

    return Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


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
