"""Cones of e-nodes: how a class can be computed from loads of what other kernels store.

This is technology mapping (priority cuts). A fragment is a choice of one e-node for each class of a cone; each class keeps a few,
at most a handful per set of stored tensors that they load, ranked by their own work plus the share of work behind
their leaves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import NamedTuple

from eqsat.devices import Device
from eqsat.egraph import Row, loads_in
from eqsat.index import Axis
from eqsat.notation import Stored
from eqsat.regions import Region
from eqsat.scalars import DTYPES, SCALARS

KEYS = 8  # leaf sets kept per class
PER_KEY = 2  # fragments kept per leaf set
SWEEPS = 6


class Fragment(NamedTuple):
    """A choice of one e-node per class in a cone; sets are bit masks."""

    flow: float  # work of the cone plus the share behind its leaves
    leaves: int  # storable tensors loaded
    nodes: int  # e-nodes chosen
    classes: int  # their classes
    top: int  # number of the root's e-node


@dataclass(frozen=True, eq=False)
class Entity:
    """A class that may be stored: a definition of the region, or a reduction that only the rules made."""

    number: int
    class_id: int
    tensor: Stored
    constant: bool

    @property
    def axes(self) -> tuple[Axis, ...]:
        return self.tensor.axes

    @property
    def bit(self) -> int:
        return 1 << self.number


class Cones:
    """The e-nodes of a region with their work, and the fragments that can be made of them."""

    def __init__(
        self,
        classes: dict[int, list[Row]],
        axes: dict[int, frozenset[Axis]],
        entities: list[Entity],
        region: Region,
        device: Device,
    ) -> None:
        self.classes, self.axes, self.entities, self.region, self.device = classes, axes, entities, region, device
        self._number_rows()
        self._sequence = self._order()
        self._users = self._count_users()
        self._flow = [device.launch_seconds + e.tensor.nbytes / device.dram_bytes_per_second for e in entities]

    def _number_rows(self) -> None:
        """Number e-nodes, and charge each its own work in seconds."""
        of_tensor = {e.tensor: e.number for e in self.entities}
        self.rows: list[Row] = []
        self.row_numbers: dict[int, list[int]] = {}
        self.row_seconds: list[float] = []
        self.row_leaf: list[int] = []  # mask of the entity loaded
        self._class_of_row: list[int] = []
        self._class_bit = {c: 1 << n for n, c in enumerate(self.classes)}
        self._binding: dict[Axis, int] = defaultdict(int)  # masks of the rows that bind, or mention, an axis
        self._mentioning: dict[Axis, int] = defaultdict(int)
        for c, rows in self.classes.items():
            self.row_numbers[c] = []
            for row in rows:
                bit = 1 << len(self.rows)
                for axis in self.axes[c]:
                    self._mentioning[axis] |= bit
                if row.head in ("reduce", "online"):
                    self._binding[row.data[1] if row.head == "reduce" else row.data[0]] |= bit
                self.row_numbers[c].append(len(self.rows))
                self._class_of_row.append(c)
                self.rows.append(row)
                self.row_seconds.append(self._row_seconds(c, row))
                entity = of_tensor.get(row.data[0]) if row.head == "load" else None
                self.row_leaf.append(0 if entity is None else 1 << entity)

    def _volume(self, axes: Iterable[Axis]) -> int:
        return prod(a.extent for a in axes)

    def _row_seconds(self, c: int, row: Row) -> float:
        scope = self.axes[c].union(*(self.axes[a] for a in row.args))
        volume = self._volume(scope)
        if row.head == "const":
            return 0.0
        if row.head == "load":
            return min(volume, row.data[0].size) * DTYPES[row.dtype].nbytes / self.device.dram_bytes_per_second
        if row.head == "online":
            s, v = row.args
            points = self._volume(self.axes[s])
            extra = 2 * volume / self.device.contraction_flops(row.data[1]) if self.axes[v] - self.axes[s] else 0.0
            return extra + 2 * points / self.device.special_ops_per_second
        scalar = SCALARS.get(row.head)
        if scalar is not None and scalar.unit == "special":
            return volume * scalar.weight / self.device.special_ops_per_second
        return volume * (scalar.weight if scalar else 1.0) / (self.device.vector_flops / 2)

    def ranked(self) -> dict[int, list[Fragment]]:
        """A few fragments of each class, best first."""
        self._fragments: dict[int, list[Fragment]] = {c: [] for c in self.classes}
        for _ in range(SWEEPS):
            changed = False
            for c in self._sequence:
                kept = self._best(c, [f for n in self.row_numbers[c] for f in self._combine(c, n, self._fragments, self._flow)])
                if kept != self._fragments[c]:
                    self._fragments[c] = kept
                    changed = True
            self._update_flow()
            if not changed:
                break
        return self._fragments

    def _order(self) -> list[int]:
        """Operands first, as far as cycles allow."""
        seen: set[int] = set()
        order: list[int] = []
        for root in self.classes:
            stack = [(root, False)]
            while stack:
                c, ready = stack.pop()
                if ready:
                    order.append(c)
                elif c not in seen:
                    seen.add(c)
                    stack.append((c, True))
                    stack.extend((a, False) for r in self.classes[c] for a in r.args if a not in seen)
        return order

    def _combine(self, c: int, n: int, below: dict[int, list[Fragment]], behind: list[float]) -> list[Fragment]:
        """Fragments of class c through its e-node n, from fragments of its operands; `behind` is the work behind each leaf."""
        row = self.rows[n]
        own, leaf = self.row_seconds[n], self.row_leaf[n]
        bit, node = self._class_bit[c], 1 << n
        if not row.args:
            return [Fragment(own + (behind[leaf.bit_length() - 1] if leaf else 0.0), leaf, node, bit, n)]
        found: list[Fragment] = []
        width = {1: None, 2: 8}.get(len(row.args), 4)
        for parts in product(*(below[a][:width] for a in row.args)):
            flow, leaves, nodes, classes = own, leaf, node, bit
            for part in parts:
                if part.classes & bit:
                    break
                shared = part.nodes & nodes
                if (nodes | part.nodes).bit_count() != (classes | part.classes).bit_count():
                    break  # one class, two different e-nodes
                flow += part.flow - self._seconds(shared)
                shared_leaves = leaves & part.leaves
                if shared_leaves:
                    flow -= self._behind(shared_leaves, behind)
                leaves |= part.leaves
                nodes |= part.nodes
                classes |= part.classes
            else:
                if row.head == "reduce":
                    flow += self._contraction_correction(c, row, parts[0])
                if row.head in ("reduce", "online"):
                    flow += self._further_pass(row, nodes & ~node)
                found.append(Fragment(flow, leaves, nodes, classes, n))
        return found

    def _further_pass(self, row: Row, nodes: int) -> float:
        """A reduction over what another reduction of the same axis must finish first traverses the axis once more."""
        axis = row.data[1] if row.head == "reduce" else row.data[0]
        if not nodes & self._binding[axis]:
            return 0.0
        return self._seconds(nodes & self._mentioning[axis])

    def _seconds(self, nodes: int) -> float:
        total = 0.0
        while nodes:
            n = nodes.bit_length() - 1
            total += self.row_seconds[n]
            nodes ^= 1 << n
        return total

    def _behind(self, leaves: int, behind: list[float]) -> float:
        """What lies behind leaves that two parts both count."""
        total = 0.0
        while leaves:
            e = leaves.bit_length() - 1
            total += behind[e]
            leaves ^= 1 << e
        return total

    def _contraction_correction(self, c: int, row: Row, part: Fragment) -> float:
        """A matrix instruction replaces the products, and widening casts of its operands."""
        product_row = self.rows[part.top]
        if row.data[0] != "sum" or product_row.head != "mul":
            return 0.0
        a, b = product_row.args
        if not (self.axes[a] - self.axes[b]) or not (self.axes[b] - self.axes[a]):
            return 0.0
        volume = self._volume(self.axes[a] | self.axes[b])
        narrow = {d for x in (a, b) for r in self.classes[x] if r.head == "cast" for d in [self._dtype(r.args[0])]}
        dtype = (
            narrow.pop()
            if len(narrow) == 1 and all(any(r.head == "cast" for r in self.classes[x]) for x in (a, b))
            else product_row.dtype
        )
        vector = self.device.vector_flops / 2
        return 2 * volume / self.device.contraction_flops(dtype) - 2 * volume / vector

    def _dtype(self, c: int) -> str:
        return self.classes[c][0].dtype

    def _best(self, c: int, found: list[Fragment]) -> list[Fragment]:
        by_leaves: dict[int, list[Fragment]] = defaultdict(list)
        for f in sorted(found):
            group = by_leaves[f.leaves]
            if len(group) < PER_KEY and all(f.nodes != g.nodes for g in group):
                group.append(f)
        ranked = sorted(by_leaves.values(), key=lambda g: g[0])[:KEYS]
        return sorted(f for group in ranked for f in group)

    def _update_flow(self) -> None:
        """Work behind each leaf: the cheapest known cone that makes it, shared among its users."""
        for e in self.entities:
            own = [f.flow for f in self._fragments[e.class_id] if not f.leaves & (1 << e.number)]
            if own:
                store = self.device.launch_seconds + e.tensor.nbytes / self.device.dram_bytes_per_second
                self._flow[e.number] = 0.0 if e.constant else (min(own) + store) / self._users[e.number]

    def _count_users(self) -> list[int]:
        """Definitions that load each entity (an output has one user more)."""
        users = [int(e.tensor in self.region.outputs) for e in self.entities]
        number = {e.tensor: e.number for e in self.entities}
        for stored in self.region.definitions:
            for tensor in loads_in(stored.term):
                if tensor in number:
                    users[number[tensor]] += 1
        return [max(1, n) for n in users]

    def mapped(self, stored: int) -> dict[int, list[Fragment]]:
        """The best fragment of each class when exactly these entities may be loaded."""
        best: dict[int, list[Fragment]] = {c: [] for c in self.classes}
        free = [0.0] * len(self.entities)
        for _ in range(SWEEPS):
            changed = False
            for c in self._sequence:
                found = [
                    f
                    for n in self.row_numbers[c]
                    if not self.row_leaf[n] or self.row_leaf[n] & stored
                    for f in self._combine(c, n, best, free)
                ]
                if found and (not best[c] or min(found) < best[c][0]):
                    best[c] = [min(found)]
                    changed = True
            if not changed:
                break
        return best

    def root(self, e: Entity, best: dict[int, list[Fragment]]) -> Fragment | None:
        """The best fragment that computes an entity rather than loading it."""
        own = 1 << e.number
        free = [0.0] * len(self.entities)
        found = [
            f
            for n in self.row_numbers[e.class_id]
            if self.rows[n].head != "load" or self.rows[n].args
            for f in self._combine(e.class_id, n, best, free)
            if not f.leaves & own
        ]
        return min(found, default=None)

    def is_load(self, fragment: Fragment) -> bool:
        """True if the class is read from memory rather than computed."""
        return self.rows[fragment.top].head == "load" and not self.rows[fragment.top].args

    def choice(self, fragment: Fragment) -> dict[int, Row]:
        """The e-node chosen for each class of a fragment."""
        chosen: dict[int, Row] = {}
        nodes = fragment.nodes
        while nodes:
            n = nodes.bit_length() - 1
            nodes ^= 1 << n
            chosen[self._class_of_row[n]] = self.rows[n]
        return chosen
