"""XLA:GPU without a GPU: launches and bytes of every workload at its full size.

Needs the packages jax-cuda13-plugin and jax-cuda13-pjrt of JAX's own version (installed with ``--no-deps``, here or in a folder
of their own), and Triton's wheel for libdevice. The compiler runs in a process of its own.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path

import jax

from benchmarks.peers.process import Peer, found

PACKAGES = ("jax-cuda13-plugin", "jax-cuda13-pjrt")


def unavailable(folders: Sequence[str]) -> str:
    """Why XLA:GPU cannot be asked; empty if it can. `folders`: where packages are that are not in this environment."""
    if not found("jax_plugins/xla_cuda13", folders):
        wanted = " ".join(f"{p}=={jax.__version__}" for p in PACKAGES)
        return f"not installed: pip install --no-deps --target FOLDER {wanted}, then --peers FOLDER"
    if importlib.util.find_spec("triton") is None:
        return "triton, whose wheel has libdevice, is not installed"
    return ""


class Xla(Peer):
    """XLA:GPU, with its own kernels for products, and with the library's."""

    name = "XLA:GPU"
    module = "benchmarks.peers.xla_worker"

    def arguments(self) -> list[str]:
        return [self.card, str(self._dump())]

    def environment(self) -> dict[str, str]:
        flags = f"--xla_gpu_cuda_data_dir={self._cuda_folder()} --xla_dump_to={self._dump()} --xla_dump_hlo_as_text=true"
        return {"JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1", "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}"}

    def _dump(self) -> Path:
        folder = Path(self.scratch.name) / "dump"
        folder.mkdir(exist_ok=True)
        return folder

    def _cuda_folder(self) -> Path:
        """A CUDA data directory made of links to what Triton's wheel carries."""
        triton = importlib.util.find_spec("triton")
        assert triton is not None and triton.origin is not None
        nvidia, folder = Path(triton.origin).parent / "backends" / "nvidia", Path(self.scratch.name) / "cuda"
        if not folder.exists():
            (folder / "nvvm" / "libdevice").mkdir(parents=True)
            (folder / "bin").mkdir()
            (folder / "nvvm" / "libdevice" / "libdevice.10.bc").symlink_to(nvidia / "lib" / "libdevice.10.bc")
            for tool in ("ptxas", "cuobjdump", "nvdisasm"):
                (folder / "bin" / tool).symlink_to(nvidia / "bin" / tool)
        return folder
