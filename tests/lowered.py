"""Kernels for tests: builders, random inputs, and a naive float64 evaluation that lowered kernels are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar
from zlib import crc32

import ml_dtypes  # noqa: F401  registers bfloat16 and float8 with NumPy
import numpy as np

from eqsat.index import Axis, Dynamic, Index, Quotient
from eqsat.interpret import OPERATIONS, interpret
from eqsat.lower import lower
from eqsat.notation import Kernel, Stored, Tensor, Term, cast, const, const_value, load, online, output_axes, pos, reduce, scalar
from eqsat.scalars import DTYPES, REDUCTIONS
from eqsat.schedule import Schedule
from eqsat.tile import Loop, Statement, TileAxis, TileProgram

Array = np.ndarray[Any, Any]
Form = TypeVar("Form", bound=Statement)
F32, BF16 = "float32", "bfloat16"


# --- the meaning of terms, naively ---


class Meaning:
    """Terms as float64 arrays with one dimension for every axis of a kernel."""

    def __init__(self, kernel: Kernel, arrays: dict[Tensor, Array]):
        axes = {a for o in kernel.outputs for a in o.axes} | {b for t in kernel.terms if (b := t.bound) is not None}
        self.axes, self.arrays, self.memo = sorted(axes), arrays, dict[Term, Array]()

    def output(self, output: Stored) -> Array:
        value = np.broadcast_to(self.of(output.term), [a.extent if a in output.axes else 1 for a in self.axes])
        order = sorted(range(len(self.axes)), key=lambda d: (*output.axes, self.axes[d]).index(self.axes[d]))
        return value.transpose(order).reshape(output.shape)

    def of(self, term: Term) -> Array:
        if term not in self.memo:
            self.memo[term] = np.asarray(self.form(term, [self.of(a) for a in term.args]))
        return self.memo[term]

    def index(self, index: Index, operands: Sequence[Array]) -> Array:
        total = np.asarray(index.constant)
        for atom, coefficient in index.terms:
            if isinstance(atom, Axis):
                shape = [-1 if a == atom else 1 for a in self.axes]
                value = np.arange(atom.extent).reshape(shape)
            elif isinstance(atom, Dynamic):
                value = operands[atom.slot].astype(int)
            else:
                inner = self.index(atom.index, operands)
                value = inner // atom.divisor if isinstance(atom, Quotient) else inner % atom.divisor
            total = total + coefficient * value
        return total

    def form(self, term: Term, args: list[Array]) -> Array:
        exact = "float64" if DTYPES[term.dtype].kind == "float" else term.dtype
        match term.head:
            case "const":
                return np.asarray(const_value(term), exact)
            case "pos":
                return self.index(term.data, []).astype(exact)
            case "cast":
                return args[0].astype(exact)
            case "load":
                where = [self.index(i, args) for i in term.indices]
                live = np.all(
                    np.broadcast_arrays(True, *((w >= 0) & (w < n) for w, n in zip(where, term.tensor.shape, strict=True))), 0
                )
                if not term.tensor.size:
                    return np.zeros(live.shape, exact)
                inside = tuple(np.clip(w, 0, max(n - 1, 0)) for w, n in zip(where, term.tensor.shape, strict=True))
                return np.where(live, self.arrays[term.tensor].astype(exact)[inside], np.asarray(0, exact))
            case "reduce":
                return self.fold(REDUCTIONS[term.data[0]].numpy, term.data[1], args[0])
            case "online":
                return self.online(*term.data[:2], *args)
        return np.asarray(OPERATIONS[term.head](*args))

    def online(self, name: str, axis: Axis, s: Array, v: Array) -> Array:
        if name == "deviations":
            mean = self.fold("add", axis, s) / axis.extent
            return self.fold("add", axis, (s - mean) ** 2)
        m = self.fold("minimum" if name == "argmin" else "maximum", axis, s)
        if name == "softmax":
            return self.fold("add", axis, np.exp(s - m) * v)
        return self.fold("minimum", axis, np.where((s == m) | (s != s), v, np.iinfo(v.dtype).max))

    def fold(self, name: str, axis: Axis, array: Array) -> Array:
        d = self.axes.index(axis)
        array = array.reshape((1,) * (len(self.axes) - array.ndim) + array.shape)
        array = np.broadcast_to(array, [axis.extent if i == d else n for i, n in enumerate(array.shape)])
        return np.asarray(getattr(np, name).reduce(array, axis=d, keepdims=True, dtype=array.dtype))


# --- helpers ---


def at(tensor: Tensor, *index: Index | Axis | int) -> Term:
    return load(tensor, map(Index.of, index))


def f32(term: Term) -> Term:
    return cast(F32, term)


def op(name: str, *args: Term | float) -> Term:
    """A scalar operation; numbers take the dtype of the terms."""
    dtype = next(a.dtype for a in reversed(args) if isinstance(a, Term))
    return scalar(name, *(a if isinstance(a, Term) else const(a, dtype) for a in args))


def cumulated(name: str, axis: Axis, term: Term, reverse: bool = False) -> Term:
    """The running fold along `axis` of a term over r0."""
    r = Axis("r0", axis.extent)
    mask = op("ge" if reverse else "le", pos(Index.of(r), "int32"), pos(Index.of(axis), "int32"))
    return reduce(name, r, scalar("where", mask, term, const(REDUCTIONS[name].identity(term.dtype), term.dtype)))


def exponentials(n: int, reverse: bool, weighted: bool) -> Kernel:
    """Running log-sum-exps of rows; or running means of `w` with the exponentials as weights."""
    x, w, (i, j), r = Tensor("x", (3, n), F32), Tensor("w", (3, n), F32), axes_of(3, n), Axis("r0", n)
    mask = op("ge" if reverse else "le", pos(Index.of(r), "int32"), pos(Index.of(j), "int32"))
    s = op("where", mask, at(x, i, r), float("-inf"))
    total = online(r, s, const(1, F32), F32)
    if weighted:
        term = op("div", online(r, s, at(w, i, r), F32), total)
    else:
        largest = reduce("max", r, s)
        finite = op("lt", op("abs", largest), float("inf"))
        term = op("where", finite, op("add", largest, op("log", total)), largest)
    return Kernel("exponentials", (stored("y", (3, n), term),), exact=not weighted)


def stored(name: str, shape: tuple[int, ...], term: Term, axes: Sequence[Axis] | None = None) -> Stored:
    return Stored(name, shape, term.dtype, term, tuple(axes) if axes is not None else output_axes(shape))


def axes_of(*shape: int) -> list[Axis]:
    return [Axis(f"x{d}", n) for d, n in enumerate(shape)]


def power(extent: int) -> int:
    return 1 << max(extent - 1, 0).bit_length()


def schedule(kernel: Kernel, swizzle: int = 1, **tiles: Any) -> Schedule:
    """Tiles by axis name: a number (grid for outputs, loop for reductions), "loop 16" or "resident"."""
    bound = dict.fromkeys(b for t in kernel.terms if (b := t.bound) is not None)
    chosen = []
    for axis in (*kernel.axes, *bound):
        spec = str(tiles.get(axis.name, 16))
        role, *tile = spec.split() if not spec.isdigit() else ("loop" if axis in bound else "grid", spec)
        chosen.append(TileAxis(axis, int(tile[0]) if tile else power(axis.extent), role))
    return Schedule(tuple(t for t in chosen if t.axis.extent != 1), group=swizzle)


def generator() -> np.random.Generator:
    return np.random.default_rng(0)


def random(tensor: Tensor) -> Array:
    """The same values for the same tensor in every run."""
    numbers, kind = np.random.default_rng(crc32(str(tensor).encode())), DTYPES[tensor.dtype].kind
    if kind == "float":
        return numbers.standard_normal(tensor.shape).astype(tensor.dtype)
    if kind == "bool":
        return numbers.random(tensor.shape) < 0.8
    return numbers.integers(0 if kind == "uint" else -9, 9, tensor.shape).astype(tensor.dtype)


def statements(program: TileProgram, form: type[Form]) -> list[Form]:
    return [s for s in program.statements() if isinstance(s, form)]


def names(body: Sequence[Statement], seen: frozenset[str] = frozenset()) -> set[str]:
    """The names of all values; those that are seen together differ, while loops side by side may use the same ones."""
    found: set[str] = set()
    for s in body:
        own = [c.final.name for c in s.carries] if isinstance(s, Loop) else [s.out.name] if hasattr(s, "out") else []
        if isinstance(s, Loop):
            states = [c.state.name for c in s.carries]
            assert len(set(states) - seen) == len(states), states
            found |= names(s.body, seen | set(states)) | set(states)
        assert len(set(own) - seen) == len(own), own
        seen, found = seen | set(own), found | set(own)
    return found


def check(kernel: Kernel, plan: Schedule, given: dict[Tensor, Array] | None = None, tolerance: float = 2e-5) -> TileProgram:
    """Lower, interpret and compare with the meaning of the terms; `given` are inputs that may not be random."""
    program = lower(kernel, plan)
    found = names(program.body)
    forbidden = {t.name for t in (*program.inputs, *program.outputs)} | {t.axis.name for t in program.axes}
    assert not forbidden & found and all(n.isidentifier() for n in found)
    arrays = {t: random(t) for t in kernel.inputs} | (given or {})
    results = interpret(program, [arrays[t] for t in program.inputs])
    meaning = Meaning(kernel, arrays)
    with np.errstate(all="ignore"):
        for output, result in zip(kernel.outputs, results, strict=True):
            wanted = meaning.output(output).astype("float64")
            scale = np.max(np.abs(wanted), where=np.isfinite(wanted), initial=1.0)
            np.testing.assert_allclose(
                result.astype("float64"), wanted, rtol=tolerance, atol=tolerance * scale, err_msg=str(output)
            )
    return program
