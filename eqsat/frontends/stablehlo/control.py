"""Loops and branches: the regions become functions that JAX traces again."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from eqsat.frontends.stablehlo.table import Array, Node, op, owner


@op("stablehlo.while")
def while_loop(node: Node, *operands: Array) -> Any:
    condition, body = node.body(0), node.body(1)
    return lax.while_loop(lambda c: condition(*c)[0], lambda c: tuple(body(*c)), tuple(map(jnp.asarray, operands)))


@op("stablehlo.if")
def if_(node: Node, predicate: Array) -> Any:
    yes, no = node.body(0), node.body(1)
    return lax.cond(predicate, lambda: tuple(yes()), lambda: tuple(no()))


@op("stablehlo.case")
def case(node: Node, index: Array) -> Any:
    bodies = [node.body(n) for n in range(len(node.operation.regions))]
    last = jnp.asarray(len(bodies) - 1, jnp.int32)
    if not _in_range(node.owner(0), len(bodies)):
        index = jnp.where((index < 0) | (index > last), last, index)  # StableHLO takes the last branch then; lax would clamp
    return lax.switch(index, [lambda b=b: tuple(b()) for b in bodies])


def _in_range(operation: Any, count: int) -> bool:
    """True for what JAX writes before a case: an index that is clamped, or a boolean."""
    if operation is None:
        return False
    if operation.name == "stablehlo.convert":
        return count >= 2 and str(operation.operands[0].type.element_type) == "i1"
    bounds = [owner(operation.operands[n]) for n in (0, 2)] if operation.name == "stablehlo.clamp" else []
    found = [o.attributes["value"] for o in bounds if o is not None and o.name == "stablehlo.constant"]
    return len(found) == 2 and [int(a.get_splat_value().value) for a in found] == [0, count - 1]
