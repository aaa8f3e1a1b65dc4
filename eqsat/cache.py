"""A folder of results that searches need not find again: one file for each key, checked whenever it is read.

A file is written beside its place and renamed, so that readers and writers in other processes never meet half of one. A file
whose checksum is wrong is deleted and made again. Above a limit of bytes, what was not used for longest goes first. A folder
that cannot be written is no error: nothing is kept then, and a warning says so once.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import platformdirs

VARIABLE = "EQSAT_CACHE_DIR"  # the folder; empty: keep nothing
LIMIT_NBYTES = 256 * 2**20
SUFFIX = ".plan"
HITS = "hits"  # a file with a byte for each hit
DIGEST = hashlib.sha256

log = logging.getLogger("eqsat")


@dataclass(frozen=True)
class Statistics:
    """What a cache holds: entries, their bytes, and hits since it was last cleared."""

    folder: Path
    entries: int
    nbytes: int
    hits: int


@dataclass(frozen=True)
class Cache:
    """The cache in a folder, which need not exist yet."""

    folder: Path
    limit_nbytes: int = LIMIT_NBYTES

    def get(self, key: str) -> bytes | None:
        """The content stored under a key, or None."""
        path = self._path(key)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        checksum, content = data[: DIGEST().digest_size], data[DIGEST().digest_size :]
        if DIGEST(content).digest() != checksum:
            self.drop(key)
            return None
        try:
            os.utime(path)
            with open(self.folder / HITS, "ab") as file:
                file.write(b".")
        except OSError:  # a folder that can only be read
            pass
        return content

    def put(self, key: str, content: bytes) -> None:
        """Store content; the least recently used entries make room for it."""
        path = self._path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self.folder)
            try:
                with open(handle, "wb") as file:
                    file.write(DIGEST(content).digest() + content)
                os.replace(name, path)
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise
            self._make_room()
        except OSError as error:
            _warn(self.folder, str(error.strerror))

    def drop(self, key: str) -> None:
        """Forget an entry."""
        try:
            self._path(key).unlink(missing_ok=True)
        except OSError:
            log.info("cache: %s is damaged and cannot be deleted", self._path(key))

    def statistics(self) -> Statistics:
        sizes = [size for _, size, _ in self._entries()]
        hits = self.folder / HITS
        return Statistics(self.folder, len(sizes), sum(sizes), hits.stat().st_size if hits.exists() else 0)

    def clear(self) -> int:
        """Delete every entry, and return how many there were. Other files of the folder stay."""
        entries = self._entries()
        for path in (*(path for _, _, path in entries), self.folder / HITS):
            path.unlink(missing_ok=True)
        return len(entries)

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}{SUFFIX}"

    def _entries(self) -> list[tuple[float, int, Path]]:
        """Time of last use, bytes and path of each entry, oldest first."""
        found = []
        for path in self.folder.glob(f"*{SUFFIX}"):
            try:
                facts = path.stat()
            except OSError:  # another process has just deleted it
                continue
            found.append((facts.st_mtime, facts.st_size, path))
        return sorted(found)

    def _make_room(self) -> None:
        entries = self._entries()
        total = sum(size for _, size, _ in entries)
        for _, size, path in entries:
            if total <= self.limit_nbytes:
                return
            path.unlink(missing_ok=True)
            total -= size


@lru_cache
def _warn(folder: Path, reason: str) -> None:
    """Say why nothing is kept: once for each folder, not for each plan."""
    log.warning(
        "cache: a folder that can be written required, got %s (%s), so that no plan is kept; let %s name another, or be empty",
        folder, reason, VARIABLE,
    )  # fmt: skip


def cache_of(choice: bool | str | os.PathLike[str]) -> Cache | None:
    """The cache that an option asks for: True for the user's own, a folder for one there, False for none.

    The user's own is in the folder that the environment variable EQSAT_CACHE_DIR names, or else in the platform's folder of
    caches; if the variable is empty there is none.
    """
    if choice is False:
        return None
    if isinstance(choice, str | os.PathLike):
        return Cache(Path(choice))
    if choice is not True:
        raise TypeError(f"cache: True, False or a folder required, got {choice!r}")
    folder = os.environ.get(VARIABLE)
    if folder is None:
        return Cache(platformdirs.user_cache_path("eqsat", appauthor=False))
    return Cache(Path(folder)) if folder else None


def key_of(*parts: Any) -> str:
    """A key for values made of plain data, tuples, sets and dataclasses; versions and our own sources are part of it."""
    return DIGEST(repr((_versions(), *map(_plain, parts))).encode()).hexdigest()


def _plain(value: Any) -> Any:
    """The value as nested tuples that print alike in every process."""
    if is_dataclass(value) and not isinstance(value, type):
        return (type(value).__name__, *(_plain(getattr(value, f.name)) for f in fields(value)))
    if isinstance(value, dict):
        return ("dict", *sorted((repr(k), _plain(v)) for k, v in value.items()))
    if isinstance(value, tuple | list):
        return (type(value).__name__, *map(_plain, value))
    if isinstance(value, set | frozenset):
        return ("set", *sorted(repr(_plain(v)) for v in value))
    return value


@lru_cache(maxsize=1)
def _versions() -> tuple[str, ...]:
    """Versions of what the search stands on, and a digest of this package's sources."""
    sources = sorted(p for p in Path(__file__).parent.rglob("*.py"))
    ours = DIGEST(b"".join(_contents(sources))).hexdigest()
    return (ours, *(f"{name} {version(name)}" for name in ("egglog", "jax", "numpy")))


def _contents(paths: Iterable[Path]) -> Iterable[bytes]:
    for path in paths:
        yield str(path.name).encode()
        yield path.read_bytes()
