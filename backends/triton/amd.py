"""Assembly of a kernel for AMD GPUs with wavefronts of 64 lanes (CDNA): its instructions, its loops, and what it needs."""

from __future__ import annotations

import re
from dataclasses import dataclass

LANES = 64  # of a wavefront, which Triton counts as a warp
VECTOR_REGISTERS = 512  # of a lane, vector and accumulation registers together, shared by the wavefronts of a SIMD
REGISTER_UNIT = 8
SIMDS = 4  # of a compute unit
WAVES = 8  # at most on a SIMD
PROGRAMS = 16  # of several wavefronts at most on a compute unit
SHARED_UNIT = 512  # bytes
SHARED_NBYTES = {"gfx942": 64 * 1024}  # of a compute unit
_LINE = re.compile(
    r"^(?P<label>\.L\w+):|^\s+(?P<name>(?:[sv]|ds|global|buffer|scratch|flat)_\w+)(?P<operands>[^;\n]*)", re.MULTILINE
)
_RESOURCE = re.compile(r"\.(vgpr_count|private_segment_fixed_size):\s+(\d+)")
_WIDTHS = {
    "ubyte": 8,
    "sbyte": 8,
    "ushort": 16,
    "sshort": 16,
    "short": 16,
    "dword": 32,
    "dwordx2": 64,
    "dwordx3": 96,
    "dwordx4": 128,
}


@dataclass(frozen=True)
class Assembly:
    """Names of instructions in order, innermost loops that move data or multiply matrices, and what a lane needs."""

    instructions: tuple[str, ...]
    loops: tuple[range, ...]
    registers: int  # of 32 bits
    scratch_nbytes: int


def read(text: str) -> Assembly:
    """Instructions and resources of what Triton keeps as "amdgcn". Raises ValueError if it holds no kernel."""
    names: list[str] = []
    labels: dict[str, int] = {}
    loops = []
    for found in _LINE.finditer(text):
        if found["label"]:
            labels[found["label"]] = len(names)
            continue
        start = labels.get(found["operands"].strip())  # of a branch back
        names.append(found["name"])
        if start is not None and any(is_matrix(x) or load_bits(x) or "_store_" in x for x in names[start:]):
            loops.append(range(start, len(names)))
    resources = {key: int(value) for key, value in _RESOURCE.findall(text)}
    if not names or "vgpr_count" not in resources:
        raise ValueError(f"no kernel found in an assembly of {len(text)} characters")
    inner = [r for r in loops if not any(o != r and r.start <= o.start and o.stop <= r.stop for o in loops)]
    return Assembly(tuple(names), tuple(inner), resources["vgpr_count"], resources.get("private_segment_fixed_size", 0))


def is_matrix(name: str) -> bool:
    return name.startswith(("v_mfma_", "v_smfma"))


def load_bits(name: str) -> int:
    """Bits that one lane loads from global memory with an instruction; 0 if it does not."""
    found = re.match(r"(?:global|buffer|flat)_load_(?:lds_)?([a-z\d]+)", name)
    return _WIDTHS.get(found[1], 32) if found else 0


def resident_waves(architecture: str, registers: int, shared_nbytes: int, num_warps: int) -> tuple[int, str]:
    """Wavefronts of one kernel that a compute unit holds, and what limits them; (0, "unknown") for one not in the table.

    Limits and units are those of LLVM (AMDGPUBaseInfo.cpp), which the occupancy that it prints into the assembly comes from.
    """
    if architecture not in SHARED_NBYTES:
        return 0, "unknown"
    per_lane = -(-max(registers, 1) // REGISTER_UNIT) * REGISTER_UNIT
    per_program = -(-shared_nbytes // SHARED_UNIT) * SHARED_UNIT
    limits = {
        "registers": min(WAVES, VECTOR_REGISTERS // per_lane) * SIMDS // num_warps,
        "shared memory": SHARED_NBYTES[architecture] // max(1, per_program),
        "warps": WAVES * SIMDS // num_warps,
        "programs": PROGRAMS if num_warps > 1 else WAVES * SIMDS,
    }
    limit = min(limits, key=lambda name: (limits[name], name != "warps"))
    return limits[limit] * num_warps, limit
