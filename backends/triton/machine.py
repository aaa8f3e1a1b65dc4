"""Machine code of a kernel: its instructions with the compiler's own schedule, its loops, and what it needs of a multiprocessor.

The upper word of each instruction of 128 bits says how the compiler scheduled it: for how many cycles its warp stalls, and which
of six barriers it waits for and sets (Huerta et al., "Analyzing Modern NVIDIA GPU cores", arXiv 2503.20481).
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

MATRIX = re.compile(r"[HIDQF]MMA|[HIQ]GMMA|UTC\w*MMA")
BARRIERS = 6
_CONTROL = 41  # the first bit of the schedule in the upper word
_LINE = re.compile(
    r"/\*[0-9a-f]{4,}\*/\s+(?:(?P<predicate>@!?U?P\w+)\s+)?(?P<name>[A-Z][\w.]*)(?P<operands>[^/]*);"
    r"[^\n]*\n\s*/\* 0x(?P<upper>[0-9a-f]{16})"
    r"|^(?P<label>\.L_\w+):",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Instruction:
    """One instruction; `sets` are the barriers that it releases when its result is written and when its operands are read."""

    name: str  # with its modifiers: LDG.E.128
    operands: str
    predicate: str
    stall: int  # cycles
    sets: tuple[int, int]  # BARRIERS and more: none
    waits: int  # a mask of barriers

    @property
    def stem(self) -> str:
        return self.name.partition(".")[0]

    @property
    def of_matrix_unit(self) -> bool:
        return MATRIX.fullmatch(self.stem) is not None


@dataclass(frozen=True)
class MachineCode:
    """Instructions in order, the places that labels name, and resources: REG, STACK, SHARED and LOCAL."""

    instructions: tuple[Instruction, ...]
    labels: dict[str, int]
    resources: dict[str, int]

    @property
    def loops(self) -> list[range]:
        """Innermost loops that load or multiply matrices, in order; waiting for a barrier is none of them."""
        found = []
        for end, instruction in enumerate(self.instructions):
            target = re.search(r"\.L_\w+", instruction.operands) if instruction.stem == "BRA" else None
            start = self.labels.get(target[0], end + 1) if target else end + 1
            if start < end - 1 and any(_moves(x) for x in self.instructions[start : end + 1]):
                found.append(range(start, end + 1))
        return [r for r in found if not any(o != r and r.start <= o.start and o.stop <= r.stop for o in found)]


def _moves(x: Instruction) -> bool:
    return x.of_matrix_unit or x.stem in ("LDG", "LDGSTS", "UTMALDG", "UBLKCP", "STG")


def disassemble(cubin: bytes) -> MachineCode:
    """Read a cubin. Raises ValueError if it holds no kernel."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        text = _tool("nvdisasm", "-c", "-hex", str(path))
        usage = _tool("cuobjdump", "-res-usage", str(path))
    resources = {key: int(value) for key, value in re.findall(r"(REG|STACK|SHARED|LOCAL):(\d+)", usage)}
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    for found in _LINE.finditer(text):
        if found["label"]:
            labels[found["label"]] = len(instructions)
        else:
            instructions.append(_instruction(found))
    if not instructions or "REG" not in resources:
        raise ValueError(f"no kernel found in a cubin of {len(cubin)} bytes")
    return MachineCode(tuple(instructions), labels, resources)


def _instruction(found: re.Match[str]) -> Instruction:
    control = int(found["upper"], 16) >> _CONTROL
    sets = (control >> 5 & 7, control >> 8 & 7)
    return Instruction(found["name"], found["operands"].strip(), found["predicate"] or "", control & 15, sets, control >> 11 & 63)


def _tool(name: str, *arguments: str) -> str:
    return subprocess.run([_tools() / name, *arguments], capture_output=True, text=True, check=True).stdout


@lru_cache(maxsize=1)
def _tools() -> Path:
    """Triton's wheel carries the disassemblers."""
    import triton

    return Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
