"""Prints a tile program as a standalone Pallas file.

The file holds a kernel over blocks, and `run`, which pads the arrays, calls the kernel and cuts the padding off again.
It is in the portable dialect of Pallas: no reduction along the grid, masks on padded data, nothing that only one target
knows. What has no such form (gathers, stores that leave lanes out) is printed all the same, and the file's head says so.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable
from math import prod

from eqsat.backends.pallas.blocks import Positions, aligned, permuted
from eqsat.backends.pallas.text import WIDTH, Names, bare, dtype_name, enclosed, indented, literal, tupled
from eqsat.backends.pallas.views import Guard, Span, Tiles, View, box_of, guards_left, views
from eqsat.backends.pallas.wrapper import empty_wrapper, wrapper
from eqsat.index import Axis
from eqsat.notation import Tensor, Window
from eqsat.scalars import DTYPES, SCALARS
from eqsat.tile import Carry, Cast, Compute, Const, Dot, Load, Loop, Position, Reduce, Scan, Statement, Store, TileProgram, Value

IMPORTS = ("import jax", "import jax.numpy as jnp", "from jax import lax", "from jax.experimental import pallas as pl")

SOFTSUM = (
    "def softsum(a, b):",
    '    """Sums of exponentials, each beside the maximum that it is relative to, as one relative to the greater."""',
    "    less = jnp.where(a[0] == b[0], 0.0, -jnp.abs(a[0] - b[0]))",
    "    weight = jnp.exp(less)",
    "    return jnp.maximum(a[0], b[0]), jnp.where(a[0] < b[0], a[1] * weight + b[1], a[1] + b[1] * weight)",
    "",
    "",
)


def emit(program: TileProgram) -> str:
    """The text of a file with `run(*arrays, interpret=False, compiler_params=None) -> tuple of arrays`."""
    if not program.programs or all(t.size == 0 for t in program.outputs):
        return "\n".join([*_docstring(program.header), *IMPORTS[1:2], "", "", *empty_wrapper(program), ""])
    printer = Printer(program)
    kernel = printer.kernel()
    run = wrapper(program, printer.views, printer.tiles)
    head = _docstring([*program.header, *([""] if program.header and printer.notes else []), *printer.notes])
    return "\n".join([*head, *IMPORTS, "", "", *printer.helpers, *kernel, "", "", *run, ""])


def _docstring(text: Iterable[str]) -> list[str]:
    lines = [part for line in text for part in _wrapped(line)]
    if not lines:
        return []
    safe = [line.replace("\\", "\\\\").replace('"""', "'''").rstrip() for line in lines]
    safe[-1] += " " if safe[-1].endswith('"') else ""
    return [f'"""{safe[0]}"""', ""] if len(safe) == 1 else [f'"""{safe[0]}', *safe[1:], '"""', ""]


def _wrapped(line: str) -> list[str]:
    """A line of the head, folded where it is long."""
    return textwrap.wrap(line, WIDTH, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False) or [""]


