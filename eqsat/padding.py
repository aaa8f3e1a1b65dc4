"""A function of symbolic sizes as one of larger, fixed sizes: the program that a bucket of shapes shares.

`padded` evaluates a graph that was traced for symbolic sizes (`jax.export.symbolic_shape`) on arrays of a bucket's extents. Of
every array the elements below the true sizes are right and nothing is promised of the others, which are never let in: a
reduction over a symbolic axis sees the identity in their place, an index that leaves the true size is treated as one that
leaves the array, and a primitive without a row here is refused. So it is right for whatever stands in the padding, NaN too.

A row is a function of the bucket, the equation and its operands. A size is a multiple of one symbol, plus a constant; others,
such as b*s of a reshape that joins two axes, are no prefix of what they are in the bucket, and are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from eqsat import control
from eqsat.graph import Equation, Graph, Literal
from eqsat.primitives import TABLE

Array = Any
Size = Any  # an int, or an expression over symbols


class Unpaddable(Exception):
    """An equation whose true elements may depend on the padding; the message is the reason."""


def symbolic(size: Size) -> bool:
    """True for a size that is no number."""
    return not isinstance(size, int | np.integer)


def value_of(size: Size, values: Mapping[str, Any]) -> Any:
    """A size for values of its symbols, which may be traced; JAX writes sizes as Python does, but for powers."""
    functions = {"floordiv": lambda a, b: a // b, "mod": lambda a, b: a % b, "max": jnp.maximum, "min": jnp.minimum}
    written = str(size).replace("^", "**")
    return eval(written, {"__builtins__": {}}, {**functions, **values}) if symbolic(size) else size  # names are JAX's own


class Bucket:
    """Extents of the symbols, and their true sizes as traced scalars; `symbols` are JAX's, by name."""

    def __init__(self, symbols: Mapping[str, Any], extents: Mapping[str, int], sizes: Mapping[str, Array]) -> None:
        self.symbols, self.extents, self.sizes = symbols, extents, sizes
        self.refused: dict[str, None] = {}
        self._lost: set[Any] = set()  # results of what was refused

    def extent(self, size: Size) -> int:
        """A size in the bucket."""
        if not symbolic(size):
            return int(size)
        name, factor, offset = self.line(size)
        return factor * self.extents[name] + offset

    def line(self, size: Size) -> tuple[str, int, int]:
        """The symbol, the factor and the offset of a size."""
        for name, symbol in self.symbols.items():
            here, there = (value_of(size, {**dict.fromkeys(self.symbols, 1), name: n}) for n in (1, 2))
            if (factor := int(there - here)) > 0 and not symbolic(offset := size - factor * symbol):
                return name, factor, int(offset)
        raise Unpaddable(f"a size that is a multiple of one symbol plus a constant required, got {size}")

    def shape(self, shape: Sequence[Size]) -> tuple[int, ...]:
        """A shape in the bucket."""
        return tuple(map(self.extent, shape))

    def true(self, size: Size) -> Array:
        """A size as it is in this call."""
        return value_of(size, self.sizes)

    def masked(self, x: Array, shape: Sequence[Size], axes: Sequence[int], fill: Any) -> Array:
        """`x` with `fill` in place of what lies in the padding of `axes`."""
        for axis in (a for a in axes if symbolic(shape[a])):
            inside = lax.broadcasted_iota(jnp.int32, x.shape, axis) < self.true(shape[axis])
            x = jnp.where(inside, x, jnp.asarray(fill, x.dtype))
        return x

    def evaluate(self, graph: Graph, flat: Sequence[Array]) -> list[Array]:
        """The graph's outputs in the bucket; what is refused is noted, and zeros stand for it."""
        known: dict[Any, Any] = {**graph.constants, **dict(zip(graph.inputs, flat, strict=True))}

        def value(atom: Any) -> Any:
            return atom.value if isinstance(atom, Literal) else known[atom]

        for equation in graph.equations:
            try:
                results = self._applied(equation, [value(a) for a in equation.inputs])
            except Unpaddable as reason:
                if self._lost.isdisjoint(equation.inputs):
                    self.refused[f"{equation.name} ({equation.source})" + f": {reason}" * bool(str(reason))] = None
                self._lost.update(equation.outputs)
                results = [jnp.zeros(tuple(self._some(n) for n in v.shape), v.aval.dtype) for v in equation.outputs]
            known.update(zip(equation.outputs, results, strict=True))
        return [value(atom) for atom in graph.outputs]

    def _some(self, size: Size) -> int:
        try:
            return self.extent(size)
        except Unpaddable:
            return 1

    def _applied(self, e: Equation, values: list[Any]) -> list[Any]:
        for atom in (*e.inputs, *e.outputs):
            self.shape(getattr(atom.aval, "shape", ()))
        if e.name in ROWS:
            results = ROWS[e.name](self, e, *values)
            return list(results) if e.primitive.multiple_results else [results]
        if e.bodies and e.name in _LOOPS:
            if e.params.get("length") is not None and symbolic(e.params["length"]):
                raise Unpaddable("along a symbolic size")
            return e.run([lambda *flat, body=body: self.evaluate(body, flat) for body in e.bodies], *values)
        if any(symbolic(n) for atom in (*e.inputs, *e.outputs) for n in getattr(atom.aval, "shape", ())):
            raise Unpaddable
        return e.bind(*values)


