"""What reading a graph looks at, as plain data that prints alike in every process: the key of what was read.

Graphs of equal identity read alike, under the same names. A parameter of a type not known here has none, since its text may
leave out what matters; then the graph has none either, and is read whenever it is optimised.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from functools import lru_cache
from inspect import signature
from types import NoneType
from typing import Any

import jax.extend.core as jex
import numpy as np

from eqsat.graph import Equation, Graph, Literal, Variable, from_jaxpr
from eqsat.primitives import TABLE
from eqsat.primitives.table import Reader

_PLAIN = (bool, int, float, str, NoneType)


class Unknown(Exception):
    """A value whose identity cannot be told."""


def identity(graph: Graph) -> Any:
    """Equal for graphs that read alike; raises Unknown."""
    name_of = graph.name_of
    return (
        [_variable(v, name_of) for v in graph.inputs],
        [(_variable(v, name_of), None if v.shape else plain(np.asarray(value))) for v, value in graph.constants.items()],
        [_equation(e, name_of) for e in graph.equations],
        [_operand(atom, name_of) for atom in graph.outputs],
    )


def _equation(equation: Equation, name_of: Mapping[Variable, str]) -> Any:
    row = None if equation.bodies else TABLE.get(equation.name)  # JAX runs what has none
    params = [] if row is None else _looked_at(row.read, tuple(equation.params))
    return (
        equation.name,
        row and row.name,
        [(name, plain(equation.params[name])) for name in params],
        [_operand(atom, name_of) for atom in equation.inputs],
        [_variable(v, name_of) for v in equation.outputs],
        [identity(body) for body in equation.bodies],
        bool(equation.origin.effects),
    )


@lru_cache(maxsize=1 << 10)
def _looked_at(reader: Reader, params: tuple[str, ...]) -> list[str]:
    """The parameters of an equation that a reader names; all where it takes the rest under a name, which is not `_`."""
    if not reader.__module__.startswith("eqsat."):  # whose sources are not in the key
        raise Unknown(f"a reader of {reader.__module__}")
    own = signature(reader).parameters
    every = any(p.kind is p.VAR_KEYWORD and p.name != "_" for p in own.values())
    return sorted(p for p in params if every or p in own)


def _operand(atom: Variable | Literal, name_of: Mapping[Variable, str]) -> Any:
    """A literal's number; the name of a variable, which is unique, and is listed with its type where it is made."""
    return (atom.dtype, plain(atom.value)) if isinstance(atom, Literal) else name_of[atom]


def _variable(variable: Variable, name_of: Mapping[Variable, str]) -> Any:
    shape = variable.shape
    if not all(type(n) is int for n in shape):
        raise Unknown("a symbolic size")
    return name_of[variable], shape, variable.dtype


def plain(value: Any) -> Any:
    """A parameter as nested tuples of numbers and texts; equal values only have equal text. Raises Unknown."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if isinstance(value, tuple | list):  # also named tuples
        return (kind.__name__, *map(plain, value))
    if isinstance(value, Mapping):
        return ("mapping", *sorted((repr(plain(k)), plain(v)) for k, v in value.items()))
    if isinstance(value, Enum):
        return kind.__name__, value.name
    if isinstance(value, np.dtype):
        return "dtype", str(value)
    if isinstance(value, np.ndarray | np.generic) and value.dtype != object:
        return "array", str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, jex.Jaxpr | jex.ClosedJaxpr):
        return "program", identity(from_jaxpr(value, "program"))
    raise Unknown(f"a parameter of type {kind.__name__}")
