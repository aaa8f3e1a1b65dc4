"""What planning needs of a program, without its formulas: the parts that it is cut into, by the tensors that they read and write.

A part is named by a digest of what it computes, under which the cache has its plan. So a program that was read before is planned
without being read: its outline is plain data, kept under the `identity` of its graph. Formulas are read when somebody asks.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import jax

from eqsat import plan_codec
from eqsat.cache import Cache, key_of
from eqsat.cost import Cost
from eqsat.devices import Device
from eqsat.graph import Graph, Literal
from eqsat.identity import Unknown, identity
from eqsat.memory import Use, peak_nbytes
from eqsat.notation import Stored, Tensor
from eqsat.original import baseline
from eqsat.overlap import overlapped
from eqsat.read import Call, Reading, read
from eqsat.regions import Region, cut, kept_steps, loads_in, local
from eqsat.updates import giving_up, handed_on

log = logging.getLogger("eqsat")


class Facts(NamedTuple):
    """What is said of a reading."""

    tensors: int
    views: int
    opaque: int
    peak_nbytes: int  # with every equation's result stored
    baseline: Cost  # with a kernel for each equation


@dataclass(frozen=True, eq=False)
class Part:
    """A region as the program has it: its tensors, a digest that regions of equal structure share, and what it computes."""

    inputs: tuple[Tensor, ...]
    definitions: tuple[Tensor, ...]
    key: str
    canonical: Callable[[], Region]  # the region in canonical form, over leaves of its own

    @staticmethod
    def of(region: Region) -> Part:
        """Of a region in canonical form."""
        return Part(region.inputs, region.definitions, key_of(region.key), lambda: region)


@dataclass(frozen=True, eq=False)
class Outline:
    """A program as tensors, and parts in program order."""

    inputs: tuple[Tensor, ...]
    constants: Mapping[Tensor, Any]
    outputs: tuple[Tensor, ...]
    parts: tuple[Part | Call, ...]
    facts: Facts


class Asked(NamedTuple):
    """What an outline depends on besides the graph."""

    exact: bool
    constants: tuple[int, ...] | None  # positions of arguments that never change; None in a loop, which computes nothing once
    donate: tuple[int, ...]  # positions of arguments that a call uses up
    card: Device


Forms = dict[str, Region]  # by the key of a part


def outline(graph: Graph, asked: Asked, inside: Mapping[Graph, int], cache: Cache | None) -> Outline:
    """The outline of a graph, from the cache or by reading it; `inside` is the peak memory of its bodies as written."""
    key = None if cache is None else _key(graph, asked)
    if cache is not None and key is not None and (data := cache.get(key)) is not None:
        try:
            return _bound(plan_codec.loaded(data), graph, lru_cache(1)(lambda: _read(graph, asked, inside)[1]))
        except plan_codec.UNREADABLE as error:
            log.info("cache: an outline of this graph required, got %r", error)
            cache.drop(key)
    rows, forms = _read(graph, asked, inside)
    if cache is not None and key is not None:
        cache.put(key, pickle.dumps(rows, protocol=5))
    return _bound(rows, graph, lambda: forms)


def _key(graph: Graph, asked: Asked) -> str | None:
    """None for a graph whose identity cannot be told."""
    leaves = [leaves_of(graph, asked.constants or (), "constants"), leaves_of(graph, asked.donate, "donate")]
    try:
        written = identity(graph)
    except Unknown as reason:
        log.info("%s: %s: it is read", graph.name, reason)
        return None
    once = asked.constants is not None
    return key_of("outline", repr(written), leaves, once, asked.exact, asked.card, jax.config.read("jax_enable_x64"))


def _read(graph: Graph, asked: Asked, inside: Mapping[Graph, int]) -> tuple[Any, Forms]:
    """The outline as plain data, in which tensors are numbers, and the regions of its parts in canonical form."""
    reading = read(graph, asked.exact)
    outputs, parts = parts_of(graph, reading, asked.constants, asked.card, asked.donate)
    numbers: dict[Tensor, int] = {}

    def number(tensors: Iterable[Any]) -> list[int | None]:
        return [numbers.setdefault(t, len(numbers)) if isinstance(t, Tensor) else None for t in tensors]

    forms: Forms = {}
    keys: dict[Hashable, str] = {}  # by what is written: layers are mostly equal before they are in canonical form
    places = {id(e): n for n, e in enumerate(graph.equations)}
    names = {graph.name_of[v]: n for n, v in enumerate(graph.constants)}
    given = number(reading.inputs), number(reading.constants), [names[t.name] for t in reading.constants]
    rows: list[Any] = []
    for part in parts:
        if isinstance(part, Call):
            rows.append((places[id(part.eqn)], number(part.inputs), number(part.outputs), part.reason))
            continue
        written = part.key
        if written not in keys:
            own = local(part)
            keys[written] = key_of(own.key)
            forms.setdefault(keys[written], own)
        rows.append((keys[written], number(part.inputs), number(part.definitions)))
    facts = Facts(len(reading.steps), reading.views, reading.opaque, _peak(reading, inside), baseline(reading, asked.card))
    made = number(outputs)
    return ([(t.name, t.shape, t.dtype) for t in numbers], given, made, rows, tuple(facts)), forms


def _bound(rows: Any, graph: Graph, forms: Callable[[], Forms]) -> Outline:
    """The outline over tensors of its own."""
    written, (inputs, constants, values), outputs, parts, facts = rows
    tensors = [Tensor(*row) for row in written]
    held = list(graph.constants.values())

    def named(numbers: Iterable[int]) -> tuple[Tensor, ...]:
        return tuple(tensors[n] for n in numbers)

    def part_of(first: str | int, read: Sequence[Any], made: Sequence[int], reason: str = "") -> Part | Call:
        if isinstance(first, str):
            return Part(named(read), named(made), first, lambda: forms()[first])
        eqn = graph.equations[first]
        atoms = zip(eqn.inputs, read, strict=True)
        operands = tuple(atom.value if isinstance(atom, Literal) else tensors[n] for atom, n in atoms)
        return Call(eqn.name, eqn, operands, named(made), reason)

    given = dict(zip(named(constants), (held[n] for n in values), strict=True))
    return Outline(named(inputs), given, named(outputs), tuple(part_of(*row) for row in parts), Facts(*facts))


def _peak(reading: Reading, inside: Mapping[Graph, int]) -> int:
    """Peak memory of the program as written, every equation's result stored."""

    def use(step: Stored | Call) -> Use:
        if isinstance(step, Stored):
            return Use(loads_in(step.term), (step,))
        return Use(step.inputs, step.outputs, max((inside[body] for body in step.eqn.bodies), default=0))

    return peak_nbytes(map(use, reading.steps), set(reading.outputs))


