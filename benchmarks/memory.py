"""Peak memory of this process: since the last reset where Linux allows one, else since its start."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def reset_peak() -> None:
    try:
        CLEAR.write_text("5")
    except OSError:
        pass


def peak_nbytes() -> int:
    try:
        line = next(row for row in STATUS.read_text().splitlines() if row.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    except (OSError, StopIteration):
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
