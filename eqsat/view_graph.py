"""The graph of kernels as SVG: boxes in order from top to bottom, an arrow for each tensor that one writes and another reads."""

from __future__ import annotations

from collections.abc import Sequence

from eqsat.notation import Tensor
from eqsat.report import nbytes, time
from eqsat.roofline import BOUNDS
from eqsat.view_layout import Node, lay_out
from eqsat.view_markup import Markup, el
from eqsat.view_model import Arrow, Box, Picture, percent

WIDTH, HEIGHT, PILL = 212.0, 60.0, 28.0
MARGIN = 14.0
SMALLEST = 0.68  # scale below which the drawing scrolls instead of shrinking
LETTER, LIMIT = 7.1, 26  # width of a character of a pill, and how many it has at most


def graph_svg(picture: Picture) -> tuple[Markup, float]:
    """The whole drawing, in which kernels link to their details, and its width."""
    boxes = picture.boxes
    number = {id(b): n for n, b in enumerate(boxes)}
    nodes = [_node(b) for b in boxes]
    forward = [a for a in picture.arrows if not a.back]
    edges = [(number[id(a.source)], number[id(a.target)]) for a in forward]
    sources = [n for n, b in enumerate(boxes) if b.kind == "input"]
    routes, width, height = lay_out(nodes, edges, sources)
    parts = [_arrow(a, _path(route), "edge") for a, route in zip(forward, routes, strict=True)]
    lane = width
    for arrow in (a for a in picture.arrows if a.back):
        lane += 16.0
        ends = nodes[number[id(arrow.source)]], nodes[number[id(arrow.target)]]
        parts.append(_arrow(arrow, _loop(*ends, lane), "edge back"))
    total = sum(p.seconds * p.count for p in picture.after) or 1.0
    parts += [_drawn(b, node, total) for b, node in zip(boxes, nodes, strict=True)]
    wide, high = round(lane + 2 * MARGIN), round(height + 2 * MARGIN)
    drawing = el(
        "svg", el("defs", _head("arrow-head"), _head("back-head")), *parts,
        viewBox=f"{-MARGIN:g} {-MARGIN:g} {wide} {high}", width=wide, height=high, style=f"min-width: {SMALLEST * wide:.0f}px",
        role="img", aria_label=f"The kernels of {picture.program.name} and the tensors between them", class_="graph",
        xmlns="http://www.w3.org/2000/svg",
    )  # fmt: skip
    return drawing, wide


def _head(name: str) -> Markup:
    path = el("path", d="M0,0 L8,4 L0,8 z", class_=name)
    size = {"markerUnits": "userSpaceOnUse", "markerWidth": 9, "markerHeight": 9}
    return el("marker", path, id=name, viewBox="0 0 8 8", refX=7, refY=4, orient="auto", **size)


def _node(box: Box) -> Node:
    if box.kind in ("input", "output"):
        return Node(max(36.0, LETTER * len(_short(box.label, LIMIT)) + 22), PILL, pull=0.05)
    return Node(WIDTH, HEIGHT)


def _path(route: Sequence[Node]) -> str:
    """A smooth line through the knots, from the bottom of the first node to the top of the last."""
    first, last = route[0], route[-1]
    points = [(first.x, first.y + first.height / 2), *((n.x, n.y) for n in route[1:-1]), (last.x, last.y - last.height / 2 - 1)]
    text = f"M{points[0][0]:.1f},{points[0][1]:.1f}"
    for (x, y), (u, v) in zip(points, points[1:], strict=False):
        middle = (y + v) / 2
        text += f" C{x:.1f},{middle:.1f} {u:.1f},{middle:.1f} {u:.1f},{v:.1f}"
    return text


def _loop(source: Node, target: Node, lane: float) -> str:
    """Out at the right of the source, up the lane, and in at the right of the target."""
    right, into = source.x + source.width / 2, target.x + target.width / 2
    low, high = source.y + 10, target.y - 10
    return f"M{right:.1f},{low:.1f} C{lane:.1f},{low:.1f} {lane:.1f},{low:.1f} {lane:.1f},{(low + high) / 2:.1f} " + (
        f"C{lane:.1f},{high:.1f} {lane:.1f},{high:.1f} {into + 1:.1f},{high:.1f}"
    )


