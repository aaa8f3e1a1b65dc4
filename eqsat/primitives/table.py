"""What a primitive's reader works with: values as index notation (`View`), the result wanted (`Out`), and the table of rows.

A reader takes the result and the operands' values, with the equation's parameters as keywords, and returns the term of one
element of the result over the axes x0, x1, ... Readers ignore parameters they do not name, since JAX adds some with each release.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from eqsat.index import Axis, Index
from eqsat.notation import Tensor, Term, const, dimension_indices, level_of, load, output_axes, pos, reduce, substitute
from eqsat.primitives.fold import refolded, scalar


class Opaque(Exception):
    """An equation that has no reading; the message is the reason."""


def identity_load(tensor: Tensor) -> Term:
    """The element of a tensor at its own axes."""
    return load(tensor, dimension_indices(tensor.shape, output_axes(tensor.shape)))


@dataclass(frozen=True)
class View:
    """The value of a variable: a term over `output_axes(shape)`, most often a load from a stored tensor at some indices."""

    term: Term
    shape: tuple[int, ...]

    @staticmethod
    def of(tensor: Tensor) -> View:
        return View(identity_load(tensor), tensor.shape)

    @property
    def dtype(self) -> str:
        return self.term.dtype

    @property
    def is_load(self) -> bool:
        """True for an index expression over a stored tensor, without computed indices."""
        return self.term.head == "load" and not self.term.args

    @property
    def tensor(self) -> Tensor | None:
        """The stored tensor that this value is, unchanged."""
        whole = self.is_load and self.term.tensor.shape == self.shape and self.term is identity_load(self.term.tensor)
        return self.term.tensor if whole else None

    def at(self, indices: Sequence[Index]) -> Term:
        """The element at in-range indices."""
        term = substitute(self.term, self._places(indices))
        return term if self.is_load else refolded(term)

    def loaded(self, indices: Sequence[Index], operands: tuple[Term, ...]) -> Term:
        """The element at in-range indices that may use loaded values; only for a value that `is_load`."""
        places = self._places(indices)
        composed = [i.substitute(places) for i in self.term.indices]
        used = sorted(set().union(*(i.slots for i in composed)))
        number = {slot: n for n, slot in enumerate(used)}
        return load(self.term.tensor, (i.renumber(number) for i in composed), tuple(operands[slot] for slot in used))

    def padded(self, indices: Sequence[Index], fill: Term | None = None) -> Term:
        """The element at indices that may leave the shape, where it is `fill` (zero unless given).

        A load reads zero outside its tensor, so zeros cost nothing where leaving the value means leaving the tensor.
        """
        if fill is None and self.tensor is not None:
            return load(self.tensor, indices)
        tests = [
            t for d, i in enumerate(indices) if fill is not None or not self._leaves_tensor(d) for t in inside(i, self.shape[d])
        ]
        return choose(tests, self.at(indices), zero(self.dtype) if fill is None else fill)

    def _places(self, indices: Sequence[Index]) -> dict[Axis, Index]:
        places = zip(output_axes(self.shape), (i for n, i in zip(self.shape, indices, strict=True) if n != 1), strict=True)
        return {axis: i for axis, i in places if i != Index.of(axis)}

    def _leaves_tensor(self, d: int) -> bool:
        """True if an index outside dimension `d` is outside the tensor that is loaded."""
        n = self.shape[d]
        whole = (Index.of(Axis(f"x{d}", n)), Index.of(n - 1) - Axis(f"x{d}", n))
        return (
            n > 1
            and self.is_load
            and any(i in whole and m == n for i, m in zip(self.term.indices, self.term.tensor.shape, strict=True))
        )


@dataclass(frozen=True)
class Out:
    """The result wanted of a reader."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def indices(self) -> tuple[Index, ...]:
        """The index of each dimension."""
        return dimension_indices(self.shape, output_axes(self.shape))


Reader = Callable[..., Any]


@dataclass(frozen=True)
class Row:
    """A primitive: how it reads, whether its result is a view, and which operands must be loads from a stored tensor.

    A reader of a primitive with several results takes all of them and returns a term for each.
    """

    name: str
    read: Reader
    view: bool = False
    loads: tuple[int, ...] = ()
    results: bool = False


TABLE: dict[str, Row] = {}


def reads(*names: str, view: bool = False, loads: tuple[int, ...] = (), results: bool = False) -> Callable[[Reader], Reader]:
    """Enter a reader into the table under JAX's names of the primitive."""

    def enter(read: Reader) -> Reader:
        TABLE.update({name: Row(name, read, view, loads, results) for name in names})
        return read

    return enter


# --- terms that several families build --------------------------------------------------------------------------


def zero(dtype: str) -> Term:
    return const(0, dtype)


def inside(index: Index, extent: int) -> list[Term]:
    """The tests that an index lies in 0 .. extent-1; those that its range decides are left out."""
    low, high = index.range
    value = pos(index, "int32")
    tests = []
    if low < 0:
        tests.append(scalar("ge", value, const(0, "int32")))
    if high >= extent:
        tests.append(scalar("lt", value, const(extent, "int32")))
    return tests


def choose(tests: Iterable[Term], then: Term, otherwise: Term) -> Term:
    """`then` where all tests hold."""
    tests = list(tests)
    if not tests:
        return then
    predicate = tests[0]
    for test in tests[1:]:
        predicate = scalar("and", predicate, test)
    return scalar("where", predicate, then, otherwise)


def folded(name: str, axes: Iterable[Axis], term: Term) -> Term:
    """`term` reduced over `axes`, the last of them innermost, each renamed to the lowest level that captures nothing."""
    for axis in reversed(tuple(axes)):
        bound = Axis(f"r{level_of([term], [axis])}", axis.extent)
        term = reduce(name, bound, substitute(term, {axis: Index.of(bound)}))
    return term


def fold_axes(extents: Iterable[int]) -> tuple[Axis, ...]:
    """Provisional axes for `folded`: a dimension of extent 1 needs no reduction."""
    return tuple(Axis(f"k{d}", n) for d, n in enumerate(extents))
