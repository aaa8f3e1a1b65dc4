"""The process that compiles with XLA:GPU: requests on standard input, one JSON line of launches and bytes for each.

Run by `benchmarks.peers.xla`, which sets the environment that the compiler reads once, when it starts.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

from benchmarks.peers.cards import target_config
from benchmarks.peers.hlo import library_nbytes
from benchmarks.peers.process import serve
from benchmarks.workloads import Size, workloads

THUNK = re.compile(r"^\d+: (k\w+)\s*\[[^\]]*\] (\S+)", re.M)
SILENT = {"kSequential", "kWhile", "kConditional", "kGetTupleElement", "kReplicaId", "kPartitionId"}


class Compiler:
    """Compiles for one card, and reads what XLA says about the result."""

    def __init__(self, card: str, dump: Path) -> None:
        topology = topologies.get_topology_desc(
            platform="cuda", topology_name="x", target_config=target_config(card), topology="1x1x1"
        )
        self.device, self.dump = topology.devices[0], dump

    def routes(self, size: Size) -> dict[str, Any]:
        """Products by XLA's own kernels, and by the library: on a card, its autotuner chooses for each product."""
        return {"XLA:GPU": self.compiled(size, True), "XLA:GPU, library products": self.compiled(size, False)}

    def compiled(self, size: Size, own: bool, donate: Sequence[int] = ()) -> dict[str, Any]:
        sharding = SingleDeviceSharding(self.device)
        args = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=sharding), size.args)
        seen = set(self.dump.glob("*thunk_sequence.txt"))
        with jax.default_device(self.device):
            fn = lambda *xs: size.fn(*xs)  # noqa: E731  a new function: one met before would not be compiled again
            lowered = jax.jit(fn, donate_argnums=tuple(donate)).lower(*args)
        compiled = lowered.compile(compiler_options={"xla_gpu_enable_triton_gemm": own})
        new = set(self.dump.glob("*thunk_sequence.txt")) - seen
        text = max(new, key=lambda p: p.stat().st_size).read_text()
        found = [(kind, name) for kind, name in THUNK.findall(text) if kind not in SILENT]
        cost = cost_analysis(compiled)
        for path in self.dump.iterdir():
            path.unlink()
        return {
            "launches": len(found),
            "nbytes": int(cost.get("bytes accessed", 0.0)) + library_nbytes(compiled.as_text() or ""),
            "kernels": [f"{kind} {name}" for kind, name in found],
        }


def cost_analysis(compiled: Any) -> dict[str, float]:
    """XLA's count for the optimised program: every kernel's inputs and outputs. JAX gives it no public name."""
    client = jax.devices("cpu")[0].client
    (module,) = compiled.runtime_executable().hlo_modules()
    return dict(sys.modules[type(client).__module__].hlo_module_cost_analysis(client, module))


def main() -> None:
    compiler, known = Compiler(sys.argv[1], Path(sys.argv[2])), {w.name: w for w in workloads()}
    serve(lambda name: compiler.routes(known[name].full))


if __name__ == "__main__":
    main()
