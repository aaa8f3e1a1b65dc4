"""Running folds: a fold under a mask of the positions up to its own is computed in one pass.

``sum[r](where(r <= x, a[r], 0))`` is the cumulative sum of `a` at x. The language has no other word for it, so that every law of
sums and masks holds for it, and a causal mean or a product with a triangle of ones is a scan as well. A kernel's terms
take the form `notation.scan` when it is priced and lowered, and evaluation runs it as one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from eqsat.index import Axis, Index
from eqsat.limits import Limits, is_identity, positions_where
from eqsat.notation import Kernel, Term, rebuild, scan, substitute

SCANS = ("sum", "prod", "max", "min")
COMPARISONS = ("le", "ge", "lt", "gt")


@dataclass(frozen=True)
class Running:
    """A fold of `arg` over the positions of `bound` up to that of `axis`, or from it on."""

    name: str
    bound: Axis
    axis: Axis
    reverse: bool
    arg: Term


def running(term: Term) -> Running | None:
    """A reduction as a running fold; None if its mask is another one, or what it folds depends on the position itself."""
    if term.head != "reduce" or term.data[0] not in SCANS or term.args[0].head != "where":
        return None
    (name, bound), (predicate, arg, otherwise) = term.data, term.args[0].args
    if predicate.head not in COMPARISONS or not is_identity(otherwise, name):
        return None
    limits = positions_where(predicate, bound, True)
    for axis in predicate.axes - {bound}:
        forward = Limits(high=(Index.of(axis) + 1,))
        if limits in (forward, Limits(low=(Index.of(axis),))) and axis.extent == bound.extent and axis not in arg.axes:
            return Running(name, bound, axis, limits != forward, arg)
    return None


def scanned(kernel: Kernel) -> Kernel:
    """The kernel with scans for running folds; the same one if it has none."""
    found = {t: r for t in kernel.terms if (r := running(t)) is not None}
    if not found:
        return kernel
    done: dict[Term, Term] = {}
    for t in kernel.terms:
        done[t] = rebuild(t, tuple(done[a] for a in t.args))
        if t in found:
            r = found[t]
            try:
                arg = substitute(done[r.arg], {r.bound: Index.of(r.axis)})
            except ValueError:  # the axis is bound inside of what is folded
                continue
            done[t] = scan(r.name, r.axis, arg, r.reverse)
    return replace(kernel, outputs=tuple(replace(o, term=done[o.term]) for o in kernel.outputs))
