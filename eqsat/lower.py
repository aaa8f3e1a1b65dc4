"""Lowering: a kernel and a schedule become a tile program.

Nothing here knows a softmax or a matmul. A term is evaluated once at each place, as far out as its free axes allow; a
reduction over a loop axis becomes a loop that carries an accumulator, shared with every other reduction over that
axis that is ready at the same place; a sum of products whose operands each have an axis of their own is a dot.
Masks, identities in padding, guards and the dtype of every operation are decided here, once for all targets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial, reduce

import ml_dtypes  # noqa: F401  registers bfloat16 and float8 with NumPy
import numpy as np

from eqsat.index import Axis, Index, flatten
from eqsat.limits import limits_of, ranges_of
from eqsat.lower_scans import ScanLowering
from eqsat.notation import Kernel, Stored, Term, Window, const, const_value, dimension_indices, scalar
from eqsat.online import ONLINE, exponential, leaders, rescaling, scaled, settled
from eqsat.scalars import DTYPES, REDUCTIONS, SCALARS
from eqsat.scans import scanned
from eqsat.schedule import Schedule
from eqsat.statements import TOTALS, Scope, held, stem
from eqsat.steady import Part, parts
from eqsat.tile import Carry, Dot, Load, Loop, Position, Reduce, Statement, Store, TileProgram, Value
from eqsat.tiling import Guard, Tiling, identity_of, is_mask

WIDE = 2**31
Roots = tuple[Term, ...]  # what an output is, and what says where it lies
UNROUNDED = {"max", "min", "neg", "abs", "where", "floor", "ceil", "sign"}  # the result is an operand, or as short as one


def lower(kernel: Kernel, schedule: Schedule) -> TileProgram:
    """The tile program of `kernel` under `schedule`; ValueError if the schedule does not fit the kernel."""
    tiling = Tiling(kernel, schedule)
    return TileProgram(
        kernel.name,
        kernel.inputs,
        tiling.kernel.outputs,
        tiling.used,
        _Lowering(tiling).body(),
        schedule.num_warps,
        schedule.num_stages,
        schedule.group,
        _header(kernel, tiling),
        kernel.exact,
        schedule.persistent,
    )


def _header(kernel: Kernel, tiling: Tiling) -> tuple[str, ...]:
    tiles = ", ".join(f"{t.axis.name}:{t.axis.extent} by {t.tile} ({t.role})" for t in tiling.used)
    return (
        *scanned(kernel).formula.splitlines(),
        *(f"in  {t}" for t in kernel.inputs),
        *(_described(t) for t in tiling.kernel.outputs),
        f"tiles {tiles or 'none'}",
    )


def _described(output: Stored) -> str:
    text = f"out {output.name}: {output.dtype}[{','.join(map(str, output.shape))}]"
    if isinstance(output, Window) and output.base is not None:
        return f"{text}, in the buffer of {output.base.name}"
    return f"{text}, zeros to begin with" if isinstance(output, Window) and output.zeroed else text


class _Lowering(ScanLowering):
    """Emits the statements of one kernel."""

    def __init__(self, tiling: Tiling):
        super().__init__(tiling)
        self.starts: dict[Term, Value] = {}  # accumulators that the loop of a sum goes on with
        self.begun: dict[Term, Value] = {}  # accumulators of sums whose body goes on with them
        self.in_memory_order: set[Term] = set()  # loads that only matrix instructions read
        self.named |= {roots[0]: f"{o.name}_tile" for o, roots in tiling.outputs if roots[0].head in SCALARS}
        self.top = Scope(root for _, roots in tiling.outputs for root in roots)

    def body(self) -> tuple[Statement, ...]:
        """All statements, outputs without loops first."""
        nests: dict[tuple[Axis, ...], list[tuple[Stored, Roots]]] = {}
        for output, roots in self.tiling.outputs:
            loops = self.tiling.loops(output.axes)
            nests.setdefault(tuple(a for a in self.tiling.tiles if a in loops), []).append((output, roots))
        for axes in sorted(nests, key=len):
            self._nest(axes, nests[axes], self.top)
        return tuple(self.top.body)

    def _nest(self, axes: tuple[Axis, ...], outputs: list[tuple[Stored, Roots]], scope: Scope) -> None:
        if axes:
            inner = Scope((root for _, roots in outputs for root in roots), scope, axes[0])
            self._nest(axes[1:], outputs, inner)
            scope.body.append(Loop(axes[0], tuple(inner.carries), tuple(inner.body), backward=bool(inner.backward)))
            return
        for output, (term, *operands) in outputs:
            value = self.value(term, scope)
            self.named |= dict.fromkeys(operands, "place")
            self._store(output, value, tuple(self._address(self.value(o, scope), scope) for o in operands), scope)

    # --- statements ---

    def _store(self, output: Stored, value: Value, operands: tuple[Value, ...], scope: Scope) -> None:
        # a grid axis that the output lacks: only its first position stores, or programs would race
        missing = [t.axis for t in self.tiling.used if t.role == "grid" and t.count > 1 and t.axis not in output.axes]
        guards: list[Guard] = [(Index.of(a), a.extent) for a in output.axes if self.tiling.ragged(a)]
        guards += [(Index.of(a), 1) for a in missing]
        axes = self.tiling.block((*output.axes, *missing))
        index = output.places if isinstance(output, Window) else dimension_indices(output.shape, output.axes)
        reached = ((i, n, self.tiling.padded_range(i, output.axes)) for i, n in zip(index, output.shape, strict=True))
        guards += [(i, n) for i, n, (low, high) in reached if low < 0 or high >= n]
        value = self._cast(scope, value, output.dtype)
        adds = isinstance(output, Window) and output.adds
        scope.body.append(Store(output, index, operands, value, axes, tuple(guards), output.size >= WIDE, adds))

    # --- terms ---

    def value(self, term: Term, scope: Scope) -> Value:
        """`term` in its own dtype."""
        self._compute_operands(term, scope)
        return self._remembered(term, "value", scope, self._value)

    def wide(self, term: Term, scope: Scope) -> Value:
        """`term`, rounded to its own dtype, in the dtype to compute in."""
        if DTYPES[term.dtype].compute == term.dtype:
            return self.value(term, scope)
        self._compute_operands(term, scope)
        return self._remembered(term, "wide", scope, self._wide)

    def _remembered(self, term: Term, stage: str, scope: Scope, make: Callable[[Term, Scope], Value]) -> Value:
        home = scope.home(term)
        if (term, stage) not in home.memo:
            home.memo[term, stage] = make(term, home)
        return home.memo[term, stage]

    def _compute_operands(self, term: Term, scope: Scope) -> None:
        """Scalar operations below `term`, operands first: a long chain would recurse too deeply."""
        if (term, "raw") not in scope.home(term).memo:
            for operand in self._pending(term, scope):
                self._remembered(operand, "raw", scope, self._raw)

    def _pending(self, term: Term, scope: Scope) -> Iterator[Term]:
        """Scalar operations below `term` that have no value yet, operands first; reductions are not entered."""
        seen: set[Term] = set()
        stack = [(term, False)]
        while stack:
            t, ready = stack.pop()
            if ready:
                yield t
            elif t not in seen and (t.head in SCALARS or t.head == "cast"):
                seen.add(t)
                if (t, "raw") not in scope.home(t).memo:
                    stack += [(t, True)] if t.head in SCALARS else []
                    stack += [(a, False) for a in reversed(t.args)]

    def _value(self, term: Term, scope: Scope) -> Value:
        match term.head:
            case "load":
                return self._load(term, scope)
            case "const":
                return self._const(scope, const_value(term), term.dtype)
            case "pos":
                return self._position(term, scope)
            case "cast":
                return self._cast(scope, self.wide(term.args[0], scope), term.dtype)
        return self._cast(scope, self._remembered(term, "raw", scope, self._raw), term.dtype)

    def _wide(self, term: Term, scope: Scope) -> Value:
        compute = DTYPES[term.dtype].compute
        if term.head == "const":
            return self._const(scope, float(np.asarray(const_value(term), term.dtype)), compute)
        if term.head in UNROUNDED or (term.head == "reduce" and term.data[0] in UNROUNDED):
            return self._remembered(term, "raw", scope, self._raw)
        return self._cast(scope, self.value(term, scope), compute)

    def _raw(self, term: Term, scope: Scope) -> Value:
        if term.bound is not None:
            return self._reduction(term, scope)
        if term.head == "scan":
            return self.scan(term, scope)
        return self._compute(scope, term.head, *(self.wide(a, scope) for a in term.args), name=self._name(term))

    def _name(self, term: Term) -> str:
        if term in self.named:
            return self.named[term]
        if is_mask(term):
            return "inside"
        if term.head == "where" and is_mask(term.args[0]) and term.args[1].head in SCALARS:
            return self._name(term.args[1])
        return term.head

    def _load(self, term: Term, scope: Scope) -> Value:
        operands = tuple(self._address(self.value(a, scope), scope) for a in term.args)
        tensor = term.tensor
        out = self._new(f"{tensor.name}_tile", tensor.dtype, term.axes)
        if term in self.in_memory_order:
            out = Value(out.name, out.dtype, _in_memory_order(out.axes, term))
        other = False if tensor.dtype == "bool" else 0.0 if DTYPES[tensor.dtype].kind == "float" else 0
        guards = self.tiling.guards(term)
        scope.body.append(Load(out, tensor, term.indices, operands, guards, other, tensor.size >= WIDE))
        return out

    def _address(self, value: Value, scope: Scope) -> Value:
        """An operand of an index, as a signed integer that holds it."""
        return self._cast(scope, value, "int64" if value.dtype in ("int64", "uint32", "uint64") else "int32")

    def _position(self, term: Term, scope: Scope) -> Value:
        index: Index = term.data
        low, high = self.tiling.padded_range(index)
        if low == high:
            return self._value(const(low, term.dtype), scope)
        dtype = "int64" if term.dtype == "int64" or low < -WIDE or high >= WIDE else "int32"
        atoms = [str(a) for a in sorted(index.axes)]
        out = self._new("_".join(["at", *atoms]) if len(atoms) == 1 and len(index.terms) == 1 else "index", dtype, index.axes)
        scope.body.append(Position(out, index))
        return self._cast(scope, out, term.dtype)

    # --- reductions ---

    def _reduction(self, term: Term, scope: Scope) -> Value:
        axis = term.bound
        assert axis is not None
        compute = DTYPES[term.dtype].compute
        if axis.extent == 0:
            name = ONLINE[term.data[0]].fold if term.head == "online" else term.data[0]
            return self._const(scope, identity_of(name, compute), compute)
        if self.tiling.role(axis) == "loop":
            self._loop(term, scope)
            return scope.memo[term, "raw"]
        return self._fold(term.data[0], axis, term.args[0], scope, None)

    def _fold(self, name: str, axis: Axis, body: Term, scope: Scope, state: Value | None) -> Value:
        """Fold one tile of `body` into `state`."""
        if self._continues(name, axis, body, scope):
            return self._continue(body, scope, state)
        pair = self.tiling.contraction(axis, body) if name == "sum" else None
        if pair is not None:
            self.in_memory_order |= {x for x in pair if x.head == "load" and self.tiling.uses[x] == 1}
            a, b = (self.value(x, scope) for x in pair)
            out = self._new("dot", body.dtype, {*a.axes, *b.axes} - {axis})
            scope.body.append(Dot(out, a, b, axis, state))
            return out
        part = self._fold_tile(name, axis, body, scope)
        if state is None:
            return part
        return self._compute(scope, REDUCTIONS[name].combine, state, part, name=f"{stem(state.name)}_next")

    def _continues(self, name: str, axis: Axis, body: Term, scope: Scope) -> bool:
        """True for a sum that rounds nothing and serves nothing else: an enclosing sum may go on with its accumulator."""
        if name != "sum" or self.tiling.tile(axis) != 1:
            return False
        if body.head != "reduce" or body.data[0] != "sum" or body.data[1].extent < 2:
            return False
        exact = DTYPES[body.dtype].compute == body.dtype and self.tiling.uses[body] == 1
        return exact and scope.home(body) is scope and (body, "raw") not in scope.memo

    def _continue(self, body: Term, scope: Scope, state: Value | None) -> Value:
        """All taps of a convolution add to one accumulator."""
        if self.tiling.role(body.data[1]) != "loop":
            return self._fold("sum", body.data[1], body.args[0], scope, state)
        if state is not None:
            self.starts[body] = state
        return self.value(body, scope)

    def _fold_tile(self, name: str, axis: Axis, body: Term, scope: Scope) -> Value:
        if self.tiling.tile(axis) == 1:
            return self.wide(body, scope)
        if name == "max" and (found := scaled(body)):
            part = self._fold_tile(name, axis, found[1], scope)
            return self._compute(scope, "mul", self.wide(found[0], scope), part, name="largest")
        arg = self.wide(self.tiling.filled(name, axis, body), scope)
        if axis not in arg.axes:  # the same value at every position
            if name not in ("sum", "prod"):
                return arg
            arg = self.wide(self.tiling.spread(name, axis, body), scope)
        out = self._new(TOTALS.get(name, name), arg.dtype, (a for a in arg.axes if a != axis))
        scope.body.append(Reduce(out, name, arg, axis))
        return out

    def _loop(self, term: Term, scope: Scope) -> None:
        """The loop of a reduction and of all others that are ready here and run over the same axis."""
        axis = term.bound
        assert axis is not None
        if axis in scope.open:
            raise ValueError(f"axis {axis}: a loop may not lie in a loop over the same axis, got {term}; rename one of them")
        for inner in self.tiling.loop_reductions(term.args):
            if self._available(inner, scope):
                self._remembered(inner, "raw", scope, self._raw)
        group = tuple(self._group(term, scope))
        low, high = self._bounds(group, scope)
        totals = [self.starts.pop(t, None) for t in group]
        for part in parts(group, axis, self.tiling.tile(axis), low, high, partial(self.tiling.extreme, scope.open)):
            self.starts |= {t: total for t, total in zip(part.terms, totals, strict=True) if total is not None}
            self._loop_over(axis, part, scope)
            totals = [scope.memo[t, "raw"] for t in part.terms]
        scope.memo |= {(t, "raw"): total for t, total in zip(group, totals, strict=True) if total is not None}

    def _loop_over(self, axis: Axis, part: Part, scope: Scope) -> None:
        inside = Scope((a for t in part.terms for a in t.args), scope, axis)
        for t in part.terms:
            self._begin(t, inside)
        carries = [self._carry_reduce(t, inside) if t.head == "reduce" else self._carry_online(t, inside) for t in part.terms]
        bounds = (None, None) if inside.carries else self.tiling.stepped(axis, part.low, part.high)
        ends = (None, None) if inside.carries else self._ends(part.terms, axis, scope)
        loop = Loop(axis, (*carries, *inside.carries), tuple(inside.body), *bounds, bool(inside.backward), *ends)
        scope.body.append(loop)
        if scope.parent is None:  # or what the next loop takes out of all of them could have one of these names
            self.names.taken -= {v.name for v in loop.inner}

    def _bounds(self, group: Iterable[Term], scope: Scope) -> tuple[Index | None, Index | None]:
        """Between which positions a loop has something to add, for the first and last position of every tile around it."""
        limits = limits_of(group, self.tiling.kernel.exact)
        low = (self.tiling.extreme(scope.open, b, -1) for b in limits.low)
        high = (self.tiling.extreme(scope.open, b, 1) for b in limits.high)
        return next((b for b in low if b is not None), None), next((b for b in high if b is not None), None)

    def _ends(self, group: tuple[Term, ...], axis: Axis, scope: Scope) -> tuple[Value | None, Value | None]:
        """Where a loop begins and ends to have something to add for any row of the tile, as far as loaded numbers say."""
        limits, tests = limits_of(group, self.tiling.kernel.exact), ranges_of(group, self.tiling.kernel.exact)
        start, end = self._of_tile("min", "max", limits.start, scope), self._of_tile("max", "min", limits.end, scope)
        live = self._of_tile("or", "and", tests, scope)
        if live is not None:
            most = end or self._const(scope, axis.extent, "int32")
            end = self._compute(scope, "mul", self._cast(scope, live, "int32"), most, name="end")
        return start, end

    def _of_tile(self, fold: str, join: str, terms: Iterable[Term], scope: Scope) -> Value | None:
        """All of the terms that have a value before a loop joined, and folded over the tile; None if there are none."""
        known = [t for t in terms if self._available(t, scope)]
        if not known:
            return None
        joined, name = reduce(partial(scalar, join), known), {"or": "live", "min": "start", "max": "end"}[fold]
        if fold != "or":
            self.named.setdefault(joined, name)
        value = self.value(joined, scope)
        for axis in value.axes:
            out = self._new(name, value.dtype, (a for a in value.axes if a != axis))
            scope.body.append(Reduce(out, fold, value, axis))
            value = out
        return value

    def _available(self, term: Term, scope: Scope) -> bool:
        return self.tiling.loops(term.axes) <= scope.open

    def _group(self, term: Term, scope: Scope) -> list[Term]:
        """Reductions for one loop; those that online ones depend on come before them."""
        here = [t for t in self.tiling.loop_reductions(scope.roots) if t.bound == term.bound and self._ready(t, scope)]
        group = list(dict.fromkeys([*here, term]))
        leading = [leader for t in group if t.head == "online" for leader in leaders(t)]
        plain = [t for t in group if t.head == "reduce"]
        return list(dict.fromkeys([*leading, *plain, *group]))

    def _ready(self, term: Term, scope: Scope) -> bool:
        """True if `term` belongs at `scope`, is still to be computed, and waits for no other reduction."""
        if not self._available(term, scope) or scope.home(term) is not scope or (term, "raw") in scope.memo:
            return False
        below = (t for t in self.tiling.loop_reductions(term.args) if self._available(t, scope))
        return all((t, "raw") in scope.home(t).memo for t in below)

    def _begin(self, term: Term, scope: Scope) -> None:
        """Sums that go on with accumulators know them before the first is computed: one loop may be that of several."""
        name, axis = term.data[:2]
        body = term.args[0]
        if term.head == "reduce" and self._continues(name, axis, body, scope) and self.tiling.role(body.data[1]) == "loop":
            self.begun[term] = self.starts[body] = self._state(term, name)

    def _carry_reduce(self, term: Term, scope: Scope) -> Carry:
        (name, axis), (body,) = term.data, term.args
        begun = term in self.begun

        def result(state: Value) -> Value:
            done = scope.memo.get((body, "raw")) if begun else None  # in the loop of another's body
            return self._fold(name, axis, body, scope, state) if done is None else done

        carry = self._carry(term, scope, name, result)
        stage = "value" if DTYPES[term.dtype].compute == term.dtype else "wide"
        for which, value in (("old", carry.state), ("new", carry.result)):
            scope.memo[held(term, which), stage] = value
        return carry

    def _carry_online(self, term: Term, scope: Scope) -> Carry:
        """Elements relative to what leads so far; what was folded before is corrected when that changes."""
        row, axis, own = ONLINE[term.data[0]], term.data[1], held(term, "old")
        old, new = (tuple(held(leader, which) for leader in leaders(term)) for which in ("old", "new"))
        if row.leader == "max" and row.rounds:
            factor = rescaling(old, new, row.name)
            self.named |= {settled(new[0]): "m_safe", factor: "rescale", exponential(term, new): "p"}
            self.value(factor, scope)

        def result(state: Value) -> Value:
            scope.memo[own, "value"] = state
            kept = row.kept(term, own, old, new)
            self.named[kept] = f"{stem(state.name)}_kept"
            return self._fold(row.fold, axis, row.element(term, new), scope, self.value(kept, scope))

        return self._carry(term, scope, row.fold, result, "total" if row.rounds else "place")

    def _carry(self, term: Term, scope: Scope, name: str, result: Callable[[Value], Value], base: str = "") -> Carry:
        """The accumulator of a reduction; its final value is the reduction."""
        outer = scope.parent
        assert outer is not None
        state, dtype = self.begun.pop(term, None) or self._state(term, name, base), DTYPES[term.dtype].compute
        init = self.starts.pop(term, None)
        if init is None:
            init = self._const(outer, identity_of(name, dtype), dtype, term.axes, f"{state.name}_start")
        passed = result(state)
        final = self._new(f"{state.name}_end", dtype, term.axes)
        outer.memo[term, "raw"] = final
        return Carry(state, init, passed, final)

    def _state(self, term: Term, name: str, base: str = "") -> Value:
        base = "acc" if len(self.tiling.block(term.axes)) > 1 else base or TOTALS.get(name, name)
        return self._new(base, DTYPES[term.dtype].compute, term.axes)


def _in_memory_order(axes: tuple[Axis, ...], term: Term) -> tuple[Axis, ...]:
    """The axes of a block, that of the largest steps in memory first: what matrix instructions read best."""
    offset = flatten(term.indices, term.tensor.shape)
    step = {atom: abs(c) for atom, c in offset.terms if isinstance(atom, Axis)}
    return tuple(sorted(axes, key=lambda a: -step.get(a, 0)))