class Printer:
    """Spells the body of one program; `notes` collects what the head of the file must say."""

    def __init__(self, program: TileProgram) -> None:
        self.program = program
        self.tiles = Tiles(program)
        self.names = Names()
        self.views = views(program, self.tiles)
        self.notes: list[str] = []
        self.helpers: tuple[str, ...] = ()
        self.positions = Positions(self.tiles, self.names)
        self.text_of, self.axes_of = self.positions.text_of, self.positions.axes_of
        self._inline = _inlined(program)
        refs = {t: self.names(("ref", t), f"{t.name}_ref") for t in (*program.inputs, *program.outputs)}
        zeros = [self.names(("zeros", n), f"{program.outputs[n].name}_zeros_ref") for n in program.zeroed]
        self._refs, given = refs, list(refs.values())
        self._parameters = [*given[: len(program.inputs)], *zeros, *given[len(program.inputs) :]]
        for axis in program.axes:
            self.names((axis.axis, "lanes"), axis.axis.name)

    def kernel(self) -> list[str]:
        body = self._lines(self.program.body)
        grid = [t.axis for t in self.program.grid if t.count > 1]
        prelude = [line for number, axis in enumerate(grid) for line in self.positions.prelude(axis, f"pl.program_id({number})")]
        for t in self.program.axes:
            if t.role != "loop" and t.axis not in grid:
                prelude += self.positions.prelude(t.axis, "0")
        return [f"def kernel({', '.join(self._parameters)}):", *indented(prelude + body)]

    def _lines(self, body: tuple[Statement, ...]) -> list[str]:
        return [line for statement in body for line in self._printers[type(statement)](self, statement)]

    # --- values -----------------------------------------------------------------------------------------------------

    def _hold(self, out: Value, text: str, axes: tuple[Axis, ...] | None = None) -> None:
        self.text_of[out] = text
        self.axes_of[out] = out.axes if axes is None else axes

    def _assign(self, out: Value, text: str, axes: tuple[Axis, ...] | None = None) -> list[str]:
        """Compute a value; its block has `axes` in the order given, else in the value's own order."""
        name = self.names(out, out.name)
        self._hold(out, name, axes)
        return [f"{name} = {bare(text)}"]

    def _aligned(self, value: Value, axes: tuple[Axis, ...]) -> str:
        return aligned(self.text_of[value], self.axes_of[value], axes)

    def _permuted(self, value: Value, *order: Axis) -> str:
        return permuted(self.text_of[value], self.axes_of[value], order)

    def _broadcast(self, value: Value, axes: tuple[Axis, ...]) -> str:
        text = self._aligned(value, axes)
        return text if set(value.axes) == set(axes) else f"jnp.broadcast_to({text}, {self.tiles.shape(axes)})"

    def _order(self, out: Value, args: tuple[Value, ...]) -> tuple[Axis, ...]:
        """The order of axes that the first operand with all of them has, so that nothing is transposed needlessly."""
        orders = (self.axes_of[a] for a in args if set(a.axes) == set(out.axes))
        return next(orders, out.axes)

    def _typed(self, value: float | int | bool, out: Value) -> str:
        text, dtype = literal(value, out.dtype), dtype_name(out.dtype)
        return f"jnp.full({self.tiles.shape(out.axes)}, {text}, {dtype})"

    def _const(self, s: Const) -> list[str]:
        if s.out in self._inline:
            self._hold(s.out, literal(s.value, s.out.dtype))
            return []
        return self._assign(s.out, self._typed(s.value, s.out))

    def _position(self, s: Position) -> list[str]:
        wide = s.out.dtype == "int64"
        text = self.positions.index(s.index, s.out.axes, wide=wide)
        if text.lstrip("-").isdigit():
            return self._assign(s.out, self._typed(int(text), s.out))
        if s.out.dtype not in ("int32", "int64"):
            text = f"{enclosed(text)}.astype({dtype_name(s.out.dtype)})"
        if text.isidentifier():
            self._hold(s.out, text)
            return []
        return self._assign(s.out, text)

    def _compute(self, s: Compute) -> list[str]:
        axes = self._order(s.out, s.args)
        args = [self._operand(s.op, a, axes) for a in s.args]
        if set(axes) != {axis for a in s.args for axis in a.axes}:
            args[-1] = self._broadcast(s.args[-1], axes)
        return self._assign(s.out, SCALARS[s.op].jax.format(*args), axes)

    def _operand(self, op: str, value: Value, axes: tuple[Axis, ...]) -> str:
        """An operand; functions of lax give a literal no dtype of what it meets."""
        text = self._aligned(value, axes)
        return f"{dtype_name(value.dtype)}({text})" if value in self._inline and SCALARS[op].jax.startswith("lax.") else text

    def _cast(self, s: Cast) -> list[str]:
        axes = self._order(s.out, (s.arg,))
        return self._assign(s.out, f"{enclosed(self._broadcast(s.arg, axes))}.astype({dtype_name(s.out.dtype)})", axes)

    def _reduce(self, s: Reduce) -> list[str]:
        axes = self.axes_of[s.arg]
        rest = tuple(a for a in axes if a != s.axis)
        return self._assign(s.out, _fold(s, self.text_of[s.arg], axes.index(s.axis)), rest)

    def _scan(self, s: Scan) -> list[str]:
        axes = self.axes_of[s.arg]
        if s.reverse or s.op != "sum" or s.scores is not None:
            self._note("Running folds other than forward sums are lowered by XLA and the interpreter alone.")
        if s.scores is not None:
            return self._scan_pairs(s)
        name = f"lax.cum{s.op}"
        return self._assign(s.out, f"{name}({self.text_of[s.arg]}, axis={axes.index(s.axis)}, reverse={s.reverse})", axes)

    def _scan_pairs(self, s: Scan) -> list[str]:
        """Running maxima, and sums of exponentials relative to them."""
        assert s.scores is not None and s.largest is not None
        axes, self.helpers = s.out.axes, SOFTSUM
        scores, sums = (self._broadcast(v, axes) for v in (s.scores, s.arg))
        names = [self.names(v, v.name) for v in (s.largest, s.out)]
        for v, name in zip((s.largest, s.out), names, strict=True):
            self._hold(v, name, axes)
        call = f"lax.associative_scan(softsum, ({scores}, {sums}), axis={axes.index(s.axis)}, reverse={s.reverse})"
        return [f"{', '.join(names)} = {call}"]

    def _dot(self, s: Dot) -> list[str]:
        axes = self.axes_of[s.acc] if s.acc else s.out.axes
        left, right = (s.a, s.b) if axes[0] in s.a.axes else (s.b, s.a)
        x, y = self._permuted(left, axes[0], s.axis), self._permuted(right, s.axis, axes[1])
        precision = ", precision=lax.Precision.HIGHEST" if "float32" in (left.dtype, right.dtype) else ""
        text = f"jnp.dot({x}, {y}, preferred_element_type={dtype_name(s.out.dtype)}{precision})"
        return self._assign(s.out, f"{self.text_of[s.acc]} + {text}" if s.acc else text, axes)

    # --- arrays -----------------------------------------------------------------------------------------------------

    def _load(self, s: Load) -> list[str]:
        view = self.views[s.tensor]
        spans = box_of(s, view, self.tiles)
        if spans is None:
            axes = s.out.axes
            before, text = self._gather(s, view)
        else:
            axes = tuple(axis for span in spans for axis in span.axes)
            box = f"{self._refs[s.tensor]}[{self.positions.box(spans, view, s.operands)}]"
            before, text = [], self.positions.unpacked(box, spans)
        mask = self.positions.mask(guards_left(s, view, self.tiles), axes, s.operands)
        if not mask:
            return [*before, *self._assign(s.out, text, axes)]
        name, other = self.names(s.out, s.out.name), literal(s.other, s.out.dtype)
        if len(name) + len(mask) + len(text) > WIDTH - 25:
            before, text = [*before, f"{name} = {text}"], name
        if 2 * len(name) + len(mask) > WIDTH - 25:
            live = self.names((s, "live"), f"{name}_live")
            before, mask = [*before, f"{live} = {mask}"], live
        return [*before, *self._assign(s.out, f"jnp.where({mask}, {text}, {other})", axes)]

    def _gather(self, s: Load, view: View) -> tuple[list[str], str]:
        self._note(f"Not in the portable box form: elements of {s.tensor.name} are gathered.")
        offsets = self.positions.offsets(s.index, view, s.out.axes, s.operands, s.wide)
        at = self.names((s, "at"), f"{s.out.name}_at")
        return [f"{at} = {bare(offsets)}"], f'jnp.take({self._flat(s.tensor, view)}, {at}, mode="clip")'

    def _flat(self, tensor: Tensor, view: View) -> str:
        return f"{self._refs[tensor]}[...]{'' if len(view.shape) == 1 else '.reshape(-1)'}"

    def _store(self, s: Store) -> list[str]:
        view = self.views[s.tensor]
        if isinstance(s.tensor, Window) and s.tensor.base is not None:
            self._note(
                f"Not in the portable box form: a part of {s.tensor.name} is written, in the buffer of {s.tensor.base.name},"
            )
            self._note("which is right where references are addresses, as on GPUs.")
        guards = guards_left(s, view, self.tiles)
        whole = [g for g in guards if not self.tiles.index_blocks(g[0], s.operands) & self._written(s)]
        lanes = [g for g in guards if g not in whole]
        lines = self._write(s, view, lanes)
        if not whole:
            return lines
        body = [f"@pl.when({self.positions.mask(whole, (), s.operands)})", f"def {self.names(s, f'store_{s.tensor.name}')}():"]
        return ["", *body, *indented(lines), ""]

    def _written(self, s: Store) -> frozenset[Axis]:
        """The block axes that the address of a store depends on."""
        return frozenset(axis for i in s.index for axis in self.tiles.index_blocks(i, s.operands))

    def _write(self, s: Store, view: View, guards: list[Guard]) -> list[str]:
        spans = None if s.adds else box_of(s, view, self.tiles)
        if spans is None:
            return self._scatter(s, view, guards)
        own = tuple(axis for span in spans for axis in span.axes)
        value = self._merged(self._stored(s, own), spans)
        target = f"{self._refs[s.tensor]}[{self.positions.box(spans, view, s.operands)}]"
        if not guards:
            return [f"{target} = {value}"]
        self._note(f"Not in the portable box form: a masked store to {s.tensor.name} rewrites what it leaves out,")
        self._note("which is right only where programs run one after another.")
        mask = self._merged(aligned(f"({self.positions.mask(guards, own, s.operands)})", own, own), spans)
        return [f"{target} = jnp.where({bare(mask)}, {value}, {target})"]

    def _stored(self, s: Store, axes: tuple[Axis, ...]) -> str:
        """The value over the axes of its address; any lane of another axis will do, since guards chose the first."""
        text, own = self.text_of[s.value], self.axes_of[s.value]
        extra = [a for a in own if a not in axes]
        if extra:
            text = f"{enclosed(text)}[{', '.join('0' if a in extra else ':' for a in own)}]"
            own = tuple(a for a in own if a not in extra)
        text = aligned(text, own, axes)
        return text if set(own) == set(axes) else f"jnp.broadcast_to({text}, {self.tiles.shape(axes)})"

    def _merged(self, text: str, spans: list[Span]) -> str:
        """A block with one dimension per span: the inverse of unpacking."""
        if all(len(s.lanes) <= 1 for s in spans):
            return text
        return f"{enclosed(text)}.reshape({', '.join(str(s.size) for s in spans if s.lanes)})"

    def _scatter(self, s: Store, view: View, guards: list[Guard]) -> list[str]:
        self._note(f"Not in the portable box form: elements of {s.tensor.name} are {'added to' if s.adds else 'scattered'},")
        self._note("which is right only where programs run one after another.")
        axes = s.axes if s.adds else tuple(a for a in s.axes if a in self._written(s))
        offsets = self.positions.offsets(s.index, view, axes, s.operands, s.wide)
        mask = self.positions.mask(guards, axes, s.operands)
        at = self.names((s, "at"), f"{s.tensor.name}_at")
        dead = [f"{at} = jnp.where({mask}, {at}, {prod(view.padded)})"] if mask else []
        shaped = "" if len(view.shape) == 1 else f".reshape({', '.join(map(str, view.padded))})"
        method = "add" if s.adds else "set"
        put = f'{self._flat(s.tensor, view)}.at[{at}].{method}({self._stored(s, axes)}, mode="drop"){shaped}'
        return [f"{at} = {bare(offsets)}", *dead, f"{self._refs[s.tensor]}[...] = {put}"]

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    # --- loops ------------------------------------------------------------------------------------------------------

    def _loop(self, s: Loop) -> list[str]:
        size, count = self.tiles.size(s.axis), self.tiles.count(s.axis)
        name = self.names(s, f"over_{s.axis.name}")
        step = self.names((s.axis, "lanes"), s.axis.name) if size == 1 else self.names((s.axis, "step"), f"{s.axis.name}_tile")
        before = [self._broadcast(c.init, c.state.axes) for c in s.carries]
        states = self._fresh(s.carries, lambda c: c.state)
        body = self._lines(s.body)
        results = [self._broadcast(c.result, c.state.axes) for c in s.carries]
        finals = self._fresh(s.carries, lambda c: c.final)
        one = len(states) == 1
        head = f"def {name}({step}, {states[0] if one else 'carry'}):"
        unpack = [f"{', '.join(states)} = carry"] if len(states) > 1 else []
        back = [f"return {', '.join(results) or 'carry'}"]
        lines, first, last = self._visited(s, size, count)
        call = f"lax.fori_loop({first}, {last}, {name}, {before[0] if one else tupled(before)})"
        target = f"{', '.join(finals)} = " if finals else ""
        turned = [f"{step} = {count - 1} - {step}"] if s.backward else []
        inner = [*unpack, *turned, *self.positions.prelude(s.axis, step), *body, *back]
        return ["", head, *indented(inner), "", *lines, f"{target}{call}"]

    def _visited(self, s: Loop, size: int, count: int) -> tuple[list[str], str, str]:
        """Lines that compute the numbers of the first tile of a loop and of the one behind the last, and both."""
        divided = "" if size == 1 else f" // {size}"
        start = "0" if s.start is None else self.text_of[s.start]
        end = str(count)
        if s.end is not None:
            end = f"({self.text_of[s.end]} + {size - 1}){divided}" if divided else self.text_of[s.end]
        lines: list[str] = []
        if s.low is not None:
            start = f"jnp.maximum({self.positions.index(s.low, ())}, {start})"
        if s.high is not None:
            end = f"jnp.minimum({enclosed(self.positions.index(s.high + (size - 1), ()))}{divided}, {end})"
        if start != "0":
            first = self.names((s, "first"), f"{s.axis.name}_first")
            lines.append(f"{first} = {start}{divided}")
            start = first
        if end != str(count):
            last = self.names((s, "last"), f"{s.axis.name}_last")
            lines.append(f"{last} = {end}")
            end = last
        return lines, start, end

    def _fresh(self, carries: tuple[Carry, ...], value: Callable[[Carry], Value]) -> list[str]:
        for carry in carries:
            self._hold(value(carry), self.names(value(carry), value(carry).name))
        return [self.text_of[value(c)] for c in carries]

    _printers: dict[type, Callable[..., list[str]]] = {
        Const: _const,
        Position: _position,
        Load: _load,
        Compute: _compute,
        Cast: _cast,
        Reduce: _reduce,
        Scan: _scan,
        Dot: _dot,
        Loop: _loop,
        Store: _store,
    }


