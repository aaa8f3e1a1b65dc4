"""A reduced program as a pytest file: it fails now, and passes once the fault is mended."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

import jax
import jax.extend.core.primitives
import numpy as np
from jax import lax

from eqsat.graph import Equation, Graph, Literal, Variable
from eqsat.packs import packs
from eqsat.rule import Rule

if TYPE_CHECKING:
    from eqsat.reduction import Reduced

LARGEST = 4096  # elements of a constant that is written out

TEMPLATE = '''"""{title}

{complaint}
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import primitives

import eqsat
from eqsat.packs import rules_named
from eqsat.reduction import check

ARGUMENTS = ({arguments},)
RULES = {rules}


def {name}({parameters}):
{body}


def test_{name}_is_right():
    program = eqsat.optimize({name}, *ARGUMENTS, {options}, rules=RULES)
    check(program, engine={engine!r}, seed={seed}{schedule})
'''


def test_text(reduced: Reduced) -> str:
    """The text of the file; raises ValueError where a parameter or a constant has no spelling."""
    graph, request = reduced.graph, reduced.request
    count = len(graph.equations)
    name = graph.name if graph.name.isidentifier() else "program"
    options = {"target": request.target, "numerics": request.numerics, "objective": request.objective}
    body = [f"    {graph.name_of[v]} = {_array(graph.name_of[v], c)}" for v, c in graph.constants.items()]
    body += [f"    {_equation(graph, e)}" for e in graph.equations]
    body += [f"    return {', '.join(_atom(graph, x) for x in graph.outputs)}"]
    return TEMPLATE.format(
        title=f"{name} reduced to {count} equation{'s' * (count != 1)} that fail{'s' * (count == 1)}: {reduced.failure.kind}.",
        complaint=reduced.failure.text.replace("\\", "\\\\").replace('"""', "'''"),
        arguments=", ".join(f'jax.ShapeDtypeStruct({v.shape}, "{v.dtype}")' for v in graph.inputs),
        rules=_rules(request.rules),
        name=name,
        parameters=", ".join(graph.name_of[v] for v in graph.inputs),
        body="\n".join(body),
        options=", ".join(f"{k}={v!r}" for k, v in options.items()),
        engine=reduced.engine,
        seed=reduced.seed,
        schedule="" if reduced.schedule is None else f", schedule={reduced.schedule}",
    )


def _rules(rules: tuple[Rule, ...]) -> str:
    """The rules by name, those of a file by its path."""
    known = {r.name for members in packs().values() for r in members}
    words = [r.name if r.name in known else r.source.rpartition(":")[0] for r in rules]
    names = [r.name for r in rules]
    if not words:
        return "()"
    return f"[r for r in rules_named({list(dict.fromkeys(words))!r}) if r.name in {names!r}]"


def _equation(graph: Graph, e: Equation) -> str:
    primitive = f"{e.name.replace('-', '_')}_p"
    own = getattr(jax.extend.core.primitives, primitive, None)
    if own is None or own is not e.primitive:
        raise ValueError(f"equation {e.name}: a primitive of jax.extend.core.primitives required to write it as text")
    params = "".join(f", {k}={spelled(v, e.name)}" for k, v in e.params.items())
    left = ", ".join(graph.name_of[v] for v in e.outputs)
    left += "," if own.multiple_results and len(e.outputs) == 1 else ""
    return f"{left} = primitives.{primitive}.bind({', '.join(_atom(graph, x) for x in e.inputs)}{params})"


def _atom(graph: Graph, atom: Variable | Literal) -> str:
    if isinstance(atom, Variable):
        return graph.name_of[atom]
    return f'jnp.asarray({_number(atom.value.item())}, "{atom.dtype}")'


def _number(value: Any) -> str:
    return repr(value) if not isinstance(value, float) or np.isfinite(value) else f'float("{value}")'


def _array(name: str, value: Any) -> str:
    array = np.asarray(value)
    if array.size > LARGEST:
        raise ValueError(f"constant {name}: at most {LARGEST} elements required to write it as text, got {array.size}")
    numbers = ", ".join(_number(x.item()) for x in array.reshape(-1))
    return f'jnp.asarray(np.array([{numbers}]).reshape({array.shape}), "{array.dtype}")'


def spelled(value: Any, where: str) -> str:
    """A parameter in Python's words."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | str):
        return repr(value)
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, enum.Enum) and hasattr(lax, type(value).__name__):
        return f"lax.{type(value).__name__}.{value.name}"
    if isinstance(value, tuple) and hasattr(value, "_fields") and hasattr(lax, type(value).__name__):
        fields = ", ".join(f"{k}={spelled(v, where)}" for k, v in zip(value._fields, value, strict=True))
        return f"lax.{type(value).__name__}({fields})"
    if isinstance(value, tuple | list):
        return f"({''.join(f'{spelled(v, where)}, ' for v in value).rstrip()})" if value else "()"
    try:
        return f'jnp.dtype("{jax.numpy.dtype(value).name}")'
    except TypeError:
        kind = type(value).__name__
        raise ValueError(f"equation {where}: parameters that can be written as text required, got a {kind}") from None
