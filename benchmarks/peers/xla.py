"""XLA:GPU without a GPU: launches and bytes of every workload at its full size.

Needs the packages jax-cuda13-plugin and jax-cuda13-pjrt of JAX's own version (installed with ``--no-deps``, here or in a folder
of their own), and Triton's wheel for libdevice. The compiler runs in a process of its own.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

import jax

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("jax-cuda13-plugin", "jax-cuda13-pjrt")


def unavailable(folder: str | None) -> str:
    """Why XLA:GPU cannot be asked; empty if it can. `folder`: where the packages are, if not in this environment."""
    here = importlib.util.find_spec("jax_plugins.xla_cuda13") if importlib.util.find_spec("jax_plugins") else None
    if folder is None and here is None:
        wanted = " ".join(f"{p}=={jax.__version__}" for p in PACKAGES)
        return f"not installed: pip install --no-deps --target FOLDER {wanted}, then --peers FOLDER"
    if folder is not None and not (Path(folder) / "jax_plugins" / "xla_cuda13").is_dir():
        return f"no jax_plugins/xla_cuda13 in {folder}"
    if importlib.util.find_spec("triton") is None:
        return "triton, whose wheel has libdevice, is not installed"
    return ""


class Xla:
    """The compiler's process; a context manager."""

    name = "XLA:GPU"

    def __init__(self, card: str, folder: str | None = None) -> None:
        self.card, self.folder = card, folder
        self.scratch = tempfile.TemporaryDirectory(prefix="benchmarks-xla-")
        self.process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Xla:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()
        self.scratch.cleanup()

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def ask(self, workload: str) -> dict[str, Any]:
        """``{"own": {...}, "library": {...}}``, each with launches, nbytes and kernels; or ``{"error": ...}``."""
        process = self.process = self.process or self._started()
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(workload + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self.stop()
            return {"error": "XLA:GPU stopped"}
        return json.loads(line)

    def _started(self) -> subprocess.Popen[str]:
        dump = Path(self.scratch.name) / "dump"
        dump.mkdir(exist_ok=True)
        flags = f"--xla_gpu_cuda_data_dir={self._cuda_folder()} --xla_dump_to={dump} --xla_dump_hlo_as_text=true"
        path = os.pathsep.join(filter(None, (str(ROOT), self.folder, os.environ.get("PYTHONPATH"))))
        environment = {
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
            "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}",
            "PYTHONPATH": path,
        }
        command = [sys.executable, "-m", "benchmarks.peers.xla_worker", self.card, str(dump)]
        log = open(Path(self.scratch.name) / "log", "w")
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment, text=True, cwd=ROOT
        )

    def _cuda_folder(self) -> Path:
        """A CUDA data directory made of links to what Triton's wheel carries."""
        found = importlib.util.find_spec("triton")
        assert found is not None and found.origin is not None
        nvidia, folder = Path(found.origin).parent / "backends" / "nvidia", Path(self.scratch.name) / "cuda"
        if not folder.exists():
            (folder / "nvvm" / "libdevice").mkdir(parents=True)
            (folder / "bin").mkdir()
            (folder / "nvvm" / "libdevice" / "libdevice.10.bc").symlink_to(nvidia / "lib" / "libdevice.10.bc")
            for tool in ("ptxas", "cuobjdump", "nvdisasm"):
                (folder / "bin" / tool).symlink_to(nvidia / "bin" / tool)
        return folder
