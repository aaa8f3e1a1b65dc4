"""A program as one self-contained HTML page: kernels before and after, their sources, a roofline, and where the time went.

The page needs no network and forbids itself any; it follows the reader's choice of light or dark.
"""

from __future__ import annotations

import html
import linecache
import string
from collections.abc import Callable, Iterator
from itertools import groupby
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eqsat.graph import Equation, Graph
from eqsat.lower import lower
from eqsat.notation import Tensor
from eqsat.packs import default_rules
from eqsat.places import file_to_write
from eqsat.program import PlannedKernel
from eqsat.report import nbytes, operations, schedule_text, time
from eqsat.roofline import BOUNDS, Point
from eqsat.running import backend
from eqsat.view_graph import described, graph_svg
from eqsat.view_markup import Markup, el, escaped, highlighted, joined, table
from eqsat.view_model import Box, Picture, percent
from eqsat.view_roofline import drawable, facts, roofline_figure, roofline_svg

if TYPE_CHECKING:
    from eqsat.program import Program

__all__ = ["notebook", "roofline_figure", "view"]

TEMPLATE = Path(__file__).with_name("view.html")
LANGUAGES = {"triton": "Triton", "pallas": "Pallas", "jax": "JAX"}
BESIDE = 720  # width up to which the drawing stands beside the details
DISTINCT = 1.05  # below this a ratio is called "the same"


def view(program: Program, path: str | PathLike[str] | None = None, *, static: bool = False) -> str:
    """The page as text; written to `path` if given. `static` adds what Triton's compiler makes of each kernel."""
    place = None if path is None else file_to_write(f"view of {program.name}", path)
    picture = Picture(program)
    sections = [_header(program), _navigation(), el("main", *_sections(picture, static)), _footer()]
    template = string.Template(TEMPLATE.read_text(encoding="utf-8"))
    page = template.substitute(title=escaped(f"{program.name} \N{MIDDLE DOT} eqsat"), body=joined(*sections, by="\n"))
    if place is not None:
        place.write_text(page, encoding="utf-8")
    return page


def notebook(program: Program) -> str:
    """The page in a frame of its own, for `_repr_html_`."""
    page = html.escape(view(program))
    return f'<iframe title="eqsat" srcdoc="{page}" style="width: 100%; height: 720px; border: 0"></iframe>'


def _sections(picture: Picture, static: bool) -> Iterator[Markup]:
    yield _section("kernels", "Kernels", KERNELS, _kernels(picture, static))
    yield _section("roofline", "Roofline", ROOFLINE, _roofline(picture))
    yield _section("where", "Where time and bytes go", WHERE, _bars(picture), _costs(picture))
    yield _section("rules", "Rules used", RULES, _rules(picture.program))
    yield _section("before", "The program before", BEFORE, _equations(picture))


KERNELS = (
    "Each box is a kernel, with its number of launches; each arrow is a tensor in device memory, dashed where it goes to a later "
    "launch of an earlier box. Choose a box to see its formula, its schedule and its source."
)
ROOFLINE = (
    "Predicted operations per second against operations per byte. Filled dots are the kernels above, hollow ones those of the "
    "program as written, one for each equation; a dot's area is its share of the time."
)
WHERE = "Predicted time and memory traffic by kernel, before and after on the same scale."
RULES = "The laws that the chosen kernels needed beside fusion. A tier says what a law keeps."
BEFORE = "The equations that JAX traced, by source line. Grey ones are views or positions: they became indices and cost nothing."


def _section(name: str, title: str, words: str, *content: Markup) -> Markup:
    return el("section", el("h2", title), el("p", words), *content, id=name)


def _navigation() -> Markup:
    links = {"kernels": "Kernels", "roofline": "Roofline", "where": "Time and bytes", "rules": "Rules", "before": "Before"}
    return el("nav", el("div", *(el("a", text, href=f"#{name}") for name, text in links.items())), aria_label="Sections")


def _footer() -> Markup:
    from eqsat import __version__

    return el("footer", f"Made by eqsat {__version__}. Times are predictions of a roofline model, not measurements.")


