"""Print a tile program as a standalone Triton file.

The text depends on the program alone, byte for byte. Sizes and strides are literals; offsets are row-major; a mask is
written only where the program guards, and a masked load always names what the dead lanes read.
"""

from __future__ import annotations

from collections.abc import Iterable

from eqsat.index import Atom, Axis, Dynamic, Index, Quotient, flatten
from eqsat.notation import Tensor
from eqsat.scalars import DTYPES, is_float
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
    TileAxis,
    TileProgram,
    Value,
    grouped_axes,
    of_starts,
    padded_range,
    results,
)

from .functions import combination, product_of_parts, softsum
from .plan import Plan, guarded_axes, mentioned, mentioned_below, whole_axis
from .text import LINE, bare, file_text, is_primary, kernel_name, literal, one_argument, operation, primary, shape_text

INT32 = 1 << 31
MIN_DEPTH_OF_BYTES = 32  # least extent of the summed axis in a product of 8-bit matrices

Axes = tuple[Axis, ...]
Guards = tuple[tuple[Index, int], ...]


def emit(program: TileProgram) -> str:
    """The text of a Python file with one `@triton.jit` kernel, its GRID, NUM_WARPS and NUM_STAGES, and `launch(*tensors)`."""
    return _Printer(program).text()


class _Printer:
    def __init__(self, program: TileProgram) -> None:
        self.program = program
        self.plan = Plan(program)
        self.persistent = program.programs < program.tile_count
        self.number = "tile" if self.persistent else "pid"  # of the tile at hand
        self.tile = {t.axis: t for t in program.axes}
        self.lines: list[str] = []
        self.indent = 1
        self.helpers: dict[str, str] = {}
        self.used = frozenset(a for s in program.statements() for a in mentioned(s))
        self.guarded = guarded_axes(program.statements())

    # --- the file -------------------------------------------------------------------------------------------------

    def text(self) -> str:
        if self.persistent:
            self.residents()
            self.line(f"for {self.number} in tl.range(tl.program_id(0), {self.program.tile_count}, tl.num_programs(0)):")
            self.indent += 1
            self.grid()
        else:
            self.grid()
            self.residents()
        self.block(self.program.body)
        name, parameters = kernel_name(self.program), tuple(self.plan.pointer.values())
        return file_text(self.program, tuple(self.helpers.values()), name, parameters, self.lines)

    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    def call(self, target: str, function: str, arguments: Iterable[str]) -> None:
        """A call on one line, or with one argument a line if it would be too long."""
        arguments = tuple(one_argument(a) for a in arguments)
        text = f"{target}{function}({', '.join(arguments)})"
        if 4 * self.indent + len(text) <= LINE:
            return self.line(text)
        self.line(f"{target}{function}(")
        for argument in arguments:
            self.line(f"    {argument},")
        self.line(")")

    # --- positions ------------------------------------------------------------------------------------------------

    def grid(self) -> None:
        """The tile numbers of the grid axes, in the order of `eqsat.tile.grid_position`."""
        many = [t for t in self.program.grid if t.count > 1]
        if many and any(t.axis in self.used for t in many):
            if not self.persistent:
                self.line(f"{self.number} = tl.program_id(0)")
            self.tile_numbers(many)
        for t in self.program.grid:
            if t.axis in self.used:
                self.position(t, self.number_of(t, many))

    def number_of(self, t: TileAxis, many: list[TileAxis]) -> str:
        if t.count == 1:
            return "0"
        return self.number if len(many) == 1 else self.plan.program_id[t.axis]

    def tile_numbers(self, many: list[TileAxis]) -> None:
        grouped = grouped_axes(self.program)
        slow = many[:-2] if grouped else many
        stride = 1
        for t in reversed(many):
            if t in slow and len(many) > 1 and t.axis in self.used:
                number = self.number if stride == 1 else f"{self.number} // {stride}"
                wrapped = number if t is many[0] else f"{number} % {t.count}"
                self.line(f"{self.plan.program_id[t.axis]} = {wrapped}")
            stride *= t.count
        if grouped:
            self.grouped_numbers(*grouped, alone=not slow)

    def grouped_numbers(self, outer: TileAxis, inner: TileAxis, alone: bool) -> None:
        """Groups of `group` rows of tiles are walked column by column, so that neighbours share operands in L2."""
        group, names = self.program.group, self.plan.program_id
        block = self.number
        if not alone:
            block = "block"
            self.line(f"block = {self.number} % {outer.count * inner.count}")
        width, first = group * inner.count, self.plan.first
        self.line(f"{first} = {block} // {width} * {group}  # tiles in groups of {group} rows, for reuse in L2")
        rows = str(group) if outer.count % group == 0 else self.plan.rows
        if outer.count % group:
            self.line(f"{rows} = tl.minimum({outer.count} - {first}, {group})")
        self.line(f"{names[outer.axis]} = {first} + {block} % {width} % {rows}")
        self.line(f"{names[inner.axis]} = {block} % {width} // {rows}")

    def position(self, t: TileAxis, number: str) -> None:
        """Positions along a grid axis."""
        if t.axis.extent + t.tile >= INT32 and number != "0":
            number += ".to(tl.int64)"
        self.positions(t, "" if number == "0" else number if t.tile == 1 else f"{number} * {t.tile}")

    def positions(self, t: TileAxis, start: str) -> None:
        name = self.plan.axis[t.axis]
        block = f"tl.arange(0, {t.tile})" if t.tile > 1 else ""
        text = " + ".join(p for p in (start, block) if p) or "0"
        if text != name:
            self.line(f"{name} = {text}")
        if t.axis in self.guarded:
            self.line(f"{self.plan.inside[t.axis]} = {name} < {t.axis.extent}")

    def residents(self) -> None:
        for t in self.program.axes:
            if t.role == "resident" and t.axis in self.used:
                self.positions(t, "")

    # --- values at a block ----------------------------------------------------------------------------------------

    def shape(self, axes: Axes) -> str:
        return shape_text(self.tile[a].tile for a in axes)

    def blocks(self, axes: Iterable[Axis], target: Axes) -> Axes:
        """Those of `axes` that are block dimensions, in the order of `target`."""
        wanted = {a for a in axes if self.tile[a].tile > 1}
        if missing := wanted - set(target):
            raise ValueError(f"{self.program.name}: a block over {_names(target)} mentions axis {_names(missing)}")
        return tuple(a for a in target if a in wanted)

    def spread(self, text: str, axes: Axes, target: Axes) -> str:
        """A block over `axes` with its dimensions where `target` has them, of size 1 elsewhere."""
        if not axes or axes == target:
            return text
        order = tuple(a for a in target if a in axes)
        if order != axes:
            permutation = tuple(axes.index(a) for a in order)
            text = f"tl.trans({text})" if permutation == (1, 0) else f"tl.permute({text}, {shape_text(permutation)})"
        if order == target:
            return text
        return f"{primary(text)}[{', '.join(':' if a in axes else 'None' for a in target)}]"

    def fill(self, text: str, axes: Iterable[Axis], target: Axes) -> str:
        """Text of the rank of `target` that varies over `axes`, made a block over all of `target`."""
        return text if set(axes) >= set(target) else f"tl.broadcast_to({text}, {self.shape(target)})"

    def expression(self, value: Value) -> str:
        """A value where it is used: its name, its literal, or its whole expression."""
        definition = self.plan.definition.get(value)
        if value in self.plan.literals and isinstance(definition, Const):
            return literal(definition.value, value.dtype)
        if value in self.plan.inlined and definition is not None:
            return self.right_side(definition)
        return self.plan.name[value]

    def operand(self, value: Value, target: Axes) -> str:
        return self.spread(self.expression(value), value.axes, target)

    # --- index expressions ----------------------------------------------------------------------------------------

    def index(self, index: Index, target: Axes, slots: tuple[Value, ...] = (), wide: bool = False) -> str:
        """An index expression over a block: a sum that needs parentheses inside a product."""
        ordered = sorted(index.terms, key=lambda term: -term[1])
        text = ""
        for number, (atom, coefficient) in enumerate(ordered):
            long = wide and (number == 0 or self.reach(atom) * abs(coefficient) >= INT32)
            factor = self.atom(atom, target, slots, long)
            product = factor if abs(coefficient) == 1 else f"{factor} * {abs(coefficient)}"
            text += ((" - " if text else "-") if coefficient < 0 else " + " if text else "") + product
        if not text:
            return str(index.constant)
        return text + (f" {'-' if index.constant < 0 else '+'} {abs(index.constant)}" if index.constant else "")

    def reach(self, atom: Atom) -> int:
        """A bound for the magnitude of an atom, past the end of a ragged axis included."""
        if isinstance(atom, Axis):
            return self.tile[atom].count * self.tile[atom].tile
        if isinstance(atom, Dynamic):
            return max(abs(atom.low), abs(atom.high))
        inner = sum(abs(c) * self.reach(a) for a, c in atom.index.terms) + abs(atom.index.constant)
        return -(-inner // atom.divisor) if isinstance(atom, Quotient) else atom.divisor

    def atom(self, atom: Atom, target: Axes, slots: tuple[Value, ...], wide: bool) -> str:
        if isinstance(atom, Axis):
            text = self.plan.axis[atom] + (".to(tl.int64)" if wide else "")
            return self.spread(text, self.blocks((atom,), target), target)
        if isinstance(atom, Dynamic):
            return self.dynamic(slots[atom.slot], target, wide)
        own = self.blocks((*atom.index.axes, *(a for s in atom.index.slots for a in slots[s].axes)), target)
        text = self.division(atom.index, atom.divisor, "//" if isinstance(atom, Quotient) else "%", own, slots)
        return self.spread(f"({text}).to(tl.int64)" if wide else text, own, target)

    def division(self, index: Index, divisor: int, sign: str, own: Axes, slots: tuple[Value, ...]) -> str:
        """Triton's division truncates; a multiple of the divisor is added first where the index can be negative."""
        low, high = padded_range(index, self.tile)
        shift = max(0, -(low // divisor))
        wide = high >= INT32 or -low >= INT32
        inner = self.index(index + shift * divisor, own, slots, wide)
        text = f"{inner if is_primary(inner) else f'({inner})'} {sign} {divisor}"
        return f"({text} - {shift})" if shift and sign == "//" else text

    def dynamic(self, value: Value, target: Axes, wide: bool) -> str:
        text = self.operand(value, target)
        if wide and value.dtype != "int64":
            return f"{text}.to(tl.int64)"
        return f"{text}.to(tl.int32)" if DTYPES[value.dtype].nbytes < 4 else text

    # --- memory ---------------------------------------------------------------------------------------------------

    def pointer(self, tensor: Tensor, index: tuple[Index, ...], target: Axes, slots: tuple[Value, ...], wide: bool) -> str:
        offset = self.index(flatten(index, tensor.shape), target, slots, wide)
        name = self.plan.pointer[tensor]
        if offset.startswith("-"):
            return f"{name} - {offset[1:]}"
        return name if offset == "0" else f"{name} + {offset}"

    def mask(self, guards: Guards, target: Axes, slots: tuple[Value, ...] = ()) -> str:
        """The guards together; "" if they always hold."""
        tests = (self.guard(*guard, target, slots) for guard in guards)
        return " & ".join(dict.fromkeys(test for test in tests if test))

    def guard(self, index: Index, bound: int, target: Axes, slots: tuple[Value, ...]) -> str:
        if (axis := whole_axis(index, bound)) is not None:
            return self.spread(self.plan.inside[axis], self.blocks((axis,), target), target)
        low, high = padded_range(index, self.tile)
        if not index.terms:
            return "" if 0 <= low < bound else "tl.full((), False, tl.int1)"
        wide = high >= INT32 or low < -INT32
        own = self.blocks((*index.axes, *(a for s in index.slots for a in slots[s].axes)), target)
        text = self.index(index, own, slots, wide)
        test = f"({text} < {bound})"
        if low < 0:
            test = f"(({text} >= 0) & ({text} < {bound}))"
        return self.spread(test, own, target)

    # --- statements -----------------------------------------------------------------------------------------------

    def block(self, body: tuple[Statement, ...]) -> None:
        for statement in body:
            self.statement(statement)

    def statement(self, s: Statement) -> None:
        if isinstance(s, Loop):
            return self.loop(s)
        if isinstance(s, Store):
            return self.store(s)
        if s.out in self.plan.inlined or s.out in self.plan.literals or s.out in self.plan.own:
            return None
        target = f"{', '.join(self.plan.name[v] for v in reversed(results(s)))} = "
        if isinstance(s, Load):
            return self.call(target, "tl.load", self.load_arguments(s))
        if isinstance(s, Dot):
            return self.dot(s, target)
        return self.line(target + bare(self.right_side(s)))

    def load_arguments(self, s: Load) -> list[str]:
        arguments = [self.pointer(s.tensor, s.index, s.out.axes, s.operands, s.wide)]
        if mask := self.mask(s.guards, s.out.axes, s.operands):
            arguments += [f"mask={mask}", f"other={literal(s.other, s.tensor.dtype)}"]
        return arguments

    def store(self, s: Store) -> None:
        pointer = self.pointer(s.tensor, s.index, s.axes, s.operands, s.wide)
        varies = self.blocks((*(a for i in s.index for a in i.axes), *(a for v in s.operands for a in v.axes)), s.axes)
        arguments = [self.fill(pointer, varies, s.axes), self.operand(s.value, s.axes)]
        if mask := self.mask(s.guards, s.axes, s.operands):
            arguments.append(f"mask={mask}")
        if s.adds:
            arguments.append('sem="relaxed"')
        self.call("", "tl.atomic_add" if s.adds else "tl.store", arguments)

    def right_side(self, s: Statement) -> str:
        """The expression of a statement, in parentheses where it must be."""
        match s:
            case Const():
                return self.const(s)
            case Position():
                return self.position_value(s)
            case Compute():
                return self.compute(s)
            case Cast():
                return self.cast(self.expression(s.arg), s.arg.dtype, s.out.dtype)
            case Reduce():
                return self.reduce(s)
            case Scan():
                return self.scan(s)
        raise TypeError(f"{self.program.name}: no expression for {s}")

    def const(self, s: Const) -> str:
        dtype = f"tl.{DTYPES[s.out.dtype].triton}"
        if s.out.axes and str(s.value) in ("0", "0.0"):
            return f"tl.zeros({self.shape(s.out.axes)}, {dtype})"
        return f"tl.full({self.shape(s.out.axes)}, {literal(s.value, s.out.dtype)}, {dtype})"

    def position_value(self, s: Position) -> str:
        axes, dtype = s.out.axes, f"tl.{DTYPES[s.out.dtype].triton}"
        varies = self.blocks(s.index.axes, axes)
        if not s.index.terms or not s.index.axes:
            return f"tl.full({self.shape(axes)}, {s.index.constant}, {dtype})"
        text = self.index(s.index, axes, wide=s.out.dtype in ("int64", "uint64"))
        text = self.fill(text if is_primary(text) else f"({text})", varies, axes)
        return text if s.out.dtype in ("int32", "int64") else f"{text}.to({dtype})"

    def compute(self, s: Compute) -> str:
        axes = s.out.axes
        if (axis := self.inside_test(s)) is not None:
            return self.spread(self.plan.inside[axis], self.blocks((axis,), axes), axes)
        text = operation(s.op, s.out.dtype).format(*(self.operand(a, axes) for a in s.args))
        return self.fill(text, (a for arg in s.args for a in arg.axes), axes)

    def inside_test(self, s: Compute) -> Axis | None:
        """The axis whose named mask is what `s` computes."""
        position, bound = (self.plan.definition.get(a) for a in s.args) if s.op == "lt" else (None, None)
        if not isinstance(position, Position) or not isinstance(bound, Const):
            return None
        axis = whole_axis(position.index, int(bound.value))
        return axis if axis in self.guarded and s.out.axes == position.out.axes else None

    def cast(self, text: str, source: str, target: str) -> str:
        if source == target:
            return text
        if target == "bool":
            return f"({text} != {literal(0, source)})"
        if not is_float(source) and is_float(target) and DTYPES[target].nbytes == 1:
            text = self.cast(text, source, "float32")  # Triton has no way from integers; what float32 would round overflows
        return f"{primary(text)}.to(tl.{DTYPES[target].triton})"

    def reduce(self, s: Reduce) -> str:
        arg, dtype, position = self.expression(s.arg), s.arg.dtype, s.arg.axes.index(s.axis)
        rest = tuple(a for a in s.arg.axes if a != s.axis)
        row = DTYPES[dtype]
        if row.kind == "bool":
            function = {"or": "max", "max": "max", "and": "min", "min": "min"}[s.op]
            text = f"(tl.{function}({primary(arg)}.to(tl.int32), axis={position}) != 0)"
        elif s.op in ("sum", "max", "min"):
            text = f"tl.{s.op}({arg}, axis={position})"
            if row.nbytes < 4 and (row.kind != "float" or s.op != "sum"):
                text += f".to(tl.{row.triton})"  # Triton folds narrow numbers in 32 bits
        else:
            text = f"tl.reduce({arg}, {position}, {self.needed(combination(s.op))})"
        return self.spread(text, rest, s.out.axes)

    def scan(self, s: Scan) -> str:
        arg, position = self.operand(s.arg, s.out.axes), s.out.axes.index(s.axis)
        reverse = ", reverse=True" if s.reverse else ""
        if s.scores is not None:
            scores, sums = (bare(self.fill(self.operand(v, s.out.axes), v.axes, s.out.axes)) for v in (s.scores, s.arg))
            return f"tl.associative_scan(({scores}, {sums}), {position}, {self.needed(softsum())}{reverse})"
        if s.op not in ("sum", "prod"):
            return f"tl.associative_scan({arg}, {position}, {self.needed(combination(s.op))}{reverse})"
        row = DTYPES[s.out.dtype]
        return f"tl.cum{s.op}({arg}, axis={position}{reverse})" + (f".to(tl.{row.triton})" if row.nbytes < 4 else "")

    def needed(self, helper: tuple[str, str]) -> str:
        """The name of a function that stands beside the kernel."""
        name, self.helpers[name] = helper
        return name

    def dot(self, s: Dot, target: str) -> None:
        """The operands in the order that gives the result its axes, so that only operands are ever transposed."""
        left, right = (s.a, s.b) if s.out.axes[0] in s.a.axes else (s.b, s.a)
        operands = [self.operand(left, (s.out.axes[0], s.axis)), self.operand(right, (s.axis, s.out.axes[1]))]
        acc = [] if s.acc is None else [self.operand(s.acc, s.out.axes)]
        if DTYPES[s.a.dtype].nbytes == 1 and self.tile[s.axis].tile < MIN_DEPTH_OF_BYTES:
            operands = [f"{primary(operand)}.to(tl.float16)" for operand in operands]  # holds every 8-bit number
            if s.out.dtype == "int32":  # so few products add up exactly in float32
                return self.line(
                    f"{target}{' + '.join([*acc, f'tl.dot({bare(operands[0])}, {bare(operands[1])}).to(tl.int32)'])}"
                )
        if left.dtype != right.dtype:
            name = self.needed(product_of_parts("a" if left.dtype == "float32" else "b"))
            return self.call(target, name, [*operands, *(acc or ["None"])])
        options = []
        if s.a.dtype == "float32":
            options.append('input_precision="ieee"')  # full float32 products, not TF32
        if s.out.dtype != "float32":
            options.append(f"out_dtype=tl.{DTYPES[s.out.dtype].triton}")
        self.call(target, "tl.dot", [*operands, *acc, *options])

    # --- loops ----------------------------------------------------------------------------------------------------

    def loop(self, s: Loop) -> None:
        for carry in s.carries:
            self.assign(self.plan.name[carry.state], carry.init, carry.state)
        t = self.tile[s.axis]
        inside = frozenset(a for inner in s.body for a in mentioned_below(inner))
        start = self.plan.start[s.axis] if t.tile > 1 else self.plan.axis[s.axis]
        step = f", {t.tile}" if t.tile > 1 else ""
        limits = f"{(t.count - 1) * t.tile}, -1, -{t.tile}" if s.backward else f"{self.first(s)}, {self.end(s)}{step}"
        self.line(f"for {start} in range({limits}):")
        self.indent += 1
        before = len(self.lines)
        if s.axis in inside and t.tile > 1:
            self.positions(t, start)
        self.block(s.body)
        self.carry_on(s.carries)
        if len(self.lines) == before:
            self.line("pass")
        self.indent -= 1

    def first(self, s: Loop) -> str:
        """Where a loop begins: a multiple of its tile."""
        tile, starts = self.tile[s.axis].tile, of_starts(s.low or Index(), self.tile)
        start = "0" if s.start is None else bare(self.expression(s.start))
        text = start if s.low is None else self.bound(s.low)
        if s.low is not None and (s.start is not None or starts.range[0] < 0):
            text = f"tl.maximum({text}, {start})"
        whole = s.start is None and all(n % tile == 0 for n in (starts.constant, *(c for _, c in starts.terms)))
        return text if whole or tile == 1 else f"{primary(text)} // {tile} * {tile}"

    def end(self, s: Loop) -> str:
        end = str(s.axis.extent) if s.end is None else bare(self.expression(s.end))
        if s.high is None:
            return end
        beyond = s.end is not None or of_starts(s.high, self.tile).range[1] > s.axis.extent
        return f"tl.minimum({self.bound(s.high)}, {end})" if beyond else self.bound(s.high)

    def bound(self, index: Index) -> str:
        """An index at the first positions of the tiles that it mentions."""
        many = [t for t in self.program.grid if t.count > 1]
        text = ""
        for atom, coefficient in index.terms:
            t = self.tile[atom]  # type: ignore[index]
            factor = abs(coefficient)
            if t.role == "loop" and t.tile > 1:
                number = self.plan.start[t.axis]
            elif t.tile == 1:
                number = self.plan.axis[t.axis]
            else:
                number, factor = self.number_of(t, many), factor * t.tile
            product = number if factor == 1 else f"{number} * {factor}"
            text += (" - " if coefficient < 0 else " + ") + product
        if index.constant:
            text += f" {'-' if index.constant < 0 else '+'} {abs(index.constant)}"
        return text[3:] if text.startswith(" + ") else f"0{text}"

    def assign(self, name: str, value: Value, like: Value) -> None:
        text = self.carried(value, like)
        if text != name:
            self.line(f"{name} = {bare(text)}")

    def carried(self, value: Value, like: Value) -> str:
        """A value with exactly the axes of the state that takes it: a loop may not change a shape."""
        return self.fill(self.operand(value, like.axes), value.axes, like.axes)

    def carry_on(self, carries: tuple[Carry, ...]) -> None:
        """The states take their next values, all at once if one of them is another's next value."""
        pairs = [(self.plan.name[c.state], bare(self.carried(c.result, c.state))) for c in carries]
        pairs = [(name, text) for name, text in pairs if name != text]
        states = {name for name, _ in pairs}
        if any(text in states for _, text in pairs):
            self.line(f"{', '.join(n for n, _ in pairs)} = {', '.join(t for _, t in pairs)}")
            return
        for name, text in pairs:
            self.line(f"{name} = {text}")


def _names(axes: Iterable[Axis]) -> str:
    return ", ".join(sorted(str(a) for a in axes)) or "no axes"