def padded(graph: Graph, symbols: Mapping[str, Any]) -> Callable[..., list[Array]]:
    """From (sizes by symbol, extents by symbol, *flat arrays of the extents) to the outputs; traceable.

    Raises ValueError that names every equation for which it can't be proved that the padding stays out.
    """

    def run(sizes: Mapping[str, Array], extents: Mapping[str, int], *flat: Array) -> list[Array]:
        bucket = Bucket(symbols, extents, sizes)
        results = bucket.evaluate(graph, flat)
        if bucket.refused:
            raise ValueError(
                f"{graph.name}: operations that padding cannot change required, got {'; '.join(bucket.refused)}; "
                "leave these sizes out of shapes=, so that each has a program of its own"
            )
        return results

    return run


_LOOPS = set(control.CONTROL) - {"shard_map"}
Row = Callable[..., Any]
ROWS: dict[str, Row] = {}


def _pads(*names: str) -> Callable[[Row], Row]:
    def enter(row: Row) -> Row:
        ROWS.update(dict.fromkeys(names, row))
        return row

    return enter


def _bound(b: Bucket, e: Equation, *values: Array, **params: Any) -> Any:
    """The primitive itself, with these parameters in place of its own."""
    results = replace(e, params={**e.params, **params}).bind(*values)
    return results if e.primitive.multiple_results else results[0]


def _shape(e: Equation, operand: int = 0) -> tuple[Size, ...]:
    return tuple(e.inputs[operand].aval.shape)


def _forbid(shape: Sequence[Size], axes: Sequence[int]) -> None:
    if any(symbolic(shape[a]) for a in axes):
        raise Unpaddable("along a symbolic size")


# --- element by element, and views ------------------------------------------------------------------------------

_ELEMENTWISE = [name for name, row in TABLE.items() if row.read.__module__.endswith("elementwise") and name != "threefry2x32"]
_OPAQUE = (  # element by element too, without a reading
    "acos acosh asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt clz complex conj cosh digamma igamma igammac imag lgamma "
    "nextafter polygamma population_count real regularized_incomplete_beta sinh tan zeta"
)
_VIEWS = ("stop_gradient", "copy", "copy_p", "optimization_barrier", "transpose", "squeeze")
_pads(*_ELEMENTWISE, *_OPAQUE.split(), *_VIEWS)(_bound)


@_pads("bitcast_convert_type")
def _bitcast(b: Bucket, e: Equation, x: Array) -> Array:
    if len(e.outputs[0].shape) > x.ndim:
        return _bound(b, e, x)
    _forbid(_shape(e), range(x.ndim)[len(e.outputs[0].shape) :])
    return _bound(b, e, x)


@_pads("broadcast_in_dim", "iota", "empty")
def _shaped(b: Bucket, e: Equation, *values: Array) -> Array:
    return _bound(b, e, *values, shape=b.shape(e.params["shape"]))


@_pads("dim_as_value")
def _dim_as_value(b: Bucket, e: Equation) -> Array:
    return jnp.asarray(b.true(e.params["dim"]), e.outputs[0].aval.dtype)


