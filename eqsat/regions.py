"""Regions: what is optimised in one e-graph.

Tensors that no kernel boundary could want are inlined for good. The rest is cut at residuals, which are stored anyway. Each
region is then brought into canonical form: bound axes get the lowest names that capture nothing, looking through the
definitions of loaded tensors, so that alpha-equal terms stay equal after inlining. Regions of equal structure share a key
and are optimised once.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf, prod
from typing import Any

import numpy as np

from eqsat.index import Axis, Dynamic, Index
from eqsat.notation import Stored, Tensor, Term, bound_level, const, const_value, load, pos, rebuild, substitute
from eqsat.primitives.fold import refolded, scalar
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


# --- canonical names of bound axes --------------------------------------------------------------------------------


class Canonical:
    """Rebuilds the definitions of a region over new leaves, with the lowest bound axes that capture nothing."""

    def __init__(self, tensors: dict[Tensor, Tensor]) -> None:
        self.tensors = tensors  # old -> new
        self._levels: dict[tuple[Term, frozenset[Axis]], int] = {}
        self._fresh = itertools.count()

    def define(self, stored: Stored) -> Stored:
        """The definition in canonical form; later definitions load it in place of the old one."""
        new = Stored(stored.name, stored.shape, stored.dtype, self._visit(stored.term, {}), stored.axes)
        self.tensors[stored] = new
        return new

    def _visit(self, term: Term, memo: dict[Term, Term]) -> Term:
        if term in memo:
            return memo[term]
        if (axis := term.bound) is not None:
            result = self._bind(term, axis)
        else:
            args = tuple(self._visit(a, memo) for a in term.args)
            result = load(self.tensors[term.tensor], term.indices, args) if term.head == "load" else rebuild(term, args)
        memo[term] = result
        return result

    def _bind(self, term: Term, axis: Axis) -> Term:
        """Give the bound axis the lowest name that no binder below it would capture."""
        placeholder = Axis(f"_{next(self._fresh)}", axis.extent)
        opened = [substitute(a, {axis: Index.of(placeholder)}) for a in term.args]
        args = [self._visit(a, {}) for a in opened]
        level = max(self.level(a, frozenset([placeholder])) for a in args)
        name = Axis(f"r{level}", axis.extent)
        closed = tuple(substitute(a, {placeholder: Index.of(name)}) for a in args)
        data = (term.data[0], name, *term.data[2:])
        return Term(term.head, closed, data, term.dtype)

    def level(self, term: Term, wanted: frozenset[Axis]) -> int:
        """As notation.level_of, looking through the definitions of loaded tensors."""
        key = (term, wanted)
        if key not in self._levels:
            self._levels[key] = self._level(term, wanted)
        return self._levels[key]

    def _level(self, term: Term, wanted: frozenset[Axis]) -> int:
        if not (term.axes & wanted):
            return 0
        if term.head == "load":
            below = max((self.level(a, wanted) for a in term.args), default=0)
            if not isinstance(term.tensor, Stored):
                return below
            dims = zip(_axis_per_dimension(term.tensor), term.indices, strict=True)
            inner = frozenset(axis for axis, index in dims if axis is not None and index.axes & wanted)
            return max(below, self.level(term.tensor.term, inner))
        below = max((self.level(a, wanted) for a in term.args), default=0)
        bound = term.bound
        return below if bound is None else max(below, bound_level(bound) + 1)


def definition_at(
    tensor: Stored, indices: Sequence[Index], operands: tuple[Term, ...] = (), folds: dict[Term, Term] | None = None
) -> Term | None:
    """The term of a stored tensor at an index, or None where it cannot be written.

    Outside of the tensor a load reads 0, and so does what is returned. An index may use loaded values (operands), if these surely
    lie in the tensor. What was folded for other definitions is looked up in `folds`.
    """
    bounds = ((0, n - 1) for n in tensor.shape)
    if operands and any(not (low <= i.range[0] and i.range[1] <= high) for i, (low, high) in zip(indices, bounds, strict=True)):
        return None
    places = zip(_axis_per_dimension(tensor), indices, strict=True)
    values = {axis: index for axis, index in places if axis is not None and index != Index.of(axis)}
    try:
        term = refolded(substitute(tensor.term, values, None, operands), folds)
    except ValueError:
        if not operands:
            raise
        return None
    for index, extent in zip(indices, tensor.shape, strict=True):
        term = zero_outside(term, index, extent)
    return term


def picked(tensor: Stored, indices: Sequence[Index], operands: tuple[Term, ...]) -> Term | None:
    """A gathered element of a sum as a masked sum over the dimension gathered from, or None if another form."""
    gathered = [d for d, i in enumerate(indices) if i.slots]
    body = tensor.term
    while body.head == "cast":
        body = body.args[0]
    if len(gathered) != 1 or len(operands) != 1 or body.head != "reduce" or body.data[0] != "sum":
        return None
    (d,), (operand,) = gathered, operands
    (((atom, coefficient), *more), offset) = indices[d].terms, indices[d].constant
    if not isinstance(atom, Dynamic) or coefficient != 1 or more or offset:
        return None
    place = Axis("_", tensor.shape[d])
    level = Canonical({}).level(
        load(tensor, [Index.of(place) if i == d else x for i, x in enumerate(indices)]), frozenset([place])
    )
    axis = Axis(f"r{level}", tensor.shape[d])
    if axis in operand.axes or any(axis in i.axes for i in indices):
        return None
    element = definition_at(tensor, [Index.of(axis) if i == d else x for i, x in enumerate(indices)])
    assert element is not None
    here = scalar("eq", pos(Index.of(axis), operand.dtype), operand)
    return Term("reduce", (scalar("where", here, element, const(0, tensor.dtype)),), ("sum", axis), tensor.dtype)


def computed_inside(term: Term, tensor: Stored, memo: dict[Term, Term]) -> Term | None:
    """The term with a defined tensor's elements computed in place of loaded, gathered ones by a mask; None if that cannot be.

    Where the dimension gathered from is traversed anyway, as by the softmax of which it takes the label's element, the tensor
    need not be stored for the gather.
    """
    for t in term.walk():
        args = tuple(memo[a] for a in t.args)
        memo[t] = rebuild(t, args)
        if t.head == "load" and t.tensor is tensor:
            inside = picked(tensor, t.indices, args) if args else definition_at(tensor, t.indices)
            if inside is None:
                return None
            memo[t] = inside
    return memo[term]


def zero_outside(term: Term, index: Index, extent: int) -> Term:
    """The term where an index lies in 0 .. extent-1, and 0 elsewhere."""
    low, high = index.range
    if (low >= 0 and high < extent) or _vanishes(term, index, extent):
        return term
    zero, place = const(0, term.dtype), pos(index - index.constant, "int32")
    if low < 0:
        term = scalar("where", scalar("lt", place, const(-index.constant, "int32")), zero, term)
    if high >= extent:
        term = scalar("where", scalar("lt", place, const(extent - index.constant, "int32")), term, zero)
    return term


_KEEP_ZERO = ("neg", "abs", "sign", "sqrt", "tanh", "sin", "erf", "expm1", "log1p", "floor", "ceil", "rint")
_OF_ZEROS = ("add", "sub", "mul", "max", "min")


def _vanishes(term: Term, index: Index, extent: int) -> bool:
    """True if the term is 0 where the index leaves 0 .. extent-1, because its loads leave their tensors there too."""
    if term.head == "load":
        return any(i == index and n == extent for i, n in zip(term.indices, term.tensor.shape, strict=True))
    if term.head == "const":
        return const_value(term) == 0
    if term.head in _KEEP_ZERO or term.head in _OF_ZEROS or term.head == "cast":
        return all(_vanishes(a, index, extent) for a in term.args)
    if term.head == "where":
        return all(_vanishes(a, index, extent) for a in term.args[1:])
    return term.head == "reduce" and term.data[0] in ("sum", "max", "min") and _vanishes(term.args[0], index, extent)


def _axis_per_dimension(tensor: Stored) -> list[Axis | None]:
    axes = iter(tensor.axes)
    return [next(axes) if n != 1 else None for n in tensor.shape]


# --- which tensors may be kernel boundaries -----------------------------------------------------------------------


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


def loads_in(term: Term) -> tuple[Tensor, ...]:
    """Tensors read by a term, in order of first use."""
    return term.tensors


def _worth_storing(stored: Stored) -> bool:
    """Sharing a tensor pays only if it takes more to compute than to load."""
    terms = list(stored.term.walk())
    read = sum(prod(a.extent for a in t.axes) * DTYPES[t.dtype].nbytes for t in terms if t.head == "load")
    return read > stored.nbytes or any(t.head in SCALARS and SCALARS[t.head].unit == "special" for t in terms)


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


def kept_steps(steps: Sequence[Any], outputs: Iterable[Tensor]) -> tuple[list[Any], dict[Tensor, Tensor]]:
    """Steps with every tensor that is no boundary inlined; opaque calls stay. Also the map from old to new tensors."""
    wanted = set(outputs)
    needed = wanted | {t for s in steps if not isinstance(s, Stored) for t in s.inputs if isinstance(t, Tensor)}
    keep = boundaries(steps, needed)
    renamed: dict[Tensor, Tensor] = {}
    folds: dict[Term, Term] = {}
    result: list[Any] = []
    for step in steps:
        if not isinstance(step, Stored):
            result.append(replace(step, inputs=tuple(renamed.get(t, t) if isinstance(t, Tensor) else t for t in step.inputs)))
            continue
        renamed[step] = Stored(step.name, step.shape, step.dtype, _inlined(step.term, renamed, keep, folds, {}), step.axes)
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


def folded(term: Term) -> Term:
    """A scalar operation or cast of literals as a literal, evaluated by JAX in the operation's own dtype."""
    if not term.args or any(a.head != "const" for a in term.args) or (term.head not in SCALARS and term.head != "cast"):
        return term
    values = [np.asarray(const_value(a)).astype(a.dtype) for a in term.args]
    value = values[0].astype(term.dtype) if term.head == "cast" else np.asarray(SCALARS[term.head].reference(*values))
    return const(value.item(), term.dtype)


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
        return list(loads_in(step.term))
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
    inside = set(block)
    inputs = dict.fromkeys(t for s in block for t in _inputs(s) if t not in inside)
    return Region(tuple(inputs), tuple(block), tuple(s for s in block if s in wanted), constant & set(inputs))


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
