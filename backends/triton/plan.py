"""Decisions of the Triton printer that are about reading only: which values need no line of their own, and which share a name.

A value used once by the next scalar operation is spelled inside it; a scalar literal is spelled where it is used; the
four names of a carried value (initial, inside, next, final) become one wherever no reader would see the wrong value.
"""

from __future__ import annotations

import builtins
import keyword
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import count

from eqsat.index import Axis, Index
from eqsat.scalars import SCALARS
from eqsat.tile import (
    Carry,
    Cast,
    Compute,
    Const,
    Dot,
    Load,
    Loop,
    Position,
    Reduce,
    Scan,
    Statement,
    Store,
    TileProgram,
    Value,
    results,
)

from .text import OWN_NAMES, identifier

INLINE_OPERATIONS = 3  # scalar operations that one line may hold
SHORT = 1 << 30  # positions along shorter axes are 32-bit numbers

Place = tuple[int, int]  # number of the body, position in it

RESERVED = (*keyword.kwlist, *keyword.softkwlist, *dir(builtins), *OWN_NAMES, "pid", "tile", "block")


def operands(statement: Statement) -> tuple[Value, ...]:
    """Values that the statement itself reads; a loop reads the initial values of its carries and its bounds."""
    match statement:
        case Load():
            return statement.operands
        case Compute():
            return statement.args
        case Cast() | Reduce():
            return (statement.arg,)
        case Scan():
            return statement.operands
        case Dot():
            return (statement.a, statement.b) + ((statement.acc,) if statement.acc else ())
        case Loop():
            return (*(c.init for c in statement.carries), *statement.ends)
        case Store():
            return (*statement.operands, statement.value)
    return ()


