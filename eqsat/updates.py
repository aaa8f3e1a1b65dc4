"""Updates in place: an output that is an argument but for a window, written in the buffer that the argument gives up.

``where(x2 - start in 0..n-1, new, old[x0, x1, x2, x3])``, a cache with a new row, reads and writes all of the array. Where
the old array is donated, and its buffer is the output's, only the window need be written: its axis has the extent of the update,
and its start is computed. The language has no word for it, so that a kernel means the whole array to every law, every oracle and
every other backend; its terms take this form when it is priced and lowered (as scans do, see `eqsat.scans`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any, NamedTuple

from eqsat.index import Axis, Index
from eqsat.notation import Kernel, Stored, Tensor, Term, Window, const, dimension_indices, pos, rebuild, scalar, substitute
from eqsat.primitives.fold import index_of, refolded
from eqsat.ranges import range_of
from eqsat.regions import Region

_MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq"}


class _Test(NamedTuple):
    """`distance`, a position along an axis less `start` (0 if None) plus `shift`, shows that the window is low..high."""

    axis: Axis
    start: Term | None
    distance: Term
    shift: int
    low: float
    high: float


def handed_on(given: Iterable[Tensor], outputs: Iterable[Tensor]) -> dict[Tensor, Tensor]:
    """Which output gets the buffer of which donated input: the first of its shape and dtype, as JAX has it."""
    free = list(dict.fromkeys(outputs))
    found: dict[Tensor, Tensor] = {}
    for tensor in given:
        made = next((o for o in free if (o.shape, o.dtype) == (tensor.shape, tensor.dtype)), None)
        if made is not None and tensor not in free:
            free.remove(made)
            found[tensor] = made
    return found


def giving_up(parts: Sequence[Region | Any], handed: Mapping[Tensor, Tensor]) -> list[Region | Any]:
    """The parts of a program; regions know which inputs nothing reads after them whose buffers their outputs get."""
    later: set[Tensor] = set()
    result = []
    for part in reversed(parts):
        if isinstance(part, Region):
            pairs = ((t, o) for t, o in handed.items() if t in part.inputs and t not in later and o in part.outputs)
            part = replace(part, donated=frozenset(pairs))
        later.update(t for t in part.inputs if isinstance(t, Tensor))
        result.append(part)
    return result[::-1]


def in_place(kernel: Kernel) -> Kernel:
    """The kernel with windows for the outputs whose donated argument it may overwrite; the same one if it has none."""
    if not kernel.donated:
        return kernel
    taken: set[Tensor] = set()
    outputs: list[Stored] = []
    for o in kernel.outputs:
        made = window(o, kernel.donated - taken)
        outputs.append(made or o)
        taken |= {made.base} if made is not None and made.base is not None else set()
    first = max(outputs, key=lambda o: len(o.axes))
    alike = all(set(o.axes) <= set(first.axes) for o in outputs) and set(outputs[0].axes) == set(first.axes)
    return replace(kernel, outputs=tuple(outputs)) if taken and alike and not _read_elsewhere(outputs) else kernel


def _read_elsewhere(outputs: Sequence[Stored]) -> bool:
    """True if a base is read at other places than the one that the same point of the kernel writes."""
    own = {o.base: o for o in outputs if isinstance(o, Window)}
    loads = ((o, t) for o in outputs for root in o.roots for t in root.walk() if t.head == "load" and t.tensor in own)
    return any(own[t.tensor] is not o or t.indices != o.places or t.args != o.operands for o, t in loads)


def window(stored: Stored, donated: frozenset[Tensor]) -> Window | None:
    """The window form of an output that is one of the donated tensors elsewhere; None if it is not, or its window is unclear."""
    term = stored.term
    if term.head != "where" or term.args[2].head != "load" or isinstance(stored, Window):
        return None
    predicate, new, old = term.args
    whole = dimension_indices(stored.shape, stored.axes)
    base = old.tensor
    if base not in donated or (base.shape, base.dtype) != (stored.shape, stored.dtype) or old.indices != whole:
        return None
    tests: dict[Axis, list[_Test]] = {}
    others: list[Term] = []
    for conjunct in conjuncts(predicate):
        test = _test(conjunct, stored.axes)
        if test is None:
            others.append(conjunct)
        else:
            tests.setdefault(test.axis, []).append(test)
    return _window(stored, base, tests, others, new) if tests else None


def conjuncts(predicate: Term) -> list[Term]:
    """The tests that together are a predicate."""
    return [c for a in predicate.args for c in conjuncts(a)] if predicate.head == "and" else [predicate]


def mirrored(comparison: Term) -> Term:
    """The same test with its operands swapped; what is no comparison stays as it is."""
    if comparison.head not in _MIRRORED:
        return comparison
    return scalar(_MIRRORED[comparison.head], *comparison.args[::-1])


def _test(term: Term, axes: Sequence[Axis]) -> _Test | None:
    """A comparison of a position with a bound that other axes, or loaded values, may say."""
    if term.head not in _MIRRORED:
        return None
    for head, (x, y) in ((term.head, term.args), (_MIRRORED[term.head], term.args[::-1])):
        limit = index_of(y)
        if limit is not None and not limit.terms:
            distance, bound = x, limit.constant
        else:
            distance, bound = scalar("sub", x, y), 0
        position, start = distance.args if distance.head == "sub" else (distance, None)
        place = index_of(position)
        if place is None or len(place.terms) != 1 or place.terms[0][1] != 1 or place.terms[0][0] not in axes:
            continue
        (axis, _), shift = place.terms[0], place.constant
        low = bound - shift + (head == "gt") if head in ("gt", "ge", "eq") else -inf
        high = bound - shift - (head == "lt") if head in ("lt", "le", "eq") else inf
        return _Test(axis, start, distance, shift, low, high)  # type: ignore[arg-type]
    return None


def _window(stored: Stored, base: Tensor, tests: dict[Axis, list[_Test]], others: list[Term], new: Term) -> Window | None:
    values: dict[Axis, Index] = {}
    operands: list[Term] = []
    distances: dict[Term, Term] = {}
    for axis, along in tests.items():
        start, low, high = along[0].start, max(t.low for t in along), min(t.high for t in along)
        if any(t.start is not start for t in along) or low == -inf or high == inf or high < low:
            return None
        offset = Index.of(Axis(axis.name, int(high - low) + 1)) + int(low)
        values[axis] = offset
        if start is not None:
            operand = _within(start, others, -int(high) - 1, axis.extent - int(low))
            others = []  # where one of them fails, the place is outside
            least, most = range_of(operand)[:2]
            values[axis] += Index.dynamic(len(operands), int(least), int(most))
            operands.append(operand)
            distances |= {t.distance: pos(offset + t.shift, t.distance.dtype) for t in along}
    if others or any(o.axes & tests.keys() for o in operands):
        return None
    known: dict[Term, Term] = {}
    for t in new.walk():
        known[t] = distances.get(t) or rebuild(t, tuple(known[a] for a in t.args))
    try:
        term = refolded(substitute(known[new], values, None, tuple(operands)))
    except ValueError:  # a place would be captured
        return None
    places = tuple(i.substitute(values) for i in dimension_indices(stored.shape, stored.axes))
    own = (next(iter(values[a].axes), None) if a in values else a for a in stored.axes)
    axes = tuple(a for a in own if a is not None)
    return Window(stored.name, stored.shape, stored.dtype, term, axes, base, places, tuple(operands))


def _within(start: Term, tests: Sequence[Term], low: int, high: int) -> Term:
    """A start held in low..high, so far out that no position of the window is inside; there too where a test fails."""
    least, most = range_of(start)[:2]
    if most > high:
        start = scalar("min", start, const(high, start.dtype))
    if least < low:
        start = scalar("max", start, const(low, start.dtype))
    for test in tests:
        start = scalar("where", test, start, const(high, start.dtype))
    return start
