"""Validation: does a program compute what the original does? It refuses to say so when a constant would have passed.

Two oracles judge the outputs: the original run one equation after the other (never `jax.jit`, which rewrites too), and the
original with every float in float64. The program may be as far from the second as a small factor times what the first
is, row by row; not-a-number and infinity must be where the first has them; integers must be equal. Where that fails, the
float64 evaluation is repeated with every value perturbed by its rounding unit: a difference that such perturbations cause
as well is the program's condition, not a mistake.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from eqsat.compare import OutputCheck, ValidationError, array_type, check_equal, compare, complaint, position, same_class, unit
from eqsat.graph import Graph, Variable
from eqsat.inputs import draw
from eqsat.oracle import evaluate_graph
from eqsat.scalars import DTYPES, is_float

if TYPE_CHECKING:
    from eqsat.program import Program

Array = Any

SCALES = (None, 1.0, 8.0)  # of random floats; None: matrices scaled as trained weights are
NOISE = 2**10  # float64's rounding errors over the original's, each in its own unit, are at most this
SAMPLES = 3  # perturbed evaluations where the first comparison fails
SAMPLE = 1 << 16  # elements on which a constant is tried first
SMALL_FLOPS = 2e9  # programs up to this size also run on special values, and twice
SPECIAL = {  # identities of real numbers keep NaN in place, but not what infinities make: (inf - inf) + a, 0 * inf
    "exact": (float("nan"), float("inf"), float("-inf"), 0.0, -0.0),
    "reassociate": (float("nan"), 0.0, -0.0),
}


@dataclass(frozen=True)
class Validation:
    """What was compared, and how close it was."""

    program: str
    numerics: str
    outputs: tuple[OutputCheck, ...]
    kernels: tuple[OutputCheck, ...]
    notes: tuple[str, ...]
    seconds: float

    def __str__(self) -> str:
        lines = [f"{self.program}: validated ({self.numerics}) against op-by-op and float64 evaluation in {self.seconds:.1f} s"]
        lines += _rows("output", self.outputs) + (_rows("kernel output", self.kernels) if self.kernels else [])
        return "\n".join([*lines, *(f"  {n}" for n in self.notes)])


def _rows(title: str, checks: Sequence[OutputCheck]) -> list[str]:
    width = max(len(title), *(len(f"{c.name}: {c.type}") for c in checks)) if checks else len(title)
    lines = [f"  {title:<{width}}  {'worst error':>12}  {'original':>9}  {'largest':>9}  {'of allowed':>10}"]
    for c in checks:
        name = f"{c.name}: {c.type}"
        numbers = f"{c.error:>12.1e}  {c.original_error:>9.1e}  {c.magnitude:>9.1e}  {c.ratio:>10.0%}"
        lines.append(f"  {name:<{width}}  {numbers}{f'  {c.note}' if c.note else ''}")
    return lines


def validate(
    program: Program, args: Sequence[Array] | None = None, seed: int = 0, level: str = "program", *, special: bool | None = None
) -> Validation:
    """Compare `program` with its original on flat arguments `args`, or on random ones drawn from `seed`.

    level: "program" runs the whole program; "kernels" also runs each kernel that is small enough block by block in the
    interpreter, with poisoned outputs. special: also run on NaN, infinities and zeros (default: if the program is small).
    Raises ValidationError where a result is wrong, and where a constant in its place would have passed.
    """
    if level not in ("program", "kernels"):
        raise ValueError(f"level {level!r}: 'program' or 'kernels' required")
    start = time.perf_counter()
    notes: list[str] = []
    small = program.baseline.flops <= SMALL_FLOPS
    kernels: tuple[OutputCheck, ...] = ()
    with program.graph.mode():
        checks = _on_random_inputs(program, args, seed, notes, repeat=small)
        if special or (special is None and small and args is None):
            _on_special_values(program, seed, notes)
        if level == "kernels":
            from eqsat.validate_kernels import check_kernels

            kernels = check_kernels(program, seed, notes)
    return Validation(program.name, program.numerics, checks, kernels, tuple(notes), time.perf_counter() - start)


def _on_random_inputs(
    program: Program, args: Sequence[Array] | None, seed: int, notes: list[str], repeat: bool
) -> tuple[OutputCheck, ...]:
    """Compare all outputs; where a constant would pass, again on inputs of another scale."""
    vacuous: list[str] = []
    for scale in SCALES if args is None else (1.0,):
        flat = draw(program.graph.inputs, seed, scale) if args is None else list(args)
        checks, vacuous = _compare(program, flat, repeat)
        if not vacuous:
            if scale is not SCALES[0] and args is None:
                notes.append(f"inputs of scale {scale:g}: smaller ones gave outputs that a constant would match")
            return checks
    raise ValidationError(
        f"{program.name}: outputs that tell right from wrong required, but a constant would match {', '.join(vacuous)}; "
        "call validate with arguments on which they vary"
    )


def _compare(program: Program, flat: list[Array], repeat: bool) -> tuple[tuple[OutputCheck, ...], list[str]]:
    """Checks of all outputs on these inputs, and the names of those that a constant would match."""
    graph = program.graph
    got = program.run(*map(jnp.asarray, flat))
    if repeat and any(_bits(a) != _bits(b) for a, b in zip(got, program.run(*map(jnp.asarray, flat)), strict=True)):
        raise ValidationError(f"{program.name}: two runs on the same inputs must give the same bits, got different ones")
    judge = Judge(graph, flat)
    dependent = _dependent(graph)
    checks, vacuous = [], []
    for n, (atom, result) in enumerate(zip(graph.outputs, got, strict=True)):
        name = output_name(graph, n)
        checks.append(judge.check(n, name, np.asarray(result)))
        if atom in dependent and judge.vacuous(n):
            if judge.cancels(n):
                checks[-1] = replace(checks[-1], note="zero but for rounding, also in float64")
            else:
                vacuous.append(name)
    return tuple(checks), vacuous


class Judge:
    """Both oracles on one set of inputs, and the comparison."""

    def __init__(self, graph: Graph, flat: list[Array]) -> None:
        self.graph, self.flat = graph, flat
        self.plain = [np.asarray(x) for x in evaluate_graph(graph, flat)]
        self.wide = [np.asarray(x) for x in evaluate_graph(graph, flat, wide=True)]
        self._spread: list[np.ndarray] | None = None

    def check(self, n: int, name: str, got: np.ndarray) -> OutputCheck:
        plain, wide = self.plain[n], self.wide[n]
        if (got.shape, got.dtype) != (plain.shape, plain.dtype):
            raise ValidationError(f"{name}: {array_type(plain)} required, got {array_type(got)}")
        if plain.dtype.kind == "c":
            name, got, plain, wide = f"{name}, real and imaginary parts in turn", parts(got), parts(plain), parts(wide)
        if plain.dtype.name not in DTYPES or not is_float(plain.dtype.name):
            return check_equal(name, got, plain)
        check, place = compare(name, got, plain, wide)
        if place is None:
            return check
        patient, place = compare(name, got, plain, wide, self.spread[n])
        if place is None:
            amplification = patient.error / max(unit(plain.dtype) * patient.magnitude, 1e-300)
            return OutputCheck(**{**vars(patient), "note": f"ill-conditioned here: roundings grow {amplification:.0e}-fold"})
        raise ValidationError(complaint(name, place, got, plain, wide, patient))

    @property
    def spread(self) -> list[np.ndarray]:
        """How far each output moves when every value moves by its rounding unit."""
        if self._spread is None:
            wide = [parts(w) for w in self.wide]
            self._spread = [np.zeros(w.shape) for w in wide]
            for sample in range(SAMPLES):
                moved = evaluate_graph(self.graph, self.flat, wide=True, jitter=sample + 1)
                for n, (m, w) in enumerate(zip(moved, wide, strict=True)):
                    if w.dtype.kind == "f":
                        with np.errstate(all="ignore"):
                            self._spread[n] = np.maximum(self._spread[n], np.nan_to_num(np.abs(parts(np.asarray(m)) - w)))
        return self._spread

    def vacuous(self, n: int) -> bool:
        """True if zeros, or the mean everywhere, would have passed."""
        plain, wide = parts(self.plain[n]), parts(self.wide[n])
        if plain.size == 0 or plain.dtype.name not in DTYPES:
            return False
        if not is_float(plain.dtype.name):
            return plain.size > 1 and bool((plain == plain.flat[0]).all())
        finite = wide[np.isfinite(wide)]
        if finite.size == 0:
            return True
        constants = [0.0] if finite.size == 1 else [0.0, float(finite.mean())]
        return any(_passes(c, *_some_rows(plain, wide)) and _passes(c, plain, wide) for c in constants)

    def cancels(self, n: int) -> bool:
        """True if both oracles give rounding errors of their own precision, as the gradient of a bias of attention's keys.

        What they approach is zero, so that zeros are right. What underflows is as small in both.
        """
        plain, wide = parts(self.plain[n]), parts(self.wide[n])
        if plain.dtype.name not in DTYPES or not is_float(plain.dtype.name) or not np.isfinite(wide).all():
            return False
        noise, value = np.abs(plain.astype(np.float64) - wide).max(), np.abs(wide).max()
        return bool(0 < noise and value <= NOISE * noise * unit(wide.dtype) / unit(plain.dtype))


def parts(array: np.ndarray) -> np.ndarray:
    """Of complex numbers, the real and imaginary parts beside each other in the last dimension; else the array."""
    if array.dtype.kind != "c":
        return array
    return np.stack([array.real, array.imag], -1).reshape(*array.shape[:-1], 2 * array.shape[-1] if array.ndim else 2)


def _passes(constant: float, plain: np.ndarray, wide: np.ndarray) -> bool:
    """True if the constant, wherever the original is finite, would be accepted."""
    fake = np.where(np.isfinite(plain), np.asarray(constant, plain.dtype), plain)
    return compare("", fake, plain, wide)[1] is None


def _some_rows(plain: np.ndarray, wide: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A few rows of both: enough to refuse most constants."""
    if plain.ndim < 2 or plain.size <= SAMPLE:
        return plain, wide
    width = plain.shape[-1]
    rows = slice(None, None, max(1, plain.size // max(width, SAMPLE)))
    return plain.reshape(-1, width)[rows], wide.reshape(-1, width)[rows]


def _bits(array: Array) -> bytes:
    if jnp.issubdtype(array.dtype, jax.dtypes.extended):
        array = jax.random.key_data(array)
    return np.asarray(array).tobytes()


def output_name(graph: Graph, n: int) -> str:
    """The name of output n: its variable's, or its number."""
    atom = graph.outputs[n]
    return f"output {n} ({graph.name_of[atom]})" if isinstance(atom, Variable) else f"output {n}"


def _dependent(graph: Graph) -> set[Any]:
    """The values that depend on an input."""
    found: set[Any] = set(graph.inputs)
    for equation in graph.equations:
        if not found.isdisjoint(equation.inputs):
            found.update(equation.outputs)
    return found - set(graph.inputs)


def _on_special_values(program: Program, seed: int, notes: list[str]) -> None:
    """Not-a-number and infinity must appear where they appear in the original; the fast tier does not promise it.

    Infinities are put in for the exact tier only.
    """
    floats = [v for v in program.graph.inputs if v.dtype in DTYPES and is_float(v.dtype) and np.prod(v.shape, dtype=int)]
    if program.numerics == "fast" or not floats:
        return
    special = SPECIAL[program.numerics]
    rng = np.random.default_rng(seed + 1)
    flat = draw(program.graph.inputs, seed + 1, None)
    for v, array in zip(program.graph.inputs, flat, strict=True):
        if v in floats:
            places = rng.integers(0, array.size, min(len(special), -(-array.size // 8)))
            array.reshape(-1)[places] = np.asarray(special, array.dtype)[rng.permutation(len(special))[: len(places)]]
    got = program.run(*map(jnp.asarray, flat))
    plain = evaluate_graph(program.graph, flat)
    for n, (a, b) in enumerate(zip(got, plain, strict=True)):
        a, b = parts(np.asarray(a)), parts(np.asarray(b))
        if b.dtype.name in DTYPES and is_float(b.dtype.name):
            _same_places(program, output_name(program.graph, n), a.astype(np.float64), b.astype(np.float64))
    notes.append("not-a-number and infinities appear where they do in the original")


def _same_places(program: Program, name: str, got: np.ndarray, plain: np.ndarray) -> None:
    """In the exact tier the kinds agree as well; factoring a sum may turn infinity into not-a-number."""
    right = same_class(got, plain) if program.numerics == "exact" else np.isfinite(got) == np.isfinite(plain)
    wrong = np.flatnonzero(~right.reshape(-1))
    if wrong.size:
        at = int(wrong[0])
        raise ValidationError(
            f"{name}{position(at, plain.shape)}, with special values in the inputs: "
            f"{plain.reshape(-1)[at]:.9g} required (op by op), got {got.reshape(-1)[at]:.9g}"
        )
