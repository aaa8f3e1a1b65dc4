"""What a kernel asks of a device, without names: kernels that ask for the same cost the same and are priced once.

Axes are positions in `Work.axes`, sets of axes are bit masks, and the order of factors and terms is lost.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from eqsat.index import Axis
from eqsat.notation import Term
from eqsat.online import finds_place
from eqsat.scalars import DTYPES, SCALARS
from eqsat.traversal import Visited
from eqsat.work import Contraction, Work, main_axis


class Product(NamedTuple):
    """A contraction; fields as in `Contraction`, `products` being the matrix products that it takes."""

    rows: int
    columns: int
    k: int
    scope: int
    dtype: str
    computed: int
    loaded: tuple[int, ...]
    passes: int
    products: int
    split: bool
    dot: bool
    widened: tuple[int, ...]


class Demand(NamedTuple):
    """Work by unit and scope, traffic, and what is alive at once."""

    work: tuple[tuple[str, int, int, float], ...]  # unit, scope, passes, operations per point
    reads: tuple[tuple[int, int, float], ...]  # scope, passes, bytes per element
    products: tuple[Product, ...]
    visited: Visited
    nbytes: int  # compulsory traffic
    stored_nbytes: int
    accumulators: tuple[int, ...]  # scopes of what reductions hold
    blocks: tuple[int, ...]  # distinct scopes of everything else
    widest: int  # operations on two values over all that is written
    folds: int  # reductions of the block that a contraction makes
    beside: int  # loads over the block of a contraction that another one multiplies: biases of attention's scores


def demand(work: Work) -> Demand:
    """The demand of a kernel's work."""
    mask, at = _masks(work.axes), work.axes.index
    accumulators, blocks, widest = [], set[int](), 0
    outputs = mask(frozenset(work.kernel.axes))
    for t in work.kernel.terms:
        if t.head == "const" or (t in work.absorbed and t.bound is None):
            continue
        if t.head in ("reduce", "online"):
            accumulators += [] if _continues(t, work) else [mask(t.axes)]
        else:
            blocks.add(mask(t.axes))
            if t.head in SCALARS and len(t.args) > 1:
                widest += sum(not outputs & ~mask(a.axes) for a in t.args) > 1
    made = {c.term: mask(c.term.axes) for c in work.contractions}
    folds = (t for t in work.kernel.terms if t.bound is not None and t not in made) if made else ()
    folded = [mask(t.args[0].axes) for t in folds for _ in range(2 if finds_place(t) else 1)]  # NaN has a place of its own
    return Demand(
        tuple(sorted((unit, mask(scope), passes, n) for (scope, unit, passes), n in work.work.items())),
        tuple(sorted((mask(r.scope), r.passes, r.element_nbytes) for r in work.reads)),
        tuple(sorted(_product(c, mask) for c in work.contractions)),
        tuple(sorted((at(axis), share, tuple(map(at, work.cut(axis)))) for axis, share in work.visited.items())),
        work.nbytes,
        sum(o.written_nbytes for o in work.kernel.outputs),
        tuple(sorted(accumulators)),
        tuple(sorted(blocks)),
        widest,
        sum(any(not block & ~axes for block in made.values()) for axes in folded),
        max((sum(block <= r.scope for r in work.reads) for block in _multiplied(work)), default=0),
    )  # fmt: skip


def _multiplied(work: Work) -> list[set[Axis]]:
    """The two main axes of what contractions make for others, which sum over one of them."""
    blocks = ({main_axis(c.rows), main_axis(c.columns)} for c in work.contractions)
    return [block for block in blocks if any(other.k in block for other in work.contractions)]


def _continues(t: Term, work: Work) -> bool:
    """True for a sum of sums that lowering adds up in one accumulator, that of the inner sum: the taps of a convolution."""
    inner = t.args[0]
    sums = t.bound in work.serial and all(x.head == "reduce" and x.data[0] == "sum" for x in (t, inner))
    return sums and DTYPES[inner.dtype].compute == inner.dtype and work.uses[inner] == 1 and t.bound in inner.axes


def _product(c: Contraction, mask: _Masks) -> Product:
    rows, columns = sorted((mask(c.rows), mask(c.columns)))
    k, scope = mask(frozenset([c.k])), mask(c.scope)
    loaded = tuple(sorted(mask(axes) for axes in c.loaded))
    widened = tuple(sorted(map(mask, c.widened)))
    return Product(rows, columns, k, scope, c.dtype, c.computed, loaded, c.passes, c.products, bool(c.split), c.dot, widened)


@lru_cache(maxsize=1 << 10)
def _masks(axes: tuple[Axis, ...]) -> _Masks:
    return _Masks(axes)


class _Masks:
    """Sets of axes as masks."""

    def __init__(self, axes: Iterable[Axis]) -> None:
        self._bit = {axis: 1 << n for n, axis in enumerate(axes)}
        self._known: dict[frozenset[Axis], int] = {}

    def __call__(self, axes: frozenset[Axis]) -> int:
        found = self._known.get(axes)
        if found is None:
            found = self._known[axes] = sum(self._bit.get(axis, 0) for axis in axes)
        return found
