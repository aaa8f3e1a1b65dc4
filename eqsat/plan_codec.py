"""The kernels chosen for a region as bytes, and back: what the cache keeps.

Tensors are numbers, so that what one region found serves every region of equal structure, under that region's own names.
Bytes are unpickled with the few classes that a plan is made of and no others.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from io import BytesIO
from itertools import islice
from typing import Any

from eqsat.cost import Cost
from eqsat.index import Axis, Dynamic, Index, Quotient, Remainder
from eqsat.kernels import Candidate
from eqsat.notation import Kernel, Stored, Tensor, Term
from eqsat.parts import Tensors, part_names
from eqsat.schedule import Schedule
from eqsat.tile import TileAxis

CLASSES = {(c.__module__, c.__name__): c for c in (Cost, Axis, Dynamic, Index, Quotient, Remainder, Schedule, TileAxis)}

Place = tuple[
    str, int
]  # of a tensor: "tensor" and its number in the region, or "part" and its number among those that rules made

# What reading bytes raises that were not written here.
UNREADABLE = (pickle.UnpicklingError, EOFError, AttributeError, IndexError, KeyError, TypeError, ValueError)


def encode(region: Tensors, candidates: Sequence[Candidate], facts: dict[str, Any]) -> bytes:
    """Chosen candidates of a region, and plain facts about the choice."""
    named = {t.name for t in _tensors(region)}
    names = {t.name for c in candidates for t in (*c.kernel.inputs, *c.kernel.outputs)}
    parts = max((int(name.removeprefix("part")) for name in names - named), default=0)  # as many names contain all of them
    places = _places(region, parts)
    rows = [(*_kernel(c.kernel, places), (c.cost, c.price, c.schedule, sorted(c.rules), c.constant)) for c in candidates]
    return pickle.dumps((parts, rows, facts), protocol=5)


def decode(region: Tensors, data: bytes) -> tuple[tuple[Candidate, ...], dict[str, Any]]:
    """The candidates and facts for a region of equal structure; raises ValueError for anything that `encode` did not write."""
    try:
        parts, rows, facts = loaded(data)
        tensors: dict[Place, Tensor] = {p: t for p, t in zip(_numbered(region), _tensors(region), strict=True)}
        names = {place: name for name, place in _places(region, parts).items()}
        return tuple(_candidate(row, tensors, names) for row in rows), facts
    except UNREADABLE as error:
        raise ValueError(f"plan: bytes that were encoded for this region required, got {error!r}") from error


def structure(kernel: Kernel) -> Any:
    """What a kernel is but for the names of its tensors, for a key."""
    return _kernel(kernel, {t.name: ("tensor", n) for n, t in enumerate((*kernel.inputs, *kernel.outputs))})


def encode_schedule(schedule: Schedule) -> bytes:
    return pickle.dumps(schedule, protocol=5)


def decode_schedule(data: bytes) -> Schedule:
    """The inverse of `encode_schedule`; raises ValueError for other bytes."""
    try:
        schedule = loaded(data)
    except UNREADABLE as error:
        raise ValueError(f"schedule: bytes that were encoded from one required, got {error!r}") from error
    if not isinstance(schedule, Schedule):
        raise ValueError(f"schedule: bytes that were encoded from one required, got {type(schedule).__name__}")
    return schedule


def loaded(data: bytes) -> Any:
    """What was pickled, of plain data and the classes of a plan; raises one of UNREADABLE."""
    return _Plain(BytesIO(data)).load()


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in CLASSES:
            raise pickle.UnpicklingError(f"{module}.{name}")
        return CLASSES[module, name]


def _tensors(region: Tensors) -> tuple[Tensor, ...]:
    return (*region.inputs, *region.definitions)


def _numbered(region: Tensors) -> list[Place]:
    return [("tensor", n) for n in range(len(_tensors(region)))]


def _places(region: Tensors, parts: int) -> dict[str, Place]:
    """The place of each name of the region and of the first parts that its search may make."""
    places: dict[str, Place] = {name: ("part", n) for n, name in enumerate(islice(part_names(region), parts))}
    places.update((t.name, place) for t, place in zip(_tensors(region), _numbered(region), strict=True))
    return places


def _kernel(kernel: Kernel, places: dict[str, Place]) -> tuple[Any, Any, Any]:
    """The kernel's outputs, its terms, and what else is said of it."""
    outputs = [(places[o.name], o.shape, o.dtype, o.axes) for o in kernel.outputs]
    return outputs, _rows(kernel, places), (kernel.exact, [places[t.name] for t in kernel.inputs if t in kernel.donated])


def _rows(kernel: Kernel, places: dict[str, Place]) -> tuple[list[Any], list[int]]:
    """The kernel's terms, operands first, and the numbers of its outputs' terms."""
    number: dict[Term, int] = {}
    rows = []
    for t in kernel.terms:
        data = (places[t.tensor.name], t.tensor.shape, t.data[1]) if t.head == "load" else t.data
        rows.append((t.head, tuple(number[a] for a in t.args), data, t.dtype))
        number[t] = len(number)
    return rows, [number[o.term] for o in kernel.outputs]


def _candidate(row: Any, tensors: dict[Place, Tensor], names: dict[Place, str]) -> Candidate:
    outputs, (rows, roots), (exact, donated), (cost, price, schedule, rules, constant) = row
    terms: list[Term] = []
    for head, args, data, dtype in rows:
        if head == "load":
            place, shape, indices = data
            data = (tensors.setdefault(place, Tensor(names[place], shape, dtype)), indices)
        terms.append(Term(head, tuple(terms[a] for a in args), data, dtype))
    made = tuple(
        Stored(names[place], shape, dtype, terms[root], axes)
        for (place, shape, dtype, axes), root in zip(outputs, roots, strict=True)
    )
    kernel = Kernel(made[0].name, made, exact, frozenset(tensors[place] for place in donated))
    return Candidate((), frozenset(), kernel, cost, price, schedule, frozenset(rules), constant)
