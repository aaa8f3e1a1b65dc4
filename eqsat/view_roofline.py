"""The roofline plot: operations per second over operations per byte, log-log, each kernel a dot before and after."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, cos, floor, log10, radians, sin, sqrt
from typing import TYPE_CHECKING, Any

from eqsat.report import nbytes, operations, time
from eqsat.roofline import BOUNDS, Point
from eqsat.view_markup import Markup, el
from eqsat.view_model import Picture
from eqsat.view_numbers import Disc, places

if TYPE_CHECKING:
    from eqsat.program import Program

WIDTH, HEIGHT = 860.0, 430.0
LEFT, RIGHT, TOP, BOTTOM = 74.0, 18.0, 18.0, 50.0
NUMBER = 7.0  # radius of the room of a kernel's number
LETTER = 6.2  # width of a letter at a ceiling, about
NEGLIGIBLE = 0.002  # share of the time below which a kernel has no dot
PREFIXES = {0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P"}


@dataclass(frozen=True)
class Axis:
    """A logarithmic axis from 10**low to 10**high, drawn from `start` to `end`."""

    low: int
    high: int
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (log10(value) - self.low) / (self.high - self.low) * (self.end - self.start)

    @property
    def ticks(self) -> range:
        return range(self.low, self.high + 1)


def drawable(points: Sequence[Point]) -> list[Point]:
    """Those that do arithmetic, since the others have no place on a logarithmic axis, and take a visible part of the time."""
    least = NEGLIGIBLE * sum(p.seconds * p.count for p in points)
    return [p for p in points if p.flops > 0 and p.nbytes > 0 and p.seconds > 0 and p.seconds * p.count >= least]


def ceilings(picture: Picture) -> list[tuple[str, float]]:
    """The peak rates of the units that the kernels use, with the float32 units, which every device has."""
    found = {"float32 units": picture.card.vector_flops}
    for p in (*picture.before, *picture.after):
        if p.dtype and p.rate != picture.card.vector_flops:
            found.setdefault(f"{p.dtype} {'units' if p.dtype == 'float64' else 'tensor cores'}", p.rate)
    return sorted(found.items(), key=lambda item: item[1])


def _limits(picture: Picture) -> tuple[tuple[int, int], tuple[int, int]]:
    points = [*drawable(picture.before), *drawable(picture.after)]
    tops = [rate for _, rate in ceilings(picture)]
    ridge = max(tops) / picture.card.dram_bytes_per_second
    xs = [p.intensity for p in points] + [ridge * 2, 0.2]
    ys = [p.flops / p.seconds for p in points] + [*(1.5 * top for top in tops), min(tops) / 50]
    return _decades(xs), _decades(ys)


def _decades(values: Sequence[float]) -> tuple[int, int]:
    return floor(log10(min(values))), max(ceil(log10(max(values))), floor(log10(min(values))) + 1)


def roofline_svg(picture: Picture) -> Markup:
    """The plot; every dot has its facts as a title."""
    (x_low, x_high), (y_low, y_high) = _limits(picture)
    x, y = Axis(x_low, x_high, LEFT, WIDTH - RIGHT), Axis(y_low, y_high, HEIGHT - BOTTOM, TOP)
    frame = el("rect", x=LEFT, y=TOP, width=WIDTH - RIGHT - LEFT, height=HEIGHT - BOTTOM - TOP, class_="frame")
    total = {id(points): sum(p.seconds * p.count for p in points) or 1.0 for points in (picture.before, picture.after)}
    parts = [frame, *_grid(x, y), *_roofs(picture, x, y)]
    before, after = _largest_first(picture.before), _largest_first(picture.after)
    hollow = [_disc(p, x, y, total[id(picture.before)]) for p in before]
    filled = [_disc(p, x, y, total[id(picture.after)]) for p in after]
    parts += [_dot(p, disc, "before") for p, disc in zip(before, hollow, strict=True)]
    numbers = {id(p): n for n, p in enumerate(picture.after, 1)}
    dots = [_dot(p, disc, "after", numbers[id(p)]) for p, disc in zip(after, filled, strict=True)]
    rooms = _rooms(filled, hollow, _letters(picture, x, y))
    parts += itertools.chain.from_iterable(map(_line, filled, rooms))
    parts += [*dots, *(_number(numbers[id(p)], d, room) for p, d, room in zip(after, filled, rooms, strict=True) if room)]
    return el(
        "svg", *parts, viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}", role="img", class_="roofline", xmlns="http://www.w3.org/2000/svg",
        aria_label=f"Roofline of {picture.card.name}: {len(picture.before)} kinds of kernels before, {len(picture.after)} after",
    )  # fmt: skip


def _largest_first(points: Sequence[Point]) -> list[Point]:
    return sorted(drawable(points), key=lambda p: -p.seconds * p.count)


def _grid(x: Axis, y: Axis) -> Iterator[Markup]:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    for power in x.ticks:
        at = x(10.0**power)
        yield el("line", x1=at, x2=at, y1=TOP, y2=bottom, class_="grid")
        yield el("text", _power(power), x=at, y=bottom + 18, text_anchor="middle")
    for power in y.ticks:
        at = y(10.0**power)
        yield el("line", x1=LEFT, x2=right, y1=at, y2=at, class_="grid")
        yield el("text", _power(power), x=LEFT - 8, y=at + 4, text_anchor="end")
    yield el(
        "text", "operations per byte of memory traffic", x=(LEFT + right) / 2, y=HEIGHT - 10, text_anchor="middle", class_="axis"
    )
    middle = (TOP + bottom) / 2
    turned = f"rotate(-90 16 {middle:g})"
    yield el("text", "operations per second", x=16, y=middle, text_anchor="middle", transform=turned, class_="axis")


def _power(power: int) -> str:
    """A power of ten with a prefix: 100 G."""
    if power < 0:
        return f"{10.0**power:g}"
    step = min(power // 3 * 3, max(PREFIXES))
    return f"{10 ** (power - step):,} {PREFIXES[step]}".strip()


def _roofs(picture: Picture, x: Axis, y: Axis) -> Iterator[Markup]:
    """The slope of memory up to the highest ceiling, and each ceiling from where it meets the slope."""
    speed, tops = picture.card.dram_bytes_per_second, ceilings(picture)
    start = max(10.0**x.low, 10.0**y.low / speed)
    ends = (start, start * speed), (tops[-1][1] / speed, tops[-1][1])
    yield el("path", d=f"M{x(ends[0][0]):.1f},{y(ends[0][1]):.1f} L{x(ends[1][0]):.1f},{y(ends[1][1]):.1f}", class_="roof")
    label, at, angle = _slope(picture, x, y)
    turned = f"rotate({angle:.1f} {at[0]:.1f} {at[1]:.1f})"
    yield el("text", label, x=at[0], y=at[1] - 7, text_anchor="middle", transform=turned, class_="ceiling")
    for _, rate in tops:
        yield el("path", d=f"M{x(rate / speed):.1f},{y(rate):.1f} L{x.end:.1f},{y(rate):.1f}", class_="roof")
    for label, end, base in _names(picture, x, y):
        yield el("text", label, x=end, y=base, text_anchor="end", class_="ceiling")


def _slope(picture: Picture, x: Axis, y: Axis) -> tuple[str, tuple[float, float], float]:
    """What is written above the slope of memory, the middle of the slope, and its degrees clockwise."""
    speed, (_, top) = picture.card.dram_bytes_per_second, ceilings(picture)[-1]
    where = sqrt(max(10.0**x.low, 10.0**y.low / speed) * top / speed)
    return f"device memory, {nbytes(speed)}/s", (x(where), y(where * speed)), -_degrees(x(10) - x(1), y(1) - y(10))


def _letters(picture: Picture, x: Axis, y: Axis) -> list[Disc]:
    """The room of each letter that is written at a ceiling or above the slope."""
    level = [
        Disc(end - LETTER * (n + 0.5), base - 4, LETTER) for name, end, base in _names(picture, x, y) for n in range(len(name))
    ]
    label, at, angle = _slope(picture, x, y)
    across, down = cos(radians(angle)), sin(radians(angle))
    along = [LETTER * (n + 0.5 - len(label) / 2) for n in range(len(label))]
    return level + [Disc(at[0] + s * across + 11 * down, at[1] + s * down - 11 * across, LETTER) for s in along]


def _names(picture: Picture, x: Axis, y: Axis) -> list[tuple[str, float, float]]:
    """What is written at each ceiling, with right end and base line: above the highest, below the others, where dots are few."""
    tops = ceilings(picture)
    return [(f"{name}, {operations(rate)}/s", x.end - 6, y(rate) + (-6 if rate == tops[-1][1] else 14)) for name, rate in tops]


def _rooms(filled: Sequence[Disc], hollow: Sequence[Disc], letters: Sequence[Disc]) -> list[Disc | None]:
    """Where the numbers of filled dots stand: hidden by nothing, and hiding nothing."""
    return places(filled, [*hollow, *letters], (LEFT, TOP, WIDTH - RIGHT, HEIGHT - BOTTOM), NUMBER)


def _degrees(across: float, up: float) -> float:
    from math import atan2, degrees

    return degrees(atan2(up, across))


def _disc(p: Point, x: Axis, y: Axis, total: float) -> Disc:
    return Disc(x(p.intensity), y(p.flops / p.seconds), 4.0 + 10.0 * sqrt(p.seconds * p.count / total))


def _dot(p: Point, at: Disc, when: str, number: int = 0) -> Markup:
    circle = el("circle", cx=at.x, cy=at.y, r=at.radius)
    dot = el("g", el("title", f"{when}: {facts(p)}"), circle, class_=f"dot {when} on-{p.bound or 'nothing'}")
    return el("a", dot, href=f"#kernel-{number}", class_="open") if number else dot


def _line(dot: Disc, room: Disc | None) -> Iterator[Markup]:
    """From a dot to its number, if that stands beside it."""
    if room and (room.x, room.y) != (dot.x, dot.y):
        yield el("line", x1=dot.x, y1=dot.y, x2=room.x, y2=room.y, class_="lead")


def _number(number: int, dot: Disc, room: Disc) -> Markup:
    inside = (room.x, room.y) == (dot.x, dot.y)
    text = el(
        "text", str(number), x=room.x, y=room.y + 4, text_anchor="middle", class_=f"number {'inside' if inside else 'beside'}"
    )
    return el("a", text, href=f"#kernel-{number}", class_="open")


def facts(p: Point) -> str:
    """A dot in words."""
    count = f", {p.count} launches" if p.count > 1 else ""
    work = f"{operations(p.flops)}, {nbytes(p.nbytes)}, {p.intensity:.3g} operations a byte"
    return f"{p.name}: {time(p.seconds)}{count}; {work}; bound by {BOUNDS.get(p.bound, p.bound)}"


# --- for papers --------------------------------------------------------------------------------------------------


def roofline_figure(program: Program) -> Any:
    """The same plot as a `matplotlib.figure.Figure`. Raises ImportError where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("roofline_figure: matplotlib required, found none; pip install matplotlib") from error
    picture = Picture(program)
    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    plot = figure.add_subplot(xscale="log", yscale="log")
    _plot_roofs(plot, picture)
    for when, points, style in (
        ("before", picture.before, {"facecolors": "none", "edgecolors": "0.45"}),
        ("after", picture.after, {"facecolors": "tab:blue", "edgecolors": "white", "zorder": 3}),
    ):
        shown = drawable(points)
        total = sum(p.seconds * p.count for p in points) or 1.0
        sizes = [20 + 300 * p.seconds * p.count / total for p in shown]
        plot.scatter([p.intensity for p in shown], [p.flops / p.seconds for p in shown], sizes, label=when, **style)
    plot.set(
        xlabel="operations per byte", ylabel="operations per second", title=f"{program.name} on {program.target} (predicted)"
    )
    plot.legend(loc="lower right")
    return figure


def _plot_roofs(plot: Any, picture: Picture) -> None:
    (x_low, x_high), (y_low, y_high) = _limits(picture)
    tops, speed = ceilings(picture), picture.card.dram_bytes_per_second
    start = 10.0**x_low
    plot.plot([start, tops[-1][1] / speed], [start * speed, tops[-1][1]], color="0.2", linewidth=1)
    for name, rate in tops:
        plot.plot([rate / speed, 10.0**x_high], [rate, rate], color="0.2", linewidth=1)
        place = {"xytext": (-4, 3 if rate == tops[-1][1] else -10), "textcoords": "offset points", "ha": "right"}
        plot.annotate(name, (10.0**x_high, rate), fontsize=8, **place)
    plot.set(xlim=(start, 10.0**x_high), ylim=(10.0**y_low, 10.0**y_high))
