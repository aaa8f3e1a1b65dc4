"""Instances of rules: what each variable stands for, drawn at random, and the two sides built from them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from eqsat import notation
from eqsat.index import Axis, Index
from eqsat.notation import Tensor, Term
from eqsat.pattern import DTYPE_OF_BIT, Pattern
from eqsat.pattern import Axis as AxisSort
from eqsat.pattern import DType as DTypeSort
from eqsat.ranges import Range, range_of
from eqsat.rule import Rule
from eqsat.scalars import DTYPES, SCALARS, is_float

Array = Any
Value = Term | Axis | str | float


class Bound:
    """What variables stand for, and so what patterns do."""

    values: Mapping[str, Value]  # of variables, by name

    # --- what guards ask (eqsat.guard.Binding)

    def axis(self, pattern: Pattern) -> Axis:
        value = self.values[pattern.data]
        assert isinstance(value, Axis)
        return value

    def axes(self, pattern: Pattern) -> frozenset[Axis]:
        return self.term(pattern).axes

    def dtype(self, pattern: Pattern) -> str:
        if pattern.head == "number":
            return DTYPE_OF_BIT[pattern.data]
        value = self.values[pattern.data]
        return value if isinstance(value, str) else self.term(pattern).dtype

    def number(self, pattern: Pattern) -> float:
        match pattern.head:
            case "number":
                return pattern.data
            case "extent":
                return float(self.axis(pattern.args[0]).extent)
            case "arithmetic":
                numbers = [np.float64(self.number(a)) for a in pattern.args]
                with np.errstate(all="ignore"):
                    return float(_ARITHMETIC[pattern.data](*numbers))
        value = self.values[pattern.data]
        assert isinstance(value, float)
        return value

    def range(self, pattern: Pattern) -> Range:
        return range_of(self.term(pattern))

    # --- terms

    def term(self, pattern: Pattern, like: str = "float32") -> Term:
        """The term of a pattern; a literal without a dtype of its own has that of its neighbours."""
        match pattern.head:
            case "variable":
                value = self.values[pattern.data]
                assert isinstance(value, Term)
                return value
            case "const":
                dtype = self.dtype(pattern.args[1]) if len(pattern.args) > 1 else like
                return _literal(self.number(pattern.args[0]), dtype)
            case "pos":
                return notation.pos(Index.of(self.axis(pattern.args[0])), like)
            case "cast":
                return notation.cast(self.dtype(pattern.args[1]), self.term(pattern.args[0], like))
            case "reduce":
                return notation.reduce(pattern.data, self.axis(pattern.args[0]), self.term(pattern.args[1], like))
            case "online":
                axis, s, v, weight = pattern.args
                return notation.online(self.axis(axis), self.term(s, like), self.term(v, like), self.dtype(weight), pattern.data)
        return self._operation(pattern, like)

    def _operation(self, pattern: Pattern, like: str) -> Term:
        typed = pattern.args[1:] if pattern.head == "where" else pattern.args
        bare = [a.head == "pos" or (a.head == "const" and len(a.args) == 1) for a in typed]
        if not all(bare):
            like = self.term(typed[bare.index(False)], like).dtype
        first = (self.term(pattern.args[0], "bool"),) if pattern.head == "where" else ()
        return notation.scalar(pattern.head, *first, *(self.term(a, like) for a in typed))


@dataclass(frozen=True, eq=False)
class Instance(Bound):
    """A binding of a rule's variables, with the arrays of the tensors that its terms load."""

    rule: Rule
    values: Mapping[str, Value]
    arrays: Mapping[Tensor, Array]
    mode: str

    @property
    def admitted(self) -> bool:
        """True if the conditions hold and every literal of the left side is a value of its dtype."""
        if not all(guard.holds(self) for guard in self.rule.equation.guards):
            return False
        try:
            return all(is_value(notation.const_value(t), t.dtype) for t in self.left.walk() if t.head == "const")
        except TypeError:
            return False

    @property
    def left(self) -> Term:
        return self.term(self.rule.equation.left)

    @property
    def right(self) -> Term:
        return self.term(self.rule.equation.right)


_ARITHMETIC: dict[str, Any] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "neg": lambda a: -a,
}


def _literal(value: float, dtype: str) -> Term:
    if not is_float(dtype) and not is_value(value, dtype):
        raise TypeError(f"a literal of dtype {dtype}: one of its values required, got {value:g}")
    return notation.const(value, dtype)


