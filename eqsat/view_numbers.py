"""Where the numbers of a plot's dots stand: inside its dot, or beside it at the end of a line where another dot is in the way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import cos, hypot, pi, sin

DIRECTIONS = 12
STEPS = (4.0, 14.0, 26.0, 40.0, 56.0, 74.0)  # from the rim of a dot to that of its number


@dataclass(frozen=True)
class Disc:
    """A dot, or the room of a number, in units of the picture."""

    x: float
    y: float
    radius: float

    def near(self, other: Disc) -> bool:
        """Whether they overlap."""
        return hypot(self.x - other.x, self.y - other.y) < self.radius + other.radius

    def room(self, radius: float, away: float = 0.0, turn: float = 0.0) -> Disc:
        """The room of a number in this dot, or `away` from its rim, `turn` (of 1) clockwise from the right of it."""
        reach = self.radius + away + radius if away else 0.0
        return Disc(self.x + reach * cos(2 * pi * turn), self.y + reach * sin(2 * pi * turn), radius)


def places(
    dots: Sequence[Disc], others: Sequence[Disc], frame: tuple[float, float, float, float], radius: float
) -> list[Disc | None]:
    """For each dot the room of its number, so that no two overlap and none hides a dot; None where there is no such place.

    `others` are dots without numbers; `frame` is left, top, right and bottom of where a number may stand; a number takes a disc
    of `radius`.
    """
    taken: list[Disc] = []
    found: list[Disc | None] = []
    for dot in dots:
        rest = [d for d in dots if d is not dot]
        own = dot.room(radius)
        fits = dot.radius >= radius and not any(own.near(d) for d in (*rest, *taken))
        beside = (place for place in _beside(dot, radius, frame) if not any(place.near(d) for d in (dot, *rest, *others, *taken)))
        place = own if fits else next(beside, None)
        taken += [place] if place else []
        found.append(place)
    return found


def _beside(dot: Disc, radius: float, frame: tuple[float, float, float, float]) -> Iterator[Disc]:
    """Places around a dot that lie in the frame, nearest first and above before below."""
    left, top, right, bottom = frame
    for away in STEPS:
        for n in range(DIRECTIONS):
            place = dot.room(radius, away, 0.75 + (n + 1) // 2 * (1 if n % 2 else -1) / DIRECTIONS)
            if left <= place.x - radius and place.x + radius <= right and top <= place.y - radius and place.y + radius <= bottom:
                yield place
