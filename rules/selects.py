"""Selects: a choice between two results of one operation is the operation on a choice of operands.

Concatenation reads as a select on positions, so these few laws move operations, sums and concatenations past one another.
Most are exact: each element is computed as before, on one side or the other.
"""

from math import inf

from eqsat.rule import (
    Axis,
    Bool,
    Float,
    Integer,
    Term,
    absent,
    between,
    birewrite,
    const,
    dtype_in,
    extent,
    op,
    pack,
    position,
    reduce_,
    rewrite,
    rule,
    sum_,
    where,
)
from eqsat.scalars import REDUCTIONS, SCALARS


@rule("exact", phase="normalise")
def select_of_equal(p: Bool, a: Term):
    """Choosing between a and a gives a."""
    return rewrite(where(p, a, a), a)


@rule("exact", phase="normalise")
def select_decided(a: Term, b: Term):
    """A choice that always holds is no choice."""
    return rewrite(where(const(1), a, b), a)


@rule("exact", phase="normalise")
def select_excluded(a: Term, b: Term):
    """Nor is one that never does."""
    return rewrite(where(const(0), a, b), b)


@rule("exact", phase="normalise")
def select_within_select(p: Bool, a: Term, b: Term, c: Term):
    """Where p holds, a choice by p is made already."""
    return rewrite(where(p, where(p, a, b), c), where(p, a, c))


@rule("exact", phase="normalise")
def select_within_other_branch(p: Bool, a: Term, b: Term, c: Term):
    """Where p does not hold, a choice by p is made already."""
    return rewrite(where(p, a, where(p, b, c)), where(p, a, c))


@rule("exact", phase="normalise")
def select_by_negation(p: Bool, a: Term, b: Term):
    """Choosing by not p is choosing the other."""
    return rewrite(where(op("not", p), a, b), where(p, b, a))


@rule("exact")
def exchange_selects(p: Bool, q: Bool, a: Term, b: Term, c: Term, d: Term):
    """Blocks of a matrix may be joined by rows first or by columns first."""
    return rewrite(where(p, where(q, a, b), where(q, c, d)), where(q, where(p, a, c), where(p, b, d)))


@rule("fast", gives_up="NaN of what is not finite, and the sign of a zero")
def product_with_masked(p: Bool, a: Float, b: Float):
    """a*(b where p, else 0) = (a*b where p, else 0) for finite a: a diagonal matrix scales rows."""
    return rewrite(a * where(p, b, const(0)), where(p, a * b, const(0, a)))


_HIDDEN = "NaN and infinity of what is masked, and the sign of a zero"


@rule("fast", gives_up=_HIDDEN)
def add_mask(p: Bool, a: Float):
    """a + (0 where p, else -inf) = (a where p, else -inf) for finite a: a mask that is added is one that loops see."""
    return rewrite(a + where(p, const(0), const(-inf)), where(p, a, const(-inf, a)))


@rule("fast", gives_up=_HIDDEN)
def add_mask_of_what_is_hidden(p: Bool, a: Float):
    """a + (-inf where p, else 0) = (-inf where p, else a) for finite a."""
    return rewrite(a + where(p, const(-inf), const(0)), where(p, const(-inf, a), a))


def _unary(name: str):  # type: ignore[no-untyped-def]
    @rule("exact", name=f"select_of_{name}", operation=name)
    def select_of_unary(p: Bool, a: Term, b: Term, operation):  # type: ignore[no-untyped-def]
        """f(a) or f(b), by p, is f of a or b."""
        return rewrite(where(p, op(operation, a), op(operation, b)), op(operation, where(p, a, b)))

    return select_of_unary


def _binary(name: str):  # type: ignore[no-untyped-def]
    @rule("exact", phase="explore", name=f"select_of_{name}", operation=name)
    def select_of_binary(p: Bool, a: Term, b: Term, c: Term, d: Term, operation):  # type: ignore[no-untyped-def]
        """f(a, b) or f(c, d), by p, is f of a or c and b or d; concatenations meet element by element."""
        left = where(p, op(operation, a, b), op(operation, c, d))
        return birewrite(left, op(operation, where(p, a, c), where(p, b, d)))

    return select_of_binary


def _reduction(name: str):  # type: ignore[no-untyped-def]
    @rule("exact", name=f"select_of_reduce_{name}", reduction=name)
    def select_of_reduction(p: Bool, a: Term, b: Term, k: Axis, reduction):  # type: ignore[no-untyped-def]
        """A choice that does not depend on k may be made before or after reducing over k."""
        return rewrite(
            where(p, reduce_(reduction, k, a), reduce_(reduction, k, b)), reduce_(reduction, k, where(p, a, b)), absent(k, p)
        )

    return select_of_reduction


def _one_hot(first: bool):  # type: ignore[no-untyped-def]
    @rule("reassociate", gives_up="the sign of a zero", name=f"sum_of_one_hot{'_first' * first}", first=first)
    def sum_of_one_hot(i: Integer, a: Float, k: Axis, first):  # type: ignore[no-untyped-def]
        """The sum over k of (a where k = i, else 0) is a, if i is a position of k: one term is not 0, or none."""
        met = op("eq", position(k), i) if first else op("eq", i, position(k))
        inside = op("and", op("ge", i, const(0, i)), op("le", i, const(extent(k) - 1, i)))
        guards = absent(k, i), absent(k, a), dtype_in(i, "int32", "int64"), between(1, extent(k), 2**31)
        return rewrite(sum_(k, where(met, a, const(0))), where(inside, a, const(0, a)), *guards)

    return sum_of_one_hot


one_hot = [_one_hot(first) for first in (False, True)]

# Where the choice between results and the choice between operands both occur: activations, sums, products.
unary = [_unary(o.name) for o in SCALARS.values() if o.arity == 1 and o.result == "same" and o.name not in ("erfc", "rint")]
binary = [_binary(name) for name in ("add", "sub", "mul", "div", "max", "min")]
reductions = [_reduction(name) for name in REDUCTIONS if name in ("sum", "max", "min")]

RULES = pack(globals())
