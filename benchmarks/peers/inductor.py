"""Inductor for CUDA without CUDA: the kernels that torch.compile would launch, and the bytes they move.

Needs torch (a build for the CPU will do) and Triton, here or in a folder of their own.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

from benchmarks.peers.process import Peer, found


def unavailable(folders: Sequence[str]) -> str:
    """Why Inductor cannot be asked; empty if it can. `folders`: where packages are that are not in this environment."""
    if not found("torch", folders):
        return "torch is not installed"
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    return ""


class Inductor(Peer):
    name = "Inductor"
    module = "benchmarks.peers.inductor_worker"

    def environment(self) -> dict[str, str]:
        return {"TORCHINDUCTOR_CACHE_DIR": self.scratch.name, "TRITON_CACHE_DIR": self.scratch.name}
