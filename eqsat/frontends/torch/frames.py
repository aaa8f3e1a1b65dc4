"""Lines of the user's module: an equation traced here carries the line of the module that its operator comes from."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch

from eqsat.graph import Source

_FRAME = re.compile(r'File "(.+)", line (\d+), in (\S+)')
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep


def source_of(node: Any) -> Source | None:
    """The innermost line outside torch of an fx node, else the innermost of all."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    if not frames:
        return None
    file, line, function = next((f for f in reversed(frames) if not f[0].startswith(_TORCH)), frames[-1])
    return Source(file, int(line), function)


def call(source: Source | None, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function from that line, as JAX sees it in the stack."""
    return function(*args, **kwargs) if source is None else _caller(source)(function, args, kwargs)


@lru_cache(maxsize=1 << 12)
def _caller(source: Source) -> Callable[..., Any]:
    def caller(function: Any, args: Any, kwargs: Any) -> Any: return function(*args, **kwargs)  # fmt: skip  # noqa: E704

    name = source.function if source.function.isidentifier() else "forward"
    caller.__code__ = caller.__code__.replace(co_filename=source.file, co_firstlineno=source.line, co_name=name, co_qualname=name)
    return caller