def _arrow(arrow: Arrow, path: str, class_: str) -> Markup:
    head = "back-head" if arrow.back else "arrow-head"
    largest = max(t.nbytes for t in arrow.tensors)
    width = 1.2 + 0.55 * max(0, len(str(largest)) - 5)
    label = "\n".join(f"{described(t)}{' (to the next launch)' if arrow.back else ''}" for t in arrow.tensors)
    line = el("path", d=path, stroke_width=width, marker_end=f"url(#{head})")
    return el("g", el("title", label), line, el("path", d=path, class_="reach"), class_=class_)


def described(tensor: Tensor) -> str:
    """A tensor with its type and size."""
    return f"{tensor}, {nbytes(tensor.nbytes)}"


def _short(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}\N{HORIZONTAL ELLIPSIS}"


def _drawn(box: Box, node: Node, total: float) -> Markup:
    left, top = node.x - node.width / 2, node.y - node.height / 2
    if box.kind in ("input", "output"):
        rect = el("rect", x=left, y=top, width=node.width, height=PILL, rx=PILL / 2)
        name = el("text", _short(box.label, LIMIT), x=node.x, y=node.y + 4, text_anchor="middle")
        title = el("title", f"{box.kind}:\n" + "\n".join(map(described, box.tensors)))
        return el("g", title, rect, name, class_=f"pill {box.kind}")
    if box.kind == "kernel":
        return el("a", _kernel(box, left, top, total), href=f"#kernel-{box.number}", class_="open")
    return _plain(box, left, top)


def _kernel(box: Box, left: float, top: float, total: float) -> Markup:
    assert box.point is not None
    seconds = box.point.seconds * box.count
    share = seconds / total
    count = f"\N{MULTIPLICATION SIGN}{box.count}" if box.count > 1 else ""
    facts = f"{time(box.point.seconds)}{' each' if count else ''} \N{MIDDLE DOT} {percent(share)}"
    inner = left + 24 + 8 * len(str(box.number))
    parts = [
        el("rect", x=left, y=top, width=WIDTH, height=HEIGHT, rx=9, class_="body"),
        el("rect", x=left + 10, y=top + HEIGHT - 9, width=WIDTH - 20, height=3, rx=1.5, class_="track"),
        el("rect", x=left + 10, y=top + HEIGHT - 9, width=max(2.0, (WIDTH - 20) * share), height=3, rx=1.5, class_="fill"),
        el("text", f"{box.number}", x=left + 12, y=top + 22, class_="number"),
        el("text", _short(box.label, 19), x=inner, y=top + 22, class_="name"),
        el("text", facts, x=inner, y=top + 40, class_="facts"),
        el("text", count, x=left + WIDTH - 10, y=top + 22, text_anchor="end", class_="count"),
        el("text", box.point.bound, x=left + WIDTH - 10, y=top + 40, text_anchor="end", class_="bound"),
    ]
    title = el("title", f"{box.label}: bound by {BOUNDS.get(box.point.bound, box.point.bound)}")
    return el("g", title, *parts, class_=f"kernel on-{box.point.bound or 'nothing'}")


def _plain(box: Box, left: float, top: float) -> Markup:
    """A loop, a call of JAX, or a step that runs once."""
    what = box.reason or "computed once, from constants"
    rect = el("rect", x=left, y=top, width=WIDTH, height=HEIGHT, rx=9, class_="body")
    name = el("text", _short(box.label, 24), x=left + 14, y=top + 24, class_="name")
    note = el("text", _short(what, 30), x=left + 14, y=top + 42, class_="facts")
    return el("g", el("title", what), rect, name, note, class_=f"kernel {'call' if box.kind == 'loop' else box.kind}")
