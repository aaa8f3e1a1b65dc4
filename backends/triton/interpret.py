"""Run an emitted kernel on NumPy arrays with Triton's own interpreter, beside the compiler and without a GPU or torch.

`check=True` is a sanitizer: it reports accesses outside arrays (as KernelFault), bytes that two programs both store,
output bytes that none stores, and the traffic of every array; lanes that a masked load leaves undefined read NaN.

Triton 3.9's interpreter computes on the bit patterns of bfloat16 numbers and truncates when it makes them; the builder
methods below replace those that do, for the length of a run.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any, Protocol

import ml_dtypes
import numpy as np
import triton.language as tl
from numpy.typing import DTypeLike, NDArray
from scipy import special
from triton._utils import canonicalize_dtype
from triton.runtime import interpreter as ti
from triton.runtime.interpreter import FunctionRewriter, InterpreterBuilder, TensorHandle
from triton.runtime.jit import JITFunction

from .source import kernel, load

Array = NDArray[Any]

SECTOR = 32  # bytes that DRAM and L2 move at least
MAX_REPORTED = 5


class KernelFault(Exception):
    """A kernel touched memory that is not its own."""


class OutputSpec(Protocol):
    """Shape and dtype of an output: a `notation.Tensor`, a `jax.ShapeDtypeStruct` or an array will do."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> Any: ...


@dataclass(frozen=True)
class Report:
    """What a checked run saw. Numbers are bytes by parameter name; `unique` counts a byte once however often it is moved."""

    loaded: dict[str, int]
    stored: dict[str, int]
    unique_loaded: dict[str, int]
    unique_stored: dict[str, int]
    unwritten: dict[str, int]  # output bytes that no program stored
    races: dict[str, int]  # elements stored by two programs
    sector_efficiency: dict[str, float]  # "load", "store": useful over moved 32-byte sectors, 1 if coalesced

    @property
    def ok(self) -> bool:
        """No race; with all programs run, nothing unwritten either."""
        return not self.races and not any(self.unwritten.values())


def run(
    source: str,
    inputs: Sequence[Array],
    output_specs: Sequence[OutputSpec],
    programs: Iterable[int] | None = None,
    check: bool = False,
) -> tuple[list[Array], Report | None]:
    """Run all programs of the emitted text, or only those numbered in `programs`, and return the outputs.

    Outputs start as NaN, integers as a bit pattern, so that what no program stores shows; one that is written in the buffer of an
    input starts as that, one that is added to as zeros. With `check` the second
    result is a Report, else None.
    """
    module = load(source)
    given = [np.ascontiguousarray(a).reshape(np.shape(a)) for a in inputs]
    in_place = getattr(module, "IN_PLACE", {})
    zeroed = getattr(module, "ZEROED", ())
    outputs = [
        given[in_place[n]].copy() if n in in_place else (np.zeros if n in zeroed else poisoned)(spec.shape, spec.dtype)
        for n, spec in enumerate(output_specs)
    ]
    arrays = given + outputs
    function = kernel(module)
    named = dict(zip(inspect.signature(function.fn).parameters, arrays, strict=True))
    written = [name for n, name in enumerate(list(named)[len(inputs) :]) if n not in in_place and n not in zeroed]
    recorder = Recorder(named, written) if check else None
    with _lock, np.errstate(all="ignore"), _interpreting(module, recorder):
        _run_programs(function, named, range(module.GRID[0]) if programs is None else programs, module.GRID[0], recorder)
    return outputs, recorder.report() if recorder else None


