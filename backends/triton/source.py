"""Emitted text as a module, and its kernel: Triton reads a function's source from a real file."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import tempfile
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

COMBINE, DOT = "_combine_", "_dot_"  # how the names of helper functions in emitted text begin


@lru_cache(maxsize=256)
def load(source: str) -> ModuleType:
    """The module of an emitted text, from a file named by its content."""
    name = f"eqsat_kernel_{hashlib.sha256(source.encode()).hexdigest()[:24]}"
    path = _folder() / f"{name}.py"
    if not path.exists() or path.read_text() != source:
        part = path.with_suffix(f".{os.getpid()}")
        part.write_text(source)
        part.replace(path)  # whole or not at all, whoever else writes it
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def kernel(module: ModuleType) -> Any:
    """The kernel of an emitted module: its jitted function, helpers aside."""
    from triton.runtime.jit import JITFunction

    functions = [f for f in vars(module).values() if isinstance(f, JITFunction)]
    found = [f for f in functions if f.fn.__module__ == module.__name__ and not f.fn.__name__.startswith((COMBINE, DOT))]
    if len(found) != 1:
        raise ValueError(f"{module.__name__}: one public kernel expected, found {[f.__name__ for f in found]}")
    return found[0]


def _folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"eqsat-triton-{os.getuid() if hasattr(os, 'getuid') else 'user'}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder
