"""A program as a plain JAX function: the algebra that was found, and none of the boundaries that kernels need."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

from eqsat.arrays import Arrays
from eqsat.evaluate import evaluate_all
from eqsat.graph import Variable
from eqsat.names import Namer
from eqsat.notation import Tensor
from eqsat.read import Call

if TYPE_CHECKING:
    from eqsat.program import Program

# What guards against rewrites of XLA:CPU, and its faults, is no part of the program's meaning.
PLAIN = {
    "rounded": "{0}",
    "kept": "{0}",
    "reduce_max_float": "lax.convert_element_type(jnp.max({0}, axis={1}), {2})",
    "reduce_min_float": "lax.convert_element_type(jnp.min({0}, axis={1}), {2})",
    "reduce_max_row": "jnp.max({0}, axis={1})",
    "reduce_min_row": "jnp.min({0}, axis={1})",
}
PLAIN_JAX = Arrays(jnp, lax, others=PLAIN)


def function_of(program: Program) -> Callable[..., OrderedDict[str, Any]]:
    """A function of the program's flat inputs, by their names, that returns its outputs by theirs; traceable."""
    names = output_names(program)

    def plan(*flat: Any) -> OrderedDict[str, Any]:
        values: dict[Tensor, Any] = dict(zip(program.inputs, flat, strict=True)) | program.constants
        for step in program.steps:
            given = [values[x] if isinstance(x, Tensor) else x for x in step.inputs]
            if isinstance(step, Call) and step.programs:
                results = step.eqn.run([_flat(function_of(inner)) for inner in step.programs], *given)
            elif isinstance(step, Call):
                results = step.eqn.bind(*given)
            else:
                kernel = step.kernel
                arrays = dict(zip(kernel.inputs, given, strict=True))
                found = evaluate_all([(o.term, o.axes) for o in kernel.outputs], arrays, PLAIN_JAX)
                results = [jnp.reshape(r, o.shape) for r, o in zip(found, kernel.outputs, strict=True)]
            values.update(zip(step.outputs, results, strict=True))
        return OrderedDict((name, values[t]) for name, t in zip(names, program.outputs, strict=True))

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    plan.__signature__ = inspect.Signature([inspect.Parameter(n, kind) for n in input_names(program)])  # type: ignore[attr-defined]
    plan.__name__ = program.name
    return plan


def _flat(plan: Callable[..., OrderedDict[str, Any]]) -> Callable[..., list[Any]]:
    return lambda *flat: list(plan(*flat).values())


def specs_of(program: Program) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in program.graph.inputs]


def input_names(program: Program) -> list[str]:
    return [program.graph.name_of[v] for v in program.graph.inputs]


def output_names(program: Program) -> list[str]:
    """The outputs' own names; an output that is an input, or is returned twice, gets a number."""
    fresh = Namer(input_names(program))
    pairs = zip(program.graph.outputs, program.outputs, strict=True)
    return [fresh(program.graph.name_of[v] if isinstance(v, Variable) else t.name) for v, t in pairs]