# --- head --------------------------------------------------------------------------------------------------------


def _header(program: Program) -> Markup:
    before, after = program.baseline, program.cost
    rows: list[tuple[str, float, float, Callable[[float], str], str, str]] = [
        ("Kernel launches", before.launches, after.launches, lambda n: f"{n:,.0f}", "fewer", "more"),
        ("Memory traffic", before.nbytes, after.nbytes, nbytes, "less", "more"),
        ("Predicted time", before.seconds, after.seconds, time, "faster", "slower"),
        ("Operations", before.flops, after.flops, operations, "fewer", "more"),
    ]
    numerics = el("span", f"numerics: {program.numerics}", class_="tag")
    calls = f"; {len(program.calls)} equations stay calls of JAX, which these numbers leave out" if program.calls else ""
    under = el("p", f"optimised for {program.target}, against one kernel per equation{calls} ", numerics, class_="under")
    return el("header", el("div", el("h1", program.name), under, el("div", *(_tile(*row) for row in rows), class_="tiles")))


def _tile(what: str, before: float, after: float, spell: Callable[[float], str], better: str, worse: str) -> Markup:
    words, class_ = _gain(before, after, better, worse)
    change = el("div", f"was {spell(before)} \N{MIDDLE DOT} ", el("b", words, class_=class_ or None), class_="change")
    return el("div", el("div", what, class_="what"), el("div", spell(after), class_="now"), change, class_="tile")


def _gain(before: float, after: float, better: str, worse: str) -> tuple[str, str]:
    if not before or not after or max(before, after) / min(before, after) < DISTINCT:
        return "the same", ""
    ratio = max(before, after) / min(before, after)
    gained = before > after
    return f"{ratio:.1f}\N{MULTIPLICATION SIGN} {better if gained else worse}", "better" if gained else "worse"


# --- kernels -----------------------------------------------------------------------------------------------------


def _kernels(picture: Picture, static: bool) -> Markup:
    boxes = [b for b in picture.boxes if b.kind == "kernel"]
    if not boxes:
        return el("p", "No kernels: nothing is left to compute on the device.")
    total = sum(p.seconds * p.count for p in picture.after) or 1.0
    svg, width = graph_svg(picture)
    canvas = el("div", svg, class_="canvas", tabindex=0, role="group", aria_label="Graph of kernels")
    drawing = el("div", _zoom(), canvas, class_="panel drawing")
    details = el("div", *(_details(b, picture, total, static, len(boxes) == 1) for b in boxes), class_="panel")
    return el("div", drawing, details, class_="split" if width <= BESIDE else "stack")


def _zoom() -> Markup:
    """Buttons that scale the drawing; without scripts it fits as it is."""
    signs = {"0.8": ("\N{MINUS SIGN}", "Smaller"), "1.25": ("+", "Larger"), "fit": ("fit", "Fit the width")}
    buttons = [el("button", sign, type="button", data_zoom=by, title=name, aria_label=name) for by, (sign, name) in signs.items()]
    return el("div", *buttons, class_="zoom")


def _details(box: Box, picture: Picture, total: float, static: bool, open_: bool) -> Markup:
    assert box.planned is not None and box.point is not None
    p, planned = box.point, box.planned
    count = f" \N{MULTIPLICATION SIGN}{box.count}" if box.count > 1 else ""
    summary = el(
        "summary", el("span", str(box.number), class_="number"), el("span", box.label, class_="name"), count,
        el("span", f"{time(p.seconds)} \N{MIDDLE DOT} {percent(p.seconds * p.count / total)}", class_="side"),
    )  # fmt: skip
    rows = [
        ("Predicted", joined(f"{time(p.seconds)}, {nbytes(p.nbytes)}, {operations(p.flops)} ", _bound(p))),
        (
            "Roofline",
            f"{p.share_of_roofline(picture.card):.0%} of what {picture.card.name} allows for these bytes and operations",
        ),
        ("Reads", _tensors(planned.kernel.inputs)),
        ("Writes", _tensors(planned.kernel.outputs)),
    ]
    if planned.schedule is not None:
        rows.append(("Schedule", schedule_text(planned)))
    rows += _static(planned, picture) if static else []
    facts_ = el("dl", *(joined(el("dt", a), el("dd", b)) for a, b in rows))
    lines = el("div", *(el("div", line) for line in planned.formula.split("\n")), class_="formula")
    inside = el("div", lines, facts_, _sources(planned), class_="inside")
    class_ = f"kernel on-{p.bound or 'nothing'}"
    return el("details", summary, inside, class_=class_, id=f"kernel-{box.number}", open=open_)


