"""Python's garbage collector while programs are made: it looks at every object again and again, and hardly any are garbage."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

SELDOM = (50_000, 10, 10)  # for `gc.set_threshold`: new objects that are looked at together, and how often older ones are

_lock = threading.Lock()
_held = 0  # by how many threads
_usual = SELDOM


@contextmanager
def collected_seldom() -> Iterator[None]:
    """Collect garbage less often; the user's thresholds are back when the last thread is done."""
    global _held, _usual
    with _lock:
        if not _held:
            _usual = gc.get_threshold()
            if _usual[0]:  # 0 never collects
                gc.set_threshold(*map(max, _usual, SELDOM))
        _held += 1
    try:
        yield
    finally:
        with _lock:
            _held -= 1
            if not _held:
                gc.set_threshold(*_usual)
