"""Text of indices, masks and boxes: where a block lies in the arrays."""

from __future__ import annotations

from collections.abc import Iterable

from eqsat.backends.pallas.text import Names, enclosed, total
from eqsat.backends.pallas.views import Guard, Operands, Span, Tiles, View, live_guards
from eqsat.index import Atom, Axis, Dynamic, Index, Quotient, flatten
from eqsat.tile import Value


def aligned(text: str, own: tuple[Axis, ...], axes: tuple[Axis, ...]) -> str:
    """A block over `own` axes spelled so that it broadcasts against blocks over `axes`, which contain them."""
    order = tuple(a for a in axes if a in own)
    text = permuted(text, own, order)
    inner = axes[axes.index(order[0]) :] if order else ()
    if inner == order:
        return text
    parts = [":" if a in own else "None" for a in inner]
    if len(order) > 1 and inner[: len(order)] == order:
        parts = ["...", *parts[len(order) :]]
    return f"{enclosed(text)}[{', '.join(parts)}]"


def permuted(text: str, own: tuple[Axis, ...], order: tuple[Axis, ...]) -> str:
    """A block with its axes in another order."""
    if own == order:
        return text
    if len(own) == 2:
        return f"{enclosed(text)}.T"
    return f"{enclosed(text)}.transpose({', '.join(str(own.index(a)) for a in order)})"