def _bound(p: Point) -> Markup:
    return el("span", f"bound by {BOUNDS.get(p.bound, p.bound)}", class_=f"tag on-{p.bound or 'nothing'}")


def _tensors(tensors: tuple[Tensor, ...]) -> Markup:
    return joined(*(el("code", described(t)) for t in tensors), by="; ") if tensors else escaped("nothing")


def _static(planned: PlannedKernel, picture: Picture) -> list[tuple[str, Any]]:
    """What the compiler made of the kernel, or why there is no report."""
    if planned.schedule is None:
        return []
    try:
        tiles = lower(planned.kernel, planned.schedule)
        made = backend("triton").compile_report(planned.source("triton"), tiles, picture.card.architecture)
    except Exception as error:  # whatever the compiler or its absence raises: the page says so
        return [("Compiled", f"no report: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")]
    text = (
        f"{made.registers} registers, {made.spills} spills, {nbytes(made.shared_nbytes)} shared memory, {made.instructions} "
        f"instructions ({made.matrix_instructions} of tensor cores), occupancy {made.occupancy:.0%}, limited by {made.limited_by}"
    )
    return [("Compiled", text)]


def _sources(planned: PlannedKernel) -> Markup:
    """Tabs with the kernel's text for each backend."""
    texts = {name: _source(planned, name) for name in LANGUAGES}
    first = next(iter(texts))
    tabs = [el("button", LANGUAGES[n], type="button", data_show=n, aria_pressed="true" if n == first else "false") for n in texts]
    tabs.append(el("button", "Copy", type="button", class_="copy"))
    shown = [
        el("div", el("pre", highlighted(text)), class_="source", data_name=n, hidden=n != first) for n, text in texts.items()
    ]
    return joined(el("div", *tabs, class_="tabs"), *shown)


def _source(planned: PlannedKernel, language: str) -> str:
    try:
        return planned.source(language)
    except ValueError as error:
        return f"# {error}"


# --- roofline and bars -------------------------------------------------------------------------------------------


def _roofline(picture: Picture) -> Markup:
    bounds = dict.fromkeys(p.bound for p in picture.after if p.bound)
    legend = [el("span", f"after, bound by {BOUNDS.get(b, b)}", class_=f"on-{b}") for b in bounds]
    legend.append(el("span", "before", class_="hollow"))
    hidden = [(when, len(ps) - len(drawable(ps))) for when, ps in (("before", picture.before), ("after", picture.after))]
    words = ", ".join(f"{n} {when}" for when, n in hidden if n)
    note = el("div", f"Not drawn, since they do no arithmetic or take almost no time: {words}.", class_="legend") if words else ""
    return el(
        "div", el("div", roofline_svg(picture), class_="scroll"), el("div", *legend, class_="legend"), note, class_="panel plot"
    )


def _bars(picture: Picture) -> Markup:
    return el("div", _pair(picture, "Time", "seconds", time), _pair(picture, "Bytes", "nbytes", nbytes), class_="panel bars")


def _pair(picture: Picture, title: str, quantity: str, spell: Callable[[float], str]) -> Markup:
    sides = {"before": picture.before, "after": picture.after}
    totals = {when: sum(getattr(p, quantity) * p.count for p in points) for when, points in sides.items()}
    scale = max(totals.values()) or 1.0
    rows = []
    for when, points in sides.items():
        parts = [_part(p, getattr(p, quantity) * p.count / (totals[when] or 1.0)) for p in points]
        bar = el("div", *parts, class_=f"bar {when}", style=f"width: {100 * totals[when] / scale:.2f}%")
        rows.append(el("div", el("span", when), el("div", bar), el("span", spell(totals[when])), class_="row"))
    return joined(el("h3", title), *rows)


