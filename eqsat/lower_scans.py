"""Lowering of scans: running folds inside a tile, which in a loop go on from the tile before.

A running sum of exponentials is relative to the running maximum of its scores, so that none overflows: both are one scan, of
pairs, and what was summed before a tile is rescaled to the maximum with that tile (as `eqsat.online` does for reductions).
"""

from __future__ import annotations

from eqsat.index import Axis, Index
from eqsat.notation import Term, const, const_value, pos, scalar, scan
from eqsat.online import rescaling
from eqsat.scalars import REDUCTIONS
from eqsat.statements import TOTALS, Scope, Statements, held
from eqsat.tile import Carry, Compute, Reduce, Scan, Value
from eqsat.tiling import Tiling, identity_of


class ScanLowering(Statements):
    """Emits what scans take. A scan's "part" is its value inside the tile, "before" what the tiles before came to."""

    def __init__(self, tiling: Tiling):
        super().__init__(tiling)
        sums = (t for t in tiling.prepared if t.head == "scan" and t.data[0] == "softsum")
        self._sum_of = {_leader(t): t for t in sums if tiling.block(t.axes) == tiling.block(_leader(t).axes)}

    def scan(self, term: Term, scope: Scope) -> Value:
        """The running fold at the positions of a tile."""
        if (term, "part") not in scope.memo:
            self._scan_tile(term, scope)
        part = scope.memo[term, "part"]
        return self._scan_on(term, part, scope) if self.tiling.role(term.data[1]) == "loop" else part

    def _scan_tile(self, term: Term, scope: Scope) -> None:
        """The running fold inside a tile; that of a sum of exponentials together with the maxima it is relative to."""
        (name, axis, reverse), body = term.data, term.args[0]
        total = self._sum_of.get(term, term if name == "softsum" else None)
        if total is not None:
            return self._scan_pair(total, scope)
        arg = part = self.wide(self._filled(name, axis, body), scope)
        if self.tiling.tile(axis) > 1:
            part = self._new(f"cum{name}", arg.dtype, arg.axes)
            scope.body.append(Scan(part, name, arg, axis, reverse))
        scope.memo[term, "part"] = part
        return None

    def _scan_pair(self, total: Term, scope: Scope) -> None:
        (_, axis, reverse), (body, scores), leader = total.data, total.args, _leader(total)
        s = self.wide(self._filled("max", axis, scores), scope)
        if body.head == "const":
            v = self._const(scope, const_value(body), body.dtype, s.axes, "ones" if const_value(body) == 1 else "c")
        else:
            v = self.wide(self._filled("sum", axis, body), scope)
        largest, part = s, v
        if self.tiling.tile(axis) > 1:
            part = self._new("total", v.dtype, (*v.axes, *s.axes))
            largest = self._new("m", s.dtype, part.axes)
            scope.body.append(Scan(part, "sum", v, axis, reverse, s, largest))
        scope.memo[total, "part"] = part
        if self._sum_of.get(leader) is total:
            scope.memo[leader, "part"] = largest

    def _filled(self, name: str, axis: Axis, body: Term) -> Term:
        """What a scan folds, with the identity in padding; in a tile it varies along the axis."""
        if self.tiling.tile(axis) == 1:
            return body
        along = axis in self.tiling.block(body.axes)
        return self.tiling.filled(name, axis, body) if along else self.tiling.spread(name, axis, body)

    def _scan_on(self, term: Term, part: Value, scope: Scope) -> Value:
        """A tile's running fold behind those of the tiles before: what its last position holds is carried."""
        (name, axis, reverse), outer = term.data, scope.parent
        if scope.axis != axis or outer is None or scope.backward not in (None, reverse):
            raise ValueError(f"axis {axis}: one loop scans in one direction, innermost, got {term}; make it resident")
        scope.backward, dtype, fold = reverse, part.dtype, "sum" if name == "softsum" else name
        others = tuple(a for a in part.axes if a != axis)
        state = self._new(f"{TOTALS[fold]}_before", dtype, others)
        init = self._const(outer, identity_of(fold, dtype), dtype, others, f"{state.name}_start")
        scope.memo[held(term, "before"), "value"], scope.memo[held(term, "part"), "value"] = state, part
        if name == "softsum":
            out = self.value(self._rescaled(term, scope), scope)
        else:
            out = self._compute(scope, REDUCTIONS[name].combine, state, part, name=f"cum{name}")
        kept = self._last(axis, reverse, out, f"{state.name}_next", scope)
        scope.carries.append(Carry(state, init, kept, self._new(f"{state.name}_end", dtype, others)))
        return out

    def _rescaled(self, term: Term, scope: Scope) -> Term:
        """What was summed before a tile and inside it, relative to the maximum of both."""
        leader = _leader(term)
        self.value(leader, scope)
        sums = []
        for which in ("before", "part"):
            factor = rescaling((held(leader, which),), (leader,))
            self.named[factor] = "rescale"
            sums.append(scalar("mul", held(term, which), factor))
        result = scalar("add", *sums)
        self.named[result] = "total"
        return result

    def _last(self, axis: Axis, reverse: bool, value: Value, name: str, scope: Scope) -> Value:
        """What a value is at the last position of a tile."""
        tile = self.tiling.tile(axis)
        if tile == 1:
            return value
        lane = scalar("eq", pos(Index.of(axis) % tile, "int32"), const(0 if reverse else tile - 1, "int32"))
        zero = self._const(scope, 0.0 if "float" in value.dtype else 0, value.dtype)
        masked = self._new("last", value.dtype, value.axes)
        scope.body.append(Compute(masked, "where", (self.value(lane, scope), value, zero)))
        kept = self._new(name, value.dtype, tuple(a for a in value.axes if a != axis))
        scope.body.append(Reduce(kept, "sum", masked, axis))
        return kept


def _leader(total: Term) -> Term:
    """The running maxima that a running sum of exponentials is relative to."""
    _, axis, reverse = total.data
    return scan("max", axis, total.args[1], reverse)