@_pads("reshape")
def _reshape(b: Bucket, e: Equation, x: Array) -> Array:
    """Between symbolic sizes stand as many elements as before; an axis may be joined with what stands within it, or split so."""

    def parts(shape: Sequence[Size]) -> list[Any]:
        found: list[Any] = [1]
        for n in shape:
            name, factor, offset = b.line(n) if symbolic(n) else ("", n, 0)
            outer, inner = (n, 1) if offset else (name, factor)  # b*2 is b rows of 2; b + 2 has no parts
            found[-1:] = [found[-1], outer, inner] if name else [found[-1] * n]
        return found

    if parts(_shape(e)) != parts(e.params["new_sizes"]):
        raise Unpaddable("joins a symbolic size with another or splits it")
    return x.reshape(b.shape(e.params["new_sizes"]))


@_pads("rev")
def _rev(b: Bucket, e: Equation, x: Array) -> Array:
    _forbid(_shape(e), e.params["dimensions"])
    return _bound(b, e, x)


@_pads("stack")
def _stack(b: Bucket, e: Equation, *xs: Array) -> Array:
    return _bound(b, e, *xs)


@_pads("split", "unstack")
def _split(b: Bucket, e: Equation, x: Array) -> Any:
    _forbid(_shape(e), [e.params["axis"]])
    return _bound(b, e, x)


@_pads("slice")
def _slice(b: Bucket, e: Equation, x: Array) -> Array:
    p, out = e.params, e.outputs[0].shape
    starts, strides = tuple(p["start_indices"]), tuple(p["strides"] or (1,) * x.ndim)
    _forbid(out, [a for a in range(x.ndim) if strides[a] != 1 or symbolic(starts[a])])
    if any(map(symbolic, starts)):
        return lax.dynamic_slice(x, [jnp.asarray(b.true(s), jnp.int32) for s in starts], b.shape(out))
    stops = [s + (b.extent(n) - 1) * t + 1 for s, n, t in zip(starts, out, strides, strict=True)]
    return lax.slice(x, starts, stops, strides)


@_pads("pad")
def _pad(b: Bucket, e: Equation, x: Array, fill: Array) -> Array:
    shape, config = _shape(e), e.params["padding_config"]
    _forbid(shape, [a for a, (*_, interior) in enumerate(config) if interior])
    if any(symbolic(n) for c in config for n in c):
        raise Unpaddable("by a symbolic size")
    return _bound(b, e, b.masked(x, shape, range(x.ndim), fill), fill)


@_pads("concatenate")
def _concatenate(b: Bucket, e: Equation, *xs: Array) -> Array:
    """Along a symbolic size each part is written behind the true end of the one before, over its padding."""
    axis, sizes = e.params["dimension"], [atom.aval.shape[e.params["dimension"]] for atom in e.inputs]
    if not any(map(symbolic, sizes)):
        return _bound(b, e, *xs)
    start: Size = 0
    joined = jnp.concatenate(xs, axis)  # of the shape wanted, with the first part in place
    for x, n in zip(xs, sizes, strict=True):
        joined = lax.dynamic_update_slice_in_dim(joined, x, jnp.asarray(b.true(start), jnp.int32), axis)
        start = start + n
    return joined


# --- what reduces -----------------------------------------------------------------------------------------------


def _lowest(dtype: Any) -> Any:
    return -jnp.inf if jnp.issubdtype(dtype, np.floating) else False if dtype == np.bool_ else jnp.iinfo(dtype).min


def _highest(dtype: Any) -> Any:
    return jnp.inf if jnp.issubdtype(dtype, np.floating) else True if dtype == np.bool_ else jnp.iinfo(dtype).max


_IDENTITIES: dict[str, Callable[[Any], Any]] = {
    "sum": lambda dtype: 0,
    "prod": lambda dtype: 1,
    "max": _lowest,
    "min": _highest,
    "or": lambda dtype: 0,
    "xor": lambda dtype: 0,
    "and": lambda dtype: ~np.zeros((), dtype),
    "logsumexp": _lowest,
}


def _folding(name: str) -> Row:
    """A running one sees the padding last, unless it runs from the back."""

    def row(b: Bucket, e: Equation, x: Array) -> Array:
        axes = e.params["axes"] if "axes" in e.params else [e.params["axis"]] * e.params["reverse"]
        return _bound(b, e, b.masked(x, _shape(e), axes, _IDENTITIES[name](x.dtype)))

    return row


