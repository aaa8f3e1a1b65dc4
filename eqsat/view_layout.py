"""Places for the boxes of a graph drawn from top to bottom: layers by longest path, few crossings, short bends.

A long arrow passes each layer between its ends at a knot, which is laid out like a narrow box. Orders within layers come from
barycentres, and positions from a least-squares fit to the neighbours under the separation that the widths require.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

GAP, ROW_GAP = 24.0, 40.0
SWEEPS = 12


@dataclass(eq=False)
class Node:
    """A box to be placed, or a knot of a long arrow; x and y are of its centre."""

    width: float
    height: float
    layer: int = 0
    x: float = 0.0
    y: float = 0.0
    pull: float = 1.0  # how much it draws its neighbours to itself, and resists being moved
    above: list[Node] = field(default_factory=list)
    below: list[Node] = field(default_factory=list)


def lay_out(
    nodes: Sequence[Node], edges: Sequence[tuple[int, int]], sources: Sequence[int]
) -> tuple[list[list[Node]], float, float]:
    """Place nodes along acyclic edges (from, to), `sources` just above their first reader.

    Returns the nodes that each edge passes, ends included, then the width and height of the drawing.
    """
    _layers(nodes, edges, sources)
    layers: list[list[Node]] = [[] for _ in range(max((n.layer for n in nodes), default=-1) + 1)]
    for node in nodes:
        layers[node.layer].append(node)
    routes = [_route(nodes[a], nodes[b], layers) for a, b in edges]
    for _ in range(SWEEPS):
        _sort(layers)
    return routes, _across(layers), _down(layers)


def _layers(nodes: Sequence[Node], edges: Sequence[tuple[int, int]], sources: Sequence[int]) -> None:
    given = set(sources)
    for node in nodes:
        node.layer = 1
    for _ in nodes:  # longest paths; edges mostly come in order, so a round or two suffices
        changed = False
        for a, b in edges:
            if a not in given and nodes[b].layer <= nodes[a].layer:
                nodes[b].layer, changed = nodes[a].layer + 1, True
        if not changed:
            break
    for source in given:
        nodes[source].layer = min((nodes[b].layer for a, b in edges if a == source), default=1) - 1
    lowest = min((n.layer for n in nodes), default=0)
    for node in nodes:
        node.layer -= lowest


def _route(start: Node, end: Node, layers: list[list[Node]]) -> list[Node]:
    route = [start]
    for layer in range(start.layer + 1, end.layer):
        knot = Node(10.0, 0.0, layer)
        layers[layer].append(knot)
        route.append(knot)
    route.append(end)
    for upper, lower in zip(route, route[1:], strict=False):
        upper.below.append(lower)
        lower.above.append(upper)
    return route


def _sort(layers: list[list[Node]]) -> None:
    """One sweep down and one up, each layer by the mean place of its neighbours."""
    for order, side in ((layers, "above"), (layers[::-1], "below")):
        for layer in order:
            place = {id(n): i for other in layers for i, n in enumerate(other)}
            keys = {}
            for node in layer:
                near = [place[id(n)] for n in getattr(node, side)]
                keys[id(node)] = sum(near) / len(near) if near else float(place[id(node)])
            layer.sort(key=lambda n: keys[id(n)])  # noqa: B023 - sorted at once


def _across(layers: list[list[Node]]) -> float:
    """Set x; returns the width."""
    for layer in layers:
        total = sum(n.width + GAP for n in layer)
        at = -total / 2
        for node in layer:
            node.x, at = at + (node.width + GAP) / 2, at + node.width + GAP
    for _ in range(SWEEPS):
        for layer in (*layers, *layers[::-1]):
            _fit(layer)
    left = min((n.x - n.width / 2 for layer in layers for n in layer), default=0.0)
    for layer in layers:
        for node in layer:
            node.x -= left
    return max((n.x + n.width / 2 for layer in layers for n in layer), default=0.0)


def _fit(layer: list[Node]) -> None:
    """Least squares to the neighbours' mean under the separations: pool adjacent violators on x minus the offsets."""
    offsets, at = [], 0.0
    for previous, node in zip([None, *layer], layer, strict=False):
        at += (previous.width + node.width) / 2 + GAP if previous else 0.0
        offsets.append(at)
    pools: list[tuple[float, float, int]] = []  # mean, pull, members
    for node, offset in zip(layer, offsets, strict=True):
        near = [*node.above, *node.below]
        total = sum(n.pull for n in near)
        wanted = sum(n.pull * n.x for n in near) / total if near else node.x
        pool = (wanted - offset, node.pull, 1)
        while pools and pools[-1][0] > pool[0]:
            mean, pull, members = pools.pop()
            both = pull + pool[1]
            pool = ((mean * pull + pool[0] * pool[1]) / both, both, members + pool[2])
        pools.append(pool)
    places = [mean for mean, _, members in pools for _ in range(members)]
    for node, place, offset in zip(layer, places, offsets, strict=True):
        node.x = place + offset


def _down(layers: list[list[Node]]) -> float:
    """Set y; returns the height."""
    at = 0.0
    for layer in layers:
        height = max(n.height for n in layer)
        for node in layer:
            node.y = at + height / 2
        at += height + ROW_GAP
    return at - ROW_GAP if layers else 0.0
