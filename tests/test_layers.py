"""The directions of imports, and the limits on files, held as data."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LANGUAGE = {"notation", "scalars", "index"}

# What each layer may import of eqsat; None: everything but the layers named in FORBIDDEN.
ALLOWED: dict[str, set[str] | None] = {
    "eqsat": None,
    "rules": LANGUAGE | {"rule"},
    "backends": LANGUAGE | {"tile", "program", "schedule", "evaluate", "arrays", "formula"},
}
FORBIDDEN = {"eqsat.rules", "eqsat.backends", "rules", "backends", "tests", "examples", "benchmarks"}

MAX_FILE = 500
MAX_FUNCTION = 60
PATHS = re.compile("|".join(rf"/{name}/[a-z]" for name in ("work", "root", "home")))  # of the machine something was made on
TEXT = {".py", ".md", ".toml", ".txt", ".cfg", ".yml", ".yaml", ".triton", ".json", ""}
HIDDEN = {".git", "__pycache__", "build", "dist", "demo-out"}


def layer_files(layer: str) -> list[Path]:
    """Python files at their real place: the links in eqsat/ are not followed."""
    return [p for p in sorted((ROOT / layer).rglob("*.py")) if not (layer == "eqsat" and p.resolve() != p)]


def files() -> Iterator[Path]:
    for path in sorted(ROOT.rglob("*")):
        parts = path.relative_to(ROOT).parts
        private = any(part in HIDDEN or part.startswith((".", "shared")) or part.endswith(".egg-info") for part in parts[:-1])
        private |= path.name in HIDDEN  # a worktree's .git is a file
        if path.is_file() and not private and path.resolve() == path and path.suffix in TEXT:
            yield path


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of every import, also of those inside functions; a relative one is made absolute."""
    package = ("eqsat", *path.relative_to(ROOT).parts[:-1]) if path.parts[len(ROOT.parts)] != "eqsat" else None
    package = package or path.relative_to(ROOT).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, (base, node.module)))
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def within(name: str, packages: set[str]) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def own_folder(path: Path) -> set[str]:
    """The packages whose modules a file may always import: its own backend's, or its rule pack's own."""
    parts = path.relative_to(ROOT).parts
    return {".".join(("eqsat", *parts[:2]))} if parts[0] == "backends" and len(parts) > 2 else set()


@pytest.mark.parametrize("layer", ALLOWED)
def test_imports_go_down_only(layer):
    allowed = ALLOWED[layer]
    wrong = []
    for path in layer_files(layer):
        for line, name in imports(path):
            if allowed is None:
                bad = within(name, FORBIDDEN)
            else:
                permitted = {f"eqsat.{m}" for m in allowed} | own_folder(path)
                bad = within(name, {"eqsat", *FORBIDDEN}) and not within(name, permitted)
            if bad:
                wrong.append(f"{path.relative_to(ROOT)}:{line}: imports {name}")
    assert not wrong, "\n".join(wrong)


def test_only_public_jax():
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: imports {name}"
        for path in files()
        if path.suffix == ".py"
        for line, name in imports(path)
        if within(name, {"jax._src", "jaxlib"})
    ]
    assert not wrong, "\n".join(wrong)


def test_files_are_short():
    wrong = []
    for layer in (*ALLOWED, "examples", "benchmarks"):
        for path in layer_files(layer):
            lines = len(path.read_text().splitlines())
            if lines > MAX_FILE:
                wrong.append(f"{path.relative_to(ROOT)}: {lines} lines, at most {MAX_FILE}")
    assert not wrong, "\n".join(wrong)


def test_functions_are_short():
    wrong = []
    for layer in ALLOWED:
        for path in layer_files(layer):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef):
                    lines = (node.end_lineno or node.lineno) - node.lineno + 1
                    if lines > MAX_FUNCTION:
                        wrong.append(
                            f"{path.relative_to(ROOT)}:{node.lineno}: {node.name} has {lines} lines, at most {MAX_FUNCTION}"
                        )
    assert not wrong, "\n".join(wrong)


def test_every_module_says_what_it_is_for():
    wrong = [
        str(path.relative_to(ROOT))
        for layer in ALLOWED
        for path in layer_files(layer)
        if not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert not wrong, f"no docstring: {', '.join(wrong)}"


def test_no_file_names_a_place_on_one_machine():
    wrong = [
        f"{path.relative_to(ROOT)}: {found.group(0)!r}"
        for path in files()
        if (found := PATHS.search(path.read_text(errors="replace")))
    ]
    assert not wrong, "\n".join(wrong)


def test_links_are_relative():
    for name in ("rules", "backends"):
        link = ROOT / "eqsat" / name
        assert link.is_symlink() and str(link.readlink()) == f"../{name}"
