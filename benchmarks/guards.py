"""Guards: a result counts only if no known way to fake one explains it.

`Watch` looks at every run of an engine: what it returns must be finished arrays of the right type, made from these inputs.
`verdict` compares outputs with both oracles (see `eqsat.validate`) and, where they differ, says what was done instead.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from eqsat.compare import ValidationError
from eqsat.graph import Graph
from eqsat.validate import Judge, output_name

Array = Any
CHANGED = "inputs changed"
TILE = 0.5  # an output of which at most this share is wrong, in one piece at the end, was not written to the end


@dataclass(frozen=True)
class Finding:
    """What is wrong with an engine's result: a word for tables, and a sentence."""

    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


def shape_of(atom: Any) -> tuple[int, ...]:
    """Of an output: a variable, or a scalar literal."""
    return tuple(getattr(atom, "shape", ()))


def digest(array: np.ndarray) -> str:
    return hashlib.blake2b(np.ascontiguousarray(array).view(np.uint8).tobytes(), digest_size=16).hexdigest()


@dataclass
class Watch:
    """What one engine returned so far."""

    graph: Graph
    seen: dict[tuple[str, ...], tuple[str, ...]] = field(default_factory=dict)  # outputs -> inputs
    previous: list[np.ndarray] | None = None

    def observe(self, flat: Sequence[Array], before: Sequence[str], outputs: Any) -> list[Finding]:
        """Findings of one run; `before`: digests of the inputs as they were drawn."""
        types = self._types(outputs)
        if types:
            return types
        arrays = [np.asarray(o) for o in outputs]
        found = self._inputs_kept(flat, before)
        key, inputs = tuple(digest(a) for a in arrays), tuple(before)
        if self.seen.setdefault(key, inputs) != inputs and self.varies(arrays):
            found.append(Finding("stale", "the same bits as for other inputs"))
        return found

    def remember(self, outputs: Sequence[Array]) -> None:
        """Keep what a run returned: memory that is not written often holds it."""
        self.previous = [np.array(o) for o in outputs]

    def varies(self, arrays: Sequence[np.ndarray]) -> bool:
        """False where outputs are so few or so coarse that two runs may agree by chance."""
        return any(not _constant(a) and a.any() and (a.size > 64 or a.dtype.kind == "f" and a.itemsize > 2) for a in arrays)

    def _types(self, outputs: Any) -> list[Finding]:
        wanted = self.graph.outputs
        if not isinstance(outputs, list | tuple) or len(outputs) != len(wanted):
            return [Finding("wrong type", f"a list of {len(wanted)} arrays required")]
        found = []
        for n, (o, atom) in enumerate(zip(outputs, wanted, strict=True)):
            name, extents = output_name(self.graph, n), shape_of(atom)
            if not isinstance(o, np.ndarray | jax.Array) or isinstance(o, jax.core.Tracer):
                found.append(Finding("unfinished", f"{name}: an array required, got {type(o).__name__}"))
            elif (tuple(o.shape), str(o.dtype)) != (extents, str(atom.dtype)):
                required = f"{atom.dtype}{list(extents)}"
                found.append(Finding("wrong type", f"{name}: {required} required, got {o.dtype}{list(o.shape)}"))
        return found

    def _inputs_kept(self, flat: Sequence[Array], before: Sequence[str]) -> list[Finding]:
        for n, (array, was) in enumerate(zip(flat, before, strict=True)):
            if getattr(array, "is_deleted", lambda: False)() or digest(np.asarray(array)) != was:
                return [Finding(CHANGED, f"input {n} is not what it was before the run")]
        return []


def verdict(judge: Judge, outputs: Sequence[Array], previous: Sequence[np.ndarray] | None = None) -> tuple[list[Finding], float]:
    """What is wrong with outputs of the right types, and the worst share of the allowed error that was used."""
    found, worst = [], 0.0
    for n, o in enumerate(outputs):
        got, name = np.asarray(o), output_name(judge.graph, n)
        old = previous[n] if previous is not None else None
        try:
            worst = max(worst, judge.check(n, name, got).ratio)
        except ValidationError as error:
            found.append(Finding(_explanation(judge, n, got, old), str(error)))
        else:
            if _constant(got) and not _constant(judge.plain[n]):
                found.append(Finding(_named_constant(got), f"{name}: within the tolerance, but the same everywhere"))
    return found, worst


def nothing_shown(judge: Judge) -> list[str]:
    """The outputs on which a constant would pass as well: they say nothing about an engine."""
    return [output_name(judge.graph, n) for n in range(len(judge.plain)) if judge.vacuous(n)]


def _explanation(judge: Judge, n: int, got: np.ndarray, previous: np.ndarray | None) -> str:
    """The likeliest cause of a wrong output."""
    plain = judge.plain[n]
    if got.size > 1 and _constant(got):
        return _named_constant(got)
    if previous is not None and _same(got, previous):
        return "stale"
    if any(np.shape(x) == got.shape and _same(got, np.asarray(x)) for x in judge.flat):
        return "input returned"
    wrong = _wrong_places(judge, n, got)
    if 0 < wrong.mean() <= TILE and _unwritten(got, previous, wrong):
        return "unwritten"
    if plain.dtype.kind == "f" and _close(got, plain):
        return "tolerance"
    return "wrong"


def _wrong_places(judge: Judge, n: int, got: np.ndarray) -> np.ndarray:
    plain, wide = judge.plain[n].astype(np.float64), judge.wide[n].astype(np.float64)
    size = np.abs(plain[np.isfinite(plain)]).max(initial=0.0)
    with np.errstate(all="ignore"):
        return ~((np.abs(got.astype(np.float64) - wide) <= 1e-3 * size) | (got.astype(np.float64) == plain))


def _unwritten(got: np.ndarray, previous: np.ndarray | None, wrong: np.ndarray) -> bool:
    """The wrong elements hold poison, zeros or what was there before."""
    values = got[wrong]
    poison = ~np.isfinite(values.astype(np.float64)) | (values == 0)
    old = (values == previous[wrong]) if previous is not None else np.zeros(values.shape, bool)
    return bool((poison | old).all())


def _close(got: np.ndarray, plain: np.ndarray) -> bool:
    """What a lax absolute tolerance would accept."""
    with np.errstate(all="ignore"):
        return bool(np.allclose(got.astype(np.float64), plain.astype(np.float64), rtol=2e-2, atol=2e-2, equal_nan=True))


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and digest(a) == digest(b)


def _constant(a: np.ndarray) -> bool:
    return a.size > 1 and bool((a == a.flat[0]).all() or (a != a).all())


def _named_constant(a: np.ndarray) -> str:
    return "zeros" if a.flat[0] == 0 else "unwritten" if not np.isfinite(np.asarray(a.flat[0], float)) else "constant"


def too_fast(seconds: float, floor: float) -> list[Finding]:
    """Nothing can be faster than its roofline floor; if it is, the clock or the result is wrong."""
    if seconds >= floor:
        return []
    return [Finding("too fast", f"{seconds * 1e6:.1f} us, below the floor of {floor * 1e6:.1f} us")]
