"""A NumPy interpreter of tile programs: the definition of what every printer must do.

It is strict where hardware is silent. Outputs start poisoned; a live lane outside its tensor, two lanes that store the
same element, a value of another shape or dtype than declared, and a name used outside its loop are errors; a tile's
max and min lose NaN, as a target's may.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import ml_dtypes  # noqa: F401  registers bfloat16 and float8 with NumPy
import numpy as np

from eqsat import numpy_lax
from eqsat.index import Axis, Dynamic, Index, Quotient
from eqsat.notation import Tensor, Window
from eqsat.numpy_lax import jnp, lax
from eqsat.scalars import DTYPES, PART, REDUCTIONS, SCALARS
from eqsat.tile import (
    Cast,
    Compute,
    Const,
    Dot,
    Load,
    Loop,
    Position,
    Reduce,
    Scan,
    Statement,
    Store,
    TileProgram,
    Value,
    grid_position,
)

Array = np.ndarray[Any, Any]


def interpret(program: TileProgram, inputs: list[Array], programs: Iterable[int] | None = None) -> list[Array]:
    """Outputs of `program`; what no program stores stays poisoned (NaN, True, or the lowest integer).

    `inputs` are in the order of `program.inputs`; `programs` restricts the run to some program numbers.
    """
    machine = _Machine(program, inputs)
    with np.errstate(all="ignore"):
        for number in range(program.programs) if programs is None else programs:
            for tile in range(number, program.tile_count, program.programs):
                position = grid_position(program, tile)
                machine.offsets = {t.axis: position[t.axis] * t.tile if t.role == "grid" else 0 for t in program.axes}
                machine.run(program.body, {})
    return [machine.outputs[t] for t in program.outputs]


def poison(shape: tuple[int, ...], dtype: str) -> Array:
    """An array that no correct program would leave as it is."""
    kind = DTYPES[dtype].kind
    value = (
        np.nan if kind == "float" else True if kind == "bool" else np.iinfo(dtype).min if kind == "int" else np.iinfo(dtype).max
    )
    return np.full(shape, value, dtype)


class _Machine:
    """Device memory and the running program's offsets along each axis."""

    def __init__(self, program: TileProgram, inputs: list[Array]):
        self.tiles = {t.axis: t for t in program.axes}
        self.memory = {t: np.asarray(a) for t, a in zip(program.inputs, inputs, strict=True)}
        for tensor, array in self.memory.items():
            if array.shape != tensor.shape or array.dtype != np.dtype(tensor.dtype):
                raise ValueError(
                    f"input {tensor}: an array of its shape and dtype, got {array.dtype}{list(array.shape)}; convert it"
                )
        self.outputs = {t: self.start(t) for t in program.outputs}
        self.written = {t: np.zeros(t.shape, bool) for t in program.outputs}
        self.offsets: dict[Axis, int] = {}

    def start(self, output: Tensor) -> Array:
        """What an output holds before the program runs."""
        if isinstance(output, Window) and output.base is not None:
            return self.memory[output.base].copy()
        zeroed = isinstance(output, Window) and output.zeroed
        return np.zeros(output.shape, output.dtype) if zeroed else poison(output.shape, output.dtype)

    # --- blocks ---

    def shape(self, axes: tuple[Axis, ...]) -> tuple[int, ...]:
        return tuple(self.tiles[a].tile for a in axes)

    def spread(self, array: Array, source: tuple[Axis, ...], target: tuple[Axis, ...]) -> Array:
        """View of a block over `source` that broadcasts against blocks over `target`."""
        missing = [a.name for a in source if a not in target]
        if missing:
            raise ValueError(f"block over {[a.name for a in target]}: it contains its operands' axes, got {missing}")
        order = sorted(range(len(source)), key=lambda i: target.index(source[i]))
        kept = {target.index(source[i]): array.shape[i] for i in order}
        return array.transpose(order).reshape(tuple(kept.get(d, 1) for d in range(len(target))))

    def index(self, index: Index, axes: tuple[Axis, ...], operands: tuple[Array, ...] = ()) -> Array:
        """Values of an index, broadcastable to a block over `axes`."""
        total: Array = np.asarray(index.constant, np.int64)
        for atom, coefficient in index.terms:
            total = total + coefficient * self.atom(atom, axes, operands)
        return total

    def atom(self, atom: Any, axes: tuple[Axis, ...], operands: tuple[Array, ...]) -> Array:
        if isinstance(atom, Axis):
            tile = self.tiles[atom].tile
            line = self.offsets[atom] + np.arange(tile, dtype=np.int64)
            return self.spread(line, (atom,), axes) if tile > 1 else line.reshape(())
        if isinstance(atom, Dynamic):
            return operands[atom.slot].astype(np.int64)
        inner = self.index(atom.index, axes, operands)
        return inner // atom.divisor if isinstance(atom, Quotient) else inner % atom.divisor

    def live(self, guards: Iterable[tuple[Index, int]], axes: tuple[Axis, ...], operands: tuple[Array, ...] = ()) -> Array:
        lanes = np.ones(self.shape(axes), bool)
        for index, bound in guards:
            value = self.index(index, axes, operands)
            lanes &= (value >= 0) & (value < bound)
        return lanes

    def places(
        self, statement: Load | Store, axes: tuple[Axis, ...], operands: tuple[Array, ...]
    ) -> tuple[Array, tuple[Array, ...]]:
        """The live lanes of a load or store, and where in the tensor they lie."""
        live = self.live(statement.guards, axes, operands)
        where = [np.broadcast_to(self.index(i, axes, operands), live.shape)[live] for i in statement.index]
        for d, (at, extent) in enumerate(zip(where, statement.tensor.shape, strict=True)):
            if at.size and (at.min() < 0 or at.max() >= extent):
                raise IndexError(
                    f"{statement.tensor}: live lanes stay inside dimension {d}, got {at.min()}..{at.max()}; add a guard"
                )
        if statement.tensor.size >= 2**31 and not statement.wide:
            raise ValueError(f"{statement.tensor}: a large tensor needs 64-bit offsets, got 32; set wide")
        return live, tuple(where)

    # --- statements ---

    def run(self, body: tuple[Statement, ...], values: dict[Value, Array]) -> None:
        for statement in body:
            if isinstance(statement, Loop):
                self.loop(statement, values)
            elif isinstance(statement, Store):
                self.store(statement, values)
            elif isinstance(statement, Scan) and statement.scores is not None:
                self.scan_pairs(statement, values)
            else:
                self.bind(values, statement.out, _FORMS[type(statement)](self, statement, values))

    def bind(self, values: dict[Value, Array], out: Value, array: Array) -> None:
        if out in values:
            raise ValueError(f"{out}: a value is assigned once, got a second assignment")
        if array.shape != self.shape(out.axes) or array.dtype != np.dtype(out.dtype):
            raise ValueError(f"{out}: a block of {self.shape(out.axes)}, got {array.dtype}{array.shape}")
        values[out] = array

    def loop(self, loop: Loop, values: dict[Value, Array]) -> None:
        states = [values[c.init] for c in loop.carries]
        outside = self.offsets[loop.axis]
        visited = range(*self.visited(loop, values))
        for number in reversed(visited) if loop.backward else visited:
            self.offsets[loop.axis] = number * self.tiles[loop.axis].tile
            inside = dict(values)
            for carry, state in zip(loop.carries, states, strict=True):
                self.bind(inside, carry.state, state)
            self.run(loop.body, inside)
            states = [inside[c.result] for c in loop.carries]
        self.offsets[loop.axis] = outside
        for carry, state in zip(loop.carries, states, strict=True):
            self.bind(values, carry.final, state)

    def visited(self, loop: Loop, values: Mapping[Value, Array]) -> tuple[int, int]:
        """Numbers of the first tile of a loop and of the one behind the last."""
        t = self.tiles[loop.axis]
        low, high = (
            None if b is None else b.substitute({a: Index.of(self.offsets[a]) for a in b.axes}) for b in (loop.low, loop.high)
        )
        start, end = (None if v is None else int(values[v]) for v in (loop.start, loop.end))
        if not 0 <= (start or 0) <= t.axis.extent or not 0 <= (end or 0) <= t.axis.extent:
            raise ValueError(f"loop over {t.axis}: bounds within 0..{t.axis.extent}, got {start}..{end}; clamp them")
        first = max(0 if low is None else low.constant, start or 0)
        last = min(b for b in (t.axis.extent, None if high is None else high.constant, end) if b is not None)
        return first // t.tile, -(-last // t.tile)

    def store(self, store: Store, values: dict[Value, Array]) -> None:
        operands = tuple(self.spread(values[v], v.axes, store.axes) for v in store.operands)
        live, where = self.places(store, store.axes, operands)
        block = self.spread(values[store.value], store.value.axes, store.axes)
        if block.dtype != np.dtype(store.tensor.dtype):
            raise ValueError(f"{store.tensor}: a stored block has its dtype, got {block.dtype}; cast it")
        written = self.written[store.tensor]
        places = np.ravel_multi_index(where, written.shape) if where else np.zeros(int(live.sum()), np.int64)
        stored = np.broadcast_to(block, live.shape)[live]
        if store.adds:
            return np.add.at(self.outputs[store.tensor].reshape(-1), places, stored)
        if written.ravel()[places].any() or len(np.unique(places)) < len(places):
            raise ValueError(f"{store.tensor}: each element is stored once, got a second store; guard one of them")
        written.reshape(-1)[places] = True
        self.outputs[store.tensor].reshape(-1)[places] = stored

    def const(self, s: Const, values: Mapping[Value, Array]) -> Array:
        return np.full(self.shape(s.out.axes), s.value, s.out.dtype)

    def position(self, s: Position, values: Mapping[Value, Array]) -> Array:
        return np.broadcast_to(self.index(s.index, s.out.axes), self.shape(s.out.axes)).astype(s.out.dtype)

    def load(self, s: Load, values: Mapping[Value, Array]) -> Array:
        axes = s.out.axes
        operands = tuple(self.spread(values[v], v.axes, axes) for v in s.operands)
        live, where = self.places(s, axes, operands)
        out = np.full(self.shape(axes), s.other, s.tensor.dtype)
        out[live] = (self.memory[s.tensor] if s.tensor in self.memory else self.outputs[s.tensor])[where]
        return out

    def compute(self, s: Compute, values: Mapping[Value, Array]) -> Array:
        if any(DTYPES[v.dtype].compute != v.dtype for v in s.args):
            raise ValueError(f"{s.op}: operands have a dtype to compute in, got {s.args}; cast them")
        result = OPERATIONS[s.op](*(self.spread(values[v], v.axes, s.out.axes) for v in s.args))
        return np.broadcast_to(result, self.shape(s.out.axes))

    def cast(self, s: Cast, values: Mapping[Value, Array]) -> Array:
        return np.asarray(lax.convert_element_type(values[s.arg], s.out.dtype))

    def reduce(self, s: Reduce, values: Mapping[Value, Array]) -> Array:
        name = REDUCTIONS[s.op].numpy
        losing = {"maximum": np.fmax, "minimum": np.fmin}.get(name, getattr(np, name))
        return np.asarray(losing.reduce(values[s.arg], axis=s.arg.axes.index(s.axis), dtype=s.out.dtype))

    def scan(self, s: Scan, values: Mapping[Value, Array]) -> Array:
        d = s.arg.axes.index(s.axis)
        turned = np.flip(values[s.arg], d) if s.reverse else values[s.arg]
        total = getattr(np, REDUCTIONS[s.op].numpy).accumulate(turned, axis=d, dtype=s.out.dtype)
        return np.flip(total, d) if s.reverse else total

    def scan_pairs(self, s: Scan, values: dict[Value, Array]) -> None:
        assert s.largest is not None
        axes, shape = s.out.axes, self.shape(s.out.axes)
        sums, scores = (np.broadcast_to(self.spread(values[v], v.axes, axes), shape) for v in s.operands)
        totals, largest = numpy_lax.scan_softsum(scores, sums, axes.index(s.axis), s.reverse)
        self.bind(values, s.out, totals)
        self.bind(values, s.largest, largest)

    def dot(self, s: Dot, values: Mapping[Value, Array]) -> Array:
        alike = s.a.dtype == s.b.dtype or {s.a.dtype, s.b.dtype} == {"float32", PART}
        if not alike or min(self.shape(s.a.axes) + self.shape(s.b.axes)) < 16:
            raise ValueError(f"dot of {s.a} and {s.b}: operands of one dtype, or {PART} beside float32, and tiles of at least 16")
        a, b = (np.moveaxis(values[v], v.axes.index(s.axis), d).astype(s.out.dtype) for v, d in ((s.a, 1), (s.b, 0)))
        product = a @ b
        axes = tuple(x for v in (s.a, s.b) for x in v.axes if x != s.axis)
        product = np.broadcast_to(self.spread(product, axes, s.out.axes), self.shape(s.out.axes))
        return product if s.acc is None else product + self.spread(values[s.acc], s.acc.axes, s.out.axes)


_FORMS: dict[type, Callable[..., Array]] = {
    Const: _Machine.const,
    Position: _Machine.position,
    Load: _Machine.load,
    Compute: _Machine.compute,
    Cast: _Machine.cast,
    Reduce: _Machine.reduce,
    Scan: _Machine.scan,
    Dot: _Machine.dot,
}


# --- scalar operations ---


def _operations() -> dict[str, Callable[..., Any]]:
    """The table's spelling of each operation, read with NumPy in place of JAX."""
    scope, names = {"jnp": jnp, "lax": lax}, ("a", "b", "c")
    return {op.name: eval(f"lambda {', '.join(names[: op.arity])}: {op.jax.format(*names)}", scope) for op in SCALARS.values()}


OPERATIONS = _operations()