for _name in _IDENTITIES:
    _pads(f"reduce_{_name}", f"cum{_name}", *[f"arg{_name}"] * (_name in ("max", "min")))(_folding(_name))


@_pads("dot_general")
def _dot_general(b: Bucket, e: Equation, x: Array, y: Array) -> Array:
    """Both operands get zeros: what stands in the padding may be NaN."""
    (left, right), _ = e.params["dimension_numbers"]
    return _bound(b, e, b.masked(x, _shape(e), left, 0), b.masked(y, _shape(e, 1), right, 0))


@_pads("conv_general_dilated")
def _convolution(b: Bucket, e: Equation, x: Array, w: Array) -> Array:
    """Over the batch, and over the channels that are summed, as in the gradient of the weights."""
    numbers, p = e.params["dimension_numbers"], e.params
    lhs, rhs = numbers.lhs_spec, numbers.rhs_spec
    _forbid(_shape(e), lhs[2:])
    _forbid(_shape(e, 1), (rhs[0], *rhs[2:]))
    if symbolic(_shape(e)[lhs[1]]) and p["feature_group_count"] != 1:
        raise Unpaddable("groups of a symbolic size")
    if symbolic(_shape(e)[lhs[0]]) and p["batch_group_count"] != 1:
        raise Unpaddable("groups of a symbolic size")
    return _bound(b, e, b.masked(x, _shape(e), lhs[1:2], 0), b.masked(w, _shape(e, 1), rhs[1:2], 0))


@_pads("reduce_window_sum", "reduce_window_max", "reduce_window_min")
def _window(b: Bucket, e: Equation, x: Array) -> Array:
    p, shape = e.params, _shape(e)
    each = ("window_dimensions", "window_strides", "base_dilation", "window_dilation")
    moved = [a for a in range(x.ndim) if any(p[name][a] != 1 for name in each) or tuple(p["padding"][a]) != (0, 0)]
    _forbid(shape, moved)
    return _bound(b, e, x)


def _alone(behind: Callable[[Equation, int], Sequence[int]]) -> Row:
    """A primitive that works within the axes `behind(equation, rank)` alone, each slice for itself."""

    def row(b: Bucket, e: Equation, *values: Array) -> Any:
        for atom in (*e.inputs, *e.outputs):
            rank = len(atom.aval.shape)
            _forbid(atom.aval.shape, [a for a in behind(e, rank) if -rank <= a < rank])
        return _bound(b, e, *values)

    return row


_pads("cholesky", "lu", "triangular_solve", "eigh", "householder_product")(_alone(lambda e, rank: (-1, -2)))
_pads("fft")(_alone(lambda e, rank: range(-len(e.params["fft_lengths"]), 0)))
_pads("sort")(_alone(lambda e, rank: (e.params["dimension"],)))
_pads("top_k")(_alone(lambda e, rank: (e.params.get("axis", -1),)))


# --- computed places --------------------------------------------------------------------------------------------


def _within(b: Bucket, start: Array, room: Size) -> Array:
    return lax.clamp(jnp.zeros((), start.dtype), start, jnp.asarray(b.true(room), start.dtype))


def _lengthened(b: Bucket, x: Array, windows: Sequence[Size]) -> Array:
    """With zeros behind it, so that windows of symbolic sizes end in the array wherever they truly do."""
    behind = [b.extent(m) if symbolic(m) else 0 for m in windows]
    return lax.pad(x, jnp.zeros((), x.dtype), [(0, n, 0) for n in behind]) if any(behind) else x


@_pads("dynamic_slice")
def _dynamic_slice(b: Bucket, e: Equation, x: Array, *starts: Array) -> Array:
    """The start is clamped as the true sizes clamp it; zeros behind the operand, so that the bucket's do not."""
    shape, sizes = _shape(e), tuple(e.params["slice_sizes"])
    rooms = [n - m for n, m in zip(shape, sizes, strict=True)]
    x = _lengthened(b, x, [m if symbolic(room) else 0 for m, room in zip(sizes, rooms, strict=True)])
    return lax.dynamic_slice(x, [_within(b, jnp.asarray(s), r) for s, r in zip(starts, rooms, strict=True)], b.shape(sizes))


