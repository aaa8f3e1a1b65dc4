"""Front ends: each turns a model of another system into a `Graph`, by way of a JAX function."""

from __future__ import annotations

import os
from typing import Any

from eqsat.places import there

FILES = {  # of front ends: what a path names, and the file in it if that is a folder
    "onnx": ("an ONNX file", ""),
    "tensorflow": ("the folder of a SavedModel", "saved_model.pb"),
}


def look(front_end: str, source: Any) -> None:
    """Raises FileNotFoundError for a path where nothing is: before the import of a package that may not be there either."""
    if isinstance(source, str | os.PathLike):
        there(source, *FILES[front_end])
