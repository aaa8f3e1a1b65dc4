"""Recognising what a region computes: one operation, JAX's argmax, a sort's order."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.extend.mlir.ir as ir

from eqsat.frontends.stablehlo.elementwise import BINARY, direction, is_total
from eqsat.frontends.stablehlo.table import Node, operations, owner

COMMUTES = {"add", "multiply", "maximum", "minimum", "and", "or", "xor"}
LARGEST = 64  # operations of a body that is looked at

Tree = tuple[Any, ...]


def trees(node: Node, number: int = 0) -> tuple[Tree, ...] | None:
    """What the region's results are, as nested tuples over ("argument", n); None if that cannot be said briefly."""
    block = node.operation.regions[number].blocks[0]
    body = operations(block)
    if len(body) == 2 and body[0].name == "func.call":  # a body of TensorFlow's
        called = node.importer.functions.get(ir.FlatSymbolRefAttr(body[0].attributes["callee"]).value)
        if called is None or list(body[0].operands) != list(block.arguments):
            return None
        block = called.regions[0].blocks[0]
        body = operations(block)
    if len(body) > LARGEST:
        return None
    known: dict[Any, Tree] = {argument: ("argument", n) for n, argument in enumerate(block.arguments)}
    for operation in body[:-1]:
        for outside in (v for v in operation.operands if v not in known):
            if (found := owner(outside)) is None or found.name != "stablehlo.constant":
                return None
            known[outside] = (_head(found),)
        if len(operation.results) != 1 or len(operation.regions):
            return None
        known[operation.results[0]] = (_head(operation), *(known[v] for v in operation.operands))
    results = [known.get(v) for v in body[-1].operands]
    return None if None in results else tuple(t for t in results if t is not None)


def _head(operation: Any) -> Any:
    if operation.name == "stablehlo.compare":
        return ("compare", direction(operation), is_total(operation))
    if operation.name == "stablehlo.constant":
        return ("constant", str(operation.attributes["value"]))
    return operation.name.removeprefix("stablehlo.")


def single(node: Node) -> str | None:
    """The operation that a body of two arguments applies to them; "second" where it returns that one."""
    found = trees(node)
    if found is None or len(found) != 1:
        return None
    first, second = ("argument", 0), ("argument", 1)
    if found[0] == second:
        return "second"
    if found[0][0] not in BINARY:
        return None
    name = found[0][0]
    straight, swapped = found[0][1:] == (first, second), found[0][1:] == (second, first)
    return name if straight or (swapped and name in COMMUTES) else None


def arg_extreme(node: Node) -> str | None:
    """ "argmax" or "argmin" for the body that JAX writes for them: NaN first, the lower position among equals."""
    a, i, b, j = (("argument", n) for n in range(4))
    for name, way in (("argmax", "GT"), ("argmin", "LT")):
        picked = ("or", (("compare", way, False), a, b), (("compare", "NE", False), a, a))
        tie = ("and", (("compare", "EQ", False), a, b), (("compare", "LT", False), i, j))
        if trees(node) == (("select", picked, a, b), ("select", ("or", picked, tie), i, j)):
            return name
    return None


class Key(NamedTuple):
    """One key of a sort: which operand, in which direction, and how floats compare."""

    operand: int
    descending: bool
    order: str  # "total", "jax" (total, but all NaN equal and -0 equal to 0) or "partial"


def keys(node: Node) -> tuple[Key, ...] | None:
    """The keys of a sort's comparator, in order; None if it is not one comparison after the other."""
    found = trees(node)
    return None if found is None or len(found) != 1 else _keys(found[0])


def _keys(tree: Tree) -> tuple[Key, ...] | None:
    if tree[0] == "or" and tree[2][0] == "and":
        first, rest = _keys(tree[1]), _keys(tree[2][2])
        equal = tree[2][1]
        same = equal[0][:2] == ("compare", "EQ") and equal[1:] == tree[1][1:]
        return (*first, *rest) if first and rest and same else None
    head = tree[0]
    if head[0] != "compare" or head[1] not in ("LT", "GT"):
        return None
    left, right = _operand(tree[1]), _operand(tree[2])
    if left is None or right is None or left[1] != right[1] or left[0] // 2 != right[0] // 2 or left[0] == right[0]:
        return None
    if left[1] and not head[2]:
        return None
    order = "jax" if left[1] else "total" if head[2] else "partial"
    return (Key(left[0] // 2, (head[1] == "GT") == (left[0] % 2 == 0), order),)


def _operand(tree: Tree) -> tuple[int, bool] | None:
    """The argument that is compared, and whether its zeros and NaN were made one."""
    if tree[0] == "argument":
        return tree[1], False
    if tree[0] == "select" and tree[3][0] == "select":
        argument = tree[3][3]
        zero, nan = tree[3][2], tree[2]
        is_nan = (("compare", "NE", False), argument, argument)
        is_zero = (("compare", "EQ", False), argument, zero)
        numbers = zero[0][0] == "constant" and nan[0][0] == "constant" and "0.000000e+00" in zero[0][1]
        if argument[0] == "argument" and numbers and tree[1] == is_nan and tree[3][1] == is_zero:
            return argument[1], True
    return None
