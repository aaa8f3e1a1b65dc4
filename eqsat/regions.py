"""Regions: what is optimised in one e-graph.

Tensors that no kernel boundary could want are inlined for good. The rest is cut at residuals, which are stored anyway. Each
region is then brought into canonical form: bound axes get the lowest names that capture nothing, looking through the
definitions of loaded tensors, so that alpha-equal terms stay equal after inlining. Regions of equal structure share a key
and are optimised once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf, prod
from typing import Any

from eqsat.canonical import Canonical
from eqsat.definitions import definition_at
from eqsat.notation import Stored, Tensor, Term, load, rebuild
from eqsat.primitives.fold import folded
from eqsat.scalars import DTYPES, SCALARS

MAX_DEFINITIONS = 28  # beyond this many stored tensors a region is cut where the fewest bytes are live


@dataclass(frozen=True)
class Region:
    """Definitions in program order; each loads region inputs or earlier definitions."""

    inputs: tuple[Tensor, ...]
    definitions: tuple[Stored, ...]
    outputs: tuple[Stored, ...]
    constant: frozenset[Tensor] = frozenset()  # inputs whose values never change
    donated: frozenset[tuple[Tensor, Tensor]] = frozenset()  # an input that nothing needs later, the output that gets its buffer
    exact: bool = False  # its kernels are (see `Kernel`)

    @property
    def key(self) -> Hashable:
        """Equal for regions that differ in tensor names only."""
        number: dict[Tensor, int] = {}
        rows: list[Any] = [(t.shape, t.dtype, t in self.constant) for t in self.inputs]
        number.update((t, i) for i, t in enumerate(self.inputs))
        for definition in self.definitions:
            rows.append(
                (
                    definition.shape,
                    definition.dtype,
                    definition.axes,
                    _structure(definition.term, number),
                    definition in self.outputs,
                )
            )
            number[definition] = len(number)
        return (self.exact, *rows, *sorted((number[given], number[made]) for given, made in self.donated))


def _structure(term: Term, number: dict[Tensor, int]) -> Hashable:
    position: dict[Term, int] = {}
    rows = []
    for t in term.walk():
        data = (number[t.tensor], t.data[1]) if t.head == "load" else t.data
        rows.append((t.head, tuple(position[a] for a in t.args), data, t.dtype))
        position[t] = len(position)
    return tuple(rows)


# --- which tensors may be kernel boundaries -----------------------------------------------------------------------


class Table(Stored):
    """A tensor of positions and literals alone, such as the angles of rotary embeddings.

    It is made once if a kernel loads it rather than computing it anew, and each region that mentions it defines it.
    """


def boundaries(steps: Sequence[Any], needed: set[Tensor]) -> set[Stored]:
    """The stored tensors that a kernel boundary could want.

    Needed elsewhere (program outputs, operands of opaque calls), the result of a reduction, the operand of a
    contraction, what is gathered from or made by that, or shared by several boundaries; anything else is inlined for
    good, which loses no choice that pays.
    """
    stored = [s for s in steps if isinstance(s, Stored)]
    keep: set[Tensor] = needed & set(stored)
    consumers: dict[Tensor, set[Stored]] = defaultdict(set)
    for s in stored:
        for tensor in loads_in(s.term):
            consumers[tensor].add(s)
        if any(t.head in ("reduce", "online") for t in s.term.walk()):
            keep.add(s)
            keep.update(_contraction_operands(s.term))
        gathered = {t.tensor for t in s.term.walk() if t.head == "load" and t.args}
        keep |= {t for t in gathered if t in consumers}  # type: ignore[misc]
        if any(isinstance(t, Stored) for t in gathered):
            keep.add(s)
    reached: dict[Tensor, frozenset[Tensor]] = {}
    for s in reversed(stored):
        beyond = [reached[c] if c not in keep else frozenset([c]) for c in consumers[s]]
        reached[s] = frozenset().union(*beyond)
        if s not in keep and len(reached[s]) > 1 and _worth_storing(s):
            keep.add(s)
    return {s for s in stored if s in keep and (s in needed or loads_in(s.term))}


def tables(steps: Sequence[Any], needed: set[Tensor]) -> tuple[set[Stored], set[Stored]]:
    """Tensors of positions and literals alone; and those of them worth making once, where they meet anything else.

    These take special functions or sums, and none is larger than the largest tensor that the program is given.
    """
    dear: dict[Stored, bool] = {}  # of positions and literals alone: whether it takes such work
    met: set[Stored] = set()
    largest = 0
    for s in steps:
        loaded = loads_in(s.term) if isinstance(s, Stored) else ()
        if isinstance(s, Stored) and all(t in dear for t in loaded):
            dear[s] = any(map(_is_dear, s.term.walk())) or any(dear[t] for t in loaded if isinstance(t, Stored))
        else:
            met |= {t for t in loaded if isinstance(t, Stored) and dear.get(t)}
            largest = max(largest, *(t.nbytes for t in loaded if not isinstance(t, Stored)), 0)
    return set(dear), {s for s in met if s not in needed and s.nbytes <= largest}


def loads_in(term: Term) -> tuple[Tensor, ...]:
    """Tensors read by a term, in order of first use."""
    return term.tensors


def _worth_storing(stored: Stored) -> bool:
    """Sharing a tensor pays only if it takes more to compute than to load."""
    terms = list(stored.term.walk())
    read = sum(prod(a.extent for a in t.axes) * DTYPES[t.dtype].nbytes for t in terms if t.head == "load")
    return read > stored.nbytes or any(map(_is_special, terms))


def _is_special(t: Term) -> bool:
    return t.head in SCALARS and SCALARS[t.head].unit == "special"


def _is_dear(t: Term) -> bool:
    return t.bound is not None or _is_special(t)


def _contraction_operands(term: Term) -> set[Tensor]:
    found: set[Tensor] = set()
    for t in term.walk():
        if t.head == "reduce" and t.data[0] == "sum":
            body = t.args[0]
            while body.head in ("cast", "reduce"):
                body = body.args[0]
            if body.head == "mul" and body.args[0].axes != body.args[1].axes:
                found.update(loads_in(body))
    return found


# --- cutting --------------------------------------------------------------------------------------------------------


def kept_steps(steps: Sequence[Any], outputs: Iterable[Tensor], once: bool = False) -> tuple[list[Any], dict[Tensor, Tensor]]:
    """Steps with every tensor that is no boundary inlined; opaque calls stay. Also the map from old to new tensors.

    once: tables may be loaded, which are no steps.
    """
    wanted = set(outputs)
    needed = wanted | {t for s in steps if not isinstance(s, Stored) for t in s.inputs if isinstance(t, Tensor)}
    literal, made_once = tables(steps, needed) if once else (set[Stored](), set[Stored]())
    keep = boundaries(steps, needed) | made_once
    renamed: dict[Tensor, Tensor] = {}
    folds: dict[Term, Term] = {}
    found: dict[Hashable, Table] = {}
    result: list[Any] = []
    for step in steps:
        if not isinstance(step, Stored):
            result.append(replace(step, inputs=tuple(renamed.get(t, t) if isinstance(t, Tensor) else t for t in step.inputs)))
            continue
        term = _inlined(step.term, renamed, set() if step in literal else keep, folds, {})
        if step in made_once:
            renamed[step] = found.setdefault((term, step.shape), Table(step.name, step.shape, step.dtype, term, step.axes))
            continue
        renamed[step] = Stored(step.name, step.shape, step.dtype, term, step.axes)
        if step in keep:
            result.append(renamed[step])
    return _early(result, {renamed.get(t, t) for t in wanted}), renamed


def _early(steps: Sequence[Any], outputs: set[Tensor]) -> list[Any]:
    """Move each copy, and each output, right behind the last tensor that it loads: they may share a kernel, and a region.

    Outputs are stored wherever they are made; an optimiser's update of a weight so stands beside the weight's gradient.
    """
    places: dict[Tensor, int] = {}
    order: list[tuple[int, int]] = []
    for n, step in enumerate(steps):
        behind = max((places[t] for t in _inputs(step) if t in places), default=n)
        place = behind if isinstance(step, Stored) and (_is_copy(step) or step in outputs) else n
        places |= dict.fromkeys(_made(step), place)
        order.append((place, n))
    return [steps[n] for _, n in sorted(order)]


def _is_copy(step: Any) -> bool:
    """True for a view of a stored tensor that is stored too."""
    return isinstance(step, Stored) and step.term.head == "load" and not step.term.args and isinstance(step.term.tensor, Stored)


def _inlined(
    term: Term, renamed: dict[Tensor, Tensor], keep: set[Stored], folds: dict[Term, Term], memo: dict[Term, Term]
) -> Term:
    if term not in memo:
        args = tuple(_inlined(a, renamed, keep, folds, memo) for a in term.args)
        if term.head != "load":
            memo[term] = folded(rebuild(term, args))
        elif (new := renamed.get(term.tensor)) is not None and term.tensor not in keep:
            assert isinstance(new, Stored)
            inlined = definition_at(new, term.indices, args, folds)
            assert inlined is not None  # what is gathered from is a boundary
            memo[term] = inlined
        else:
            memo[term] = load(new or term.tensor, term.indices, args)
    return memo[term]


def cut(steps: Sequence[Any], outputs: Iterable[Tensor], constant: frozenset[Tensor]) -> list[Region | Any]:
    """Regions and opaque calls in program order."""
    wanted = set(outputs)
    last_use: dict[Tensor, int] = {t: len(steps) for t in wanted}
    for i, step in enumerate(steps):
        for tensor in _inputs(step):
            last_use[tensor] = max(last_use.get(tensor, 0), i)
    parts: list[Region | Any] = []
    start = 0
    for end in _ends(steps, last_use):
        block = steps[start:end]
        if len(block) == 1 and not isinstance(block[0], Stored):
            parts.append(block[0])
        elif block:
            parts.append(_region(block, {t for t in last_use if last_use[t] >= end}, constant))
        start = end
    return parts


def _inputs(step: Any) -> list[Tensor]:
    if isinstance(step, Stored):
        return [t for t in loads_in(step.term) if not isinstance(t, Table)]
    return [t for t in step.inputs if isinstance(t, Tensor)]


def _ends(steps: Sequence[Any], last_use: dict[Tensor, int]) -> list[int]:
    """Positions at which to cut: around calls, at a residual, and where a region would grow too large.

    A residual is the only live tensor (inputs that are used on both sides nearby count) and is used again beside the result
    of a contraction that depends on it: it is stored in any case, so a cut loses nothing.
    """
    ends: list[int] = []
    live: dict[Tensor, int] = {}
    start = 0
    traffic = _CutTraffic(steps, last_use)
    for i, step in enumerate(steps):
        is_call = not isinstance(step, Stored)
        if is_call:
            ends += [i, i + 1]
            start = i + 1
        near = (t for t in _inputs(step) if t in live or last_use[t] <= i + MAX_DEFINITIONS)
        for tensor in (*near, *_made(step)):
            live[tensor] = tensor.nbytes
        live = {t: n for t, n in live.items() if last_use.get(t, -1) > i}
        if is_call:
            continue
        if not live or (len(live) == 1 and _rejoins(next(iter(live)), steps[i + 1 : last_use[next(iter(live))] + 1])):
            ends.append(i + 1)
            start = i + 1
        elif i + 1 - start > MAX_DEFINITIONS:
            half = start + MAX_DEFINITIONS // 2
            best = min(range(half, i + 1), key=partial(traffic, start))
            ends.append(best + 1)
            start = best + 1
    ends.append(len(steps))
    return sorted(set(ends))


def _made(step: Any) -> tuple[Tensor, ...]:
    return (step,) if isinstance(step, Stored) else step.outputs


class _CutTraffic:
    """Bytes that a cut behind a step stores and loads, for a region that begins at a given step.

    What an earlier region has stored costs only if both sides load it.
    """

    def __init__(self, steps: Sequence[Any], last_use: dict[Tensor, int]) -> None:
        self._steps = steps
        self._place = {t: i for i, step in enumerate(steps) for t in _made(step)}
        self._last_load = {t: i for i, step in enumerate(steps) for t in _inputs(step)}
        self._outputs = {t for t, last in last_use.items() if last == len(steps)}

    def __call__(self, start: int, cut: int) -> float:
        if any(map(_is_copy, self._steps[cut + 1 : cut + 2])):
            return inf  # the kernel that makes a tensor can write the copy
        near = dict.fromkeys(t for step in self._steps[start : cut + 1] for t in (*_inputs(step), *_made(step)))
        total = 0
        for tensor in near:
            if self._last_load.get(tensor, -1) > cut:
                stored = self._place.get(tensor, -1) < start or tensor in self._outputs
                total += tensor.nbytes * (1 if stored else 2)
        return total


def _rejoins(tensor: Tensor, later: Sequence[Any]) -> bool:
    """True if some later step loads the tensor beside what a contraction made of it."""
    depends: set[Tensor] = {tensor}
    contracted: set[Tensor] = set()
    for step in later:
        loaded = set(_inputs(step))
        if tensor in loaded and loaded & contracted:
            return True
        made = set(_made(step))
        if loaded & depends:
            depends |= made
            if loaded & contracted or (isinstance(step, Stored) and _contraction_operands(step.term) & depends):
                contracted |= made
    return False


def _region(block: Sequence[Stored], wanted: set[Tensor], constant: frozenset[Tensor]) -> Region:
    inputs, definitions = closed(block)
    return Region(inputs, definitions, tuple(s for s in block if s in wanted), constant & set(inputs))


def closed(definitions: Sequence[Stored]) -> tuple[tuple[Tensor, ...], tuple[Stored, ...]]:
    """What definitions load that none of them makes, and the definitions behind the tables that they mention."""
    loaded = dict.fromkeys(t for s in definitions for t in loads_in(s.term))
    met = [t for t in loaded if isinstance(t, Table) and t not in definitions]
    inside = {*met, *definitions}
    return tuple(t for t in loaded if t not in inside), (*met, *definitions)


def local(region: Region) -> Region:
    """The region over leaf inputs of its own (what another region defines is a plain buffer here), in canonical form."""
    canonical = Canonical({t: Tensor(t.name, t.shape, t.dtype) for t in region.inputs})
    inputs = tuple(canonical.tensors[t] for t in region.inputs)
    definitions = tuple(canonical.define(s) for s in region.definitions)
    outputs = tuple(new for old, new in zip(region.definitions, definitions, strict=True) if old in region.outputs)
    constant = frozenset(canonical.tensors[t] for t in region.constant)
    donated = frozenset((canonical.tensors[given], canonical.tensors[made]) for given, made in region.donated)
    return Region(inputs, definitions, outputs, constant, donated, region.exact)


def retarget(term: Term, tensors: dict[Tensor, Tensor], memo: dict[Term, Term] | None = None) -> Term:
    """The same term over other tensors."""
    memo = {} if memo is None else memo
    if term not in memo:
        args = tuple(retarget(a, tensors, memo) for a in term.args)
        if term.head == "load":
            memo[term] = load(tensors.get(term.tensor, term.tensor), term.indices, args)
        else:
            memo[term] = rebuild(term, args)
    return memo[term]