def _part(p: Point, share: float) -> Markup:
    return el("i", style=f"flex: {share:.5f} 1 0", data_tip=facts(p), class_=f"on-{p.bound or 'nothing'}")


def _costs(picture: Picture) -> Markup:
    """A row for each kernel with its time and bytes as bars."""
    points = picture.after
    most_time = max((p.seconds * p.count for p in points), default=1.0) or 1.0
    most_bytes = max((p.nbytes * p.count for p in points), default=1) or 1
    rows = []
    for number, p in enumerate(points, 1):
        name = el("a", el("code", p.name), href=f"#kernel-{number}", class_="open")
        seconds = _small(p, p.seconds * p.count / most_time, time(p.seconds * p.count))
        traffic = _small(p, p.nbytes * p.count / most_bytes, nbytes(p.nbytes * p.count))
        rows.append([str(number), name, str(p.count), seconds, traffic, f"{p.share_of_roofline(picture.card):.0%}", _bound(p)])
    headings = ["#", "kernel", "launches", "time", "bytes", "of roofline", "limit"]
    return el("div", table(headings, rows, "wide"), class_="panel", style="margin-top: 14px")


def _small(p: Point, share: float, words: str) -> Markup:
    bar = el("b", style=f"width: {90 * share:.1f}px")
    return el("span", bar, words, class_=f"small on-{p.bound or 'nothing'}")


# --- rules and the program before --------------------------------------------------------------------------------


def _rules(program: Program) -> Markup:
    known = {r.name: r for r in (program.request.rules if program.request else default_rules())}
    names, tiers = program.notes.get("rules", ()), program.notes.get("tiers", {})
    if not names:
        return el("p", "None: fusion alone made these kernels.")
    return el("div", *(_rule(name, tiers.get(name, "?"), known.get(name)) for name in names), class_="panel")


def _rule(name: str, tier: str, rule: Any) -> Markup:
    head = el("div", el("code", name), el("span", tier, class_="tag"), class_="at")
    words = [el("div", rule.doc if rule else "A rule from outside the built-in packs.")]
    if rule and rule.gives_up:
        words.append(el("div", f"Gives up: {rule.gives_up}.", class_="under"))
    if rule:
        words.append(el("code", rule.law, class_="law"))
    return el("div", head, el("div", *words), class_="line rule")


def _equations(picture: Picture) -> Markup:
    graph = picture.program.graph
    computed = {t.name for s in picture.reading.steps for t in (getattr(s, "outputs", None) or (s,))}
    calls = {t.name for s in picture.reading.calls for t in s.outputs}
    lines = [_line(graph, source, list(run), computed, calls) for source, run in groupby(graph.equations, lambda e: e.source)]
    summary = el(
        "summary", f"{len(graph.equations)} equations from {len(lines)} source lines, {picture.reading.views} of them views"
    )
    arguments = ", ".join(f"{graph.name_of[v]}: {v.type}" for v in graph.inputs)
    head = el("div", el("span", "arguments", class_="at"), el("code", arguments), class_="line")
    return el("details", summary, head, *lines, class_="panel fold")


def _line(graph: Graph, source: Any, equations: list[Equation], computed: set[str], calls: set[str]) -> Markup:
    where = el("span", str(source or ""), class_="at")
    text = linecache.getline(source.file, source.line).strip() if source else ""
    return el(
        "div", where, el("span", text, class_="text"), *(_equation(graph, e, computed, calls) for e in equations), class_="line"
    )


def _equation(graph: Graph, equation: Equation, computed: set[str], calls: set[str]) -> Markup:
    names = {graph.name_of[v] for v in equation.outputs}
    results = ", ".join(f"{graph.name_of[v]}: {v.type}" for v in equation.outputs)
    class_ = "call" if names & calls else None if names & computed else "view"
    return el("code", f"{results} = {equation.name}({', '.join(map(graph.spell, equation.inputs))})", class_=class_)
