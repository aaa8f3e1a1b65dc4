"""Candidate kernels: for each class that could be stored, cones of e-nodes down to loads of what other kernels store.

This is technology mapping (priority cuts): each class keeps a few fragments, at most a handful per set of stored tensors that
they load, ranked by their own work plus the share of work behind their leaves. A candidate is a fragment at the root of
a storable class, or several such with one iteration space.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import NamedTuple

from eqsat.cost import FREE, Cost, price
from eqsat.devices import Device
from eqsat.egraph import Row, Saturated, loads_in
from eqsat.index import Axis, Index
from eqsat.notation import Kernel, Stored, Tensor, Term, dimension_indices
from eqsat.regions import Region
from eqsat.scalars import DTYPES, SCALARS
from eqsat.schedule import Schedule, schedules
from eqsat.work import Work

KEYS = 8  # leaf sets kept per class
PER_KEY = 2  # fragments kept per leaf set
PER_ENTITY = 20  # candidates priced per storable tensor
SWEEPS = 6
CONSTANT_NBYTES = 1 << 28  # a larger result of constants is not folded


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


@dataclass(frozen=True, eq=False)
class Candidate:
    """A kernel that extraction may choose."""

    produces: tuple[Entity, ...]
    needs: frozenset[int]  # numbers of entities that it loads
    kernel: Kernel
    cost: Cost
    schedule: Schedule | None
    rules: frozenset[str]  # rules that made some e-node of it
    constant: bool = False  # depends on constants only: run once, so it costs nothing


class Pool:
    """Builds the candidates of one saturated region."""

    def __init__(self, saturated: Saturated, region: Region, device: Device) -> None:
        self.device, self.region = device, region
        self.axes = saturated.axes
        self.classes = {c: list(rows) for c, rows in saturated.classes.items()}
        self.entities: list[Entity] = []
        self._constant = self._constant_classes()
        self._add_entities(saturated)
        self._number_rows()
        self._sequence = self._order()
        self._flow = [device.launch_seconds + e.tensor.nbytes / device.dram_bytes_per_second for e in self.entities]
        self._users = self._count_users()
        self._fragments: dict[int, list[Fragment]] = {c: [] for c in self.classes}
        self._terms: dict[tuple[int, int], Term] = {}
        self._priced: dict[tuple[Term, ...], tuple[Cost, Schedule | None]] = {}

    # --- what may be stored -------------------------------------------------------------------------------------

    def _constant_classes(self) -> set[int]:
        """Classes that depend on nothing but constants (and on at least one)."""
        constant: set[int] = set()
        literal = {c for c, rows in self.classes.items() if any(r.head in ("const", "pos") for r in rows)}
        changed = bool(self.region.constant)
        while changed:
            changed = False
            for c, rows in self.classes.items():
                if c not in constant and any(self._is_constant(r, constant, literal) for r in rows):
                    constant.add(c)
                    changed = True
        return constant

    def _is_constant(self, row: Row, constant: set[int], literal: set[int]) -> bool:
        if row.head == "load":
            return row.data[0] in self.region.constant and all(a in constant | literal for a in row.args)
        return bool(row.args) and all(a in constant | literal for a in row.args) and any(a in constant for a in row.args)

    def _add_entities(self, saturated: Saturated) -> None:
        for stored in self.region.definitions:
            self._entity(saturated.class_of[stored], stored)
        known, defined = {e.class_id for e in self.entities}, set(self.region.definitions)
        for c, rows in self.classes.items():
            renamed = any(
                r.head == "load" and r.data[0] in defined and not r.args for r in rows
            )  # a stored tensor under other axes
            if c not in known and not renamed and any(r.head in ("reduce", "online") for r in rows):
                axes = tuple(sorted(self.axes[c]))
                shape = tuple(a.extent for a in axes)
                tensor = Stored(f"t{len(self.entities)}", shape, rows[0].dtype, None, axes)  # type: ignore[arg-type]
                self._entity(c, tensor)
                rows.append(Row("load", (), (tensor, dimension_indices(shape, axes)), rows[0].dtype, None))
        for e in self.entities:
            identity = dimension_indices(e.tensor.shape, e.axes)
            rows = self.classes[e.class_id]
            if not any(r.head == "load" and r.data == (e.tensor, identity) for r in rows):
                rows.append(Row("load", (), (e.tensor, identity), e.tensor.dtype, None))

    def _entity(self, class_id: int, tensor: Stored) -> None:
        constant = class_id in self._constant and tensor.nbytes <= CONSTANT_NBYTES
        self.entities.append(Entity(len(self.entities), class_id, tensor, constant))

    def _number_rows(self) -> None:
        """Number e-nodes, and charge each its own work in seconds."""
        of_tensor = {e.tensor: e.number for e in self.entities}
        self.rows: list[Row] = []
        self.row_numbers: dict[int, list[int]] = {}
        self.row_seconds: list[float] = []
        self.row_leaf: list[int] = []  # mask of the entity loaded
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

    # --- fragments ----------------------------------------------------------------------------------------------

    def _grow(self) -> None:
        for _ in range(SWEEPS):
            changed = False
            for c in self._sequence:
                kept = self._best(c, [f for n in self.row_numbers[c] for f in self._combine(c, n, self._fragments, self._flow)])
                if kept != self._fragments[c]:
                    self._fragments[c] = kept
                    changed = True
            self._update_flow()
            if not changed:
                return

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

    # --- candidates ---------------------------------------------------------------------------------------------

    def candidates(self) -> list[Candidate]:
        """All candidates, in a fixed order."""
        self._grow()
        single: list[Candidate] = []
        for e in self.entities:
            single.extend(self._of_entity(e))
        single.extend(self._climbed())
        wanted = {n for c in single for n in c.needs} | {e.number for e in self.entities if e.tensor in self.region.outputs}
        return [*single, *self._with_interior(single, wanted), *self._siblings(single)]

    def _of_entity(self, e: Entity) -> list[Candidate]:
        own = 1 << e.number
        found = [f for f in self._fragments[e.class_id] if not f.leaves & own and not self._loads_itself(f, e)]
        made = [self._candidate((e,), (f,)) for f in found[:PER_ENTITY]]
        if e.tensor.term is not None:
            made.append(self._original(e))
        return [c for c in made if c.cost.seconds < float("inf")]

    # --- hill climbing over what is stored ------------------------------------------------------------------------

    def _climbed(self) -> list[Candidate]:
        """Kernels of good sets of stored tensors, found by storing or not storing one tensor at a time.

        Fragments are ranked without their schedules; here whole sets are judged by the true price, so that what a
        ranking by parts cannot see (a score matrix that is never stored) is among the candidates.
        """
        outputs = sum(1 << e.number for e in self.entities if e.tensor in self.region.outputs)
        definitions = sum(1 << e.number for e in self.entities if e.tensor.term is not None)
        found: dict[int, Candidate] = {}
        self.known: tuple[float, tuple[Candidate, ...]] = (float("inf"), ())  # the best selection met
        for stored in (definitions, outputs | sum(1 << e.number for e in self.entities if self._contracts(e))):
            self._climb(stored, outputs, found)
        return [c for c in found.values() if c.cost.seconds < float("inf")]

    def _contracts(self, e: Entity) -> bool:
        return any(r.head == "reduce" and r.data[0] == "sum" for r in self.classes[e.class_id]) and e.tensor.term is not None

    def _climb(self, stored: int, outputs: int, found: dict[int, Candidate]) -> None:
        seconds, selection = self._evaluate(stored, outputs, found)
        improved = True
        while improved:
            improved = False
            for e in reversed(self.entities):
                bit = 1 << e.number
                if bit & outputs:
                    continue
                other, kernels = self._evaluate(stored ^ bit, outputs, found)
                if other < seconds * (1 - 1e-9):
                    stored, seconds, selection, improved = stored ^ bit, other, kernels, True
        self.known = min(self.known, (seconds, selection), key=lambda known: known[0])

    def _evaluate(self, stored: int, outputs: int, found: dict[int, Candidate]) -> tuple[float, tuple[Candidate, ...]]:
        """Total time if exactly these entities may be loaded, and the kernels, which are added to `found`."""
        free = [0.0] * len(self.entities)
        best = self._mapped(stored, free)
        total, needed, done = 0.0, outputs, 0
        kernels: list[Candidate] = []
        while todo := needed & ~done:
            e = self.entities[todo.bit_length() - 1]
            done |= 1 << e.number
            fragment = self._root(e, best, free)
            if fragment is None:
                return float("inf"), ()
            key = fragment.nodes | 1 << (len(self.rows) + e.number)
            if key not in found:
                found[key] = self._candidate((e,), (fragment,))
            kernels.append(found[key])
            total += found[key].cost.seconds
            needed |= fragment.leaves
        return total, tuple(kernels)

    def _mapped(self, stored: int, free: list[float]) -> dict[int, list[Fragment]]:
        """The best fragment of each class when exactly these entities may be loaded."""
        best: dict[int, list[Fragment]] = {c: [] for c in self.classes}
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

    def _root(self, e: Entity, best: dict[int, list[Fragment]], free: list[float]) -> Fragment | None:
        """The best fragment that computes an entity rather than loading it."""
        own = 1 << e.number
        found = [
            f
            for n in self.row_numbers[e.class_id]
            if self.rows[n].head != "load" or self.rows[n].args
            for f in self._combine(e.class_id, n, best, free)
            if not f.leaves & own
        ]
        return min(found, default=None)

    # --- candidates of one entity -----------------------------------------------------------------------------------

    def _loads_itself(self, f: Fragment, e: Entity) -> bool:
        return self.rows[f.top].head == "load" and self.rows[f.top].data[0] is e.tensor

    def _original(self, e: Entity) -> Candidate:
        """The definition as the user wrote it, one kernel, fused with nothing."""
        needs = frozenset(
            x.number for x in self.entities if x.tensor in {t.tensor for t in e.tensor.term.walk() if t.head == "load"}
        )
        return self._priced_candidate((e,), needs, (e.tensor.term,), frozenset())

    def _candidate(self, produces: tuple[Entity, ...], fragments: tuple[Fragment, ...]) -> Candidate:
        leaves = 0
        rules: set[str] = set()
        terms = []
        for e, f in zip(produces, fragments, strict=True):
            leaves |= f.leaves
            choice = {}
            nodes = f.nodes
            while nodes:
                n = nodes.bit_length() - 1
                nodes ^= 1 << n
                choice[self._class_of_row[n]] = n
                if rule := self.rows[n].rule:
                    rules.add(rule)
            terms.append(self._term(e.class_id, choice, {}))
        needs = frozenset(n for n in range(len(self.entities)) if leaves >> n & 1)
        return self._priced_candidate(produces, needs, tuple(terms), frozenset(rules))

    @property
    def _class_of_row(self) -> dict[int, int]:
        if not hasattr(self, "_row_class"):
            self._row_class = {n: c for c, numbers in self.row_numbers.items() for n in numbers}
        return self._row_class

    def _term(self, c: int, choice: dict[int, int], memo: dict[int, Term]) -> Term:
        if c not in memo:
            row = self.rows[choice[c]]
            memo[c] = Term(row.head, tuple(self._term(a, choice, memo) for a in row.args), row.data, row.dtype)
        return memo[c]

    def _priced_candidate(
        self, produces: tuple[Entity, ...], needs: frozenset[int], terms: tuple[Term, ...], rules: frozenset[str]
    ) -> Candidate:
        kernel = Kernel(produces[0].tensor.name, tuple(_store(e.tensor, t) for e, t in zip(produces, terms, strict=True)))
        if terms not in self._priced:
            work = Work(kernel)
            self._priced[terms] = price(work, schedules(work), self.device)
        cost, schedule = self._priced[terms]
        folded = all(e.constant for e in produces) and all(self._constant_leaf(t) for t in kernel.inputs)
        return Candidate(produces, needs, kernel, FREE if folded else cost, schedule, rules, folded)

    def _constant_leaf(self, tensor: Tensor) -> bool:
        return tensor in self.region.constant or any(e.tensor is tensor and e.constant for e in self.entities)

    def _with_interior(self, single: list[Candidate], wanted: set[int]) -> list[Candidate]:
        """Kernels that also store a wanted tensor computed inside them on the way."""
        by_term: dict[Term, Entity] = {}
        for c in single:
            if c.produces[0].number in wanted:
                by_term.setdefault(c.kernel.outputs[0].term, c.produces[0])
        found: list[Candidate] = []
        for c in single:
            root = c.produces[0]
            inside = [
                (by_term[t], t)
                for t in c.kernel.terms
                if t in by_term
                and by_term[t] is not root
                and set(by_term[t].axes) <= set(root.axes)
                and t is not c.kernel.outputs[0].term
            ]
            inside = [(e, t) for e, t in inside if e.number not in c.needs]
            groups = [[x] for x in inside] + ([inside] if len(inside) > 1 else [])
            for extra in groups:
                produces = (root, *(e for e, _ in extra))
                terms = (c.kernel.outputs[0].term, *(t for _, t in extra))
                found.append(self._priced_candidate(produces, c.needs, terms, c.rules))
        return [c for c in found if c.cost.seconds < float("inf")]

    def _siblings(self, single: list[Candidate]) -> list[Candidate]:
        """Kernels over one iteration space that share an input, as one launch."""
        best: dict[int, Candidate] = {}
        for c in single:
            n = c.produces[0].number
            if n not in best or c.cost.seconds < best[n].cost.seconds:
                best[n] = c
        groups: dict[tuple[Axis, ...], list[Candidate]] = defaultdict(list)
        for c in best.values():
            if c.produces[0].axes and not c.constant:
                groups[c.produces[0].axes].append(c)
        found: list[Candidate] = []
        for members in groups.values():
            for size in range(2, min(len(members), 8) + 1):
                for start in range(len(members) - size + 1):
                    merged = self._merge(members[start : start + size])
                    if merged is not None and merged.cost.seconds < float("inf"):
                        found.append(merged)
        return found

    def _merge(self, members: list[Candidate]) -> Candidate | None:
        made = {e.number for c in members for e in c.produces}
        shared = set(members[0].kernel.inputs).intersection(*(c.kernel.inputs for c in members[1:]))
        if not shared or any(c.needs & made for c in members):
            return None
        produces = tuple(e for c in members for e in c.produces)
        needs = frozenset().union(*(c.needs for c in members))
        terms = tuple(o.term for c in members for o in c.kernel.outputs)
        return self._priced_candidate(produces, needs, terms, frozenset().union(*(c.rules for c in members)))


def _store(tensor: Stored, term: Term) -> Stored:
    return Stored(tensor.name, tensor.shape, tensor.dtype, term, tensor.axes)


def identity_index(tensor: Stored) -> tuple[Index, ...]:
    """The index that reads a stored tensor at its own axes."""
    return dimension_indices(tensor.shape, tensor.axes)