def _inlined(program: TileProgram) -> set[Value]:
    """Scalar constants that are spelled as literals: every use is beside an operand that gives them their dtype."""
    small = range(-(2**31), 2**31)
    found = {
        s.out
        for s in program.statements()
        if isinstance(s, Const) and not s.out.axes and ("float" in s.out.dtype or int(s.value) in small)
    }
    constants = set(found)
    for s in program.statements():
        if isinstance(s, Compute):
            typed = s.args[1:] if s.op == "where" else s.args
            if all(a in constants for a in typed):
                found -= set(typed)
            found -= set(s.args) - set(typed)
        else:
            found -= set(_other_uses(s))
    return found


def _other_uses(statement: Statement) -> tuple[Value, ...]:
    match statement:
        case Load():
            return statement.operands
        case Cast() | Reduce():
            return (statement.arg,)
        case Scan():
            return statement.operands
        case Dot():
            return (statement.acc,) if statement.acc else ()
        case Store():
            return (*statement.operands, statement.value)
        case Loop():
            return (*(v for c in statement.carries for v in (c.init, c.result)), *statement.ends)
    return ()


def _fold(s: Reduce, text: str, number: int) -> str:
    """A reduction by JAX; narrow integers keep their dtype, which `jnp.sum` would widen."""
    if s.op in ("and", "or"):
        if s.arg.dtype == "bool":
            return f"jnp.{'all' if s.op == 'and' else 'any'}({text}, axis={number})"
        return f"lax.reduce_{s.op}({text}, ({number},))"
    narrow = s.op in ("sum", "prod") and "float" not in s.out.dtype and DTYPES[s.out.dtype].nbytes < 4
    dtype = f", dtype={dtype_name(s.out.dtype)}" if narrow else ""
    return f"jnp.{s.op}({text}, axis={number}{dtype})"