def is_value(value: float, dtype: str) -> bool:
    """True if a dtype holds this number."""
    if DTYPES[dtype].kind == "bool":
        return value in (0, 1)
    if not is_float(dtype):
        info = np.iinfo(dtype)
        return bool(np.isfinite(value)) and value == int(value) and info.min <= value <= info.max
    with np.errstate(all="ignore"):
        return bool(np.isnan(value)) or float(np.asarray(value).astype(jnp.dtype(dtype))) == value


# --- drawing at random ----------------------------------------------------------------------------------------------

DTYPES_OF_KIND = {
    "float": ("float32", "float64", "bfloat16", "float16", "float8_e5m2"),
    "int": ("int32", "int8"),
    "uint": ("uint8",),
    "bool": ("bool",),
}
NUMBERS = (0.0, 1.0, -1.0, 2.0, 0.5, 3.0, -7.0, 10.0, 0.10009765625, 100.0, 1024.0, 0.0078125, float("inf"), float("-inf"), 1e30)
SPECIAL = (float("nan"), float("inf"), float("-inf"), -0.0, 0.0, 1.0, -1.0, 2.0)
PALETTES: tuple[tuple[float, ...], ...] = (
    SPECIAL,
    SPECIAL[1:3],
    SPECIAL[1:5],
)  # of an instance: few values meet one another more often
MODES = {
    "exact": ("ordinary", "special", "whole", "wide", "extreme", "special"),
    "reassociate": ("ordinary", "offset", "whole", "special", "ordinary", "nan"),
    "fast": ("ordinary", "offset", "whole"),
}


