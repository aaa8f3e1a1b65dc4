"""Errors of a kind that no check foresaw, as errors of the reader that met them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def told(own: type[ValueError], error: Callable[[str], Exception]) -> Iterator[None]:
    """Inside, an error other than the reader's `own`, or one that says what is not implemented, becomes `error(reason)`."""
    try:
        yield
    except (own, NotImplementedError):
        raise
    except Exception as found:
        lines = str(found).strip().splitlines() or ["no reason given"]
        raise error(f"{type(found).__name__}: {lines[0]}") from found


def well_formed(own: type[ValueError], name: str, kind: str) -> Any:
    """While a whole model or module is read."""
    return told(own, lambda reason: own(f"{name}: a well-formed {kind} required, got one that fails with {reason}"))


def fitting(own: type[ValueError], node: Any, operands: Callable[[], str]) -> Any:
    """While an operation is applied; `operands` says what it was given."""
    return told(own, lambda reason: node.error(f"operands that fit together required, got {operands()} ({reason})"))
