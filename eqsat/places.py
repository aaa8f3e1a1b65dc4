"""Paths that a caller names, looked at before the work that they are for: what to read, and where to write."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any


def path_of(subject: str, value: Any) -> Path:
    """The value as a path; raises TypeError for what is none."""
    if isinstance(value, str | os.PathLike):
        return Path(value)
    raise TypeError(f"{subject}: a path required, got {value!r}")


def there(value: Any, kind: str, inside: str = "") -> Path:
    """The path of something to read, a file or the folder of the file `inside`; raises FileNotFoundError if it is not there."""
    path = Path(value)
    if not (path / inside).is_file():
        raise FileNotFoundError(f"{path.name or path}: {kind} required, got none at {str(path)!r}")
    return path


def file_to_write(subject: str, value: Any) -> Path:
    """The path, if a file can be written there; raises TypeError or OSError otherwise."""
    path = path_of(subject, value)
    folder = path.absolute().parent
    wanted, remedy = f"{subject}: a file in a folder that can be written required, got", f"({str(value)!r}); choose another"
    if path.is_dir():
        raise IsADirectoryError(f"{wanted} a folder {remedy}")
    if not folder.is_dir():
        raise FileNotFoundError(f"{wanted} no such folder {remedy}")
    if not (os.access(path, os.W_OK) if path.exists() else _can_write_in(folder)):
        raise PermissionError(f"{wanted} one that is read-only {remedy}")
    return path


def in_the_way(folder: Path) -> Path | None:
    """What keeps a folder from being made or written in: a file or a read-only folder on the way to it, or None."""
    place = folder.absolute()
    nearest = next(p for p in (place, *place.parents) if os.path.exists(p))
    return None if nearest.is_dir() and _can_write_in(nearest) else nearest


def _can_write_in(folder: Path) -> bool:
    """Tried, since a folder's mode does not say it: some file systems refuse what their modes allow."""
    try:
        with tempfile.TemporaryDirectory(prefix=".eqsat-", dir=folder):
            return True
    except OSError:
        return False
