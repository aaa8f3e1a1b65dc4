"""What lowering builds with: places for statements, names for values, and the simplest statements.

Values are remembered per place, term and stage: "value" has the term's dtype; "wide" has the dtype to compute in and
is rounded to the term's; "raw" has the dtype to compute in, before rounding.
"""

from __future__ import annotations

import builtins
import keyword
from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import cached_property

from eqsat.index import Axis
from eqsat.notation import Kernel, Term
from eqsat.scalars import SCALARS
from eqsat.tile import Carry, Cast, Compute, Const, Statement, Value
from eqsat.tiling import Tiling

TOTALS = {"sum": "total", "prod": "total", "max": "m", "min": "m", "or": "some", "and": "every"}
_SHORT = {"float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64", "int32": "i32", "int64": "i64"}


class _Held(Term):
    """A value that a loop carries, named inside the loop: data is (reduction or scan, which)."""

    @cached_property
    def axes(self) -> frozenset[Axis]:  # the loop's axis is among them, which keeps it inside the loop
        held: Term = self.data[0]
        return held.axes | {held.bound} if held.bound is not None else held.axes


class Scope:
    """A place for statements: the top of the program or the inside of a loop over `axis`."""

    def __init__(self, roots: Iterable[Term], parent: Scope | None = None, axis: Axis | None = None):
        self.roots, self.parent, self.axis = tuple(roots), parent, axis
        self.body: list[Statement] = []
        self.memo: dict[tuple[Term, str], Value] = {}
        self.carries: list[Carry] = []  # of scans: they go on from tile to tile
        self.backward: bool | None = None  # the direction that a scan needs
        self.open: frozenset[Axis] = (parent.open if parent else frozenset()) | ({axis} if axis else frozenset())

    def home(self, term: Term) -> Scope:
        """The outermost place at which the loop axes of `term` have values."""
        scope = self
        while scope.parent is not None and scope.axis not in term.axes:
            scope = scope.parent
        return scope


class Names:
    """Unique names for values: none is a tensor, an axis, a keyword, a builtin or something a printer may use."""

    def __init__(self, kernel: Kernel, tiling: Tiling):
        self.taken = {*keyword.kwlist, *keyword.softkwlist, *dir(builtins), *_PRINTERS, kernel.name}
        self.taken |= {t.name for t in (*kernel.inputs, *kernel.outputs)} | {a.name for a in tiling.tiles}

    def fresh(self, base: str) -> str:
        """`base` or the nearest free name to it."""
        base = f"{base}_" if keyword.iskeyword(base) or base in dir(builtins) else base
        name, number = base, 1
        while name in self.taken:
            name, number = f"{base}_{number}", number + 1
        self.taken.add(name)
        return name


_PRINTERS = ("tl", "triton", "libdevice", "jax", "jnp", "lax", "np", "pl", "pltriton", "pid")


class Statements(ABC):
    """Statements of one kernel under a tiling; `value` and `wide` make those that a term takes."""

    def __init__(self, tiling: Tiling):
        self.tiling = tiling
        self.names = Names(tiling.kernel, tiling)
        self.named: dict[Term, str] = {}  # names that say more than the operation does

    @abstractmethod
    def value(self, term: Term, scope: Scope) -> Value:
        """`term` in its own dtype."""

    @abstractmethod
    def wide(self, term: Term, scope: Scope) -> Value:
        """`term`, rounded to its own dtype, in the dtype to compute in."""

    def _new(self, base: str, dtype: str, axes: Iterable[Axis]) -> Value:
        return Value(self.names.fresh(base), dtype, self.tiling.block(axes))

    def _compute(self, scope: Scope, op: str, *args: Value, name: str) -> Value:
        dtype = "bool" if SCALARS[op].result == "bool" else args[-1].dtype
        out = self._new(name, dtype, (a for arg in args for a in arg.axes))
        scope.body.append(Compute(out, op, args))
        return out

    def _cast(self, scope: Scope, arg: Value, dtype: str) -> Value:
        if arg.dtype == dtype:
            return arg
        out = self._new(f"{stem(arg.name)}_{_SHORT.get(dtype, dtype)}", dtype, arg.axes)
        scope.body.append(Cast(out, arg))
        return out

    def _const(self, scope: Scope, value: float | int | bool, dtype: str, axes: Iterable[Axis] = (), name: str = "c") -> Value:
        out = self._new(name, dtype, axes)
        scope.body.append(Const(out, value))
        return out


def held(reduction: Term, which: str) -> Term:
    """The term for a value that a loop carries of a reduction or a scan."""
    return _Held("held", (), (reduction, which), reduction.dtype)


def stem(name: str) -> str:
    """The name without what lowering itself appended."""
    for ending in ("_kept", "_next", "_tile"):
        name = name.removesuffix(ending)
    return name