class Plan:
    """`inlined` and `literals` have no line of their own; `name` spells every other value, and axes and tensors."""

    def __init__(self, program: TileProgram) -> None:
        self.definition: dict[Value, Statement] = {}
        self.place: dict[Value, Place] = {}
        self.readers: dict[Value, list[tuple[Statement | Carry, Place]]] = defaultdict(list)
        self.parents: list[Place] = []
        self.inlined: dict[Value, int] = {}
        self.own: dict[Value, Axis] = {}  # positions that the axis itself names
        self.same: dict[Value, Value] = {}
        self._scan(program.body, (-1, 0))
        self.literals = {v for v, s in self.definition.items() if isinstance(s, Const) and self._is_literal(v)}
        self._inline(program)
        self._merge_names(tuple(c for s in program.statements() if isinstance(s, Loop) for c in s.carries))
        self._name(program)

    # --- facts ----------------------------------------------------------------------------------------------------

    def _scan(self, body: tuple[Statement, ...], parent: Place) -> int:
        number = len(self.parents)
        self.parents.append(parent)
        for position, statement in enumerate(body):
            place = (number, position)
            for value in operands(statement):
                self.readers[value].append((statement, place))
            if isinstance(statement, Loop):
                self._scan_loop(statement, place)
            for value in results(statement):
                self.definition[value], self.place[value] = statement, place
        return number

    def _scan_loop(self, loop: Loop, place: Place) -> None:
        number = self._scan(loop.body, place)
        for carry in loop.carries:
            self.readers[carry.result].append((carry, (number, len(loop.body))))
            self.place[carry.state] = (number, -1)
            self.place[carry.final] = place

    def _is_literal(self, value: Value) -> bool:
        """True if every reader gives the literal its dtype by another operand."""
        return not value.axes and all(self._types_literal(reader, value) for reader, _ in self.readers[value])

    def _types_literal(self, reader: Statement | Carry, value: Value) -> bool:
        if isinstance(reader, Store):
            return True
        if not isinstance(reader, Compute) or (reader.op == "where" and reader.args[0] is value):
            return False
        typed = reader.args[1:] if reader.op == "where" else reader.args
        if "libdevice" in SCALARS[reader.op].triton and value.dtype != "float32":
            return False
        return any(not isinstance(self.definition.get(a), Const) or a.axes for a in typed)

    # --- one line for several operations --------------------------------------------------------------------------

    def _inline(self, program: TileProgram) -> None:
        for statement in program.statements():
            if not isinstance(statement, Compute | Cast | Reduce | Position):
                continue
            if isinstance(statement, Position) and (axis := _own_axis(statement)) is not None:
                self.own[statement.out] = axis
                continue
            size = (0 if isinstance(statement, Position) else 1) + sum(self.inlined.get(a, 0) for a in operands(statement))
            if size < INLINE_OPERATIONS and self._may_inline(statement.out):
                self.inlined[statement.out] = size

    def _may_inline(self, value: Value) -> bool:
        if len(self.readers[value]) != 1:
            return False
        reader, place = self.readers[value][0]
        if place[0] != self.place[value][0]:
            return False
        if isinstance(reader, Compute):
            return all(SCALARS[reader.op].triton.count(f"{{{i}}}") == 1 for i, a in enumerate(reader.args) if a is value)
        if isinstance(reader, Store):
            return value is reader.value
        return isinstance(reader, Cast | Reduce) or (isinstance(reader, Dot) and isinstance(self.definition[value], Cast))

    def seen_at(self, place: Place, reader: Statement | Carry) -> Place:
        """Where the line that holds the reader stands."""
        while isinstance(reader, Compute | Cast | Reduce | Position) and reader.out in self.inlined:
            reader, place = self.readers[reader.out][0]
        return place

    # --- one name for a carried value -----------------------------------------------------------------------------

    def root(self, value: Value) -> Value:
        while value in self.same:
            value = self.same[value]
        return value

    def _merge_names(self, carries: tuple[Carry, ...]) -> None:
        """Carries come outermost first, so the outermost state names them all."""
        for carry in carries:
            self._join(carry.final, carry.state)
            if self._starts_as(carry):
                if isinstance(self.definition.get(carry.init), Const):
                    self._join(carry.init, carry.state)
                else:
                    self._join(carry.state, carry.init)
        for carry in carries:
            if self._ends_as(carry):
                self._join(carry.result, carry.state)

    def _join(self, value: Value, name: Value) -> None:
        if self.root(value) is not self.root(name):
            self.same[self.root(value)] = self.root(name)

    def _starts_as(self, carry: Carry) -> bool:
        """Nothing but the loop reads the initial value: a constant, the state of the loop around it, what one before it left."""
        init = carry.init
        if len(self.readers[init]) != 1 or not _alike(init, carry.state):
            return False
        around = self.parents[self.place[carry.state][0]][0]
        body, position = self.place[init]
        return body == around and (init not in self.definition or isinstance(self.definition[init], Const))

    def _ends_as(self, carry: Carry) -> bool:
        """No line after the one that computes the next value reads the state."""
        result, state = carry.result, carry.state
        defined, body = self.place[result], self.place[state][0]
        if result not in self.definition or defined[0] != body or result in self.inlined or not _alike(result, state):
            return False
        if self.root(result) is not result or result in self.literals or any(r is result for r in self.same.values()):
            return False
        if sum(isinstance(reader, Carry) for reader, _ in self.readers[result]) != 1:
            return False
        family = [v for v in self.place if self.root(v) is self.root(state)]
        return all(
            self._within(body, self.seen_at(p, r)) <= defined[1] for v in family for r, p in self.readers[v] if r is not carry
        )

    def _within(self, body: int, place: Place) -> int:
        """Position in `body` of a place in it or in a loop inside it; -1 for places outside."""
        while place[0] != body:
            if place[0] < 0:
                return -1
            place = self.parents[place[0]]
        return place[1]

    # --- names ----------------------------------------------------------------------------------------------------

    def _name(self, program: TileProgram) -> None:
        self._taken = {*RESERVED, program.name}
        tensors = dict.fromkeys((*program.inputs, *program.outputs))
        self.pointer = {t: self._fresh(f"{t.name}_ptr") for t in tensors}
        self.axis: dict[Axis, str] = {t.axis: self._fresh(t.axis.name) for t in program.axes}
        self.program_id = {t.axis: self._fresh(f"pid_{t.axis.name}") if t.tile > 1 else self.axis[t.axis] for t in program.axes}
        self.start = {t.axis: self._fresh(f"{t.axis.name}_start") for t in program.axes}
        self.inside = {t.axis: self._fresh(f"in_{t.axis.name}") for t in program.axes}
        self.first, self.rows = self._fresh("first"), self._fresh("rows")
        self.name: dict[Value, str] = {}
        self._bodies: dict[str, list[int]] = defaultdict(list)
        families = Counter(map(self.root, self.place))
        for value in self.place:
            root = self.root(value)
            if root not in self.name:
                body = self.place[root][0]
                inside = body > 0 and families[root] == 1 and root in self.definition
                self.name[root] = self._fresh_inside(root.name, body) if inside else self._fresh(root.name)
            self.name[value] = self.name[root]
        self.name |= {value: self.axis[axis] for value, axis in self.own.items()}

    def _fresh_inside(self, base: str, body: int) -> str:
        """A name for a value that lives in one body; another that lives in a body beside that may have it too."""
        name = next(n for n in _numbered(base) if n not in self._taken or self._is_apart(n, body))
        self._taken.add(name)
        self._bodies[name].append(body)
        return name

    def _is_apart(self, name: str, body: int) -> bool:
        """True if the name is used in bodies alone of which none holds this one or lies in it."""
        used = self._bodies.get(name, ())
        return bool(used) and all(b not in self._around(body) and body not in self._around(b) for b in used)

    def _around(self, body: int) -> list[int]:
        """A body and those that it lies in."""
        found = []
        while body >= 0:
            found.append(body)
            body = self.parents[body][0]
        return found

    def _fresh(self, base: str) -> str:
        name = next(n for n in _numbered(base) if n not in self._taken)
        self._taken.add(name)
        return name


