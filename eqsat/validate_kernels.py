"""Validation of single kernels: each tile program in the interpreter, its outputs poisoned, against the meaning of its terms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from eqsat.compare import OutputCheck, ValidationError, check_equal, compare, complaint
from eqsat.evaluate import evaluate
from eqsat.inputs import draw
from eqsat.interpret import interpret
from eqsat.lower import lower
from eqsat.notation import Kernel, Stored, Tensor, Term
from eqsat.scalars import DTYPES, is_float
from eqsat.tile import TileProgram
from eqsat.validate import SAMPLES

if TYPE_CHECKING:
    from eqsat.program import PlannedKernel, Program

MAX_POINTS = 1 << 23  # of the iteration space
MAX_TILES = 1 << 11  # of the grid


def check_kernels(program: Program, seed: int, notes: list[str]) -> tuple[OutputCheck, ...]:
    """Checks of every distinct kernel that is small enough; the others are named in `notes`."""
    checks: list[OutputCheck] = []
    skipped = []
    for number, planned in enumerate(program.kernels):
        if planned.schedule is None or points(planned.kernel) > MAX_POINTS:
            skipped.append(planned.name)
            continue
        tiles = lower(planned.kernel, planned.schedule)
        if tiles.tile_count > MAX_TILES:
            skipped.append(planned.name)
            continue
        checks += _check(planned, tiles, seed + number)
    if skipped:
        notes.append(f"too large for the interpreter: {', '.join(skipped)}")
    return tuple(checks)


def points(kernel: Kernel) -> int:
    """Points of the largest iteration space in the kernel."""
    return max(prod(a.extent for a in kernel.axes) * _folded(kernel.terms), 1)


def _check(planned: PlannedKernel, tiles: TileProgram, seed: int) -> list[OutputCheck]:
    arrays = draw(tiles.inputs, seed, None)
    return check_outputs(planned, dict(zip(tiles.inputs, arrays, strict=True)), interpret(tiles, arrays))


def check_outputs(planned: PlannedKernel, given: Mapping[Tensor, Any], results: Sequence[Any]) -> list[OutputCheck]:
    """Results of a kernel, whoever ran it, against the meaning of its terms; raises ValidationError where one is wrong."""
    checks = []
    for o, result in zip(planned.kernel.outputs, results, strict=True):
        name = f"kernel {planned.name}, {o.name}"
        result = np.asarray(result).reshape(o.shape)
        plain = np.asarray(evaluate(o.term, o.axes, given, np)).reshape(o.shape)
        if not is_float(o.dtype):
            checks.append(check_equal(name, result, plain))
            continue
        wide = np.asarray(evaluate(o.term, o.axes, given, widen=True)).reshape(o.shape)
        check, place = compare(name, result, plain, wide)
        if place is not None:
            check, place = compare(name, result, plain, wide, _spread(o, given, wide))
        if place is not None:
            raise ValidationError(complaint(name, place, result, plain, wide, check))
        checks.append(check)
    return checks


def _folded(terms: Iterable[Term]) -> int:
    """Points over which the reductions among the terms go together."""
    return prod(a.extent for a in {t.bound for t in terms if t.bound is not None})


def _spread(stored: Stored, given: Mapping[Tensor, Any], wide: np.ndarray) -> np.ndarray:
    """How far each row of an output moves when every float that is read moves by the rounding unit of the dtype computed in.

    In float64 both oracles round alike, so that their difference says nothing about sums in another order: there the unit
    grows as a random walk does, with the square root of the points reduced over, for each partial sum is rounded too.
    """
    rng, compute = np.random.default_rng(0), DTYPES[stored.dtype].compute
    eps = float(jnp.finfo(compute).eps) * (_folded(stored.term.walk()) ** 0.5 if compute == "float64" else 1)
    spread = np.zeros(wide.shape)
    for _ in range(SAMPLES):
        moved = {
            t: np.asarray(a, np.float64) * (1 + eps / 2 * rng.uniform(-1, 1, t.shape)) if is_float(t.dtype) else a
            for t, a in given.items()
        }
        there = np.asarray(evaluate(stored.term, stored.axes, moved, widen=True)).reshape(wide.shape)
        with np.errstate(invalid="ignore"):
            spread = np.maximum(spread, np.nan_to_num(np.abs(there - wide)))
    return np.broadcast_to(spread.max(axis=-1, keepdims=True), spread.shape) if spread.size and spread.ndim else spread
