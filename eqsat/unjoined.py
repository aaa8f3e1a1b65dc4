"""Joined axes: where heads lie side by side in the rows that a kernel writes, it runs over heads and over places in a head.

``out[x0, x1] = sum[r](p[x1//64, x0, r] * v[x1//64, r, x1%64])`` is no product of matrices as it stands, since both factors vary
along x1. Over its digits, x1 = 64*x1_64 + x1, it is one for each head. The language keeps the one axis, so a kernel means the
array that it writes; its terms take this form when it is priced and lowered (as scans do, see `eqsat.scans`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from eqsat.digits import breakpoints, digits_of, number_of
from eqsat.index import Axis
from eqsat.notation import Kernel, Stored, Term, Window, crossed, dimension_indices, substitute


def unjoined(kernel: Kernel) -> Kernel:
    """The kernel over the digits of its joined axes, if that makes products of matrices of its sums; else the same one."""
    own = {axis for axis in kernel.axes if any(axis in t.axes for t in kernel.terms if t.bound is not None)}
    breaks = {axis: found for axis, found in breakpoints(o.term for o in kernel.outputs).items() if axis in own}
    if not breaks or any(isinstance(o, Window) for o in kernel.outputs) or any(t.head == "scan" for t in kernel.terms):
        return kernel
    named = {axis: _named(axis, digits) for axis, digits in digits_of(breaks).items()}
    if not named:
        return kernel
    apart = replace(kernel, outputs=tuple(_over(o, named) for o in kernel.outputs))
    return apart if _products(apart.terms) > _products(kernel.terms) else kernel


def _named(axis: Axis, digits: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """The digits with names of their own; the last one, along which neighbours lie, keeps the axis's."""
    *outer, inner = digits
    return (*(Axis(d.name.replace(".", "_"), d.extent) for d in outer), Axis(axis.name, inner.extent))


def _over(o: Stored, named: dict[Axis, tuple[Axis, ...]]) -> Stored:
    numbers = {axis: number_of(digits) for axis, digits in named.items() if axis in o.axes}
    if not numbers:
        return o
    axes = tuple(d for a in o.axes for d in named.get(a, (a,)))
    places = tuple(i.substitute(numbers) for i in dimension_indices(o.shape, o.axes))
    return Window(o.name, o.shape, o.dtype, substitute(o.term, numbers), axes, None, places, ())


def _products(terms: Iterable[Term]) -> int:
    """How many sums there are of products of matrices."""
    bodies = (t.args[0] if t.head == "reduce" else t for t in terms if t.bound is not None and t.data[0] in ("sum", "softmax"))
    return sum(any(crossed(b)) if b.head != "online" else bool(b.args[1].axes - b.args[0].axes) for b in bodies)
