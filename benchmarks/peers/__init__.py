"""What other compilers would launch on a GPU, found out without one."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks.peers import inductor, xla
from benchmarks.peers.process import Peer


def asked(target: str, folders: Sequence[str]) -> list[Peer]:
    """The other compilers that can be asked here. Raises ValueError if there is none."""
    reasons = {kind: module.unavailable(folders) for module, kind in ((xla, xla.Xla), (inductor, inductor.Inductor))}
    for kind, reason in reasons.items():
        if reason:
            print(f"{kind.name}: {reason}", file=sys.stderr)
    if all(reasons.values()):
        raise ValueError("--peers: a compiler required, none is installed")
    return [kind(target, folders) for kind, reason in reasons.items() if not reason]
