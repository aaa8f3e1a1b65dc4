"""Loads printed files and runs them, on a CPU by Pallas's interpreter."""

from __future__ import annotations

import hashlib
import importlib.util
import tempfile
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import jax


class Loaded:
    """A printed file as a module; calling it runs the kernel and gives a tuple of arrays."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module
        self._compiled = {flag: jax.jit(partial(module.run, interpret=flag)) for flag in (False, True)}

    def run(self, *arrays: Any, interpret: bool = True) -> tuple[Any, ...]:
        return tuple(self._compiled[interpret](*arrays))

    __call__ = run


@cache
def load(source: str) -> Loaded:
    """Import the text from a file named after its content, so that tracebacks and inspection show it."""
    name = f"pallas_{hashlib.sha256(source.encode()).hexdigest()[:16]}"
    path = Path(_folder().name) / f"{name}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"no module from {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return Loaded(module)


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """A folder of this process, removed at its end: nothing is executed that others could have written."""
    return tempfile.TemporaryDirectory(prefix="eqsat_pallas_")


def run(source: str, arrays: Sequence[Any], interpret: bool = True) -> tuple[Any, ...]:
    """Load the text and run it on arrays, inputs in the order of the program."""
    return load(source).run(*arrays, interpret=interpret)