class Sampler:
    """Draws instances of one rule; the same seed gives the same ones."""

    def __init__(self, rule: Rule, seed: int = 0) -> None:
        self.rule, self.types = rule, rule.types
        self.rng = np.random.default_rng([seed, *rule.name.encode()])
        self.bounded = {p.data for g in rule.equation.guards for p in g.bounded}
        self.rank = 0  # of the scale that most values of an instance have
        self.palette = PALETTES[0]

    def instances(self, count: int, tries: int = 60) -> Iterator[Instance]:
        """Instances whose conditions hold, at most `count`."""
        modes = MODES[self.rule.tier]
        for n in range(count):
            for _ in range(tries):
                try:
                    instance = self.draw(modes[n % len(modes)], n)
                    if instance.admitted:
                        yield instance
                        break
                except TypeError:
                    continue  # dtypes that no operation has

    def draw(self, mode: str, number: int) -> Instance:
        dtypes: dict[int, str] = {}
        values: dict[str, Value] = {}
        arrays: dict[Tensor, Array] = {}
        axes = self._axes()
        self.rank = int(self.rng.integers(5))
        self.palette = PALETTES[int(self.rng.integers(len(PALETTES)))]
        for name, sort in self.rule.sorts.items():
            if sort is AxisSort:
                values[name] = axes[name]
            elif sort is DTypeSort:
                values[name] = self._dtype(self.types.class_of(name), dtypes, number)
            elif sort.is_term:
                dtype = self._dtype(self.types.class_of(name), dtypes, number)
                same = [v for v in values.values() if isinstance(v, Term) and v.dtype == dtype]
                alias = same and self.rng.random() < 0.1
                values[name] = same[0] if alias else self._term(name, dtype, list(axes.values()), mode, arrays)
            else:
                values[name] = float(self.rng.choice(NUMBERS))
        self._to_the_bounds(values)
        return Instance(self.rule, values, arrays, mode)

    def _to_the_bounds(self, values: dict[str, Value]) -> None:
        """Numbers that a condition compares with the values of a term are often a bound of these: there it holds or fails."""
        ends = [x for n in sorted(self.bounded) for x in range_of(values[n])[:2] if np.isfinite(x)]  # type: ignore[arg-type]
        ends += [0.0, -0.0] if 0 in ends else []  # a bound of 0 is one of either sign
        for name, value in values.items():
            if isinstance(value, float) and ends and self.rng.random() < 0.5:
                values[name] = float(self.rng.choice(ends))

    def _axes(self) -> dict[str, Axis]:
        """The rule's axes, two of which may be one, and two others; extents 1, equal and unequal."""
        names = [n for n, s in self.rule.sorts.items() if s is AxisSort]
        extents = [int(n) for n in self.rng.choice([1, 2, 3, 3, 4, 5], len(names) + 2)]
        axes = {name: Axis(name, n) for name, n in zip([*names, "x0", "x1"], extents, strict=True)}
        if len(names) > 1 and self.rng.random() < 0.15:
            axes[names[1]] = axes[names[0]]
        return axes

    def _dtype(self, number: int, dtypes: dict[int, str], turn: int) -> str:
        if number not in dtypes:
            kinds = sorted(self.types.kinds(number))
            choices = [d for kind in kinds for d in DTYPES_OF_KIND[kind]]
            dtypes[number] = self.types.dtype(number) or choices[(turn // 3 + int(self.rng.integers(2))) % len(choices)]
        return dtypes[number]

    def _term(self, name: str, dtype: str, axes: list[Axis], mode: str, arrays: dict[Tensor, Array]) -> Term:
        chosen = tuple(a for a in dict.fromkeys(axes) if self.rng.random() < 0.5)
        if name in self.bounded and self.rng.random() < 0.8:
            return self._bounded(name, dtype, chosen, mode, arrays)
        kind = self.rng.random()
        if kind < 0.65:
            return self._load(name, dtype, chosen, mode, arrays)
        if kind < 0.75:
            value = self._array(dtype, (), mode).item() if dtype != "bool" else bool(self.rng.integers(2))
            return notation.const(value, dtype)
        if kind < 0.85:
            axis = Axis("q", 3) if self.rng.random() < 0.7 or not chosen else chosen[0]
            inner = self._load(name, dtype, (*chosen, axis), mode, arrays)
            return notation.reduce("max", axis, inner)
        return self._structured(name, dtype, chosen, mode, arrays)

    def _structured(self, name: str, dtype: str, axes: tuple[Axis, ...], mode: str, arrays: dict[Tensor, Array]) -> Term:
        """An operation on loads."""
        if dtype == "bool":
            return notation.scalar("lt", *(self._load(f"{name}{n}", "float32", axes, mode, arrays) for n in "pq"))
        op = str(self.rng.choice(["neg", "add", "mul", "max", "sub", "where"]))
        a, b = (self._load(f"{name}{n}", dtype, axes, mode, arrays) for n in "pq")
        if op == "where":
            return notation.scalar("where", self._load(f"{name}r", "bool", axes, mode, arrays), a, b)
        return notation.scalar(op, *(a, b)[: SCALARS[op].arity])

    def _bounded(self, name: str, dtype: str, axes: tuple[Axis, ...], mode: str, arrays: dict[Tensor, Array]) -> Term:
        """A term of which something can be proved: a literal, a position, a truth value, or what gives not all values."""
        kind = self.rng.random()
        if dtype == "bool" or kind < 0.15:
            value = self._array(dtype, (), mode).item()
            return notation.const(math.copysign(0.0, value) if is_float(dtype) and kind < 0.05 else value, dtype)
        if kind < 0.3 and axes:
            return notation.pos(Index.of(axes[0]) + int(self.rng.integers(-1, 3)), dtype)
        if not is_float(dtype) or kind < 0.4:
            truth = notation.scalar("lt", *(self._load(f"{name}{n}", "float32", axes, mode, arrays) for n in "pq"))
            return notation.cast(dtype, truth)
        inner = self._load(name, dtype, axes, mode, arrays)
        if kind < 0.6:
            return notation.scalar("mul", inner, inner)
        made = notation.scalar(str(self.rng.choice(["abs", "exp", "tanh", "logistic", "sqrt"])), inner)
        return (
            made if kind < 0.8 else notation.scalar("add", made, notation.const(float(self.rng.choice([0.5, 1.0, 2.0])), dtype))
        )

    def _load(self, name: str, dtype: str, axes: tuple[Axis, ...], mode: str, arrays: dict[Tensor, Array]) -> Term:
        axes = tuple(dict.fromkeys(axes))
        return leaf(name, axes, self._array(dtype, tuple(a.extent for a in axes), mode), arrays)

    def _array(self, dtype: str, shape: tuple[int, ...], mode: str) -> Array:
        if dtype == "bool":
            return self.rng.integers(0, 2, shape).astype(bool)
        if not is_float(dtype):
            info = np.iinfo(dtype)
            low, high = (max(int(info.min), -4), 5) if mode in ("ordinary", "whole", "offset") else (info.min, info.max)
            return self.rng.integers(low, high, shape, endpoint=True, dtype=np.int64).astype(dtype)
        with np.errstate(all="ignore"):
            return np.asarray(self._floats(dtype, shape, mode)).astype(jnp.dtype(dtype))

    def _floats(self, dtype: str, shape: tuple[int, ...], mode: str) -> Array:
        narrow = dtype == "float16" or DTYPES[dtype].nbytes == 1
        rank = self.rank if self.rng.random() < 0.6 else int(self.rng.integers(5))
        scale = ((0.125, 0.5, 1.0, 2.0, 3.0) if narrow else (0.01, 1.0, 100.0, 300.0, 1000.0))[rank]
        plain = scale * self.rng.uniform(0.1, 1.0, shape) * self.rng.choice([-1.0, 1.0], shape)
        finfo = jnp.finfo(dtype)
        match mode:
            case "offset":
                return scale * (2 + self.rng.uniform(-0.01, 0.01, shape))
            case "whole":
                return self.rng.integers(-3, 4, shape).astype(float)
            case "special":
                return np.where(self.rng.random(shape) < 0.5, self.rng.choice(self.palette, shape), plain)
            case "nan":
                return np.where(self.rng.random(shape) < 0.25, np.nan, plain)
            case "wide":
                return plain * 2.0 ** self.rng.integers(finfo.minexp - finfo.nmant, finfo.maxexp, shape)
            case "extreme":
                edge = [float(finfo.max), float(finfo.tiny), float(finfo.smallest_subnormal), 1.0, 3.0, 0.0, -0.0, np.inf]
                return self.rng.choice(edge, shape) * self.rng.choice([-1.0, 1.0], shape)
        return np.abs(plain) if self.rng.random() < 0.3 else plain


def leaf(name: str, axes: tuple[Axis, ...], array: Array, arrays: dict[Tensor, Array]) -> Term:
    """A load of a new tensor over `axes`."""
    tensor = Tensor(name, tuple(a.extent for a in axes), str(array.dtype))
    arrays[tensor] = array
    return notation.load(tensor, [Index.of(a) for a in axes])


# --- every value of a small dtype ------------------------------------------------------------------------------------

SMALL = ("int8", "uint8", "float8_e4m3fn", "float8_e5m2", "bool")
LARGEST = 1 << 17


def exhaustive(rule: Rule) -> Iterator[tuple[str, Instance]]:
    """Instances that hold every combination of values of an 8-bit dtype, for rules without axes; with the dtype's name."""
    sorts, types = rule.sorts, rule.types
    if any(s in (AxisSort, DTypeSort) for s in sorts.values()):
        return
    terms = [n for n, s in sorts.items() if s.is_term]
    numbers = [n for n, s in sorts.items() if not s.is_term]
    classes = {types.class_of(n) for n in terms}
    for dtype in SMALL:
        chosen = {c: types.dtype(c) or (dtype if DTYPES[dtype].kind in types.kinds(c) else "") for c in classes}
        if dtype not in chosen.values() or "" in chosen.values() or not set(chosen.values()) <= {dtype, "bool"}:
            continue
        for value in NUMBERS if numbers else (0.0,):
            instance = _grid(rule, {n: chosen[types.class_of(n)] for n in terms}, dict.fromkeys(numbers, value))
            if instance.admitted:
                yield dtype, instance


def _grid(rule: Rule, dtypes: dict[str, str], numbers: dict[str, float]) -> Instance:
    every = {name: _every_value(dtype) for name, dtype in dtypes.items()}
    arrays: dict[Tensor, Array] = {}
    values: dict[str, Value] = dict(numbers)
    if np.prod([float(len(v)) for v in every.values()]) <= LARGEST:
        for d, (name, array) in enumerate(every.items()):
            values[name] = leaf(name, (Axis(f"x{d}", len(array)),), array, arrays)
    else:
        rng, axis = np.random.default_rng(0), Axis("x0", 1 << 15)
        for name, array in every.items():
            values[name] = leaf(name, (axis,), rng.choice(array, axis.extent), arrays)
    return Instance(rule, values, arrays, "every value")


def _every_value(dtype: str) -> Array:
    if dtype == "bool":
        return np.array([False, True])
    return np.arange(256).astype(np.uint8).view(jnp.dtype(dtype))
