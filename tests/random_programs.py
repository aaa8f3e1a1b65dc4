"""Random programs: a seed gives a function of JAX over the primitives that have a reading, and arguments for it.

Each maker takes operands that exist, or asks for new inputs, and adds a step. Values that hold the rounding of a sum are never
made discrete (compared, floored, used as an index), so that every other output has to agree bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from eqsat.graph import Graph
from eqsat.scalars import DTYPES, SCALARS

ANY = ("float", "int", "uint", "bool")
NUMBERS = ("float", "int", "uint")
INTEGERS = ("int", "uint")
FLOAT = ("float",)
EXTENTS = (1, 1, 2, 3, 3, 4, 5, 7)
SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0)
DTYPE_WEIGHTS = {
    "float32": 8, "bfloat16": 3, "float16": 2, "float8_e4m3fn": 0.5, "float8_e5m2": 0.5, "int32": 4, "int8": 1, "int16": 0.5,
    "uint32": 1, "uint8": 1, "uint16": 0.5, "bool": 3, "float64": 4, "int64": 2, "uint64": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Value:
    """A value on the way; `rounded`: it depends on the order in which a sum was taken."""

    number: int
    shape: tuple[int, ...]
    dtype: str
    rounded: bool

    @property
    def kind(self) -> str:
        return DTYPES[self.dtype].kind

    @property
    def spec(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(self.shape, self.dtype)


@dataclass(frozen=True)
class RandomProgram:
    """A function, flat arguments, and for each output whether it depends on the order of a sum."""

    graph: Graph
    arguments: list[np.ndarray]
    rounded: tuple[bool, ...]


class Draft:
    """A program while it grows."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.x64 = bool(self.rng.random() < 0.2)
        self.special = bool(self.rng.random() < 0.25)
        self.values: list[Value] = []
        self.arguments: dict[int, np.ndarray] = {}
        self.steps: list[tuple[Callable[..., Any], tuple[int, ...], tuple[int, ...]]] = []

    # --- chance

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def among(self, options: Sequence[Any]) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def number(self, low: int, high: int) -> int:
        """low .. high, both included."""
        return int(self.rng.integers(low, high + 1))

    def dtype(self, kinds: Sequence[str]) -> str:
        names = [n for n in DTYPE_WEIGHTS if DTYPES[n].kind in kinds and (self.x64 or not n.endswith("64"))]
        weights = np.array([DTYPE_WEIGHTS[n] for n in names])
        return str(self.rng.choice(names, p=weights / weights.sum()))

    def shape(self, low: int = 0, high: int = 4) -> tuple[int, ...]:
        rank = min(self.number(low, high), self.number(low, high))
        shape = [self.among(EXTENTS) for _ in range(rank)]
        if shape and self.chance(0.04):
            shape[self.number(0, rank - 1)] = 0
        return tuple(shape)

    # --- values

    def input(self, shape: tuple[int, ...], dtype: str, low: int | None = None, high: int | None = None) -> Value:
        """A new argument; integers are in low .. high."""
        row = DTYPES[dtype]
        if row.kind == "bool":
            array = self.rng.integers(0, 2, shape).astype(bool)
        elif row.kind == "float":
            array = np.asarray(self.rng.standard_normal(shape) * self.among((0.5, 1.0, 3.0)))
            if self.chance(0.3):
                array = np.round(2 * array) / 2
            if self.special and array.size and dtype != "float8_e4m3fn":
                places = self.rng.integers(0, array.size, -(-array.size // 6))
                array.reshape(-1)[places] = self.rng.choice(SPECIAL, len(places))
            array = array.astype(jnp.dtype(dtype))
        else:
            least = -9 if row.kind == "int" else 0
            array = self.rng.integers(least if low is None else low, (9 if high is None else high) + 1, shape).astype(dtype)
        value = Value(len(self.values), shape, dtype, False)
        self.values.append(value)
        self.arguments[value.number] = array
        return value

    def pick(self, kinds: Sequence[str] = ANY, low: int = 0, high: int = 4, *, sharp: bool = False) -> Value:
        """An operand of one of these kinds and a rank in low .. high; `sharp`: it holds no rounding of a sum."""
        found = [v for v in self.values if v.kind in kinds and low <= len(v.shape) <= high and not (sharp and v.rounded)]
        if found and self.chance(0.85):
            recent = found[-4:]
            return self.among(recent if self.chance(0.6) else found)
        return self.input(self.shape(low, high), self.dtype(kinds))

    def fitting(self, shape: tuple[int, ...], dtype: str, *, sharp: bool = False) -> Value:
        """An operand of a shape and dtype."""
        found = [v for v in self.values if (v.shape, v.dtype) == (shape, dtype) and not (sharp and v.rounded)]
        return self.among(found) if found and self.chance(0.7) else self.input(shape, dtype)

    def beside(self, x: Value, *, sharp: bool = False) -> Value | Any:
        """A second operand for `x`: of its shape, or of rank 0."""
        how = self.rng.random()
        if how < 0.15:
            if x.kind == "bool":
                return np.bool_(self.chance(0.5))
            literal = self.among((0, 1, 2, 3) if x.kind == "uint" else (0, 1, 2, 3, -1, -2, 0.5, -0.25, 1 / 3))
            return jnp.dtype(x.dtype).type(literal)
        return self.fitting(() if how < 0.3 else x.shape, x.dtype, sharp=sharp)

    def step(self, fn: Callable[..., Any], *operands: Value | Any, rounds: bool = False) -> tuple[Value, ...]:
        """Adds fn(*operands), whose results may be one or several; an operand that is no value is a literal."""
        given = [o for o in operands if isinstance(o, Value)]

        def run(*arrays: Any) -> tuple[Any, ...]:
            arrays_left = iter(arrays)
            result = fn(*(next(arrays_left) if isinstance(o, Value) else o for o in operands))
            return tuple(result) if isinstance(result, tuple | list) else (result,)

        results = []
        rounded = rounds or any(o.rounded for o in given)
        for spec in jax.eval_shape(run, *(o.spec for o in given)):
            dtype = str(spec.dtype)
            value = Value(
                len(self.values), tuple(spec.shape), dtype, rounded and dtype in DTYPES and DTYPES[dtype].kind == "float"
            )
            self.values.append(value)
            results.append(value)
        self.steps.append((run, tuple(o.number for o in given), tuple(v.number for v in results)))
        return tuple(results)

    # --- the result

    def program(self) -> RandomProgram:
        used = {n for _, operands, _ in self.steps for n in operands}
        ends = [v for v in self.values if v.number not in used and v.number not in self.arguments]
        outputs = [*ends, self.among(self.values)][-6:]
        numbers = list(self.arguments)

        def random_program(*flat: Any) -> tuple[Any, ...]:
            known = dict(zip(numbers, flat, strict=True))
            for run, operands, results in self.steps:
                known.update(zip(results, run(*(known[n] for n in operands)), strict=True))
            return tuple(known[v.number] for v in outputs)

        graph = Graph.from_jax(random_program, *(self.values[n].spec for n in numbers))
        return RandomProgram(graph, list(self.arguments.values()), tuple(v.rounded for v in outputs))


MAKERS: dict[str, Callable[[Draft], Any]] = {}


def makes(*names: str) -> Callable[[Callable[[Draft], Any]], Callable[[Draft], Any]]:
    """Enter a maker for primitives, each as likely as the others."""

    def enter(make: Callable[[Draft], Any]) -> Callable[[Draft], Any]:
        MAKERS.update({name: make for name in names})
        return make

    return enter


def random_program(seed: int, steps: tuple[int, int] = (3, 12)) -> RandomProgram:
    """The program of a seed."""
    draft = Draft(seed)
    with jax.enable_x64(draft.x64):
        names = list(MAKERS)
        wanted = draft.number(*steps)
        while len(draft.steps) < wanted:
            MAKERS[draft.among(names)](draft)
        return draft.program()


# --- elementwise ------------------------------------------------------------------------------------------------

DISCRETE = ("floor", "ceil", "sign", "is_finite", "eq", "ne", "lt", "le", "gt", "ge")
NOT_NARROW = ("erfc", "erf_inv")  # JAX does not have them for floats of 8 bits
# XLA:CPU computes the last elements of an array by other code, with another last bit.
BY_PLACE = (
    "exp", "log", "erf", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "asinh", "acosh", "atanh", "lgamma",
)  # fmt: skip
BITS = {"and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor", "not": "bitwise_not"}
OTHERWISE = ("where", "quot", "rint", "rem", "fmod", "pow")  # rows with a maker of their own below, or none under this name


def _scalar(name: str) -> None:
    row = SCALARS[name]
    fn = getattr(lax, BITS.get(name, name))

    @makes(name)
    def make(draft: Draft) -> None:
        sharp = name in DISCRETE
        x = draft.pick(row.kinds, sharp=sharp)
        if (name in NOT_NARROW and DTYPES[x.dtype].nbytes == 1) or (name == "abs" and x.kind == "uint"):
            return
        others = [draft.beside(x, sharp=sharp) for _ in range(row.arity - 1)]
        operands = reversed([x, *others]) if others and draft.chance(0.3) else [x, *others]
        draft.step(fn, *operands, rounds=name in BY_PLACE)


for _name in SCALARS:
    if _name not in OTHERWISE:
        _scalar(_name)


@makes("rem")
def rem(draft: Draft) -> None:
    x = draft.pick(NUMBERS, sharp=True)
    draft.step(lax.rem, x, draft.beside(x, sharp=True))


@makes("pow")
def power(draft: Draft) -> None:
    x = draft.pick(FLOAT)
    y = draft.beside(x) if draft.chance(0.7) else draft.fitting(x.shape, "int32")
    draft.step(lambda a, b: lax.pow(lax.abs(a), b), x, y, rounds=True)


@makes("div")
def div(draft: Draft) -> None:
    x = draft.pick(NUMBERS)
    draft.step(lax.div, x, draft.beside(x))


@makes("integer_pow")
def integer_pow(draft: Draft) -> None:
    x = draft.pick(NUMBERS)
    n = draft.number(0 if x.kind != "float" else -3, 5)
    draft.step(lambda a: lax.integer_pow(a, n), x)


@makes("square")
def square(draft: Draft) -> None:
    draft.step(lax.square, draft.pick(NUMBERS))


@makes("round")
def rounded(draft: Draft) -> None:
    draft.step(lambda a: lax.round(a, lax.RoundingMethod.TO_NEAREST_EVEN), draft.pick(FLOAT, sharp=True))


@makes("reduce_precision")
def reduce_precision(draft: Draft) -> None:
    x, format = draft.pick(FLOAT), jnp.finfo(draft.among(("float16", "bfloat16", "float32", "float64")))
    draft.step(lambda a: lax.reduce_precision(a, format.nexp, format.nmant), x)


@makes("select_n")
def select_n(draft: Draft) -> None:
    x = draft.pick()
    which = draft.fitting(() if draft.chance(0.2) else x.shape, "bool")
    draft.step(lax.select_n, which, x, draft.fitting(x.shape, x.dtype))


@makes("clamp")
def clamp(draft: Draft) -> None:
    x = draft.pick(NUMBERS)
    draft.step(lax.clamp, draft.fitting((), x.dtype), x, draft.fitting(x.shape if draft.chance(0) else (), x.dtype))


@makes("convert_element_type")
def convert(draft: Draft) -> None:
    dtype = draft.dtype(ANY)
    x = draft.pick(sharp=DTYPES[dtype].kind != "float")
    draft.step(lambda a: a.astype(dtype), x)


@makes("add_any")
def sensitivities(draft: Draft) -> None:
    """Derivatives leave sums of what flows back, transposed views, and dead code."""
    x = draft.pick(FLOAT)
    fn = draft.among((lambda a: jnp.sin(a) * jnp.cos(a), lambda a: jax.nn.gelu(a) * a, lambda a: jax.nn.silu(a) + a * a))
    draft.step(lambda a: jax.grad(lambda b: fn(b).sum())(a), x, rounds=True)


@makes("bitcast_convert_type")
def bitcast(draft: Draft) -> None:
    """Of integers, and of a fraction with the exponent of 1, as random numbers are made."""
    if draft.chance(0.5):
        x = draft.fitting(draft.shape(), draft.among(("int32", "uint32")))
        draft.step(lambda a: lax.bitcast_convert_type(a, "uint32" if x.dtype == "int32" else "int32"), x)
    else:
        x = draft.fitting(draft.shape(), "uint32")
        draft.step(lambda a: lax.bitcast_convert_type((a * np.uint32(2654435761)) >> 9 | np.uint32(0x3F800000), "float32"), x)


@makes("threefry2x32")
def random_numbers(draft: Draft) -> None:
    key, shape = draft.input((2,), "uint32"), draft.shape()
    dtype = draft.among(("float32", "bfloat16", "float16"))
    draft.step(lambda k: jax.random.uniform(jax.random.wrap_key_data(k), shape, dtype), key)


# --- views ------------------------------------------------------------------------------------------------------


@makes("broadcast_in_dim")
def broadcast(draft: Draft) -> None:
    x = draft.pick(high=3)
    rank = draft.number(len(x.shape), 4)
    places = sorted(draft.rng.choice(rank, len(x.shape), replace=False).tolist()) if x.shape else []
    shape = [draft.among(EXTENTS) for _ in range(rank)]
    for d, n in zip(places, x.shape, strict=True):
        shape[d] = n if n != 1 or draft.chance(0.5) else shape[d]
    draft.step(lambda a: lax.broadcast_in_dim(a, tuple(shape), tuple(places)), x)


@makes("reshape")
def reshape(draft: Draft) -> None:
    x = draft.pick()
    size, shape = int(np.prod(x.shape, dtype=int)), []
    while size > 1 and len(shape) < 3:
        n = draft.among([n for n in range(1, size + 1) if size % n == 0])
        shape.append(n)
        size //= n
    shape.append(size)
    order = draft.rng.permutation(len(x.shape)).tolist() if draft.chance(0.3) else None
    draft.step(lambda a: lax.reshape(a, tuple(shape), order), x)


@makes("transpose")
def transpose(draft: Draft) -> None:
    x = draft.pick()
    order = tuple(draft.rng.permutation(len(x.shape)).tolist())
    draft.step(lambda a: lax.transpose(a, order), x)


@makes("squeeze")
def squeeze(draft: Draft) -> None:
    x = draft.pick()
    ones = [d for d, n in enumerate(x.shape) if n == 1]
    draft.step(lambda a: lax.squeeze(a, ones), x)


@makes("slice")
def slice_(draft: Draft) -> None:
    x = draft.pick(low=1)
    starts = [draft.number(0, max(0, n - 1)) for n in x.shape]
    ends = [
        draft.number(s, n) if draft.chance(0.1) else draft.number(min(s + 1, n), n) for s, n in zip(starts, x.shape, strict=True)
    ]
    steps = [draft.among((1, 1, 2, 3)) for _ in x.shape]
    draft.step(lambda a: lax.slice(a, starts, ends, steps), x)


@makes("rev")
def rev(draft: Draft) -> None:
    x = draft.pick(low=1)
    dimensions = [d for d in range(len(x.shape)) if draft.chance(0.6)]
    draft.step(lambda a: lax.rev(a, dimensions), x)


@makes("tile")
def tile(draft: Draft) -> None:
    x = draft.pick(low=1, high=3)
    repeats = [draft.among((1, 2, 3)) for _ in x.shape]
    draft.step(lambda a: jnp.tile(a, repeats), x)


@makes("split")
def split(draft: Draft) -> None:
    x = draft.pick(low=1)
    axis = draft.number(0, len(x.shape) - 1)
    at = draft.number(0, x.shape[axis])
    draft.step(lambda a: lax.split(a, (at, x.shape[axis] - at), axis), x)


@makes("iota")
def iota(draft: Draft) -> None:
    shape, dtype = draft.shape(1, 3), draft.dtype(NUMBERS)
    dimension = draft.number(0, len(shape) - 1)
    draft.step(lambda: lax.broadcasted_iota(dtype, shape, dimension))


@makes("copy")
def copy(draft: Draft) -> None:
    draft.step(jnp.copy, draft.pick())


@makes("stop_gradient")
def stop_gradient(draft: Draft) -> None:
    draft.step(lax.stop_gradient, draft.pick())


@makes("optimization_barrier")
def barrier(draft: Draft) -> None:
    draft.step(lambda a, b: lax.optimization_barrier((a, b)), draft.pick(), draft.pick())


@makes("concatenate")
def concatenate(draft: Draft) -> None:
    x = draft.pick(low=1)
    axis = draft.number(0, len(x.shape) - 1)
    others = [
        draft.fitting(tuple(draft.among(EXTENTS) if d == axis else n for d, n in enumerate(x.shape)), x.dtype)
        for _ in range(draft.number(1, 3))
    ]
    draft.step(lambda *parts: lax.concatenate(parts, axis), x, *others)


@makes("stack")
def stack(draft: Draft) -> None:
    x = draft.pick(high=3)
    axis = draft.number(0, len(x.shape))
    parts = [x, *(draft.fitting(x.shape, x.dtype) for _ in range(draft.number(0, 2)))]
    draft.step(lambda *given: jnp.stack(given, axis), *parts)


@makes("pad")
def pad(draft: Draft) -> None:
    x = draft.pick()
    config = [(draft.number(-1, 2), draft.number(-1, 2), draft.among((0, 0, 1, 2))) for _ in x.shape]
    config = [
        (max(low, 0), max(high, 0), inner) if n < 3 else (low, high, inner)
        for n, (low, high, inner) in zip(x.shape, config, strict=True)
    ]
    value = jnp.dtype(x.dtype).type(0) if draft.chance(0.6) else draft.fitting((), x.dtype)
    draft.step(lambda a, v: lax.pad(a, v, config), x, value)


# --- reductions -------------------------------------------------------------------------------------------------


# JAX rounds each product of these, a kernel the last (`eqsat.primitives.reductions.accumulator`): between, they overflow easily
OVERFLOWING = ("float16", "float8_e4m3fn", "float8_e5m2")


def some_axes(draft: Draft, x: Value) -> tuple[int, ...]:
    return tuple(d for d in range(len(x.shape)) if draft.chance(0.5)) or (draft.number(0, len(x.shape) - 1),)


def _reduction(name: str, kinds: tuple[str, ...]) -> None:
    @makes(f"reduce_{name}")
    def make(draft: Draft) -> None:
        x = draft.pick(kinds, low=1)
        if name == "prod" and x.dtype in OVERFLOWING:
            return
        axes = some_axes(draft, x)
        draft.step(lambda a: getattr(lax, f"reduce_{name}")(a, axes), x, rounds=name in ("sum", "prod"))


for _name, _kinds in (
    ("sum", NUMBERS), ("prod", NUMBERS), ("max", NUMBERS), ("min", NUMBERS), ("and", ("bool", *INTEGERS)),
    ("or", ("bool", *INTEGERS)),
):  # fmt: skip
    _reduction(_name, _kinds)


def _running(primitive: str) -> None:
    @makes(primitive)
    def make(draft: Draft) -> None:
        x = draft.pick(FLOAT if primitive == "cumlogsumexp" else NUMBERS, low=1)
        if primitive == "cumprod" and x.dtype in OVERFLOWING:
            return
        if primitive == "cumlogsumexp" and DTYPES[x.dtype].nbytes == 1:
            return  # JAX rounds at each step, to 0 at times, and one of them has no infinity to start from
        axis, reverse = draft.number(0, len(x.shape) - 1), draft.chance(0.3)
        rounds = primitive in ("cumsum", "cumprod", "cumlogsumexp")
        draft.step(lambda a: getattr(lax, primitive)(a, axis, reverse=reverse), x, rounds=rounds)


for _name in ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"):
    _running(_name)


@makes("argmax", "argmin")
def place_of_extreme(draft: Draft) -> None:
    x = draft.pick(NUMBERS, low=1, sharp=True)
    axes = [d for d, n in enumerate(x.shape) if n]
    if axes:
        axis, fn = draft.among(axes), draft.among((lax.argmax, lax.argmin))
        draft.step(lambda a: fn(a, axis, jnp.int32), x)


def _window(name: str, fn: Callable[..., Any], start: Callable[[str], Any]) -> None:
    @makes(f"reduce_window_{name}")
    def make(draft: Draft) -> None:
        x = draft.pick(NUMBERS, low=1, high=3)
        size = [draft.number(1, min(3, max(n, 1))) for n in x.shape]
        strides = [draft.number(1, 2) for _ in x.shape]
        padding = [(draft.number(0, k - 1), draft.number(0, k - 1)) for k in size]
        dilation = [draft.among((1, 1, 2)) for _ in x.shape]
        base = [draft.among((1, 1, 1, 2)) for _ in x.shape]
        init = jnp.dtype(x.dtype).type(start(x.dtype))
        draft.step(lambda a: lax.reduce_window(a, init, fn, size, strides, padding, base, dilation), x, rounds=name == "sum")


def lowest(dtype: str) -> Any:
    return -np.inf if DTYPES[dtype].kind == "float" else np.iinfo(dtype).min


def highest(dtype: str) -> Any:
    return np.inf if DTYPES[dtype].kind == "float" else np.iinfo(dtype).max


_window("sum", lax.add, lambda dtype: 0)
_window("max", lax.max, lowest)
_window("min", lax.min, highest)


@makes("select_and_scatter_add")
def pooling_gradient(draft: Draft) -> None:
    x = draft.pick(("float",), low=1, high=3, sharp=True)
    size = [draft.number(1, min(3, max(n, 1))) for n in x.shape]
    strides = [draft.number(1, 2) for _ in x.shape]
    if DTYPES[x.dtype].nbytes > 1:
        pool = lambda a: lax.reduce_window(a, lowest(x.dtype), lax.max, size, strides, draft_padding)  # noqa: E731
        draft_padding = draft.among(("SAME", "VALID"))
        draft.step(lambda a: jax.grad(lambda b: (pool(b) * 2).sum())(a), x, rounds=True)


# --- contractions -----------------------------------------------------------------------------------------------


@makes("dot_general")
def dot_general(draft: Draft) -> None:
    x = draft.pick()
    roles = [draft.among(("sum", "batch", "free")) for _ in x.shape]
    sums, batch = ([d for d, r in enumerate(roles) if r == role] for role in ("sum", "batch"))
    dimensions = (
        [("sum", d) for d in sums]
        + [("batch", d) for d in batch]
        + [("free", draft.among(EXTENTS)) for _ in range(draft.number(0, 1))]
    )
    draft.rng.shuffle(dimensions)  # type: ignore[arg-type]
    dimensions = [(role, int(d)) for role, d in dimensions]
    y = draft.fitting(tuple(d if role == "free" else x.shape[d] for role, d in dimensions)[:4], x.dtype)
    sums_y, batch_y = ([dimensions.index((role, d)) for d in ds] for role, ds in (("sum", sums), ("batch", batch)))
    if len(y.shape) < len(dimensions):
        return
    wide = {"float": "float32", "int": "int32", "uint": "uint32"}.get(x.kind) if draft.chance(0.3) else None
    if wide is not None and DTYPES[wide].nbytes < DTYPES[x.dtype].nbytes:
        wide = None
    numbers = ((sums, sums_y), (batch, batch_y))
    draft.step(lambda a, b: lax.dot_general(a, b, numbers, preferred_element_type=wide), x, y, rounds=True)


@makes("ragged_dot_general")
def ragged_dot(draft: Draft) -> None:
    x = draft.pick(FLOAT, low=2, high=2)
    groups, columns = draft.number(1, 4), draft.among(EXTENTS)
    y = draft.fitting((groups, x.shape[1], columns), x.dtype)
    sizes = draft.input((groups,), "int32", low=0, high=1 + x.shape[0] // 2)  # at times more than there are rows
    draft.step(lax.ragged_dot, x, y, sizes, rounds=True)


@makes("conv_general_dilated")
def convolution(draft: Draft) -> None:
    """With finite weights: what is outside times infinity is NaN in some of XLA's convolutions and nothing in others."""
    spatial = draft.number(1, 2)
    dtype = draft.among(("float32", "float32", "bfloat16", "float16"))
    n, c, f = draft.among((1, 2)), draft.among((1, 2, 3)), draft.among((1, 2, 3))
    groups, batches = draft.among(((1, 1), (1, 1), (2, 1), (1, 2)))
    window = [draft.number(1, 3) for _ in range(spatial)]
    x = draft.fitting((n * batches, c * groups, *(draft.number(3, 6) for _ in range(spatial))), dtype)
    w = draft.fitting((f * groups * batches, c, *window), dtype)
    strides, dilation, base = ([draft.among((1, 1, 2)) for _ in window] for _ in range(3))
    padding = [(draft.number(0, 2), draft.number(-1, 2)) for _ in window]
    draft.step(
        lambda a, b: lax.conv_general_dilated(
            a, jnp.where(jnp.isfinite(b), b, 1), strides, padding, base, dilation, feature_group_count=groups,
            batch_group_count=batches,
        ),
        x, w, rounds=True,
    )  # fmt: skip


# --- lookups ----------------------------------------------------------------------------------------------------


@makes("gather")
def gather(draft: Draft) -> None:
    x = draft.pick(low=1, high=3)
    axis = draft.number(0, len(x.shape) - 1)
    i = draft.input(draft.shape(0, 2), draft.among(("int32", "int32", "int8", "uint8")))
    mode = draft.among(("clip", "fill", "wrap"))
    if x.shape[axis]:
        draft.step(lambda a, b: jnp.take(a, b, axis=axis, mode=mode), x, i)


@makes("dynamic_slice")
def dynamic_slice(draft: Draft) -> None:
    x = draft.pick(low=1)
    sizes = [draft.number(min(n, 1), n) for n in x.shape]
    starts = [draft.fitting((), "int32") for _ in x.shape]
    draft.step(lambda a, *at: lax.dynamic_slice(a, at, sizes), x, *starts)


@makes("dynamic_update_slice")
def dynamic_update_slice(draft: Draft) -> None:
    x = draft.pick(low=1)
    update = draft.fitting(tuple(draft.number(min(n, 1), n) for n in x.shape), x.dtype)
    starts = [draft.fitting((), "int32") for _ in x.shape]
    draft.step(lambda a, u, *at: lax.dynamic_update_slice(a, u, at), x, update, *starts)


@makes("scatter", "scatter-add")
def scatter(draft: Draft) -> None:
    """At one place, at one place of each row, or at many that may meet."""
    x = draft.pick(NUMBERS, low=1, high=3)
    how = draft.among(("set", "add"))
    one = draft.chance(0.6)
    i = draft.input(() if one else (draft.number(1, 3),), "int32")
    v = draft.fitting((*i.shape, *x.shape[1:]), x.dtype)
    if x.shape[0] and (one or how == "add"):
        draft.step(lambda a, b, u: getattr(a.at[b], how)(u), x, i, v, rounds=not one)


# --- opaque calls, and programs inside programs -----------------------------------------------------------------


@makes("sort")
def opaque(draft: Draft) -> None:
    x = draft.pick(NUMBERS, low=1)
    axis = draft.number(0, len(x.shape) - 1)
    draft.step(lambda a: lax.sort(a, dimension=axis), x, rounds=True)


STAGES = (
    lambda a, b: a * b + a, lambda a, b: jnp.tanh(a) - b, lambda a, b: jnp.where(a > b, a, b), lambda a, b: jax.nn.relu(a) * b,
    lambda a, b: jnp.maximum(a, b), lambda a, b: a - a.mean(keepdims=True) if a.ndim else a * b,
)  # fmt: skip


def body(draft: Draft) -> Callable[[Any, Any], Any]:
    """A function of two floats of one shape and dtype to a third."""
    stages = [draft.among(STAGES) for _ in range(draft.number(1, 3))]

    def run(a: Any, b: Any) -> Any:
        for stage in stages:
            a, b = stage(a, b).astype(a.dtype), a
        return a

    return run


@makes("scan", "while", "cond", "jit", "remat")
def nested(draft: Draft) -> None:
    x = draft.pick(FLOAT, high=3)
    y, run = draft.fitting(x.shape, x.dtype), body(draft)
    how = draft.among(("scan", "while", "cond", "jit", "remat", "vmap"))
    if how == "scan":
        xs = draft.fitting((draft.number(1, 3), *x.shape), x.dtype)
        reverse = draft.chance(0.3)
        draft.step(lambda a, b: lax.scan(lambda c, e: (run(c, e), c), a, b, reverse=reverse), x, xs, rounds=True)
    elif how == "while":
        trips = draft.number(0, 3)
        draft.step(
            lambda a, b: lax.while_loop(lambda s: s[0] < trips, lambda s: (s[0] + 1, run(s[1], b)), (0, a))[1], x, y, rounds=True
        )
    elif how == "cond":
        draft.step(lambda p, a, b: lax.cond(p, run, lambda c, d: c + d, a, b), draft.fitting((), "bool"), x, y, rounds=True)
    elif how == "vmap" and x.shape:
        draft.step(jax.vmap(run), x, y, rounds=True)
    else:
        draft.step((jax.checkpoint if how == "remat" else jax.jit)(run), x, y, rounds=True)
