"""Splitting: a long reduction is cut into chunks, each folded by a program of its own, and a second kernel combines the parts.

A reduction over k becomes one over chunks of reductions inside a chunk, with k = chunk*length + r. An online sum leaves a
maximum and a sum relative to it for each chunk; combining those is an online sum again, of the sums, weighted by the maxima:
the split of FlashDecoding, of split-K products and of two-stage sums. So it is with the places of extremes and with squared
deviations. What a reduction over k waits for is split before it.

A running fold is that inside its own chunk, on top of the folds of the chunks before (as Merrill and Grimshaw's three kernels
for a scan, 2009, with the second inside the third): all of the axis is read twice, and by many programs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf, nan

from eqsat.definitions import zero_outside
from eqsat.digits import breakpoints, digits_of
from eqsat.index import Axis, Index
from eqsat.notation import Kernel, Stored, Term, cast, const, load, online, pos, rebuild, reduce, scalar, substitute
from eqsat.online import ONLINE, leaders, rescaling
from eqsat.parts import Parts
from eqsat.scalars import DTYPES, REDUCTIONS
from eqsat.scans import Running, chunks, running

LEAST_LENGTH = 256  # positions that are worth a program of their own
ROUND = 128  # chunks are multiples of this, so that tiles divide them


@dataclass(frozen=True)
class Split:
    """`parts` are the tensors of the first kernel, the one over most axes first; `terms` what its outputs become over them."""

    parts: tuple[Stored, ...]
    terms: tuple[Term, ...]


def chunk_length(extent: int, chunks: int) -> int:
    """The length of about so many chunks; they cover the axis exactly where a length near that does."""
    about = max(LEAST_LENGTH, -(-extent // (chunks * ROUND)) * ROUND)
    exact = (n for n in range(ROUND, 2 * about, ROUND) if extent % n == 0 and about <= 2 * n)
    return min(exact, key=lambda n: abs(n - about), default=about)


def splittable(kernel: Kernel) -> dict[Axis, list[Term]]:
    """Reductions of a kernel that wait for no other over their axis, by axis; their free axes are the kernel's own.

    What would be rounded to a narrow dtype between the two kernels is left out.
    """
    outputs = frozenset(kernel.axes)
    found: dict[Axis, list[Term]] = {}
    for t in kernel.terms:
        axis = t.bound
        exact = DTYPES[t.dtype].compute == t.dtype or (t.head == "reduce" and t.data[0] not in ("sum", "prod"))
        if axis is not None and t.axes <= outputs and exact:
            if not any(u.bound == axis for a in t.args for u in a.walk()):
                found.setdefault(axis, []).append(t)
    return found


def split(kernel: Kernel, axis: Axis, length: int, parts: Parts) -> Split | None:
    """The kernel in two, with chunks of `length` positions of `axis`; None if nothing can be split.

    Nor is an axis split raggedly whose positions 32 bits do not hold, since masks compare in 32 bits, or are counted.

    `parts` has the tensors in between, which have the chunk as their first dimension.
    """
    ready = splittable(kernel).get(axis, [])
    if not ready or (axis.extent % length and axis.extent + length >= 1 << 31):
        return None
    if axis.extent % length and any(t.head == "online" and ONLINE[t.data[0]].counts for t in ready):
        return None
    cutting = _Cutting(kernel, axis, length, parts)
    new = {t: cutting.of(t) for t in ready}
    memo: dict[Term, Term] = {}
    for t in kernel.terms:
        memo[t] = new[t] if t in new else rebuild(t, tuple(memo[a] for a in t.args))
    terms = tuple(memo[o.term] for o in kernel.outputs)
    along = {r.axis for t in ready if (r := running(t)) is not None}
    if len(along) > 1 or not along <= digits_of(breakpoints(terms), padded=along).keys():  # which something else cuts already
        return None
    made = tuple(sorted(cutting.made, key=lambda p: -len(p.axes)))
    if any(not set(p.axes) <= set(made[0].axes) for p in made):
        return None
    return Split(made, terms)


@dataclass
class _Cutting:
    """Makes the parts of reductions over one axis; equal parts are one tensor."""

    kernel: Kernel
    axis: Axis
    length: int
    parts: Parts
    made: dict[Stored, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.chunk = chunks(self.axis, self.length)
        self.inner = Axis(self.axis.name, self.length)
        self.place = Index.of(self.chunk) * self.length + self.inner
        self.over = Axis("r0", self.chunk.extent)  # a load binds nothing, so the lowest name captures nothing

    def of(self, term: Term) -> Term:
        """A reduction as the combination of its parts."""
        if (found := running(term)) is not None:
            return self._running(found)
        name, inside = term.data[0], tuple(substitute(a, {self.axis: self.place}) for a in term.args)
        if term.head == "reduce":
            return reduce(name, self.over, self._part(reduce(name, self.inner, self._filled(name, inside[0]))))
        row = ONLINE[name]
        s, v = self._filled(row.leader, inside[0]), inside[1] if row.rounds else self._filled(row.fold, inside[1])
        leader, own = reduce(row.leader, self.inner, s), online(self.inner, s, v, term.data[2], name)
        weight = DTYPES[s.dtype].compute if row.rounds else s.dtype
        if name == "deviations":  # in all: those inside of chunks, and of the chunks' means, once for each position
            mean = scalar("div", self._part(leader), const(self.length, s.dtype))
            means = online(self.over, mean, const(1, s.dtype), s.dtype, name)
            inner = reduce("sum", self.over, self._part(own))
            return scalar("add", inner, scalar("mul", const(self.length, s.dtype), means))
        if name == "softmax":
            own = _or_nothing(own)
        return online(self.over, cast(weight, self._part(leader)), self._part(own), weight, name)

    def _running(self, r: Running) -> Term:
        """A running fold as that inside a chunk, on top of the chunks before it, or after it if it runs backwards."""
        own, place = Index.of(r.axis) // self.length, Index.of(r.axis) % self.length
        compare = ("gt", "ge") if r.reverse else ("lt", "le")
        before = scalar(compare[0], pos(Index.of(self.over), "int32"), pos(own, "int32"))
        here = scalar(compare[1], pos(Index.of(self.inner), "int32"), pos(place, "int32"))

        def halves(name: str, arg: Term) -> tuple[Term, Term]:
            """The folds of the chunks before, one for each chunk, and the elements of one's own chunk up to one's own."""
            identity = const(REDUCTIONS[name].identity(arg.dtype), arg.dtype)
            element = substitute(arg, {r.bound: self.place})
            part = self._part(reduce(name, self.inner, self._filled(name, element)))
            body = self._filled(name, element) if r.reverse else element  # forwards nothing lies beyond the end
            return scalar("where", before, part, identity), scalar("where", here, substitute(body, {self.chunk: own}), identity)

        if r.scores is None:
            chunks_before, inside = halves(r.name, r.arg)
            combine = REDUCTIONS[r.name].combine
            return scalar(combine, reduce(r.name, self.over, chunks_before), reduce(r.name, self.inner, inside))
        scores = halves("max", r.scores)
        v = substitute(r.arg, {r.bound: self.place})
        zero = const(0, v.dtype)
        part = self._part(
            _or_nothing(online(self.inner, self._filled("max", substitute(r.scores, {r.bound: self.place})), v, v.dtype))
        )
        sums = scalar("where", before, part, zero), substitute(v, {self.chunk: own})
        folds = [online(axis, s, v, v.dtype) for axis, s, v in zip((self.over, self.inner), scores, sums, strict=True)]
        maxima = [leaders(t)[0] for t in folds]
        largest = scalar("max", *maxima)
        parts = (scalar("mul", _or_nothing(t), rescaling((m,), (largest,))) for t, m in zip(folds, maxima, strict=True))
        nothing = scalar("eq", largest, const(-inf, largest.dtype))
        return scalar("where", nothing, const(nan, v.dtype), scalar("add", *parts))

    def _filled(self, name: str, body: Term) -> Term:
        """The body with the reduction's identity beyond the end of the axis."""
        if self.place.range[1] < self.axis.extent:
            return body
        if name == "sum":
            return zero_outside(body, self.place, self.axis.extent)
        here = scalar("lt", pos(self.place, "int32"), const(self.axis.extent, "int32"))
        return scalar("where", here, body, const(REDUCTIONS[name].identity(body.dtype), body.dtype))

    def _part(self, term: Term) -> Term:
        """The load that combining makes of a part."""
        part = self.parts.of(term, (self.chunk, *(a for a in self.kernel.axes if a in term.axes)))
        self.made[part] = None
        return load(part, (Index.of(self.over), *map(Index.of, part.axes[1:])))


def _or_nothing(total: Term) -> Term:
    """A sum of exponentials, which is 0 where all of them are masked."""
    (largest,) = leaders(total)
    return scalar("where", scalar("eq", largest, const(-inf, largest.dtype)), const(0, total.dtype), total)
