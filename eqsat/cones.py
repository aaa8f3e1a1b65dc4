"""Cones of e-nodes: how a class can be computed from loads of what other kernels store.

This is technology mapping (priority cuts). A fragment is a choice of one e-node for each class of a cone; each class keeps a few,
at most a handful per set of stored tensors that they load, ranked by their own work plus the share of work behind
their leaves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import product
from math import prod
from typing import NamedTuple

from eqsat.cost import COMPUTED
from eqsat.devices import Device
from eqsat.egraph import Row
from eqsat.index import Axis
from eqsat.limits import COMPARISONS
from eqsat.notation import Stored
from eqsat.regions import Region, loads_in
from eqsat.scalars import PART, PARTS, SCALARS
from eqsat.schedule import RESIDENT_LIMIT
from eqsat.work import element_nbytes

KEYS = 8  # leaf sets kept per class
PER_KEY = 2  # fragments kept per leaf set
SWEEPS = 6
AS_WRITTEN = 1e-6  # by which an e-node that a rule made seems dearer: of equals, what the user wrote


class Fragment(NamedTuple):
    """A choice of one e-node per class in a cone; sets are bit masks."""

    flow: float  # work of the cone plus the share behind its leaves
    leaves: int  # storable tensors loaded
    nodes: int  # e-nodes chosen
    classes: int  # their classes
    top: int  # number of the root's e-node
    extras: tuple[tuple[int, float], ...] = ()  # of reductions, by e-node: what they take beside the work of the e-nodes


def without_mirrors(rows: Iterable[Row]) -> list[Row]:
    """The e-nodes of a class but those that only swap operands: they make the same kernels and would displace others."""
    kept: dict[object, Row] = {}
    for row in rows:
        swaps = row.head in SCALARS and SCALARS[row.head].commutative
        kept.setdefault((row.head, tuple(sorted(row.args)), row.data) if swaps else row, row)
    return list(kept.values())


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
        self._place = {c: n for n, c in enumerate(self._sequence)}
        self._users_of: dict[int, set[int]] = {c: set() for c in classes}
        self._loading: dict[int, set[int]] = {e.number: set() for e in entities}
        for n, row in enumerate(self.rows):
            for arg in row.args:
                self._users_of[arg].add(self._class_of_row[n])
            if self.row_leaf[n]:
                self._loading[self.row_leaf[n].bit_length() - 1].add(self._class_of_row[n])
        self._users = self._count_users()
        self._free = [0.0] * len(entities)
        self._made: dict[tuple[int, ...], Fragment | None] = {}
        self._parts: list[list[Fragment | None]] = []
        self._total: dict[int, float] = {}
        self._products: dict[tuple[int, int], int] = {}
        self._looped = 0
        self._mark_loops()
        self._flow = [device.launch_seconds + e.tensor.nbytes / device.dram_bytes_per_second for e in entities]

    def _number_rows(self) -> None:
        """Number e-nodes, and charge each its own work in seconds."""
        of_tensor = {e.tensor: e.number for e in self.entities}
        self.rows: list[Row] = []
        self.row_numbers: dict[int, list[int]] = {}
        self.row_seconds: list[float] = []
        self.row_leaf: list[int] = []  # mask of the entity loaded
        self._class_of_row: list[int] = []
        self._rows_of: dict[int, int] = defaultdict(int)  # masks
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
                    self._binding[row.data[1]] |= bit
                self.row_numbers[c].append(len(self.rows))
                self._rows_of[c] |= bit
                self._class_of_row.append(c)
                self.rows.append(row)
                self.row_seconds.append(self._row_seconds(c, row) * (1 + AS_WRITTEN * bool(row.rule)))
                entity = of_tensor.get(row.data[0]) if row.head == "load" else None
                self.row_leaf.append(0 if entity is None else 1 << entity)

    def _mark_loops(self) -> None:
        """The rows of loops: sums of products of matrices, and comparisons of positions, which limit a loop or make a scan."""
        places = {c for c, rows in self.classes.items() if any(r.head == "pos" for r in rows)}
        for n, row in enumerate(self.rows):
            if row.head in COMPARISONS and places.issuperset(row.args) and len({frozenset(self.axes[a]) for a in row.args}) > 1:
                self._looped |= 1 << n
            if row.head == "reduce" and any(r.head == "mul" and self._contracted(*r.args) for r in self.classes[row.args[0]]):
                self._looped |= 1 << n
            elif row.head == "online" and self.axes[row.args[1]] - self.axes[row.args[0]]:
                self._looped |= 1 << n

    def _volume(self, axes: Iterable[Axis]) -> int:
        return prod(a.extent for a in axes)

    def _row_seconds(self, c: int, row: Row) -> float:
        over = (row.data[1],) if row.head == "reduce" else ()  # also where what it sums does not vary along the axis
        scope = self.axes[c].union(over, *(self.axes[a] for a in row.args))
        volume = self._volume(scope)
        if row.head == "const":
            return 0.0
        if row.head == "load":
            return min(volume * element_nbytes(*row.data), row.data[0].nbytes) / self.device.dram_bytes_per_second
        if row.head == "online":
            s, v = row.args
            points = self._volume(self.axes[s])
            extra = 2 * volume / self.device.contraction_flops(row.data[2]) if self.axes[v] - self.axes[s] else 0.0
            return extra + 2 * points / self.device.special_ops_per_second
        scalar = SCALARS.get(row.head)
        if scalar is not None and scalar.unit == "special":
            return volume * scalar.weight / self.device.special_ops_per_second
        return volume * (scalar.weight if scalar else 1.0) / (self.device.vector_flops / 2)

    def ranked(self) -> dict[int, list[Fragment]]:
        """A few fragments of each class, best first."""
        self._fragments: dict[int, list[Fragment]] = {c: [] for c in self.classes}
        stale = set(self.classes)  # those whose operands, or the work behind whose leaves, changed since
        for _ in range(SWEEPS):
            if not stale:
                break
            for c in self._sequence:
                if c in stale:
                    stale.remove(c)
                    found = [f for n in self.row_numbers[c] for f in self._combine(c, n, self._fragments, self._flow)]
                    kept = self._best(found)
                    if kept != self._fragments[c]:
                        self._fragments[c] = kept
                        stale |= self._users_of[c]
            for e in self._update_flow():
                stale |= self._loading[e]
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
        operands = [[f for f in below[a][:width] if not f.classes & bit] for a in row.args]
        for parts in product(*operands):
            flow, leaves, nodes, classes = own, leaf, node, bit
            extras: tuple[tuple[int, float], ...] = ()
            for part in parts:
                shared = part.nodes & nodes
                if part.classes & classes and (nodes | part.nodes).bit_count() != (classes | part.classes).bit_count():
                    break  # one class, two different e-nodes
                flow += part.flow
                if shared:
                    flow -= self._seconds(shared) + sum(seconds for r, seconds in part.extras if shared >> r & 1)
                    extras += tuple(e for e in part.extras if not shared >> e[0] & 1)
                else:
                    extras += part.extras
                if leaves & part.leaves:
                    flow -= self._behind(leaves & part.leaves, behind)
                leaves |= part.leaves
                nodes |= part.nodes
                classes |= part.classes
            else:
                if row.head in ("reduce", "online"):
                    extra = self._contraction_correction(row, parts[0]) + self._further_pass(row, nodes & ~node)
                    if extra:
                        flow, extras = flow + extra, (*extras, (n, extra))
                found.append(Fragment(flow, leaves, nodes, classes, n, extras))
        return found

    def _further_pass(self, row: Row, nodes: int) -> float:
        """A reduction over what another reduction of the same axis must finish first traverses the axis once more.

        Not so a row that is held whole, as rows are without matrix products or limits.
        """
        axis = row.data[1]
        whole = axis.extent <= RESIDENT_LIMIT and not (nodes | self._binding[axis]) & self._looped
        return 0.0 if whole or not nodes & self._binding[axis] else self._seconds(nodes & self._mentioning[axis])

    def _seconds(self, nodes: int) -> float:
        """Work of a set of e-nodes."""
        if not nodes:
            return 0.0
        total = self._total.get(nodes)
        if total is None:
            total, rest = 0.0, nodes
            while rest:
                n = rest.bit_length() - 1
                total += self.row_seconds[n]
                rest ^= 1 << n
            self._total[nodes] = total
        return total

    def _behind(self, leaves: int, behind: list[float]) -> float:
        """What lies behind leaves that two parts both count."""
        total = 0.0
        while leaves:
            e = leaves.bit_length() - 1
            total += behind[e]
            leaves ^= 1 << e
        return total

    def _contraction_correction(self, row: Row, part: Fragment) -> float:
        """A matrix instruction replaces the products, and widening casts of its operands."""
        product_row = self.rows[part.top]
        if row.head != "reduce" or row.data[0] != "sum" or product_row.head != "mul":
            return 0.0
        a, b = product_row.args
        if (volume := self._contracted(a, b)) == 0:
            return 0.0
        heads = [self._chosen(part.nodes, x) for x in (a, b)]
        sources = [self._chosen(part.nodes, h.args[0]) if h.head == "cast" else h for h in heads]
        narrow = {x.dtype for x in sources}
        products = PARTS if narrow == {"float32", PART} and PART in self.device.tensor_flops else 1
        dtype = PART if products > 1 else narrow.pop() if len(narrow) == 1 else product_row.dtype
        computed = sum(x.head != "load" for x in sources)
        rate = self.device.contraction_flops(dtype) * (COMPUTED if dtype in self.device.tensor_flops else 0.99) ** computed
        return 2 * volume * products / rate - 2 * volume / (self.device.vector_flops / 2)

    def _contracted(self, a: int, b: int) -> int:
        """Points of a product of two classes if each has an axis that the other lacks, else 0."""
        if (a, b) not in self._products:
            mine, other = self.axes[a], self.axes[b]
            self._products[a, b] = self._volume(mine | other) if mine - other and other - mine else 0
        return self._products[a, b]

    def _chosen(self, nodes: int, c: int) -> Row:
        """The e-node that a fragment takes for a class."""
        return self.rows[(nodes & self._rows_of[c]).bit_length() - 1]

    def _best(self, found: list[Fragment]) -> list[Fragment]:
        by_leaves: dict[int, list[Fragment]] = defaultdict(list)
        for f in sorted(found):
            group = by_leaves[f.leaves]
            if len(group) < PER_KEY and all(f.nodes != g.nodes for g in group):
                group.append(f)
        ranked = sorted(by_leaves.values(), key=lambda g: g[0])[:KEYS]
        return sorted(f for group in ranked for f in group)

    def _update_flow(self) -> list[int]:
        """Work behind each leaf: the cheapest known cone that makes it, shared among its users. The leaves whose work changed."""
        before = list(self._flow)
        for e in self.entities:
            own = [f.flow for f in self._fragments[e.class_id] if not f.leaves & (1 << e.number)]
            if own:
                store = self.device.launch_seconds + e.tensor.nbytes / self.device.dram_bytes_per_second
                self._flow[e.number] = 0.0 if e.constant else (min(own) + store) / self._users[e.number]
        return [n for n, flow in enumerate(self._flow) if flow != before[n]]

    def _count_users(self) -> list[int]:
        """Definitions that load each entity (an output has one user more)."""
        users = [int(e.tensor in self.region.outputs) for e in self.entities]
        number = {e.tensor: e.number for e in self.entities}
        for stored in self.region.definitions:
            for tensor in loads_in(stored.term):
                if tensor in number:
                    users[number[tensor]] += 1
        return [max(1, n) for n in users]

    # --- one fragment per class -----------------------------------------------------------------------------------

    def mapped(self, stored: int) -> dict[int, Fragment]:
        """The best fragment of each class when exactly these entities may be loaded; classes without one are left out."""
        best: dict[int, Fragment] = {}
        self._settle(best, self._sequence, stored)
        return best

    def remapped(self, best: dict[int, Fragment], stored: int, flipped: Entity) -> dict[int, Fragment]:
        """As `mapped`, from the result for a selection that differs in one entity: only what that touches is done again."""
        best = dict(best)
        if stored & flipped.bit:
            touched = self._loading[flipped.number]
        else:
            touched = {c for c in best if best[c].leaves & flipped.bit}
            for c in touched:
                del best[c]
        self._settle(best, touched, stored)
        return best

    def _settle(self, best: dict[int, Fragment], stale: Iterable[int], stored: int) -> None:
        """Take the best fragment of each of these classes, given those of its operands, and of what uses one that changes.

        Sweeps go from operands to users; a cycle's users that come before wait for the next one. A fragment over operands that
        have changed since is replaced even by a worse one: it no longer fits its neighbours.
        """
        place = self._place
        waiting = [(0, place[c]) for c in stale]
        heapify(waiting)
        queued = set(waiting)
        while waiting and waiting[0][0] < 4 * SWEEPS:
            sweep, here = heappop(waiting)
            c, fresh = self._sequence[here], None
            for n in self.row_numbers[c]:
                leaf = self.row_leaf[n]
                if leaf and not leaf & stored:
                    continue
                f = self._single(c, n, best)
                if f is not None and (fresh is None or f < fresh):
                    fresh = f
            if fresh is not None and fresh is not best.get(c):
                best[c] = fresh
                for user in self._users_of[c]:
                    again = (sweep + (place[user] <= here), place[user])
                    if again not in queued:
                        queued.add(again)
                        heappush(waiting, again)

    def root(self, e: Entity, best: dict[int, Fragment]) -> Fragment | None:
        """The best fragment that computes an entity rather than loading it."""
        return min(self.forms(e, best), default=None)

    def forms(self, e: Entity, best: dict[int, Fragment]) -> list[Fragment]:
        """The fragments that compute an entity, one by each of its e-nodes; a view of what the region is given is copied."""
        computed = (n for n in self.row_numbers[e.class_id] if not self.row_leaf[n] or self.rows[n].args)
        found = (self._single(e.class_id, n, best) for n in computed)
        return [f for f in found if f is not None and not f.leaves & e.bit]

    def _single(self, c: int, n: int, best: dict[int, Fragment]) -> Fragment | None:
        """The fragment of an e-node over the best of its operands; made once, since hill climbing asks again and again."""
        parts = [best.get(a) for a in self.rows[n].args]
        if None in parts:
            return None
        key = (n, *map(id, parts))
        if key not in self._made:
            below = {a: [f] for a, f in zip(self.rows[n].args, parts, strict=True) if f is not None}
            found = self._combine(c, n, below, self._free)
            self._made[key] = found[0] if found else None
            self._parts.append(parts)  # keeps the operands' identities from being used again
        return self._made[key]

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
