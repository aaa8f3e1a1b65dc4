"""What a graph holds, in numbers: the import report of every front end."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from eqsat.graph import Graph


@dataclass(frozen=True)
class Summary:
    """Counts of a graph. `calls` are what stays with JAX: operation, reason, count; `constants` largest first, in bytes."""

    name: str
    equations: int
    views: int
    operations: dict[str, int]
    calls: tuple[tuple[str, str, int], ...]
    constants: tuple[tuple[str, str, int], ...]  # name, type, bytes
    constant_bytes: int
    symbols: tuple[str, ...]  # sizes that are not numbers

    def to_dict(self) -> dict[str, Any]:
        """The same for JSON."""
        calls = [{"operation": name, "reason": reason, "count": n} for name, reason, n in self.calls]
        constants = [{"name": name, "type": kind, "bytes": n} for name, kind, n in self.constants]
        return {**asdict(self), "calls": calls, "constants": constants, "symbols": list(self.symbols)}

    def __str__(self) -> str:
        called = sum(n for *_, n in self.calls)
        lines = [f"{self.equations} equations, {self.views} of them views, {called} calls of JAX"]
        lines += [f"{n:>6}  {name}" for name, n in self.operations.items()]
        if self.calls:
            lines += ["", "calls of JAX", *(f"{n:>6}  {name}: {reason}" for name, reason, n in self.calls)]
        if self.constants:
            lines += ["", f"{len(self.constants)} constants, {_bytes(self.constant_bytes)}"]
            lines += [f"{_bytes(n):>10}  {name}: {kind}" for name, kind, n in self.constants[:SHOWN]]
            lines += [f"            and {len(self.constants) - SHOWN} smaller ones"] * (len(self.constants) > SHOWN)
        if self.symbols:
            lines += ["", f"symbolic sizes: {', '.join(self.symbols)}"]
        return "\n".join(lines)


SHOWN = 10  # constants


def _bytes(count: int) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}" if unit != "B" else f"{count} B"
        count /= 1000  # type: ignore[assignment]
    return f"{count:.3g} GB"


def summary(graph: Graph) -> Summary:
    """The counts of a graph; what stays a call is what `eqsat.read` finds no reading for."""
    from eqsat.read import read

    reading = read(graph)
    calls = Counter((c.name, c.reason) for c in reading.calls).most_common()
    sized = [(graph.name_of[v], v.type, _nbytes(v)) for v in graph.constants]
    variables = [*graph.inputs, *(v for e in graph.equations for v in e.outputs)]
    symbols = {str(n): None for v in variables for n in getattr(v.aval, "shape", ()) if not isinstance(n, int)}
    return Summary(
        graph.name,
        len(graph.equations),
        reading.views,
        dict(Counter(e.name for e in graph.equations).most_common()),
        tuple((name, reason, n) for (name, reason), n in calls),
        tuple(sorted(sized, key=lambda c: -c[2])),
        sum(n for *_, n in sized),
        tuple(symbols),
    )


def _nbytes(variable: Any) -> int:
    size = getattr(variable.aval.dtype, "itemsize", 0)
    return int(np.prod(variable.shape, dtype=np.int64)) * size if all(isinstance(n, int) for n in variable.shape) else 0
