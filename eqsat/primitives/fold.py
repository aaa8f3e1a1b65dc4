"""Arithmetic on positions, done on index expressions: ``(iota + 3) // 2`` is again the value of an index.

Only integer identities that hold for every value in range are used, so nothing is rounded or assumed. This keeps index
computations of a program (causal masks, strided lookups, negative-index normalisation) from becoming tensors.
"""

from __future__ import annotations

import operator

import jax.numpy as jnp
import numpy as np

from eqsat.index import Axis, Index, Quotient
from eqsat.notation import Term, cast, const, const_value, load, pos, rebuild
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
            dtype = args[0].dtype
            return _decided(op, x, y) or _computed(op, x, y, dtype) or _simpler(op, x - y, dtype) or exact(op, *args)
    return exact(op, *args)


def refolded(term: Term, done: dict[Term, Term] | None = None) -> Term:
    """A term of positions after a substitution, which may have decided comparisons in it; `done` may be shared by all calls."""
    done = {} if done is None else done
    if term not in done:
        args = tuple(refolded(a, done) for a in term.args)
        if term.head in SCALARS:
            done[term] = scalar(term.head, *args)
        else:
            done[term] = converted(term.dtype, args[0]) if term.head == "cast" else rebuild(term, args)
    return done[term]


def folded(term: Term) -> Term:
    """A scalar operation or cast of literals as a literal, evaluated by JAX in the operation's own dtype.

    Of literals and one choice between two it is a choice between two: `where(p, 1, 0) > 0` is p.
    """
    if not term.args or (term.head not in SCALARS and term.head != "cast"):
        return term
    choices = {a: _choice(a, term) for a in term.args if a.head != "const"}
    if not choices:
        values = [np.asarray(const_value(a)).astype(a.dtype) for a in term.args]
        with np.errstate(all="ignore"):
            value = values[0].astype(term.dtype) if term.head == "cast" else np.asarray(SCALARS[term.head].reference(*values))
        return const(value.item(), term.dtype)
    ((choice, parts), *others) = choices.items()
    if others or parts is None:
        return term
    predicate, *branches = parts
    return scalar(
        "where", predicate, *(folded(rebuild(term, tuple(b if a is choice else a for a in term.args))) for b in branches)
    )


def _choice(term: Term, used_by: Term) -> tuple[Term, Term, Term] | None:
    """Predicate and branches of a term that is one of two literals: a choice, or a boolean as a number that is computed with."""
    if term.head == "where" and all(a.head == "const" for a in term.args[1:]):
        return term.args  # type: ignore[return-value]
    if term.head == "cast" and term.args[0].dtype == "bool" and used_by.head in SCALARS:
        return term.args[0], const(1, term.dtype), const(0, term.dtype)
    return None


def _chosen(args: tuple[Term, ...]) -> Term | None:
    """A choice that is decided, or that only repeats its predicate."""
    predicate, then, otherwise = args
    if predicate.head == "const":
        return then if const_value(predicate) else otherwise
    if then.dtype == "bool" and then.head == otherwise.head == "const" and then is not otherwise:
        return predicate if const_value(then) else exact("not", predicate)
    if (limit := limit_of(predicate)) is not None:
        axis, below, above = limit
        return exact("where", predicate, within(then, axis, *below), within(otherwise, axis, *above))
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


# --- comparisons of positions -------------------------------------------------------------------------------------------

_Interval = tuple[int, int]  # smallest and largest position


def _simpler(op: str, distance: Index, dtype: str) -> Term | None:
    """A comparison of a distance with zero without what cannot change its outcome: g*8 + c < 16 is g < 2, g//4 < 2 is g < 8."""
    if op not in _ORDER:
        return None
    below, shift = _ORDER[op]  # distance < shift, or distance >= shift
    whole, bound = Index(distance.terms), shift - distance.constant
    while (step := _divided(whole, bound) or _multiplied(whole, bound)) is not None:
        whole, bound = step
    if whole.terms == distance.terms:
        return None
    left, right = term_of(whole, dtype), term_of(Index.of(bound), dtype)
    return None if left is None or right is None else exact("lt" if below else "ge", left, right)


_ORDER = {"lt": (True, 0), "le": (True, 1), "ge": (False, 0), "gt": (False, 1)}


def _divided(whole: Index, bound: int) -> tuple[Index, int] | None:
    """f*g + c < f*b is g < b, where c lies in 0 .. f-1."""
    for factor in sorted({abs(c) for _, c in whole.terms} - {1}, reverse=True):
        coarse = Index(tuple((a, c // factor) for a, c in whole.terms if c % factor == 0))
        low, high = Index(tuple((a, c) for a, c in whole.terms if c % factor)).range
        quotient, rest = divmod(bound, factor)
        if 0 <= low and high < factor and not low < rest <= high:
            return coarse, quotient + (high < rest)
    return None


def _multiplied(whole: Index, bound: int) -> tuple[Index, int] | None:
    """g//f < b is g < f*b."""
    if len(whole.terms) != 1:
        return None
    ((atom, factor),) = whole.terms
    if factor != 1 or not isinstance(atom, Quotient):
        return None
    return Index(atom.index.terms), bound * atom.divisor - atom.index.constant


def limit_of(predicate: Term) -> tuple[Axis, _Interval, _Interval] | None:
    """Where a comparison with an axis holds, and where it does not."""
    if predicate.head not in _ORDER:
        return None
    x, y = map(index_of, predicate.args)
    if x is None or y is None or len((x - y).terms) != 1:
        return None
    ((axis, factor),), constant = (x - y).terms, (x - y).constant
    if not isinstance(axis, Axis) or factor != 1:
        return None
    is_below, shift = _ORDER[predicate.head]
    below, above = (0, shift - constant - 1), (shift - constant, axis.extent - 1)
    return (axis, below, above) if is_below else (axis, above, below)


def within(term: Term, axis: Axis, low: int, high: int) -> Term:
    """A term equal to this one where the axis lies in low .. high: quotients, remainders and comparisons may be decided there."""
    done: dict[Term, Term] = {}
    here = {axis: Index.of(Axis(axis.name, high - low + 1)) + low}

    def visit(t: Term) -> Term:
        if axis not in t.axes or low > high:
            return t
        if t not in done:
            args = tuple(map(visit, t.args))
            x, y = map(index_of, args) if t.head in _COMPARE else (None, None)
            if x is not None and y is not None and (outcome := _decided(t.head, x.substitute(here), y.substitute(here))):
                done[t] = outcome
            elif t.head == "load":
                done[t] = load(t.tensor, (i.within(axis, low, high) for i in t.indices), args)
            elif t.head == "pos":
                done[t] = pos(t.data.within(axis, low, high), t.dtype)
            else:
                done[t] = scalar(t.head, *args) if t.head in SCALARS else rebuild(t, args)
        return done[t]

    return visit(term)