def poisoned(shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """An array that no kernel has written: NaN, or the bytes A5, or True for bools."""
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return np.ones(shape, kind)
    if kind.kind in "iu":
        return np.frombuffer(b"\xa5" * kind.itemsize, kind).repeat(math.prod(shape)).reshape(shape)
    return np.full(shape, np.nan, kind)


def _run_programs(function: Any, named: dict[str, Array], programs: Iterable[int], count: int, recorder: Recorder | None) -> None:
    rewritten = _rewrite(function.fn)
    arguments = {name: ti._implicit_cvt(_Pointer(array)) for name, array in named.items()}
    ti.interpreter_builder.set_grid_dim(count, 1, 1)
    for number in programs:
        ti.interpreter_builder.set_grid_idx(number, 0, 0)
        if recorder is not None:
            recorder.program = number
        rewritten(**arguments)


# --- what a checked run records ---------------------------------------------------------------------------------------


@dataclass
class _Traffic:
    """One array: its address range, and for every byte whether it was loaded and who stored it (program + 1; 0: nobody).

    Maps and counts of a huge array take memory and time for what is touched of it alone.
    """

    name: str
    array: Array
    start: int = field(init=False)
    end: int = field(init=False)
    loaded: int = 0
    stored: int = 0
    unique_loaded: int = 0
    unique_stored: int = 0
    races: int = 0

    def __post_init__(self) -> None:
        self.start = self.array.ctypes.data
        self.end = self.start + self.array.nbytes
        self.seen = np.zeros(self.array.nbytes, bool)
        self.writer = np.zeros(self.array.nbytes, np.int32)

    def load(self, offsets: Array, size: int) -> None:
        self.loaded += len(offsets) * size
        touched = _bytes_of(offsets, size)
        self.unique_loaded += int((~self.seen[touched]).sum())
        self.seen[touched] = True

    def store(self, offsets: Array, size: int, program: int, adds: bool) -> None:
        """Programs that add to the same place are no race."""
        self.stored += len(offsets) * size
        touched = _bytes_of(offsets, size)
        before = self.writer[touched]
        self.unique_stored += int((before == 0).sum())
        self.races += 0 if adds else int(((before > 0) & (before != program + 1)).sum()) // size
        self.writer[touched] = program + 1


def _bytes_of(offsets: Array, size: int) -> Array:
    return (np.unique(offsets)[:, None] + np.arange(size)).ravel()


class Recorder:
    """Follows every access of a run."""

    def __init__(self, arrays: dict[str, Array], outputs: Sequence[str]) -> None:
        self.traffic = [_Traffic(name, array) for name, array in arrays.items()]
        self.outputs = outputs
        self.program = 0
        self.sectors = {"load": [0, 0], "store": [0, 0]}

    def access(self, kind: str, addresses: Array, mask: Array, size: int, adds: bool = False) -> None:
        live = addresses[np.broadcast_to(mask, addresses.shape).astype(bool)].astype(np.int64).ravel()
        if not live.size:
            return
        moved = self.sectors[kind]
        moved[0] += len(np.unique(live // SECTOR))
        moved[1] += max(1, -(-len(np.unique(live)) * size // SECTOR))
        for t in self.traffic:
            inside = (live >= t.start) & (live + size <= t.end)
            if inside.any():
                offsets, live = live[inside] - t.start, live[~inside]
                t.load(offsets, size) if kind == "load" else t.store(offsets, size, self.program, adds)
        if live.size:
            raise KernelFault(self.fault(kind, live))

    def fault(self, kind: str, stray: Array) -> str:
        first = int(stray[0])
        near = min(self.traffic, key=lambda t: min(abs(first - t.start), abs(first - t.end)))
        return (
            f"{kind} out of bounds: {stray.size} lanes in program {self.program}, the first at byte {first - near.start} "
            f"of {near.name}, which has {near.array.nbytes}"
        )

    def report(self) -> Report:
        def counts(values: Iterable[tuple[_Traffic, int]]) -> dict[str, int]:
            return {t.name: n for t, n in values if n}

        every = self.traffic
        return Report(
            loaded=counts((t, t.loaded) for t in every),
            stored=counts((t, t.stored) for t in every),
            unique_loaded=counts((t, t.unique_loaded) for t in every),
            unique_stored=counts((t, t.unique_stored) for t in every),
            unwritten=counts((t, t.array.nbytes - t.unique_stored) for t in every if t.name in self.outputs),
            races=counts((t, t.races) for t in every),
            sector_efficiency={kind: useful / moved for kind, (moved, useful) in self.sectors.items() if moved},
        )


# --- the interpreter, corrected and observed --------------------------------------------------------------------------

_lock = threading.Lock()  # the interpreter patches Triton's language for the whole process
_rewritten: dict[Callable[..., Any], Callable[..., Any]] = {}

_PACKED = {tl.bfloat16: ml_dtypes.bfloat16, tl.float8e4nv: ml_dtypes.float8_e4m3fn, tl.float8e5: ml_dtypes.float8_e5m2}


class _Pointer:
    """The few attributes of a torch tensor that the interpreter asks for."""

    def __init__(self, array: Array) -> None:
        self.array, self.shape, self.dtype = array, array.shape, canonicalize_dtype(array.dtype.name)

    def data_ptr(self) -> int:
        return int(self.array.ctypes.data)


def _rewrite(function: Callable[..., Any]) -> Callable[..., Any]:
    if function not in _rewritten:
        _rewritten[function] = FunctionRewriter(function).rewrite_ast()
    return _rewritten[function]


@contextlib.contextmanager
def _interpreting(module: ModuleType, recorder: Recorder | None) -> Iterator[None]:
    """Triton's language on NumPy arrays; everything is put back on leaving, so that the compiler works as before."""
    scope = ti._patch_lang(_language_anchor)
    call = JITFunction.__call__
    builder = {name: getattr(InterpreterBuilder, name) for name in _replacements(recorder)}
    reduce_apply = ti.ReduceOps.generic_reduce
    replaced: dict[str, Any] = {"range": _range, "libdevice": _LIBDEVICE}
    outer = {name: vars(module)[name] for name in replaced if name in vars(module)}
    try:
        JITFunction.__call__ = lambda self, *args, **kwargs: _rewrite(self.fn)(*args, **kwargs)  # tl.max, tl.sum, helpers
        ti.ReduceOps.generic_reduce = _fold
        for name, method in _replacements(recorder).items():
            setattr(InterpreterBuilder, name, method)
        vars(module).update(replaced)
        yield
    finally:
        for name in replaced:
            vars(module).pop(name, None)
        vars(module).update(outer)
        for name, method in builder.items():
            setattr(InterpreterBuilder, name, method)
        ti.ReduceOps.generic_reduce = reduce_apply
        JITFunction.__call__ = call
        scope.restore()


def _language_anchor() -> Any:
    """A function whose globals name the modules that `_patch_lang` shall patch."""
    return tl


_language_anchor.__globals__.setdefault("core", tl.core)


def _range(*bounds: Any) -> Iterator[Any]:
    """A loop counter is an int32 of the language, as it is in compiled code, not a Python number."""
    return (_tensor(np.array([i], np.int32), tl.int32) for i in range(*map(int, bounds)))


def _tensor(data: Array, dtype: Any) -> Any:
    return tl.tensor(TensorHandle(data, dtype), dtype)


def _decoded(handle: Any) -> Array:
    """The numbers of a handle: packed floats as float32."""
    packed = _PACKED.get(handle.dtype.scalar)
    data: Array = handle.data
    return data if packed is None else data.view(packed).astype(np.float32)


def _encoded(data: Array, dtype: Any) -> Any:
    """A handle of packed floats, rounded to nearest."""
    packed = _PACKED[dtype]
    return TensorHandle(data.astype(packed).view(f"u{np.dtype(packed).itemsize}"), dtype)


def _cast(self: Any, source: Any, target: Any) -> Any:
    from_type, to_type = source.dtype.scalar, target.scalar
    if from_type == to_type or not (from_type in _PACKED or to_type in _PACKED):
        return _STOCK["cast_impl"](self, source, target)
    data = _decoded(source)
    if to_type in _PACKED:
        return _encoded(data.astype(np.float32), to_type)
    return TensorHandle(data.astype(ti._get_np_dtype(to_type)), to_type)


def _float_cast(self: Any, source: Any, target: Any, rounding: Any) -> Any:
    if rounding in (None, ti._ir.ROUNDING_MODE.RTNE):
        return _cast(self, source, target)
    return _STOCK["create_fp_to_fp"](self, source, target, rounding)


def _binary(self: Any, left: Any, right: Any, operation: Any) -> Any:
    dtype = left.dtype.scalar
    if dtype not in _PACKED or right.dtype.scalar != dtype:
        made = _STOCK["binary_op"](self, left, right, operation)
        return TensorHandle(made.data, tl.int1) if made.data.dtype == np.bool_ else made  # it keeps the operands' dtype
    data = operation(_decoded(left), _decoded(right))
    return TensorHandle(data, tl.int1) if data.dtype == np.bool_ else _encoded(data, dtype)


def _dot(self: Any, a: Any, b: Any, acc: Any, precision: Any, imprecise: Any) -> Any:
    """Products in the accumulator's precision."""
    dtype = acc.data.dtype
    product = np.matmul(_decoded(a).astype(dtype), _decoded(b).astype(dtype))
    return TensorHandle(product + acc.data, acc.dtype.scalar)


def _lanes(mask: Any) -> Any:
    """A mask of scalars and blocks together comes out as integers."""
    return mask if mask.data.dtype == np.bool_ else TensorHandle(mask.data.astype(bool), tl.int1)


def _loader(recorder: Recorder | None) -> Callable[..., Any]:
    def masked_load(self: Any, pointers: Any, mask: Any, other: Any, *rest: Any, **options: Any) -> Any:
        mask, element = _lanes(mask), pointers.get_element_ty()
        dtype = np.dtype(ti._get_np_dtype(element))
        if recorder is not None:
            recorder.access("load", pointers.data, mask.data, dtype.itemsize)
        if other is None and pointers.data.size > 1:  # for one element Triton takes `other=0` for none, and so must we
            dead = poisoned(pointers.data.shape, _PACKED.get(element, dtype))
            other = TensorHandle(dead.view(dtype), element)
        return _STOCK["create_masked_load"](self, pointers, mask, other, *rest, **options)

    return masked_load


def _storer(recorder: Recorder | None) -> Callable[..., Any]:
    def masked_store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any, **options: Any) -> Any:
        mask = _lanes(mask)
        if recorder is not None:
            recorder.access("store", pointers.data, mask.data, value.data.dtype.itemsize)
        return _STOCK["create_masked_store"](self, pointers, value, mask, *rest, **options)

    return masked_store


def _adder(recorder: Recorder | None) -> Callable[..., Any]:
    def atomic_rmw(self: Any, operation: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        mask = _lanes(mask)
        if recorder is not None:
            recorder.access("store", pointers.data, mask.data, value.data.dtype.itemsize, adds=True)
        return _STOCK["create_atomic_rmw"](self, operation, pointers, value, mask, *rest)

    return atomic_rmw


def _replacements(recorder: Recorder | None) -> dict[str, Callable[..., Any]]:
    return {
        "binary_op": _binary,
        "cast_impl": _cast,
        "create_fp_to_fp": _float_cast,
        "create_dot": _dot,
        "create_masked_load": _loader(recorder),
        "create_masked_store": _storer(recorder),
        "create_atomic_rmw": _adder(recorder),
    }


_STOCK = {name: getattr(InterpreterBuilder, name) for name in _replacements(None)}


def _fold(self: Any, operands: Any) -> list[Any]:
    """`tl.reduce` with a helper: halve the axis until one slice is left (the stock version visits single elements)."""
    (operand,) = operands
    data = operand.handle.data
    while (length := data.shape[self.axis]) > 1:
        low, high = np.split(data, [length // 2], self.axis)
        data = _rewrite(self.combine_fn.fn)(self.to_tensor(low, operand.dtype), self.to_tensor(high, operand.dtype)).handle.data
    return [self.to_tensor(np.squeeze(data, self.axis), operand.dtype)]


# --- libdevice on NumPy -----------------------------------------------------------------------------------------------


def _external(function: Callable[..., Any]) -> Callable[..., Any]:
    def apply(*args: Any) -> Any:
        first = next(a for a in args if isinstance(a, tl.tensor))
        data = function(*(a.handle.data if isinstance(a, tl.tensor) else np.asarray(a, first.handle.data.dtype) for a in args))
        data = np.asarray(data).astype(first.handle.data.dtype)
        block = any(isinstance(a, tl.tensor) and a.type.is_block() for a in args)
        return tl.tensor(TensorHandle(data, first.dtype), tl.block_type(first.dtype, list(data.shape)) if block else first.dtype)

    return apply


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{f"a{name}": getattr(np, f"arc{name}") for name in ("sin", "cos", "tan", "tan2", "sinh", "cosh", "tanh")},
    "ceil": np.ceil,
    "cos": np.cos,
    "cosh": np.cosh,
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
    "erfc": np.vectorize(math.erfc, otypes=[np.float64]),
    "erfinv": special.erfinv,
    "exp": np.exp,
    "expm1": np.expm1,
    "floor": np.floor,
    "fmod": np.fmod,
    "lgamma": special.gammaln,
    "log": np.log,
    "log1p": np.log1p,
    "nearbyint": np.rint,
    "pow": np.power,
    "round": np.round,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sin": np.sin,
    "sinh": np.sinh,
    "sqrt": np.sqrt,
    "tan": np.tan,
    "tanh": np.tanh,
    "trunc": np.trunc,
}
_LIBDEVICE = SimpleNamespace(**{name: _external(function) for name, function in _FUNCTIONS.items()})
