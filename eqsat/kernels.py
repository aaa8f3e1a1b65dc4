"""Candidate kernels: each is a fragment at the root of a storable class, or several with one iteration space.

Candidates come from three places: the best-ranked fragments of every storable class; hill climbing over what is stored,
which judges whole selections by their true price; and combinations of those (a wanted tensor that is computed on the way
is stored too; siblings that share an input become one launch).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, permutations
from math import inf, prod

from eqsat.climbing import Climb, Selection
from eqsat.cones import Cones, Entity, Fragment, without_mirrors
from eqsat.cost import FREE, OBJECTIVES, UNDER_A_CAP, Cost, price
from eqsat.definitions import computed_inside
from eqsat.devices import Device
from eqsat.egraph import Row, Saturated
from eqsat.forms import overwriting
from eqsat.index import Axis, Index
from eqsat.notation import Kernel, Stored, Tensor, Term, bound_level, dimension_indices, raised, rebuild, substitute
from eqsat.parts import Shared
from eqsat.regions import Region, loads_in, retarget
from eqsat.schedule import Schedule, power_of_two, schedules
from eqsat.split import Split, chunk_length, split, splittable
from eqsat.traversal import positions
from eqsat.work import Work

PER_ENTITY = 20  # ranked fragments priced per storable tensor
COMBINED = 8  # cheapest kernels of a tensor that may store others on the way
LARGER = 2  # a tensor that only the rules made may be this much larger than any the user has
SIBLINGS = 8  # most kernels merged into one
SPLIT_PRICE = 0.9  # a split costs at most this much of what it replaces: a smaller gain is within the model's error
COMBINING = 2  # cheapest kernels of a tensor that may combine the parts of what they load
STAGES = 4  # reductions that wait for one another, at most, in a kernel that is split
CONSTANT_NBYTES = 1 << 28  # a larger result of constants is not folded


@dataclass(frozen=True, eq=False)
class Candidate:
    """A kernel that extraction may choose."""

    produces: tuple[Entity, ...]
    needs: frozenset[int]  # numbers of entities that it loads
    kernel: Kernel
    cost: Cost
    price: float  # what the objective makes of the cost
    schedule: Schedule | None
    rules: frozenset[str]  # rules that made some e-node of it
    constant: bool = False  # depends on constants only: run once, so it costs nothing
    surcharge: float = 0.0  # what of the price no model predicts: splits must gain more than the model's error

    @property
    def definitions(self) -> Iterator[tuple[Stored, Stored]]:
        """The tensors that it stores, each with its own term for it."""
        return ((e.tensor, o) for e, o in zip(self.produces, self.kernel.outputs, strict=True))

    @property
    def fits(self) -> bool:
        return self.price < float("inf")


class Pool:
    """Builds the candidates of one saturated region; `shared` is from its other searches on this device."""

    def __init__(
        self, saturated: Saturated, region: Region, device: Device, objective: str = "time", shared: Shared | None = None
    ) -> None:
        self.device, self.region = device, region
        self._objective = (OBJECTIVES | UNDER_A_CAP)[objective]
        self.axes = saturated.axes
        self.classes = {c: without_mirrors(rows) for c, rows in saturated.classes.items()}
        self.entities: list[Entity] = []
        self._of_tensor: dict[Tensor, Entity] = {}  # of what is loaded: entities, and parts of splits
        self._bypassed = saturated.bypassed
        self.shared = shared or Shared(region)
        self._constant = self._constant_classes(saturated)
        self._add_entities(saturated)
        self._stored = {e.tensor for e in self.entities}
        self._cones = Cones(self.classes, self.axes, self.entities, region, device)
        self._tried: set[tuple[Candidate, Candidate]] = set()  # to be one kernel
        self._climb = Climb(self._cones, self.entities, _mask(self.outputs), self._candidate)

    # --- what may be stored -------------------------------------------------------------------------------------

    def _constant_classes(self, saturated: Saturated) -> set[int]:
        """Classes that depend on nothing but constants and tables (and on at least one)."""
        tables = (s for s in self.region.definitions if not loads_in(s.term) and s not in self.region.outputs)
        constant = {saturated.class_of[s] for s in tables}
        literal = {c for c, rows in self.classes.items() if any(r.head in ("const", "pos") for r in rows)}
        changed = bool(self.region.constant or constant)
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
        known = {e.class_id for e in self.entities}
        largest = LARGER * max(t.nbytes for t in (*self.region.inputs, *self.region.definitions))
        smallest = saturated.smallest()
        for c in self.classes:
            if c not in known and self._worth_storing(c):
                tensor = self.shared.parts.undefined(smallest[c], tuple(sorted(self.axes[c])))
                if tensor.nbytes <= largest:
                    self._entity(c, tensor)
        for e in self.entities:
            identity = dimension_indices(e.tensor.shape, e.axes)
            rows = self.classes[e.class_id]
            if not any(r.head == "load" and r.data == (e.tensor, identity) for r in rows):
                rows.append(Row("load", (), (e.tensor, identity), e.tensor.dtype, None))

    def _worth_storing(self, c: int) -> bool:
        """Reductions, but no stored tensor under other axes, and of literal multiples of each other only one."""
        rows = self.classes[c]
        if not any(r.head in ("reduce", "online") for r in rows):
            return False
        if any(r.head == "load" and r.data[0] in self.region.definitions and not r.args for r in rows):
            return False
        return not any(r.head == "mul" and self._is_multiple(c, *r.args) for r in rows)

    def _is_multiple(self, c: int, a: int, b: int) -> bool:
        """True if the product a*b is a literal times another class that may be stored, and comes before c."""
        literal = [any(r.head == "const" for r in self.classes[x]) for x in (a, b)]
        other = b if literal[0] else a
        return any(literal) and other < c and any(r.head in ("reduce", "online") for r in self.classes[other])

    def _entity(self, class_id: int, tensor: Stored) -> None:
        constant = class_id in self._constant and tensor.nbytes <= CONSTANT_NBYTES
        self._of_tensor[tensor] = Entity(len(self.entities), class_id, tensor, constant)
        self.entities.append(self._of_tensor[tensor])

    # --- candidates ---------------------------------------------------------------------------------------------

    def candidates(self, late: Callable[[], bool] = lambda: False) -> list[Candidate]:
        """All candidates that fit the device, in a fixed order; combinations only if it is not late by then."""
        fragments = self._cones.ranked()
        single = [c for e in self.entities for c in self._of_entity(e, fragments)]
        single.extend(self._unfused())
        definitions = [e for e in self.entities if e.tensor.term is not None]
        for stored in (definitions, [e for e in definitions if self._contracts(e)]):
            self._climb.start(_mask(stored))
        fit = [c for c in (*single, *self._climb.found.values()) if c.fits]
        return fit if late() else self._with_combinations(fit)

    def around(self, chosen: Sequence[Candidate]) -> list[Candidate]:
        """Candidates not met before, by hill climbing from what a selection stores."""
        met = len(self._climb.found)
        own = [c for c in chosen if all(n < len(self.entities) for n in (*c.needs, *(e.number for e in c.produces)))]
        for below in (inf, sum(c.price for c in chosen)):
            self._climb.start(_mask(e for c in own for e in c.produces), below)
        new = [c for c in list(self._climb.found.values())[met:] if c.fits]
        return self._with_combinations([*new, *(c for c in own if len(c.produces) == 1)]) if new else []

    def joined(self, chosen: Sequence[Candidate]) -> list[Candidate]:
        """Kernels of a selection with others that they share inputs with, or that make what they load, where that is cheaper.

        The sums of a row, and what is made of the row and of them, take one traversal; or what a kernel loads is made inside
        and not stored. Each pair is tried once.
        """
        pairs = [(c, other) for c, other in permutations(chosen, 2) if not c.constant and not other.constant]
        fresh = [pair for pair in pairs if pair not in self._tried]
        self._tried.update(fresh)
        return [joined for pair in fresh for form in (self._beside, self._within) if (joined := form(*pair))]

    def _beside(self, c: Candidate, made: Candidate) -> Candidate | None:
        """Both kernels as one, if each position of the first loads what the second makes there, and that is cheaper."""
        apart = not c.needs.intersection(e.number for e in made.produces) and not set(c.kernel.inputs) & set(made.kernel.inputs)
        waiting = made.needs.intersection(e.number for e in c.produces) or set(c.produces) & set(made.produces)
        if apart or waiting or not set(made.kernel.axes) <= set(c.kernel.axes):
            return None
        produces, outputs = (*c.produces, *made.produces), (*c.kernel.outputs, *made.kernel.outputs)
        if any(o.axes != e.axes for e, o in zip(produces, outputs, strict=True)):
            return None
        inside: dict[Term, Term] = {}
        for e, o in zip(made.produces, made.kernel.outputs, strict=True):
            loads = {t for t in c.kernel.terms if t.head == "load" and t.tensor is e.tensor}
            if any(t.args or t.indices != dimension_indices(e.tensor.shape, e.axes) for t in loads):
                return None
            inside |= dict.fromkeys(loads, o.term)
        for t in c.kernel.terms:
            inside.setdefault(t, rebuild(t, tuple(inside[a] for a in t.args)))
        terms = tuple(inside.get(o.term, o.term) for o in outputs)
        both = self._priced_candidate(produces, self._needs(terms), terms, c.rules | made.rules, c.surcharge + made.surcharge)
        return both if both.price < c.price + made.price else None

    @property
    def known(self) -> Selection:
        """The cheapest selection that hill climbing met."""
        return self._climb.best

    def _with_combinations(self, single: list[Candidate]) -> list[Candidate]:
        wanted = {n for c in single for n in c.needs} | {e.number for e in self.outputs}
        combined = [*self._with_interior(single, wanted), *self._siblings(single)]
        combined += self._with_gathers_inside(single)
        whole = [*single, *(c for c in combined if c.fits)]
        cuts = self._splits(whole)
        joined = self._with_combining_inside(single, cuts)
        return [*whole, *(c for c in (*(stage for cut in cuts for stage in cut), *joined) if c.fits)]

    @property
    def outputs(self) -> list[Entity]:
        return [e for e in self.entities if e.tensor in self.region.outputs]

    def _of_entity(self, e: Entity, fragments: dict[int, list[Fragment]]) -> list[Candidate]:
        found = [f for f in fragments[e.class_id] if not f.leaves & e.bit and not self._cones.is_load(f)]
        made = [self._candidate(e, f) for f in found[:PER_ENTITY]]
        return made if e.tensor.term is None else [*made, self._original(e)]

    def _unfused(self) -> list[Candidate]:
        """A sum of products that the rules give many forms (the orders of a chain): by each of them, from loads alone."""
        mapped = self._cones.mapped(_mask(self.entities))
        found: dict[tuple[int, int], Candidate] = {}
        for e in self.entities:
            made = self._cones.forms(e, mapped) if self._contracts(e) else []
            for f in made if len(made) > PER_ENTITY // 4 else []:
                found.setdefault((e.number, f.leaves), self._candidate(e, f))
        return list(found.values())

    def _contracts(self, e: Entity) -> bool:
        return any(r.head == "reduce" and r.data[0] == "sum" for r in self.classes[e.class_id])

    def _original(self, e: Entity) -> Candidate:
        """The definition as the user wrote it, one kernel, fused with nothing."""
        return self._priced_candidate((e,), self._needs([e.tensor.term]), (e.tensor.term,), frozenset())

    def _candidate(self, e: Entity, fragment: Fragment) -> Candidate:
        choice = self._cones.choice(fragment)
        needs = frozenset(positions(fragment.leaves))
        rules = frozenset(row.rule for row in choice.values() if row.rule)
        computed = (c for c, row in choice.items() if row.head != "load" or row.data[0] not in self._stored)
        rules = rules.union(*(self._bypassed.get(c, ()) for c in computed))
        return self._priced_candidate((e,), needs, (_over(e.axes, _term(e.class_id, choice, {})),), rules)

    def _priced_candidate(
        self,
        produces: tuple[Entity, ...],
        needs: frozenset[int],
        terms: tuple[Term, ...],
        rules: frozenset[str],
        surcharge: float = 0.0,
    ) -> Candidate:
        names = _output_names(produces)
        terms = tuple(substitute(t, {a: Index.of(b) for a, b in names.items()}) for t in terms)
        outputs = tuple(_store(e.tensor, t, names) for e, t in zip(produces, terms, strict=True))
        donated = frozenset(t for t, made in self.region.donated if any(e.tensor is made for e in produces))
        kernel = overwriting(Kernel(produces[0].tensor.name, outputs, self.region.exact, donated))
        key = (kernel.donated, *((o.term, o.shape) for o in kernel.outputs))  # of one term, tensors may broadcast to other shapes
        prices = self.shared.prices
        if key not in prices:
            work = Work(kernel)
            prices[key] = price(work, schedules(work), self.device)
        cost, schedule = prices[key]
        folded = all(e.constant for e in produces) and all(self._constant_leaf(t) for t in kernel.inputs)
        cost = FREE if folded else cost
        stored = 0 if folded else sum(e.tensor.nbytes for e in produces if e.tensor not in self.region.outputs)
        value = self._objective(cost, stored, self.device) + surcharge
        return Candidate(produces, needs, kernel, cost, value, schedule, rules, folded, surcharge)

    def _needs(self, terms: Iterable[Term]) -> frozenset[int]:
        read = (self._of_tensor.get(tensor) for t in terms for tensor in loads_in(t))
        return frozenset(sorted({e.number for e in read if e is not None}))

    def _constant_leaf(self, tensor: Tensor) -> bool:
        return tensor in self.region.constant or (tensor in self._of_tensor and self._of_tensor[tensor].constant)

    def without_idle(self, chosen: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
        """The chosen kernels without what they store on the way and no other loads, in the same order."""
        result = list(chosen)
        changed = True
        while changed:
            changed, wanted = False, {e.number for e in self.outputs}.union(*(c.needs for c in result))
            for n, c in enumerate(result):
                kept = [(e, o.term) for e, o in zip(c.produces, c.kernel.outputs, strict=True) if e.number in wanted]
                if kept and len(kept) < len(c.produces) and set(c.kernel.axes) <= set(kept[0][0].axes):
                    produces, terms = zip(*kept, strict=True)
                    less = self._priced_candidate(produces, self._needs(terms), terms, c.rules, c.surcharge)
                    if less.price <= c.price:
                        result[n], changed = less, True
        return tuple(result)

    # --- combinations ---------------------------------------------------------------------------------------------

    def _with_interior(self, single: list[Candidate], wanted: set[int]) -> list[Candidate]:
        """Kernels that also store a wanted tensor computed inside them on the way."""
        alone = {c.kernel.outputs[0].term: c for c in reversed(single) if c.produces[0].number in wanted}
        extras = {id(c): self._extras(c, alone) for c in single}
        return [
            self._priced_candidate((c.produces[0], *extra), c.needs, (c.kernel.outputs[0].term, *extra.values()), c.rules)
            for c in _cheapest([c for c in single if extras[id(c)]])
            for extra in extras[id(c)]
        ]

    @staticmethod
    def _extras(c: Candidate, alone: dict[Term, Candidate]) -> list[dict[Entity, Term]]:
        """Each wanted entity that a candidate computes on the way, and all of them together; its axes have one name in both."""
        root, top = c.produces[0], c.kernel.outputs[0].term
        names, inside = _output_names([root]), {}
        for t in c.kernel.terms:
            if t is not top and (other := alone.get(t)) is not None:
                e, axes = other.produces[0], other.kernel.outputs[0].axes
                here = tuple(names.get(a, a) for a in e.axes)
                if e is not root and e.number not in c.needs and set(e.axes) <= set(root.axes) and here == axes:
                    inside[e] = t
        return [{e: t} for e, t in inside.items()] + ([inside] if len(inside) > 1 else [])

    def _with_gathers_inside(self, single: list[Candidate]) -> list[Candidate]:
        """Kernels that compute what they gather from: a softmax's loop meets the element that its label takes."""
        gathers = [(c, {t.tensor for t in c.kernel.terms if t.head == "load" and t.args}) for c in _cheapest(single)]
        found: list[Candidate] = []
        for c, gathered in gathers:
            for e in self.entities:
                if e.tensor in gathered and e.tensor.term is not None:
                    memo: dict[Term, Term] = {}
                    terms = [computed_inside(o.term, e.tensor, memo) for o in c.kernel.outputs]
                    inside = tuple(t for t in terms if t is not None)
                    if len(inside) == len(terms):
                        found.append(self._priced_candidate(c.produces, self._needs(inside), inside, c.rules))
        return found

    def _siblings(self, single: list[Candidate]) -> list[Candidate]:
        """Kernels over one iteration space that share an input, as one launch: those that need the least, and the cheapest."""
        least = self._side_by_side(single, lambda c: (len(c.needs), c.price))
        return [*least, *self._side_by_side(single, lambda c: (c.price, len(c.needs)))]

    def _side_by_side(self, single: list[Candidate], rank: Callable[[Candidate], tuple[float, float]]) -> list[Candidate]:
        """Merged kernels of the best candidates of each tensor."""
        best: dict[int, Candidate] = {}
        for c in sorted(single, key=rank):
            if c.produces[0].tensor.term is not None:
                best.setdefault(c.produces[0].number, c)
        groups: dict[tuple[Axis, ...], list[Candidate]] = defaultdict(list)
        for c in best.values():
            if c.produces[0].axes and not c.constant:
                groups[c.produces[0].axes].append(c)
        found: list[Candidate] = []
        for members in groups.values():
            for size in range(2, min(len(members), SIBLINGS) + 1):
                for start in range(len(members) - size + 1):
                    merged = self._merge(members[start : start + size])
                    if merged is not None:
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

    # --- split reductions -------------------------------------------------------------------------------------------

    def _splits(self, whole: list[Candidate]) -> list[list[Candidate]]:
        """For kernels with too few programs to fill the device: their reductions in chunks, and what combines them."""
        filled = {c: c.price * min(1.0, _programs(c) / self.device.multiprocessors) for c in whole}
        behind = {e.number: inf for e in self.entities}  # the least work that a tensor takes

        def total(c: Candidate) -> float:
            return filled[c] + sum(behind[n] for n in c.needs)

        for _ in range(STAGES):
            for c in whole:
                for e in c.produces:
                    behind[e.number] = min(behind[e.number], total(c))
        few = [c for c in whole if _programs(c) < self.device.multiprocessors and self._outweighs_two(c) and splittable(c.kernel)]
        found: list[list[Candidate]] = []
        for c in _cheapest(few, total):
            axis = max(splittable(c.kernel), key=lambda a: a.extent)
            least = power_of_two(-(-self.device.multiprocessors // int(_programs(c))))
            lengths = dict.fromkeys(chunk_length(axis.extent, times * least) for times in (1, 2, 4))
            cuts = [self._split(c, axis, length) for length in lengths if length < axis.extent]
            cut = min(cuts, key=lambda cut: sum(stage.price for stage in cut), default=[c])
            price = sum(stage.price for stage in cut)
            if price < SPLIT_PRICE * c.price:
                surcharge = price * (1 / SPLIT_PRICE - 1)
                cut[0] = replace(cut[0], price=cut[0].price + surcharge, surcharge=surcharge)
                found.append(cut)
        return found

    def _outweighs_two(self, c: Candidate) -> bool:
        """True if a kernel costs so much that two launches could cost less; what depends on constants alone is no launch."""
        launch = self._objective(Cost(self.device.launch_seconds, 1, 0, 0), 0, self.device)
        return 2 * launch < SPLIT_PRICE * c.price or any(map(self._constant_leaf, c.kernel.inputs))

    def _with_combining_inside(self, single: list[Candidate], cuts: list[list[Candidate]]) -> list[Candidate]:
        """Kernels that combine the parts of what they load, in place of a launch that stores it: a norm, of a product."""
        dearest_first = sorted(cuts, key=lambda cut: sum(stage.price for stage in cut), reverse=True)
        found: list[Candidate] = []
        for made in {cut[-1].produces: cut[-1] for cut in dearest_first}.values():
            loading = [c for c in single if c.needs.intersection(e.number for e in made.produces)]
            found += [joined for c in _cheapest(loading, most=COMBINING) if (joined := self._within(c, made))]
        return found

    def _within(self, c: Candidate, made: Candidate) -> Candidate | None:
        """A kernel with what it loads of another computed inside, if that is cheaper than both."""
        loads = c.needs.intersection(e.number for e in made.produces)
        if not loads or made.needs.intersection(e.number for e in c.produces) or not (terms := self._inlined(c, made)):
            return None
        rules, surcharge = c.rules | made.rules, c.surcharge + made.surcharge
        joined = self._priced_candidate(c.produces, self._needs(terms), terms, rules, surcharge)
        return joined if joined.price < c.price + made.price else None

    def _inlined(self, c: Candidate, made: Candidate) -> tuple[Term, ...]:
        """The terms of a kernel with what another makes computed inside."""
        above = 1 + max((bound_level(t.bound) for t in c.kernel.terms if t.bound is not None), default=-1)
        terms = [o.term for o in c.kernel.outputs]
        for e, o in zip(made.produces, made.kernel.outputs, strict=True):
            if e.number not in c.needs:
                continue
            definition = Stored(o.name, o.shape, o.dtype, raised(o.term, above), o.axes)
            inside = [computed_inside(retarget(t, {e.tensor: definition}), definition, {}) for t in terms]
            terms = [t for t in inside if t is not None]
        return tuple(terms) if len(terms) == len(c.produces) else ()

    def _split(self, c: Candidate, axis: Axis, length: int) -> list[Candidate]:
        """The kernels that a candidate becomes, if all its reductions over an axis are cut into chunks."""
        found: list[Candidate] = []
        for _ in range(STAGES):
            cut = self._cut(c.kernel, axis, length)
            if cut is None:
                break
            for tensor in cut.parts:
                self._of_tensor.setdefault(tensor, Entity(len(self._of_tensor), -1, tensor, False))
            terms = tuple(p.term for p in cut.parts)
            found.append(self._priced_candidate(tuple(self._of_tensor[p] for p in cut.parts), self._needs(terms), terms, c.rules))
            c = self._priced_candidate(c.produces, self._needs(cut.terms), cut.terms, c.rules)
        return [*found, c]

    def _cut(self, kernel: Kernel, axis: Axis, length: int) -> Split | None:
        splits, key = self.shared.splits, (axis, length, *((o.term, o.axes) for o in kernel.outputs))
        if key not in splits:
            splits[key] = split(kernel, axis, length, self.shared.parts)
        return splits[key]


def _mask(entities: Iterable[Entity]) -> int:
    return sum({e.bit for e in entities})


def _programs(c: Candidate) -> float:
    """Programs of a launch; infinitely many if it is none."""
    return inf if c.schedule is None or c.constant else prod(t.count for t in c.schedule.axes if t.role == "grid")


def _cheapest(
    candidates: list[Candidate], price: Callable[[Candidate], float] = lambda c: c.price, most: int = COMBINED
) -> list[Candidate]:
    """The cheapest candidates that make the same, at most one for the same loads, in the order given."""
    groups: dict[tuple[Entity, ...], dict[frozenset[int], Candidate]] = defaultdict(dict)
    for c in sorted(candidates, key=price):
        groups[c.produces].setdefault(c.needs, c)
    kept = {id(c) for group in groups.values() for c in list(group.values())[:most]}
    return [c for c in candidates if id(c) in kept]


def _output_names(produces: Iterable[Entity]) -> dict[Axis, Axis]:
    """Names of output axes for those that reductions bind where a stored part is used: inside of it they may be bound anew."""
    axes = dict.fromkeys(a for e in produces for a in e.axes)
    taken = {a.name for a in axes}
    names = (name for n in count() if (name := f"x{n}") not in taken)
    return {a: Axis(next(names), a.extent) for a in axes if a.name.startswith("r")}


def _store(tensor: Stored, term: Term, names: dict[Axis, Axis]) -> Stored:
    axes = tuple(names.get(a, a) for a in tensor.axes)
    assert term.axes <= set(axes), f"{tensor}: a term over {axes}, got {term} over {sorted(term.axes)}"
    return Stored(tensor.name, tensor.shape, tensor.dtype, term, axes)


def _over(axes: Iterable[Axis], term: Term) -> Term:
    """The term with its other free axes at 0.

    A class has the axes that all its e-nodes have; one that mentions more (an element of a tensor all of whose rows are equal)
    has the same value wherever these are.
    """
    return substitute(term, {axis: Index() for axis in term.axes.difference(axes)})


def _term(c: int, choice: dict[int, Row], memo: dict[int, Term]) -> Term:
    """The term of a class under a choice of e-nodes."""
    if c not in memo:
        row = choice[c]
        memo[c] = Term(row.head, tuple(_term(a, choice, memo) for a in row.args), row.data, row.dtype)
    return memo[c]
