"""Running folds: a fold under a mask of the positions up to its own is computed in one pass.

``sum[r](where(r <= x, a[r], 0))`` is the cumulative sum of `a` at x. The language has no other word for it, so that every law of
sums and masks holds for it, and a causal mean or a product with a triangle of ones is a scan as well. A kernel's terms
take the form `notation.scan` when it is priced and lowered, and evaluation runs it as one.

``sum[r](where(r <= x%n, a[x//n*n + r], 0))`` starts anew every n positions. A kernel with one runs over chunks of n positions,
and over the positions in a chunk: what a scan that is split over programs becomes (see `eqsat.split`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf, nan

from eqsat.index import Axis, Index, Remainder
from eqsat.limits import Limits, is_identity, limits_of, positions_where
from eqsat.notation import Kernel, Stored, Term, Window, const, crossed, dimension_indices, rebuild, scalar, scan, substitute
from eqsat.scalars import DTYPES

SCANS = ("sum", "prod", "max", "min")
COMPARISONS = ("le", "ge", "lt", "gt")
CHUNK = "chunk"  # the axis of chunks


@dataclass(frozen=True)
class Running:
    """A fold of `arg` over the positions of `bound` up to that of `axis`, or from it on."""

    name: str
    bound: Axis
    axis: Axis
    reverse: bool
    arg: Term
    scores: Term | None = None  # of a sum of exponentials

    @property
    def operands(self) -> tuple[Term, ...]:
        return (self.arg,) if self.scores is None else (self.arg, self.scores)

    @property
    def weighs(self) -> bool:
        """True if op by op a NaN shows also where its weight is 0, at a position that is not passed (see `eqsat.limits`)."""
        return self.scores is not None and self.arg.head != "const"


def running(term: Term) -> Running | None:
    """A reduction as a running fold; None if its mask is another one, or what it folds depends on the position itself."""
    if (body := _masked(term)) is None:
        return None
    (name, bound, *_), (predicate, arg, otherwise) = term.data, body.args
    online = term.head == "online"
    if not is_identity(otherwise, "max" if online else name):
        return None
    limits, weights = positions_where(predicate, bound, True), term.args[1:]
    for axis in predicate.axes - {bound}:
        forward = Limits(high=(Index.of(axis) + 1,))
        apart = not any(axis in t.axes for t in (arg, *weights))
        if limits in (forward, Limits(low=(Index.of(axis),))) and axis.extent == bound.extent and apart:
            found = Running(name, bound, axis, limits != forward, arg)
            return replace(found, name="softsum", arg=weights[0], scores=arg) if online else found
    return None


def _masked(term: Term) -> Term | None:
    """What a reduction that may be a running fold folds: a choice by comparing positions."""
    if term.head == "online":
        dtypes = {term.data[2], *(t.dtype for t in term.args), DTYPES[term.dtype].compute}
        found = term.data[0] == "softmax" and len(dtypes) == 1  # nothing is rounded on the way
    else:
        found = term.head == "reduce" and term.data[0] in SCANS
    body = term.args[0] if found else None
    return body if body is not None and body.head == "where" and body.args[0].head in COMPARISONS else None


def restarting(term: Term) -> tuple[Axis, int] | None:
    """The axis along which a running fold starts anew, and after how many positions; None if it is none that does."""
    if (body := _masked(term)) is None:
        return None
    length = term.data[1].extent
    for side in body.args[0].args:
        for atom, _ in side.data.terms if side.head == "pos" else ():
            if isinstance(atom, Remainder) and atom.divisor == length and len(atom.index.axes) == 1:
                (axis,) = atom.index.axes
                try:
                    inside = running(substitute(term, {axis: Index.of(chunks(axis, length)) * length + Axis(axis.name, length)}))
                except ValueError:  # one of them is bound inside
                    continue
                if inside is not None and inside.axis == Axis(axis.name, length):
                    return axis, length
    return None


def chunks(axis: Axis, length: int) -> Axis:
    """The axis of the chunks of so many positions; the last one may be shorter."""
    return Axis(CHUNK, -(-axis.extent // length))


def chunked(kernel: Kernel) -> Kernel:
    """The kernel over chunks and the positions in them, if it has running folds that start anew; else the same one."""
    found = {r for t in kernel.terms if (r := restarting(t)) is not None and r[0] in kernel.axes}
    if len(found) != 1 or CHUNK in {a.name for a in kernel.axes}:
        return kernel
    ((axis, length),) = found
    inside, chunk = Axis(axis.name, length), chunks(axis, length)
    place = {axis: Index.of(chunk) * length + inside}

    def over(o: Stored) -> Stored:
        if axis not in o.axes:
            return o
        axes = tuple(b for a in o.axes for b in ((chunk, inside) if a == axis else (a,)))
        places = tuple(i.substitute(place) for i in dimension_indices(o.shape, o.axes))
        return Window(o.name, o.shape, o.dtype, substitute(o.term, place), axes, None, places, ())

    return replace(kernel, outputs=tuple(map(over, kernel.outputs)))


def scanned(kernel: Kernel) -> Kernel:
    """The kernel with scans for running folds; the same one if it has none."""
    kernel = chunked(kernel)
    runs = [(t, r) for t in kernel.terms if (r := running(t)) is not None]
    if not runs:
        return kernel
    folds = [(t.bound, t.args[0]) for t in kernel.terms if t.bound is not None]
    # One position after the other, and along what a matrix product sums, which no kernel scans too.
    outer = {axis for axis, body in folds if body.bound is not None or any(crossed(body))}
    found = {t: r for t, r in runs if r.axis not in outer and not (r.weighs and kernel.exact)}
    for end in _ends(kernel) if found else ():
        found.pop(end, None)
    if not found:
        return kernel
    done: dict[Term, Term] = {}
    for t in kernel.terms:
        done[t] = rebuild(t, tuple(done[a] for a in t.args))
        if t in found:
            r = found[t]
            try:
                operands = [substitute(done[a], {r.bound: Index.of(r.axis)}) for a in r.operands]
            except ValueError:  # the axis is bound inside of what is folded
                continue
            done[t] = scan(r.name, r.axis, operands[0], r.reverse, *operands[1:])
            if r.scores is not None:  # of an infinite maximum the weights are NaN
                largest = scan("max", r.axis, operands[1], r.reverse)
                finite = scalar("lt", scalar("abs", largest), const(inf, largest.dtype))
                done[t] = scalar("where", finite, done[t], const(nan, t.dtype))
    return replace(kernel, outputs=tuple(replace(o, term=done[o.term]) for o in kernel.outputs))


def _ends(kernel: Kernel) -> Iterator[Term]:
    """Folds that say where loops begin and end: one number for a tile, as it is not at the end of a scan."""
    for t in kernel.terms:
        if t.bound is not None:
            limits = limits_of([t], kernel.exact)
            yield from (u for bound in (*limits.start, *limits.end) for u in bound.walk())
