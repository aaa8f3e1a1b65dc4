"""Sorts and dtypes of a rule's two sides: what shares a dtype, and the mistakes that can be seen without running anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from eqsat.online import ONLINE
from eqsat.pattern import DTYPE_OF_BIT, Axis, DType, Number, Pattern, Sort
from eqsat.scalars import DTYPES, REDUCTIONS, SCALARS

if TYPE_CHECKING:
    from eqsat.rule import Equation

ALL_KINDS = frozenset(d.kind for d in DTYPES.values())


class Types:
    """The dtype classes of a rule: `left` and its conditions say what is known, `right` may not ask for more.

    Raises TypeError where sorts or dtypes do not fit.
    """

    def __init__(self, left: Pattern, right: Pattern, equation: Equation, sorts: Mapping[str, Sort]) -> None:
        self.sorts = sorts
        self._parent: list[int] = []
        self._kinds: list[frozenset[str]] = []
        self._fixed: list[str | None] = []
        self._named: dict[str, int] = {}  # variables, dtype variables and dtypes
        self._known = 0  # classes below this number come from the left side
        self._side = "left"
        result = self._visit(left)
        for guard in equation.guards:
            for term, dtype in guard.dtypes:
                self._join(self._visit(term), self._dtype(dtype), term)
        self._side, self._known = "right", len(self._parent)
        self._join(result, self._visit(right), right)

    def class_of(self, variable: str) -> int:
        """The number of the dtype class of a term or DType variable."""
        return self._root(self._named[variable])

    def kinds(self, number: int) -> frozenset[str]:
        return self._kinds[number]

    def dtype(self, number: int) -> str | None:
        """The dtype of a class, if the rule fixes it."""
        return self._fixed[number]

    # --- classes

    def _new(self, kinds: frozenset[str] = ALL_KINDS, dtype: str | None = None) -> int:
        self._parent.append(len(self._parent))
        self._kinds.append(frozenset([DTYPES[dtype].kind]) if dtype else kinds)
        self._fixed.append(dtype)
        return len(self._parent) - 1

    def _root(self, number: int) -> int:
        while self._parent[number] != number:
            number = self._parent[number]
        return number

    def _dtype(self, pattern: Pattern) -> int:
        if pattern.sort is not DType:
            raise TypeError(f"{pattern}: a dtype required, got a {pattern.sort}")
        return self._name(pattern.data) if pattern.head == "variable" else self._name(DTYPE_OF_BIT[pattern.data])

    def _name(self, name: str) -> int:
        if name not in self._named:
            sort = self.sorts.get(name)
            if sort is not None and sort.kinds == ("bool",):
                self._named[name] = self._name("bool")
            else:
                kinds = frozenset(sort.kinds) if sort is not None and sort.kinds else ALL_KINDS
                self._named[name] = self._new(kinds, name if sort is None else None)
        return self._named[name]

    def _join(self, a: int, b: int, at: Pattern) -> int:
        a, b = sorted((self._root(a), self._root(b)))
        if a == b:
            return a
        if b < self._known:
            raise TypeError(
                f"dtypes of {at} on the {self._side} side: nothing else makes {self._spell(a)} and {self._spell(b)} equal;"
                " add has_dtype or a cast"
            )
        kinds = self._kinds[a] & self._kinds[b]
        fixed = {self._fixed[a], self._fixed[b]} - {None}
        if len(fixed) > 1 or not kinds:
            raise TypeError(f"dtypes of {at}: {self._spell(a)} and {self._spell(b)} meet; cast first")
        if a < self._known and (kinds != self._kinds[a] or fixed != {self._fixed[a]} - {None}):
            raise TypeError(
                f"dtypes of {at} on the {self._side} side: {self._spell(b)} required, the left side gives {self._spell(a)}"
            )
        self._parent[b] = a
        self._kinds[a], self._fixed[a] = kinds, next(iter(fixed), None)
        return a

    def _restrict(self, number: int, kinds: tuple[str, ...], at: Pattern) -> int:
        root = self._root(number)
        left = self._kinds[root] & frozenset(kinds)
        if not left or (root < self._known and left != self._kinds[root]):
            raise TypeError(
                f"dtypes of {at}: operands of kind {' or '.join(kinds)} required, these may be {self._spell(root)};"
                " narrow the sorts of the variables"
            )
        self._kinds[root] = left
        return root

    def _spell(self, number: int) -> str:
        names = [n for n, slot in self._named.items() if self._root(slot) == number and n in self.sorts]
        kinds = self._fixed[number] or " or ".join(sorted(self._kinds[number]))
        return f"{', '.join(names)} ({kinds})" if names else kinds

    # --- patterns

    def _visit(self, pattern: Pattern) -> int:
        """The class of a term's dtype."""
        if not pattern.sort.is_term:
            hint = f"; write const({pattern})" if pattern.sort is Number else ""
            raise TypeError(f"{pattern}: a term required, got a {pattern.sort}{hint}")
        match pattern.head:
            case "variable":
                return self._name(pattern.data)
            case "const":
                return self._literal(pattern)
            case "pos":
                self._axis(pattern.args[0])
                if self._side == "right":
                    raise TypeError(f"{pattern}: on a left side only; a right side takes what a variable stands for")
                return self._restrict(self._new(), ("int", "uint", "float"), pattern)
            case "cast":
                self._visit(pattern.args[0])
                return self._dtype(pattern.args[1])
            case "reduce":
                self._axis(pattern.args[0])
                return self._restrict(self._visit(pattern.args[1]), REDUCTIONS[pattern.data].kinds, pattern)
            case "online":
                axis, s, v, weight = pattern.args
                self._axis(axis)
                self._dtype(weight)
                kinds = ONLINE[pattern.data].kinds
                self._restrict(self._visit(s), kinds[0], pattern)
                return self._restrict(self._visit(v), kinds[1], pattern)
        return self._operation(pattern)

    def _axis(self, pattern: Pattern) -> None:
        if pattern.sort is not Axis:
            raise TypeError(f"{pattern}: an Axis required, got a {pattern.sort}")

    def _literal(self, pattern: Pattern) -> int:
        number = pattern.args[0]
        if number.sort is not Number:
            raise TypeError(f"const({number}): a number required, got a {number.sort}")
        if self._side == "left" and number.head not in ("variable", "number"):
            raise TypeError(f"const({number}): on a left side a number or a Number variable; compute on the right side")
        if len(pattern.args) > 1:
            like = pattern.args[1]
            return self._dtype(like) if like.sort is DType else self._visit(like)
        if self._side == "right":
            raise TypeError(f"const({number}) on a right side: its dtype required; write const({number}, like=a)")
        return self._new()

    def _operation(self, pattern: Pattern) -> int:
        row = SCALARS[pattern.head]
        slots = [self._visit(a) for a in pattern.args]
        if row.name == "where":
            self._join(slots[0], self._name("bool"), pattern)
            slots = slots[1:]
        for slot in slots[1:]:
            self._join(slots[0], slot, pattern)
        self._restrict(slots[0], row.kinds, pattern)
        return self._name("bool") if row.result == "bool" else slots[0]
