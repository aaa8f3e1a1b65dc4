"""Arithmetic on positions, done on index expressions: ``(iota + 3) // 2`` is again the value of an index.

Only integer identities that hold for every value in range are used, so nothing is rounded or assumed. This keeps index
computations of a program (causal masks, strided lookups, negative-index normalisation) from becoming tensors.
"""

from __future__ import annotations

import operator

import jax.numpy as jnp
import numpy as np

from eqsat.index import Index
from eqsat.notation import Term, cast, const, const_value, pos, rebuild
from eqsat.notation import scalar as exact
from eqsat.scalars import DTYPES, SCALARS, is_float, is_integer

_COMPARE = {"lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge, "eq": operator.eq, "ne": operator.ne}


def index_of(term: Term) -> Index | None:
    """The index expression whose value an integer term is."""
    if term.head == "pos":
        return term.data
    if term.head == "const" and is_integer(term.dtype):
        return Index.of(int(const_value(term)))
    return None


def scalar(op: str, *args: Term) -> Term:
    """A scalar operation, done on the indices where both operands are positions."""
    if op == "where":
        return _chosen(args) or exact(op, *args)
    if len(args) == 2 and args[0].dtype == args[1].dtype and is_integer(args[0].dtype):
        x, y = index_of(args[0]), index_of(args[1])
        if x is not None and y is not None:
            return _decided(op, x, y) or _computed(op, x, y, args[0].dtype) or exact(op, *args)
    return exact(op, *args)


def refolded(term: Term) -> Term:
    """A term of positions after a substitution, which may have decided comparisons in it."""
    done: dict[Term, Term] = {}
    for t in term.walk():
        args = tuple(done[a] for a in t.args)
        done[t] = (
            scalar(t.head, *args) if t.head in SCALARS else converted(t.dtype, args[0]) if t.head == "cast" else rebuild(t, args)
        )
    return done[term]


def _chosen(args: tuple[Term, ...]) -> Term | None:
    """A choice that is decided, or that only repeats its predicate."""
    predicate, then, otherwise = args
    if predicate.head == "const":
        return then if const_value(predicate) else otherwise
    if then.dtype == "bool" and then.head == otherwise.head == "const" and then is not otherwise:
        return predicate if const_value(then) else exact("not", predicate)
    return None


def converted(dtype: str, term: Term) -> Term:
    """A conversion, done at once for literals and positions that `dtype` can hold."""
    if is_integer(dtype) and (index := index_of(term)) is not None:
        return term_of(index, dtype) or cast(dtype, term)
    if is_float(dtype) and term.head == "const":
        return const(float(np.asarray(const_value(term), dtype=jnp.dtype(term.dtype)).astype(jnp.dtype(dtype))), dtype)
    return cast(dtype, term)


def term_of(index: Index, dtype: str) -> Term | None:
    """The value of an index, if `dtype` holds all of it."""
    if not is_integer(dtype):
        return None
    bits = 8 * DTYPES[dtype].nbytes
    signed = DTYPES[dtype].kind == "int"
    low, high = index.range
    if low < (-(2 ** (bits - 1)) if signed else 0) or high >= 2 ** (bits - signed):
        return None
    return pos(index, dtype) if index.terms else const(index.constant, dtype)


def _decided(op: str, x: Index, y: Index) -> Term | None:
    """A comparison that the ranges decide."""
    test = _COMPARE.get(op)
    if test is None:
        return None
    low, high = (x - y).range
    outcomes = {test(low, 0), test(high, 0)}
    if op in ("eq", "ne") and low < 0 < high:
        return None
    return const(outcomes.pop(), "bool") if len(outcomes) == 1 else None


def _computed(op: str, x: Index, y: Index, dtype: str) -> Term | None:
    result: Index | None = None
    if op == "add":
        result = x + y
    elif op == "sub":
        result = x - y
    elif op == "mul" and not (x.terms and y.terms):
        result = x * y.constant if not y.terms else y * x.constant
    elif op in ("max", "min") and ((x - y).range[0] >= 0 or (x - y).range[1] <= 0):
        result = x if ((x - y).range[0] >= 0) == (op == "max") else y
    elif op in ("quot", "rem") and not y.terms and y.constant > 0 and x.range[0] >= 0:
        result = x // y.constant if op == "quot" else x % y.constant
    return None if result is None else term_of(result, dtype)