def _numbered(base: str) -> Iterator[str]:
    base = identifier(base)
    yield base
    yield from (f"{base}_{n}" for n in count(1))


def _alike(a: Value, b: Value) -> bool:
    return a.dtype == b.dtype and a.axes == b.axes


# --- facts about statements -----------------------------------------------------------------------------------------


def _indices(s: Statement) -> tuple[Index, ...]:
    match s:
        case Position():
            return (s.index,)
        case Load() | Store():
            return (*s.index, *(i for i, _ in s.guards))
        case Loop():
            return s.bounds
    return ()


def mentioned(s: Statement) -> frozenset[Axis]:
    """Axes whose positions a statement itself computes with."""
    return frozenset(a for index in _indices(s) for a in index.axes)


def mentioned_below(s: Statement) -> frozenset[Axis]:
    below = (a for inner in s.body for a in mentioned_below(inner)) if isinstance(s, Loop) else ()
    return mentioned(s).union(below)


def _own_axis(s: Position) -> Axis | None:
    """The axis whose positions in 32 bits `s` is, and no more."""
    axis = next(iter(s.index.axes), None)
    short = axis is not None and s.out.dtype == "int32" and axis.extent < SHORT and s.index == Index.of(axis)
    return axis if short and s.out.axes in ((), (axis,)) else None


def whole_axis(index: Index, bound: int) -> Axis | None:
    """The axis of a guard that only keeps its positions below its extent."""
    if index.constant or len(index.terms) != 1:
        return None
    ((atom, coefficient),) = index.terms
    return atom if isinstance(atom, Axis) and coefficient == 1 and atom.extent == bound else None


def guarded_axes(statements: Iterable[Statement]) -> frozenset[Axis]:
    """Axes with a guard that their positions lie inside; each gets a named mask."""
    guards = [g for s in statements if isinstance(s, Load | Store) for g in s.guards]
    return frozenset(axis for index, bound in guards if (axis := whole_axis(index, bound)) is not None)
