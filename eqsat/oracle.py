"""The original program, one equation after the other: as written, in float64, or in float64 with perturbed values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from eqsat.graph import Equation, Graph, Literal, Variable
from eqsat.scalars import DTYPES, is_float

Array = Any

LONGEST = 20_000  # equations of a loop that are evaluated one by one
DTYPE_PARAMETERS = ("new_dtype", "preferred_element_type", "dtype")
COMPLEX = ("complex64", "complex128")
EXTREMES = {"reduce_max", "reduce_min"}
BITWISE = {"bitcast_convert_type", "nextafter", "reduce_precision"}  # whose meaning is that of one float format


def evaluate_graph(graph: Graph, flat: Sequence[Array], *, wide: bool = False, jitter: int = 0) -> list[Array]:
    """The outputs for flat arguments, never under `jax.jit`; a value is dropped after its last use.

    wide: every float is float64, and a cast between floats changes nothing. jitter: a seed, with which every float value
    is moved by up to the rounding unit of the dtype that the program gives it. An equation that cannot run in float64 (it holds
    a program of its own, or looks at bits) runs as written.
    """
    with jax.enable_x64(True) if wide else graph.mode():
        return _Evaluation(graph, wide, np.random.default_rng(jitter) if jitter else None).run(flat)


class _Evaluation:
    def __init__(self, graph: Graph, wide: bool, rng: np.random.Generator | None) -> None:
        self.graph, self.wide, self.rng = graph, wide, rng
        self.uses = Counter(x for e in graph.equations for x in e.inputs if isinstance(x, Variable))
        self.uses.update(x for x in graph.outputs if isinstance(x, Variable))

    def run(self, flat: Sequence[Array]) -> list[Array]:
        known: dict[Any, Array] = {}
        for variable, value in (*self.graph.constants.items(), *zip(self.graph.inputs, flat, strict=True)):
            known[variable] = self.moved(self.widened(value, variable.dtype), variable.dtype)
        for equation in self.graph.equations:
            values = [self.value(x, known) for x in equation.inputs]
            results = self.apply(equation, values)
            if equation.name in EXTREMES:
                results = [_keeping_nan(values[0], equation.params["axes"], results[0])]
            for variable, result in zip(equation.outputs, results, strict=True):
                known[variable] = self.moved(result, variable.dtype)
            self.drop(equation, known)
        return [self.value(x, known) for x in self.graph.outputs]

    def value(self, atom: Variable | Literal, known: Mapping[Any, Array]) -> Array:
        return self.widened(atom.value, atom.dtype) if isinstance(atom, Literal) else known[atom]

    def drop(self, equation: Equation, known: dict[Any, Array]) -> None:
        self.uses.subtract(x for x in equation.inputs if isinstance(x, Variable))
        for x in {*equation.inputs, *equation.outputs}:
            if isinstance(x, Variable) and not self.uses[x]:
                known.pop(x, None)

    def widened(self, value: Array, dtype: str) -> Array:
        wide = _wide(dtype) if self.wide else None
        return value if wide is None else jnp.asarray(value).astype(wide)

    def moved(self, value: Array, dtype: str) -> Array:
        if self.rng is None or _wide(dtype) is None:
            return value
        unit = float(jnp.finfo(jnp.dtype(dtype)).eps) / 2
        return value * (1 + unit * jnp.asarray(self.rng.uniform(-1, 1, np.shape(value))))

    def apply(self, equation: Equation, values: list[Array]) -> list[Array]:
        if equation.bodies:
            return self.loop(equation, values)
        if not self.wide:
            return equation.bind(*values)
        if equation.name not in BITWISE and not _holds_program(equation.params):
            try:
                return _bind(equation, _wide_parameters(equation), values)
            except (TypeError, ValueError, NotImplementedError):
                pass
        narrow = [_as(v, x.dtype) for v, x in zip(values, equation.inputs, strict=True)]
        return [self.widened(r, x.dtype) for r, x in zip(equation.bind(*narrow), equation.outputs, strict=True)]

    def loop(self, equation: Equation, values: list[Array]) -> list[Array]:
        """A loop or branch, one equation of its bodies after the other unless there would be very many."""
        trips = 1 if equation.trips is None else equation.trips
        one_by_one = 0 < trips * sum(len(body.equations) for body in equation.bodies) <= LONGEST
        if not (one_by_one or self.wide):
            return equation.bind(*values)
        bodies = [_Evaluation(body, self.wide, self.rng).evaluate for body in equation.bodies]
        with jax.disable_jit(one_by_one):
            return equation.run(bodies, *values)

    def evaluate(self, *flat: Array) -> list[Array]:
        """As a function of flat arrays; it may run many times."""
        return _Evaluation(self.graph, self.wide, self.rng).run(flat)


def _keeping_nan(operand: Array, axes: tuple[int, ...], extreme: Array) -> Array:
    """A maximum or minimum in which a NaN is seen: XLA:CPU loses it in some shapes (jaxlib 0.10.2), also op by op."""
    if not jnp.issubdtype(extreme.dtype, jnp.floating):
        return extreme
    return jnp.where(jnp.isnan(operand).any(axes), jnp.asarray(jnp.nan, extreme.dtype), extreme)


def _wide(dtype: str) -> str | None:
    """What stands for a float or a complex number in the evaluation in float64; None: nothing else does."""
    if dtype in COMPLEX:
        return COMPLEX[-1]
    return "float64" if dtype in DTYPES and is_float(dtype) else None


def _as(value: Array, dtype: str) -> Array:
    return jnp.asarray(value).astype(dtype) if dtype in DTYPES or dtype in COMPLEX else value


def _holds_program(params: Mapping[str, Any]) -> bool:
    values = [v for p in params.values() for v in (p if isinstance(p, tuple | list) else (p,))]
    return any(hasattr(v, "jaxpr") or hasattr(v, "eqns") for v in values)


def _wide_parameters(equation: Equation) -> dict[str, Any]:
    params = dict(equation.params)
    for name in DTYPE_PARAMETERS:
        dtype = params.get(name)
        wide = None if dtype is None else _wide(str(dtype.name if hasattr(dtype, "name") else np.dtype(dtype)))
        if wide is not None:
            params[name] = jnp.dtype(wide)
    if "precision" in params and equation.name in ("dot_general", "conv_general_dilated"):
        params["precision"] = None
    return params


def _bind(equation: Equation, params: dict[str, Any], values: list[Array]) -> list[Array]:
    bound = equation.primitive.get_bind_params(params)
    if isinstance(bound, tuple):
        functions, bound = bound
        values = [*functions, *values]
    with equation.origin.ctx.manager, jax.enable_x64(True):
        result = equation.primitive.bind(*values, **bound)
    return list(result) if equation.primitive.multiple_results else [result]
