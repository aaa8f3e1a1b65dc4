"""Printing kernels as plain JAX functions: `eqsat.evaluate` walks the term, and each array operation becomes a line."""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from eqsat.arrays import OPERATIONS, Arrays
from eqsat.evaluate import evaluate_all
from eqsat.formula import type_of, wrapped
from eqsat.notation import Kernel, Tensor
from eqsat.scalars import SCALARS

WIDTH = 70  # of an expression that is written inside another
RESERVED = {"jax", "jnp", "lax", "np", "float", "dot", "rounded"}
SHORT = {"dot": "dot({0}, {1}, {2}, {3})", "rounded": "rounded({0})"}  # functions of HELPERS

IMPORTS = "import jax.numpy as jnp\nfrom jax import lax  # noqa: F401"
DOT = """def dot(a, b, dimensions, dtype):
    \"\"\"Matrix product in full precision; dimensions: ((summed of a, of b), (shared by a, by b)).\"\"\"
    return lax.dot_general(a, b, dimensions, precision="highest", preferred_element_type=dtype)"""
ROUNDED = """def rounded(x):
    \"\"\"x itself; the comparison keeps compilers from computing a product inside a fused multiply-add.\"\"\"
    return jnp.where(x != x, jnp.nan, x)"""
HELPERS = f"{DOT}\n\n\n{ROUNDED}"


@dataclass(eq=False)
class Name:
    """The value of a line, by which later lines refer to it."""

    template: str
    operands: tuple[Any, ...]
    given: str = ""  # a parameter's name
    uses: int = field(default=0)


class Lines(Arrays):
    """Records array operations instead of running them."""

    def __init__(self, names: Mapping[Tensor, str]) -> None:
        self.convolves = True
        self.names = {tensor: Name("", (), name) for tensor, name in names.items()}
        self.lines: list[Name] = []

    def apply(self, name: str, *operands: Any) -> Name:
        template = SHORT.get(name) or OPERATIONS.get(name) or SCALARS[name].jax
        line = Name(template, operands)
        for n, operand in enumerate(operands):
            for used in _names(operand):
                used.uses += template.count(f"{{{n}}}")
        self.lines.append(line)
        return line

    def input(self, tensor: Tensor, array: Any) -> Name:
        return self.names.get(tensor, array)  # what is computed on the way has no name of its own


def emit_kernel(kernel: Kernel, name: str = "", numerics: str = "exact", alone: bool = False) -> str:
    """A function of the kernel's inputs, in order, that returns a tuple of its outputs.

    One that stands `alone` imports JAX when it is called, and holds the helpers that it uses.
    """
    name = name or identifier(kernel.name, ())
    parameters: dict[Tensor, str] = {}
    for tensor in kernel.inputs:
        parameters[tensor] = identifier(tensor.name, parameters.values())
    lines = Lines(parameters)
    results = evaluate_all([(o.term, o.axes) for o in kernel.outputs], dict.fromkeys(kernel.inputs), lines, numerics=numerics)
    stored = [_stored(lines, r, o.shape, len(o.axes)) for r, o in zip(results, kernel.outputs, strict=True)]
    body, texts = _body(lines.lines, stored, set(parameters.values()))
    outputs = ", ".join(texts) + ("," if len(texts) == 1 else "")
    signature = ", ".join(parameters.values())
    body.append(f"return ({outputs})")
    lines_of_body = [f"    {b}" if b else "" for b in (*(_needed_by(body) if alone else ()), *body)]
    return "\n".join([f"def {name}({signature}):", *_docstring(kernel, parameters), *lines_of_body])


def emit_module(kernels: Iterable[Kernel], numerics: str = "exact") -> str:
    """A module of functions, one for each kernel, that needs only JAX."""
    functions = "\n\n\n".join(emit_kernel(k, numerics=numerics) for k in kernels)
    return f"{IMPORTS}\n\n\n{HELPERS}\n\n\n{functions}\n"


def _needed_by(body: Sequence[str]) -> list[str]:
    """The imports and helpers, line by line, that a function with this body needs."""
    helpers = [text for name, text in (("dot(", DOT), ("rounded(", ROUNDED)) if any(name in line for line in body)]
    imports = {"jnp.": "import jax.numpy as jnp", "lax.": "from jax import lax"}
    used = [text for name, text in imports.items() if any(name in line for line in (*helpers, *body))]
    return [*used, *([""] if used else []), *(line for text in helpers for line in (*text.split("\n"), ""))]


def identifier(name: str, taken: Iterable[str]) -> str:
    """A Python name for `name`, unlike those taken."""
    base = re.sub(r"\W", "_", name)
    if not base or base[0].isdigit() or keyword.iskeyword(base) or base in RESERVED:
        base = f"v_{base}"
    result, number = base, 2
    while result in set(taken):
        result, number = f"{base}_{number}", number + 1
    return result


def _stored(lines: Lines, result: Any, shape: tuple[int, ...], rank: int) -> Any:
    return result if rank == len(shape) else lines.apply("reshape", result, shape)


def _docstring(kernel: Kernel, parameters: Mapping[Tensor, str]) -> list[str]:
    types = [f"    {parameters[t]}: {type_of(t)}" for t in kernel.inputs]
    formula = [text for line in kernel.formula.split("\n") for text in wrapped(line, 114, "    ")]
    return ['    """', *formula, "", *types, '    """'] if types else ['    """', *formula, '    """']


def _body(lines: Sequence[Name], results: Sequence[Any], taken: set[str]) -> tuple[list[str], list[str]]:
    """Assignments, and the expressions of the results; a short expression used once is written where it is used."""
    text: dict[Name, str] = {}
    body: list[str] = []

    def spelled(value: Any) -> str:
        if isinstance(value, Name):
            return value.given or text[value]
        return f"[{', '.join(map(spelled, value))}]" if isinstance(value, list) else _literal(value)

    needed = _needed(lines, results)
    for line in lines:
        if line not in needed:
            continue
        expression = line.template.format(*map(spelled, line.operands))
        if line.uses == 1 and line not in results and len(expression) <= WIDTH:
            text[line] = expression
            continue
        text[line] = identifier(f"t{len(body)}", taken)
        body.append(f"{text[line]} = {_bare(expression)}")
    return body, [spelled(r) for r in results]


def _needed(lines: Sequence[Name], results: Sequence[Any]) -> set[Name]:
    needed = {r for r in results if isinstance(r, Name)}
    for line in reversed(lines):
        if line in needed:
            needed.update(name for o in line.operands for name in _names(o))
    return needed


def _names(operand: Any) -> list[Name]:
    return [o for o in (operand if isinstance(operand, list) else [operand]) if isinstance(o, Name)]


def _bare(text: str) -> str:
    """Without parentheses around everything."""
    depth = 0
    for i, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0:
            return text[1:-1] if i == len(text) - 1 and i > 0 and text[0] == "(" else text
    return text


def _literal(value: Any) -> str:
    if isinstance(value, np.dtype):
        return "jnp.bool_" if value == np.bool_ else f"jnp.{value.name}"
    if isinstance(value, np.ndarray | np.generic):
        shortest = value.dtype in (np.float32, np.float64) and np.isfinite(value)
        return f"{_literal(value.dtype)}({str(value) if shortest else number(value.item())})"
    return number(value) if isinstance(value, int | float) else repr(value)


def number(value: float) -> str:
    return repr(value) if math.isfinite(value) else f"float('{value}')"