# --- cutting a reading --------------------------------------------------------------------------------------------


def parts_of(
    graph: Graph, reading: Reading, constants: Sequence[int] | None, card: Device, donate: Sequence[int] = ()
) -> tuple[tuple[Tensor, ...], list[Region | Call]]:
    """The program's output tensors, and what it is cut into: regions and calls, in program order."""
    fixed = frozenset() if constants is None else _constant_tensors(graph, reading, constants)
    steps, renamed = kept_steps(reading.steps, reading.outputs, once=constants is not None)
    outputs = tuple(renamed.get(t, t) for t in reading.outputs)
    given = [reading.inputs[leaf] for leaf in leaves_of(graph, donate, "donate")]
    parts = giving_up(overlapped(cut(steps, outputs, fixed), outputs, card), handed_on(given, outputs))
    return outputs, [replace(p, exact=reading.exact) if isinstance(p, Region) else p for p in parts]


def leaves_of(graph: Graph, positions: Sequence[int], option: str) -> list[int]:
    """The flat inputs of arguments at these positions."""
    count = len(graph.argument_leaves)
    for n in positions:
        if not -count <= n < count:
            raise ValueError(f"{option}: positions of the {count} positional arguments required, got {n}")
    return [leaf for n in positions for leaf in graph.argument_leaves[n]]


def _constant_tensors(graph: Graph, reading: Reading, constants: Sequence[int]) -> frozenset[Tensor]:
    """Leaves that never change: closed-over arrays and the leaves of the arguments declared constant."""
    leaves = leaves_of(graph, constants, "constants")
    return frozenset(reading.constants) | frozenset(reading.inputs[leaf] for leaf in leaves)
