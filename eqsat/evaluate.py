"""The meaning of terms: array programs for them, with one dimension per named axis.

A term's value is an array and the axes of its dimensions; operands broadcast by axis name. Every array operation used is a
row of `eqsat.arrays`, so one walk over a term can run it on JAX arrays (or tracers), run it on NumPy arrays, or print it as
JAX source. Loads become slices, reshapes and transposes where the index allows and gathers elsewhere; sums of products become
matrix products where the product would be larger than its operands.

On float16 and bfloat16 each operation rounds when run one by one; under `jax.jit` XLA may keep excess precision.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import jax.numpy as jnp
import numpy as np

from eqsat.alpha import Twins
from eqsat.arrays import JAX, NUMPY, Array, Arrays, Value, names_of, shape_of, union
from eqsat.choices import choice
from eqsat.columns import columns
from eqsat.digits import breakpoints, digits_of, folded_by_digits, number_of
from eqsat.index import Axis, Index, Quotient, Remainder
from eqsat.loads import index_dtype, load_value
from eqsat.looked_through import EXPONENTIALS, adds_zero, is_looked_through, product_rounds
from eqsat.maxima import replaceable, source_of_nan
from eqsat.notation import Stored, Tensor, Term, const_value, operands_of, reduce, substitute
from eqsat.online import only_scales, spelled
from eqsat.scalars import DTYPES, REDUCTIONS, SCALARS, is_float, is_integer
from eqsat.scans import Running, restarting, running
from eqsat.ways import Way, otherwise, placed


def evaluate(
    term: Term,
    axes: tuple[Axis, ...],
    arrays: Mapping[Tensor, Array],
    xp: Any = jnp,
    *,
    widen: bool = False,
) -> Array:
    """The array of `term` over `axes`, one dimension each; traceable with `xp=jnp`, the default.

    A stored tensor without an array is computed from its definition. `widen` computes every float in float64 with NumPy:
    the oracle that tells rounding from mistakes.
    """
    return evaluate_all([(term, axes)], arrays, NUMPY if widen or xp is np else JAX, widen=widen)[0]


def evaluate_all(
    wanted: Iterable[tuple[Term, tuple[Axis, ...]]],
    arrays: Mapping[Tensor, Array],
    ops: Arrays = JAX,
    *,
    widen: bool = False,
    numerics: str = "exact",
) -> list[Array]:
    """Several terms over their axes; what they share is computed once. Other `numerics` may take sums apart."""
    wanted = list(wanted)
    evaluator = Evaluator(dict(arrays), ops, widen, numerics)
    breaks = breakpoints(term for term, _ in wanted)
    if ops.convolves:  # not the oracle
        wanted = [(folded_by_digits(term, breaks), axes) for term, axes in wanted]
        evaluator.replaceable = replaceable(term for term, _ in wanted)
    with np.errstate(**({"all": "ignore"} if ops is NUMPY else {})):  # type: ignore[arg-type]
        return [_over_digits(evaluator, term, axes, breaks) for term, axes in wanted]


def _over_digits(run: Evaluator, term: Term, axes: tuple[Axis, ...], breaks: dict[Axis, set[int]]) -> Array:
    """Evaluate over the digits of axes that occur under // and %, so that what varies with one digit is as small as that."""
    anew = {found[0] for t in term.walk() if (found := restarting(t)) is not None}
    digits = digits_of({a: breaks[a] for a in axes if a in breaks}, padded=anew)
    spelled = {a: number_of(ds) for a, ds in digits.items()}
    term = substitute(term, spelled)
    run.replaceable |= {substitute(t, spelled) for t in run.replaceable if digits.keys() & t.axes}
    spread = tuple(d for a in axes for d in digits.get(a, (a,)))
    run.place |= {a: n for n, a in enumerate(spread)}
    if run.ops.convolves:
        run.twins.add(term, run.place, run.replaceable)
        sums = (t for t in term.walk() if t.head == "reduce" and t.data[0] == "sum" and t not in run.twins.first)
        run.ways |= columns({t: sum_of_product(t) for t in sums if is_float(t.dtype) and running(t) is None})
    array = run.over(term, spread)
    if product_rounds(term):
        array = run.ops.apply("rounded", array)
    if not digits:
        return array
    padded = tuple(prod(shape_of(digits.get(a, (a,)))) for a in axes)
    array, shape = run.ops.apply("reshape", array, padded), shape_of(axes)
    return array if padded == shape else run.ops.apply("slice", array, (0,) * len(axes), shape, (1,) * len(axes))