class Positions:
    """Spells index expressions, and remembers which positions were used so that only these are computed."""

    def __init__(self, tiles: Tiles, names: Names) -> None:
        self.tiles = tiles
        self.names = names
        self.text_of: dict[Value, str] = {}
        self.axes_of: dict[Value, tuple[Axis, ...]] = {}  # the order of axes in which a value is held
        self._used: set[tuple[Axis, str]] = set()

    # --- positions of axes ------------------------------------------------------------------------------------

    def start(self, axis: Axis) -> str:
        """Position of the first lane of the tile."""
        if self.tiles.count(axis) == 1:
            return "0"
        if self.tiles.size(axis) == 1:
            return self.lanes(axis)
        self._used.add((axis, "start"))
        return self.names((axis, "start"), f"{axis.name}_start")

    def lanes(self, axis: Axis) -> str:
        """Positions of all lanes of the tile; a scalar where the tile is 1."""
        self._used.add((axis, "lanes"))
        return self.names((axis, "lanes"), axis.name)

    def prelude(self, axis: Axis, number: str) -> list[str]:
        """Lines that compute the used positions of an axis from the number of the tile; starts a new scope."""
        size, lines = self.tiles.size(axis), []
        if size == 1:
            name = self.names((axis, "lanes"), axis.name)
            return [f"{name} = {number}"] if self._taken(axis, "lanes") and name != number else []
        if self._taken(axis, "lanes"):
            start = f"{self.start(axis)} + " if self.tiles.count(axis) > 1 else ""
            lines.append(f"{self.names((axis, 'lanes'), axis.name)} = {start}jnp.arange({size}, dtype=jnp.int32)")
        if self._taken(axis, "start"):
            lines.insert(0, f"{self.names((axis, 'start'), '')} = {number} * {size}")
        return lines

    def _taken(self, axis: Axis, what: str) -> bool:
        found = (axis, what) in self._used
        self._used.discard((axis, what))
        return found

    # --- index expressions --------------------------------------------------------------------------------------

    def index(self, index: Index, axes: tuple[Axis, ...], operands: Operands = (), wide: bool = False) -> str:
        """The value of an index on a block over `axes`; block axes that are not among them stand at their first lane."""
        parts = [(self._atom(atom, axes, operands, wide), coefficient) for atom, coefficient in index.terms]
        return total([p for p in parts if p[0] != "0"], index.constant)

    def _atom(self, atom: Atom, axes: tuple[Axis, ...], operands: Operands, wide: bool) -> str:
        if isinstance(atom, Axis):
            return self._axis(atom, axes, wide)
        if isinstance(atom, Dynamic):
            value = operands[atom.slot]
            dtype = "int64" if wide else "int32"
            text = enclosed(self.text_of[value])
            return aligned(text if value.dtype == dtype else f"{text}.astype(jnp.{dtype})", self.axes_of[value], axes)
        sign = "//" if isinstance(atom, Quotient) else "%"
        return f"({enclosed(self.index(atom.index, axes, operands, wide))} {sign} {atom.divisor})"

    def _axis(self, axis: Axis, axes: tuple[Axis, ...], wide: bool) -> str:
        if self.tiles.size(axis) > 1 and axis not in axes:
            return self.start(axis)
        if self.tiles.size(axis) == 1 and self.tiles.count(axis) == 1:
            return "0"
        text, own = self.lanes(axis), self.tiles.blocks((axis,))
        return aligned(f"{text}.astype(jnp.int64)" if wide else text, own, axes)

    def mask(self, guards: Iterable[Guard], axes: tuple[Axis, ...], operands: Operands = ()) -> str:
        """The lanes that all guards admit; empty if all lanes are live."""
        tests = []
        for expression, bound in live_guards(guards, self.tiles):
            text = self.index(expression, axes, operands)
            low, high = self.tiles.lanes(expression)
            tests += [f"{text} >= 0"] * (low < 0) + [f"{text} < {bound}"] * (high >= bound)
        tests = list(dict.fromkeys(tests))
        return tests[0] if len(tests) == 1 else " & ".join(f"({t})" for t in tests)

    # --- boxes ----------------------------------------------------------------------------------------------------

    def box(self, spans: list[Span], view: View, operands: Operands = ()) -> str:
        """The subscript of a box, without brackets."""
        dimensions = zip(spans, view.padded, view.pads, view.cuts, strict=True)
        parts = [self._slice(s, n, low, cut, operands) for s, n, (low, _), cut in dimensions]
        parts = [p for p in parts if p]
        return ", ".join(parts) if any(p != ":" for p in parts) else "..."

    def _slice(self, span: Span, extent: int, low: int, cut: Axis | None, operands: Operands) -> str:
        if cut:
            return ":" if span.lanes else ""
        moved = [(self.start(axis), stride) for axis, stride in span.lanes]
        scalars = [(self._atom(atom, (), operands, False), coefficient) for atom, coefficient in span.start.terms]
        start = total([p for p in scalars + moved if p[0] != "0"], span.start.constant + low)
        if not span.lanes:
            return start
        if span.size == extent:
            return ":"
        return f"{start}:{int(start) + span.size}" if start.isdigit() else f"pl.ds({start}, {span.size})"

    def unpacked(self, text: str, spans: list[Span]) -> str:
        """A box with an axis for each of its block axes: cuts the strides apart, drops what lies between."""
        if all(len(s.lanes) <= 1 and s.dense(self.tiles) for s in spans):
            return text
        shape, keep = [], []
        for span in spans:
            steps = [stride for _, stride in span.lanes]
            for (axis, stride), outer in zip(span.lanes, [span.size, *steps], strict=False):
                shape.append(outer // stride)
                tile = self.tiles.size(axis)
                keep.append(":" if outer // stride == tile else f":{tile}")
            if steps and steps[-1] > 1:
                shape.append(steps[-1])
                keep.append("0")
        text = f"{text}.reshape({', '.join(map(str, shape))})"
        return text if all(k == ":" for k in keep) else f"{text}[{', '.join(keep)}]"

    def offsets(self, index: tuple[Index, ...], view: View, axes: tuple[Axis, ...], operands: Operands, wide: bool) -> str:
        """Row-major offsets into the padded array."""
        padded = [i + low for i, (low, _) in zip(view.indices(index), view.pads, strict=True)]
        flat = flatten(padded, view.padded)
        text = self.index(flat, axes, operands, wide)
        full = self.tiles.index_blocks(flat, operands) >= set(axes)
        return text if full else f"jnp.broadcast_to({text}, {self.tiles.shape(axes)})"
