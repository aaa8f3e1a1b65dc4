"""Steps under a budget: each has a share of the time, and what fails or no longer fits is recorded while the rest goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar

Item = TypeVar("Item")
Record = dict[str, Any]


@dataclass
class Context:
    """What the steps know: the card, whether anything is launched, and how much time is left."""

    row: str  # of the table of devices, whose capacities the card has
    dry: bool
    seed: int = 0
    device: Any = None  # the `Device` of the estimates; the first step measures it
    few: int | None = None  # at most so many items a step
    clock: Callable[[], float] = time.monotonic
    deadline: float = float("inf")
    left_out: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    def within(self, items: Iterable[tuple[str, Item]]) -> Iterator[tuple[str, Item]]:
        """The items that still fit; the names of the others are kept."""
        for name, item in islice(items, self.few):
            if self.clock() < self.deadline:
                yield name, item
            else:
                self.left_out.append(name)

    def each(self, items: Iterable[tuple[str, Item]], do: Callable[[Item], Record]) -> dict[str, Record]:
        """The record of each item that fits; one that raises is recorded as failed."""
        found: dict[str, Record] = {}
        for name, item in self.within(items):
            try:
                found[name] = do(item)
            except Exception as error:  # whatever breaks, the rest of the card's minutes are worth having
                self.failed[name] = describe(error)
        return found


@dataclass(frozen=True)
class Step:
    """`run` returns results by name and a sentence; `seconds` is its share of the budget."""

    name: str
    seconds: float
    run: Callable[[Context], tuple[dict[str, Record], str]]


def describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def performed(steps: list[Step], context: Context, seconds: float, say: Callable[[str], None]) -> dict[str, Record]:
    """The record of every step. Time that a step does not use is left to those after it."""
    start, share = context.clock(), seconds / sum(s.seconds for s in steps)
    until, records = start, {}
    for step in steps:
        until += step.seconds * share
        context.deadline, context.left_out, context.failed = until, [], {}
        began, record = context.clock(), {}
        try:
            record["results"], record["summary"] = step.run(context)
        except Exception as error:
            record["results"], record["summary"] = {}, "failed"
            context.failed[step.name] = describe(error)
        record |= {"seconds": context.clock() - began, "failed": context.failed, "left_out": context.left_out}
        records[step.name] = record
        say(line(step.name, record))
    return records


def line(name: str, record: Record) -> str:
    """One line of progress."""
    parts = [record["summary"]]
    parts += [f"{len(record['failed'])} failed"] if record["failed"] else []
    parts += [f"{len(record['left_out'])} left out"] if record["left_out"] else []
    return f"{'✗' if record['failed'] else '✓'} {name:<14} {record['seconds']:6.1f} s  {', '.join(parts)}"