class Evaluator:
    """One evaluation: what has been computed so far, by term."""

    def __init__(self, arrays: dict[Tensor, Array], ops: Arrays, widen: bool = False, numerics: str = "exact") -> None:
        self.arrays, self.ops, self.widen, self.numerics = arrays, ops, widen, numerics
        self.values: dict[Term, Value] = {}
        self.place: dict[Axis, int] = {}  # of the output axes, in the order in which results are wanted
        self.replaceable: frozenset[Term] = frozenset()  # maxima that may lose a NaN
        self.ways: dict[Term, Way | None] = {}
        self.twins = Twins()
        self.exponentials: dict[tuple[Term, Axis], Value] = {}  # exp(s - max s), which an online sum and its divisor share

    def dtype(self, name: str) -> np.dtype:
        return jnp.dtype("float64" if self.widen and is_float(name) else name)

    def source(self, tensor: Tensor) -> Array:
        """The array to load from; a stored tensor without one is computed."""
        if tensor in self.arrays:
            array = self.ops.input(tensor, self.arrays[tensor])
            return self.ops.apply("cast", array, np.dtype("float64")) if self.widen and is_float(tensor.dtype) else array
        if not isinstance(tensor, Stored):
            raise KeyError(f"evaluate: an array for {tensor} required, got none")
        inner = Evaluator(self.arrays, self.ops, self.widen, self.numerics)
        self.arrays[tensor] = self.reshaped(Value(inner.over(tensor.term, tensor.axes), tensor.axes), tensor.shape)
        return self.arrays[tensor]

    def over(self, term: Term, axes: tuple[Axis, ...]) -> Array:
        value = self.value(term)
        if missing := set(value.axes) - set(axes):
            raise ValueError(f"evaluate over {names_of(axes)}: all free axes of the term required, {names_of(missing)} missing")
        return self.broadcast(value, axes)

    def value(self, term: Term) -> Value:
        """The value of a term; a loop, because terms may be deeper than Python's stack."""
        stack = [term]
        while stack:
            top = stack[-1]
            missing = [t for t in self._operands(top) if t not in self.values] if top not in self.values else []
            if missing:
                stack.extend(missing)
                continue
            stack.pop()
            if top not in self.values:
                self.values[top] = self._compute(top)
        return self.values[term]

    def _operands(self, term: Term) -> tuple[Term, ...]:
        if term in self.twins.first:
            return (self.twins.first[term],)
        if term.head == "where" or (term.head == "reduce" and running(term) is None):
            if term not in self.ways:
                self.ways[term] = self._way(term)
            if (found := self.ways[term]) is not None:
                return found.operands
        return operands(term)

    def _way(self, term: Term) -> Way | None:
        if term.head == "where":
            return choice(term) if self.ops.convolves else None
        others = otherwise(term, *sum_of_product(term), self.numerics) if self.ops.convolves else None
        return placed(term) or others

    def _compute(self, term: Term) -> Value:
        if (first := self.twins.first.get(term)) is not None:
            value, names = self.values[first], self.twins.names(first, term)
            return Value(value.array, tuple(names[a] for a in value.axes))
        if (found := self.ways.get(term)) is not None:
            return found.value(self)
        match term.head:
            case "load":
                return load_value(self, term)
            case "const":
                return Value(self.ops.literal(const_value(term), self.dtype(term.dtype)), ())
            case "pos":
                return self.cast(self.index(term.data, ()), index_dtype(term.data), term.dtype)
            case "cast":
                return self.cast(self.values[term.args[0]], term.args[0].dtype, term.dtype)
            case "reduce" | "online" if (scan := one_scan(term)) is not None:
                return self._scan(scan, term.dtype)
            case "reduce" if term.data[0] == "sum":
                axes, factors = sum_of_product(term)
                return self._sum_product(self._factors(factors), axes, term.dtype)
            case "reduce":
                shows = None if term in self.replaceable else self._shows_nan(term.args[0])
                return self.fold(term.data[0], self.values[term.args[0]], (term.data[1],), term.dtype, shows)
            case "online":
                return self._online(term)
        return self.scalar(term.head, *(self._operand(a, term) for a in term.args))

    def _operand(self, arg: Term, user: Term) -> Value:
        """A value, kept as it is where a compiler would look through it: a*b + c, log(exp(x)), (x/a)/b, the sign of b*b."""
        value = self.values[arg]
        if product_rounds(arg) and user.head in ("add", "sub"):
            return Value(self.ops.apply("rounded", value.array), value.axes)
        if is_float(arg.dtype) and is_looked_through(arg, user):
            return Value(self.ops.apply("rounded", value.array), value.axes)
        divisor = user.head == "div" and arg is user.args[1] and arg.head == "const"  # XLA multiplies by its rounded reciprocal
        if divisor or adds_zero(arg, user) or (arg.head == "mul" and arg.args[0] is arg.args[1] and is_integer(arg.dtype)):
            return Value(self.ops.apply("kept", value.array), value.axes)
        return value

    def _factors(self, terms: Sequence[Term]) -> list[Value]:
        """The values to multiply; exponentials among them are kept apart."""
        several = sum(t.head in EXPONENTIALS for t in terms) > 1
        kept = [several and t.head in EXPONENTIALS for t in terms]
        values = [self.values[t] for t in terms]
        return [Value(self.ops.apply("rounded", v.array), v.axes) if k else v for k, v in zip(kept, values, strict=True)]

    # --- elementwise ---------------------------------------------------------------------------------------------

    def joined(self, args: Sequence[Value]) -> tuple[Axis, ...]:
        """The axes of an elementwise result: as the largest operand has them, those that it lacks where the output has them."""
        axes = union(args)
        largest = max((a.axes for a in args), key=len, default=())
        wanted = tuple(sorted(axes, key=lambda a: self.place.get(a, len(self.place))))
        return wanted if tuple(a for a in wanted if a in largest) == largest else axes

    def scalar(self, op: str, *args: Value) -> Value:
        axes = self.joined(args)
        row = SCALARS.get(op)
        whole = row is not None and row.arity == 2 and row.jax.startswith("lax.")  # which broadcasts nothing but scalars
        return Value(self.ops.apply(op, *(self.align(a, axes, whole) for a in args)), axes)

    def cast(self, value: Value, source: str, target: str) -> Value:
        if self.dtype(source) == self.dtype(target):
            return value
        array = value.array
        if source == "bool" and is_float(target):  # XLA makes x * float(mask) a choice, and nothing of a masked NaN or infinity
            array = self.ops.apply("cast", array, "int8")
        return Value(self.ops.apply("cast", array, self.dtype(target)), value.axes)

    def align(self, value: Value, axes: tuple[Axis, ...], whole: bool = False) -> Array:
        """The array with its dimensions in the order of `axes`, of extent 1 where it does not vary; leading ones if `whole`."""
        array = self.ordered(value, tuple(a for a in axes if a in value.axes))
        if value.axes == () or len(value.axes) == len(axes):
            return array
        leading = 0 if whole else next(i for i, a in enumerate(axes) if a in value.axes)
        if leading + len(value.axes) == len(axes):  # trailing axes broadcast by themselves
            return array
        return self.ops.apply("reshape", array, tuple(a.extent if a in value.axes else 1 for a in axes[leading:]))

    def ordered(self, value: Value, axes: tuple[Axis, ...]) -> Array:
        """The array with its dimensions permuted to `axes`."""
        if value.axes == axes:
            return value.array
        return self.ops.apply("transpose", value.array, tuple(value.axes.index(a) for a in axes))

    def reshaped(self, value: Value, shape: tuple[int, ...]) -> Array:
        return value.array if shape_of(value.axes) == shape else self.ops.apply("reshape", value.array, shape)

    def broadcast(self, value: Value, axes: tuple[Axis, ...]) -> Array:
        if value.axes == axes:
            return value.array
        array = self.align(value, axes)
        if set(value.axes) == set(axes):
            return array
        return self.ops.apply("broadcast", array, shape_of(axes))

    def index(self, index: Index, slots: tuple[Value, ...]) -> Value:
        """The value of an index expression as integers; `slots` are the values of dynamic atoms."""
        dtype = jnp.dtype(index_dtype(index))
        total: Value | None = None
        for atom, coefficient in index.terms:
            value = self._atom(atom, slots, dtype)
            if coefficient != 1:
                value = self.scalar("mul", value, Value(self.ops.literal(coefficient, dtype), ()))
            total = value if total is None else self.scalar("add", total, value)
        constant = Value(self.ops.literal(index.constant, dtype), ())
        if total is None:
            return constant
        return self.scalar("add", total, constant) if index.constant else total

    def _atom(self, atom: Any, slots: tuple[Value, ...], dtype: np.dtype) -> Value:
        if isinstance(atom, Axis):
            return Value(self.ops.apply("arange", atom.extent, dtype), (atom,))
        if isinstance(atom, Quotient | Remainder):
            value = self.cast(self.index(atom.index, slots), index_dtype(atom.index), dtype.name)
            row = "floor_divide" if isinstance(atom, Quotient) else "remainder"
            return Value(self.ops.apply(row, value.array, atom.divisor), value.axes)
        value = slots[atom.slot]
        return Value(self.ops.apply("cast", value.array, dtype), value.axes)

    # --- reductions ----------------------------------------------------------------------------------------------

    def _shows_nan(self, term: Term) -> Value:
        """A value that is NaN where the term's is: what it is made from, which need not be stored for a second pass."""
        value = self.values[term]
        source = self.values.get(source_of_nan(term), value)
        return source if source.axes == value.axes else value

    def fold(self, name: str, value: Value, axes: tuple[Axis, ...], dtype: str, shows: Value | None = None) -> Value:
        """Reduce over `axes`, whether the value varies over them or not. A maximum of floats has the NaN that `shows` has."""
        idempotent = name in ("max", "min", "and", "or")
        absent = [a for a in axes if a not in value.axes and (a.extent == 0 or (a.extent > 1 and not idempotent))]
        if absent:
            wider = (*value.axes, *absent)
            value = Value(self.broadcast(value, wider), wider)
        kept = tuple(a for a in value.axes if a not in axes)
        if any(a in axes and a.extent == 0 for a in value.axes):
            identity = REDUCTIONS[name].identity(dtype)
            return Value(self.ops.apply("fill", shape_of(kept), identity, self.dtype(dtype)), kept)
        dims = tuple(i for i, a in enumerate(value.axes) if a in axes)
        if not dims:
            return value
        return Value(self._fold_dims(name, value, dims, dtype, shows), kept)

    def _fold_dims(self, name: str, value: Value, dims: tuple[int, ...], dtype: str, shows: Value | None) -> Array:
        array = value.array
        if name in ("sum", "prod"):
            return self.ops.apply(f"reduce_{name}", array, dims, self.dtype(dtype))
        if dtype == "bool":
            return self.ops.apply("reduce_all" if name in ("and", "min") else "reduce_any", array, dims)
        if name in ("and", "or"):
            identity = self.ops.literal(REDUCTIONS[name].identity("int32"), np.dtype("int64")).astype(dtype)
            return self.ops.apply(f"reduce_{name}", array, dims, identity)
        if is_float(dtype) and shows is not None:
            if dims[0] == len(value.axes) - len(dims) and self.dtype(dtype) in FULL_PRECISION:  # XLA:CPU is slow at other pairs
                identity = self.ops.literal(REDUCTIONS[name].identity(dtype), self.dtype(dtype))
                return self.ops.apply(f"reduce_{name}_row", array, dims, identity)
            compute = self.dtype(DTYPES[dtype].compute)
            return self.ops.apply(f"reduce_{name}_float", array, dims, self.dtype(dtype), shows.array, compute)
        return self.ops.apply(f"reduce_{name}", array, dims)

    def _scan(self, scan: Running, dtype: str) -> Value:
        """A running fold, as one operation along an axis that is then another."""
        values = [self.values[t] for t in reversed(scan.operands)]
        found = union(values)
        axes = found if scan.bound in found else (*found, scan.bound)
        compute = DTYPES[dtype].compute
        arrays = [self.cast(Value(self.broadcast(v, axes), axes), dtype, compute).array for v in values]
        total = self.ops.apply(f"scan_{scan.name}", *arrays, axes.index(scan.bound), scan.reverse)
        result = Value(total, tuple(scan.axis if a == scan.bound else a for a in axes))
        if scan.scores is not None:
            largest = self._scan(replace(scan, name="max", arg=scan.scores, scores=None), dtype)
            finite = self.scalar("lt", self.scalar("abs", largest), Value(self.ops.literal(math.inf, self.dtype(dtype)), ()))
            result = self.scalar("where", finite, result, Value(self.ops.literal(math.nan, self.dtype(dtype)), ()))
        return self.cast(result, compute, dtype)

    def _online(self, term: Term) -> Value:
        if term.data[0] != "softmax":
            return self.values[spelled(term)]
        _, axis, weight = term.data
        score = self.values[term.args[0]]
        kind = term.args[0].dtype
        key = (term.args[0], axis)
        if key not in self.exponentials:
            row_max = reduce("max", axis, term.args[0])  # here a NaN may get lost: the sum of exponentials has it anyway
            top = self.values.get(row_max) or self.fold("max", score, (axis,), kind)
            scales = any(only_scales(abs(const_value(a))) for a in term.args[0].args if a.head == "const")
            rounds = product_rounds(term.args[0]) and not scales
            exact = Value(self.ops.apply("rounded", score.array), score.axes) if rounds else score
            self.exponentials[key] = self.scalar("exp", self.scalar("sub", exact, top))
        weights = self.exponentials[key]
        weights = self.cast(self.cast(weights, kind, weight), weight, term.dtype)
        factors = [f for f in operands_of(term.args[1], "mul") if f.head != "const" or const_value(f) != 1]
        return self._sum_product([weights, *(self.values[f] for f in factors)], (axis,), term.dtype)

    def _sum_product(self, factors: list[Value], axes: tuple[Axis, ...], dtype: str) -> Value:
        groups = [self.multiply(g) for g in _groups(factors, axes if self.dtype(dtype) in FULL_PRECISION else ())]
        while len(groups) > 2:
            groups, axes = self._contract_smallest(groups, axes, dtype)
        if len(groups) == 2 and _dot_pays(groups[0], groups[1], axes, self.dtype(dtype)):
            inside = tuple(a for a in axes if a in groups[0].axes or a in groups[1].axes)
            rest = tuple(a for a in axes if a not in inside)
            return self.fold("sum", self._dot(groups[0], groups[1], inside, dtype), rest, dtype)
        return self.fold("sum", self.multiply(groups), axes, dtype)

    def multiply(self, values: list[Value]) -> Value:
        result = values[0]
        for value in values[1:]:
            result = self.scalar("mul", result, value)
        return result

    def _contract_smallest(self, groups: list[Value], axes: tuple[Axis, ...], dtype: str) -> tuple[list[Value], tuple[Axis, ...]]:
        """Contract the pair with the smallest result over the axes that no other group mentions; the axes left to sum."""
        best: tuple[int, int, int, tuple[Axis, ...]] | None = None
        for i in range(len(groups)):
            for j in range(i):
                others = union([g for n, g in enumerate(groups) if n not in (i, j)])
                both = union([groups[i], groups[j]])
                inside = tuple(a for a in axes if a in both and a not in others)
                size = prod(shape_of(a for a in both if a not in inside))
                if best is None or size < best[0]:
                    best = (size, i, j, inside)
        assert best is not None
        _, i, j, inside = best
        rest = [g for n, g in enumerate(groups) if n not in (i, j)]
        return [*rest, self._dot(groups[j], groups[i], inside, dtype)], tuple(a for a in axes if a not in inside)

    def _dot(self, a: Value, b: Value, axes: tuple[Axis, ...], dtype: str) -> Value:
        """Sum of a * b over `axes`, each of which at least one of them mentions."""
        a = self.fold("sum", a, tuple(x for x in axes if x in a.axes and x not in b.axes), dtype)
        b = self.fold("sum", b, tuple(x for x in axes if x in b.axes and x not in a.axes), dtype)
        if self._copied(b, a, axes) < self._copied(a, b, axes):
            a, b = b, a
        summed = tuple(x for x in axes if x in a.axes)
        batch = tuple(x for x in a.axes if x in b.axes and x not in summed)
        numbers = (
            (tuple(map(a.axes.index, summed)), tuple(map(b.axes.index, summed))),
            (tuple(map(a.axes.index, batch)), tuple(map(b.axes.index, batch))),
        )
        accumulate = DTYPES[dtype].compute
        array = self.ops.apply("dot", a.array, b.array, numbers, self.dtype(accumulate))
        return self.cast(Value(array, product_axes(a, b, axes)), accumulate, dtype)

    def _copied(self, a: Value, b: Value, axes: tuple[Axis, ...]) -> int:
        """Elements that are moved around the product a * b: those of a left operand whose last axes are not the summed ones, of
        a right one whose summed axes lie between others, of a result whose axes are wanted in another order."""
        inner = [x in axes for x in a.axes], [x in axes for x in b.axes if x not in a.axes or x in axes]
        result = product_axes(a, b, axes)
        places = [self.place[x] for x in result if x in self.place]
        moved = [
            (a, inner[0] != sorted(inner[0])),
            (b, inner[1] not in (sorted(inner[1]), sorted(inner[1], reverse=True))),
            (Value(None, result), places != sorted(places)),
        ]
        return sum(prod(shape_of(v.axes)) for v, copied in moved if copied)