@_pads("dynamic_update_slice")
def _dynamic_update_slice(b: Bucket, e: Equation, x: Array, update: Array, *starts: Array) -> Array:
    rooms = [n - m for n, m in zip(_shape(e), _shape(e, 1), strict=True)]
    _forbid(_shape(e, 1), [a for a, room in enumerate(rooms) if symbolic(room) or room])
    return lax.dynamic_update_slice(x, update, [_within(b, jnp.asarray(s), r) for s, r in zip(starts, rooms, strict=True)])


def _signed(indices: Array) -> Array:
    """As integers that have a negative one."""
    if jnp.issubdtype(indices.dtype, np.unsignedinteger):
        indices = jnp.minimum(indices, np.asarray(min(jnp.iinfo(indices.dtype).max, 2**31 - 1), indices.dtype))
        return indices.astype(jnp.int32)
    return indices.astype(jnp.promote_types(indices.dtype, jnp.int32))


_CLIP, _DROP = lax.GatherScatterMode.CLIP, lax.GatherScatterMode.FILL_OR_DROP


def _known(mode: Any) -> None:
    if mode not in (_CLIP, _DROP, lax.GatherScatterMode.PROMISE_IN_BOUNDS):
        raise Unpaddable(f"in mode {mode}")


def _rooms(b: Bucket, e: Equation, axes: Sequence[int], windows: Sequence[Size], dtype: Any) -> Array:
    """The largest true index along each of the axes."""
    return jnp.stack([jnp.asarray(b.true(_shape(e)[a] - windows[a]), dtype) for a in axes])


@_pads("gather")
def _gather(b: Bucket, e: Equation, x: Array, indices: Array) -> Array:
    """An index that leaves the true size leaves the array; where none may, those of the padding are clamped."""
    numbers, sizes, mode = e.params["dimension_numbers"], tuple(e.params["slice_sizes"]), e.params["mode"]
    axes = numbers.start_index_map
    _known(mode)
    x = _lengthened(b, x, [m if a in axes else 0 for a, m in enumerate(sizes)])
    filled = mode == _DROP
    if axes:
        indices = _signed(indices)
        rooms = _rooms(b, e, axes, sizes, indices.dtype)
        inside = (indices >= 0) & (indices <= rooms)
        indices = jnp.where(inside, indices, -1) if filled else jnp.minimum(jnp.maximum(indices, 0), rooms)
    mode = _DROP if filled else _CLIP
    return _bound(b, e, x, indices, slice_sizes=b.shape(sizes), mode=mode, indices_are_sorted=False)


@_pads("scatter", *(f"scatter{mark}{kind}" for mark in "-_" for kind in ("add", "sub", "mul", "min", "max")))
def _scatter(b: Bucket, e: Equation, x: Array, indices: Array, updates: Array) -> Array:
    """Updates of the padding get an index outside of the array, so that they are dropped."""
    numbers, shape, places = e.params["dimension_numbers"], _shape(e), _shape(e, 1)
    axes = numbers.scatter_dims_to_operand_dims
    _known(e.params["mode"])
    _forbid(shape, [a for a in axes if a not in numbers.inserted_window_dims])
    batched = [a for a in range(len(places) - 1) if a not in numbers.scatter_indices_batching_dims]
    if not axes:
        _forbid(places, batched)
        return _bound(b, e, x, indices, updates)
    indices = _signed(indices)
    windows: list[Size] = [1] * len(shape)
    kept = [a for a in range(len(shape)) if a not in (*numbers.inserted_window_dims, *numbers.operand_batching_dims)]
    for a, d in zip(kept, numbers.update_window_dims, strict=True):
        windows[a] = e.inputs[2].aval.shape[d]
        if symbolic(windows[a]) and (symbolic(room := shape[a] - windows[a]) or room):
            raise Unpaddable("windows of a symbolic size")
    if e.params["mode"] == _CLIP:
        indices = jnp.minimum(jnp.maximum(indices, 0), _rooms(b, e, axes, windows, indices.dtype))
    indices = b.masked(indices, places, batched, -1)
    return _bound(b, e, x, indices, updates, mode=_DROP, indices_are_sorted=False, unique_indices=False)
