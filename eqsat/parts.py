"""Tensors that no equation of the program defines: what the rules made, and the parts of reductions in chunks.

Searches of one region share them: without a rule a search meets mostly the kernels that it met with it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from itertools import count
from typing import TYPE_CHECKING, Protocol

from eqsat.cost import Cost
from eqsat.index import Axis
from eqsat.notation import Stored, Tensor, Term
from eqsat.schedule import Schedule

if TYPE_CHECKING:
    from eqsat.split import Split


class Tensors(Protocol):
    """The tensors of a region, which the program around it has too."""

    @property
    def inputs(self) -> tuple[Tensor, ...]: ...

    @property
    def definitions(self) -> tuple[Tensor, ...]: ...


def part_names(region: Tensors) -> Iterator[str]:
    """Names for the tensors that only rules made, in order."""
    taken = {t.name for t in (*region.inputs, *region.definitions)}
    return (name for n in count(1) if (name := f"part{n}") not in taken)


class Parts:
    """The tensors, with a name each from `names`; asked for the same, it gives the same object."""

    def __init__(self, names: Iterator[str]) -> None:
        self._names = names
        self._made: dict[Hashable, Stored] = {}

    def of(self, term: Term, axes: tuple[Axis, ...]) -> Stored:
        """The tensor that holds a term over axes."""
        return self._tensor((term, axes), term, term.dtype, axes)

    def undefined(self, like: Term, axes: tuple[Axis, ...]) -> Stored:
        """The tensor that holds the class of a term, however that is computed."""
        return self._tensor((like, axes, "class"), None, like.dtype, axes)

    def _tensor(self, key: Hashable, term: Term | None, dtype: str, axes: tuple[Axis, ...]) -> Stored:
        if key not in self._made:
            shape = tuple(a.extent for a in axes)
            self._made[key] = Stored(next(self._names), shape, dtype, term, axes)  # type: ignore[arg-type]
        return self._made[key]


class Shared:
    """What searches of one region for one device share."""

    def __init__(self, region: Tensors) -> None:
        self.parts = Parts(part_names(region))
        self.prices: dict[Hashable, tuple[Cost, Schedule | None]] = {}  # by what a kernel computes and overwrites
        self.splits: dict[Hashable, Split | None] = {}  # by what a kernel computes, the axis and the length of chunks
