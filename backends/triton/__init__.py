"""GPUs by Triton: `emit` prints a tile program; `interpret.run`, `compile_report` and `launch.call` (NVIDIA only) use the text.

Triton itself is imported on first use, so that kernels can be printed where it is not installed.
"""

from . import launch as launch
from .autotune import emit_autotuned as emit_autotuned
from .emit import emit as emit
from .report import StaticReport as StaticReport
from .report import compile_report as compile_report
from .text import kernel_name as kernel_name