def product_axes(a: Value, b: Value, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """The axes of a matrix product: shared ones, those of the left operand, those of the right one."""
    batch = tuple(x for x in a.axes if x in b.axes and x not in axes)
    return (*batch, *(x for v in (a, b) for x in v.axes if x not in axes and x not in batch))


# --- which terms a term is computed from -----------------------------------------------------------------------------


def operands(term: Term) -> tuple[Term, ...]:
    """The terms from whose values `term` is computed; products below a sum are taken apart and never stored."""
    if (scan := one_scan(term)) is not None:
        return scan.operands
    if term.head == "reduce" and term.data[0] == "sum":
        return sum_of_product(term)[1]
    if term.head == "online":
        if term.data[0] != "softmax":
            return (spelled(term),)
        return (term.args[0], *operands_of(term.args[1], "mul"))
    return term.args


def one_scan(term: Term) -> Running | None:
    """A reduction as a running fold, where that keeps every NaN."""
    found = running(term)
    return None if found is not None and found.weighs else found


def sum_of_product(term: Term) -> tuple[tuple[Axis, ...], tuple[Term, ...]]:
    """The axes of directly nested sums, and the factors below them."""
    axes: list[Axis] = []
    while term.head == "reduce" and term.data[0] == "sum" and term.data[1] not in axes and running(term) is None:
        axes.append(term.data[1])
        term = term.args[0]
    return tuple(axes), operands_of(term, "mul")


def _groups(factors: list[Value], axes: tuple[Axis, ...]) -> list[list[Value]]:
    """Factors that can be multiplied without growing: each joins the smallest group that has all its axes.

    A vector along the axes that are summed stays apart from a matrix: their product is what array libraries are fast at.
    """
    groups: list[list[Value]] = []
    for factor in sorted(factors, key=lambda f: -prod(shape_of(f.axes))):
        homes = [g for g in groups if set(factor.axes) <= set(g[0].axes) and not _is_vector(factor, g[0], axes)]
        if homes:
            homes[-1].append(factor)
        else:
            groups.append([factor])
    return groups


def _is_vector(factor: Value, matrix: Value, axes: tuple[Axis, ...]) -> bool:
    """A vector along summed axes, or one for each matrix of a stack, if the axes of the stack come first in both."""
    stack = tuple(a for a in factor.axes if a not in axes)
    first = stack == factor.axes[: len(stack)] == matrix.axes[: len(stack)]
    return len(stack) < len(factor.axes) and first and set(factor.axes) < set(matrix.axes)


FULL_PRECISION = (np.dtype("float32"), np.dtype("float64"))


def _dot_pays(a: Value, b: Value, axes: tuple[Axis, ...], dtype: np.dtype) -> bool:
    """A matrix product, if the plain product would be larger than its operands or both are summed in full precision."""
    grows = prod(shape_of(union([a, b]))) > max(prod(shape_of(a.axes)), prod(shape_of(b.axes)))
    shared = any(x in a.axes and x in b.axes for x in axes)
    return grows or (shared and dtype in FULL_PRECISION)
