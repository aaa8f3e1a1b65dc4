"""The wheel holds what the tree holds, under one name; the folders cannot be imported twice."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from eqsat.scalars import DTYPES

ROOT = Path(__file__).resolve().parent.parent


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL)


def built(tree: Path, folder: Path) -> Path:
    """A wheel of a tree, built without network."""
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet")
    result = python("-m", "pip", "wheel", *options, "--wheel-dir", str(folder), str(tree))
    assert result.returncode == 0, result.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    """A copy of what is packed."""
    if int(importlib.metadata.version("setuptools").split(".")[0]) < 77:
        pytest.skip("building needs setuptools 77 or newer: pip install -e '.[dev]'")
    copy = tmp_path_factory.mktemp("tree")
    names = ("eqsat", "rules", "backends", "docs", "examples", "pyproject.toml", "MANIFEST.in", "LICENSE")
    subprocess.run(["cp", "-a", *(str(p) for p in (*map(ROOT.joinpath, names), *ROOT.glob("*.md"))), str(copy)], check=True)
    return copy


@pytest.fixture(scope="module")
def wheel_path(tree, tmp_path_factory) -> Path:
    return built(tree, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def wheel(wheel_path) -> list[str]:
    """The names of a wheel's files."""
    return zipfile.ZipFile(wheel_path).namelist()


def test_the_sdist_makes_the_same_wheel(tree, wheel, tmp_path):
    """The links of the tree are folders there; the pages that others link to are with it."""
    code = f"from setuptools import build_meta; print(build_meta.build_sdist({str(tmp_path)!r}))"
    subprocess.run([sys.executable, "-c", code], cwd=tree, check=True, capture_output=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    (unpacked,) = (p for p in tmp_path.iterdir() if p.is_dir())
    assert {"CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "docs", "examples"} <= {p.name for p in unpacked.iterdir()}
    again = zipfile.ZipFile(built(unpacked, tmp_path / "wheel")).namelist()
    assert sorted(again) == sorted(wheel)


def test_the_wheel_works_outside_of_the_tree(wheel_path, tmp_path):
    with zipfile.ZipFile(wheel_path) as packed:
        packed.extractall(tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    script = [sys.executable, "-P", str(ROOT / "tests" / "installed.py"), str(tmp_path)]
    result = subprocess.run(script, cwd=tmp_path, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert result.returncode == 0, result.stderr


def test_the_wheel_says_that_it_is_typed(wheel):
    assert "eqsat/py.typed" in wheel


def test_wheel_has_one_top_level_name(wheel):
    assert {name.split("/")[0] for name in wheel if ".dist-info/" not in name} == {"eqsat"}


def test_wheel_holds_every_module(wheel):
    tree = {str(p.relative_to(ROOT)) for p in (ROOT / "eqsat").rglob("*.py")}
    for folder in ("rules", "backends"):
        tree |= {f"eqsat/{p.relative_to(ROOT)}" for p in (ROOT / folder).rglob("*.py")}
    assert {name for name in wheel if name.endswith(".py")} == tree


def test_wheel_carries_the_licence(wheel):
    assert any(name.endswith("licenses/LICENSE") for name in wheel)


@pytest.mark.parametrize("name", ["rules", "backends"])
def test_folders_are_imported_under_their_package_name_only(name):
    result = python("-c", f"import {name}")
    assert result.returncode != 0
    assert f"ImportError: this folder is the package eqsat.{name}; import that" in result.stderr


def test_console_script_prints_the_version():
    import eqsat

    result = python("-m", "eqsat", "--version")
    assert result.stdout == f"eqsat {eqsat.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["softmax"], "eqsat: subject 'softmax': module:function, file.py:function or a file"),
        (
            ["examples.softmax:nothing"],
            "eqsat: examples.softmax:nothing: a name that examples.softmax has required, found no 'nothing'",
        ),
        (["no_such:f"], "eqsat: module 'no_such': one that can be imported required, got ModuleNotFoundError: No module"),
        (["examples.softmax:PROGRAMS"], "eqsat: examples.softmax:PROGRAMS: a function required, got dict"),
        (
            ["examples.softmax:softmax", "--args", "float31[2]"],
            f"eqsat: dtype: one of {', '.join(DTYPES)} required, got 'float31'",
        ),
        (["examples.softmax:softmax", "--args", "float32[2"], "eqsat: arguments 'float32[2': a list such as"),
    ],
)
def test_mistakes_on_the_command_line_are_one_line(arguments, message, capsys):
    from eqsat.cli import main

    assert main(["optimize", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith(message) and error.count("\n") == 1


def test_devices_are_printed_as_a_table_with_sources(capsys, no_own_devices):
    from eqsat.cli import main
    from eqsat.devices import DEVICES

    assert main(["devices"]) == 0
    text = capsys.readouterr().out
    assert text.splitlines()[0].split() == list(DEVICES)
    assert all(f"{name}: {device.source}" in text for name, device in DEVICES.items())


def test_shapes_are_read_as_they_are_printed():
    from eqsat.shapes import shapes

    (a, b, c) = shapes("float32[4,8] bfloat16[ 2, 3 ], int32[]")
    assert (a.shape, b.shape, c.shape) == ((4, 8), (2, 3), ())
    assert [str(s.dtype) for s in (a, b, c)] == ["float32", "bfloat16", "int32"]
    assert shapes("") == ()


def test_importing_eqsat_imports_nothing_heavy():
    """JAX and egglog take a second; they are imported with the first name that needs them."""
    code = "import sys, eqsat; print(sorted({m.split('.')[0] for m in sys.modules} & set(sys.argv[1:])), dir(eqsat))"
    result = python("-c", code, "egglog", "jax", "networkx", "numpy", "rich", "scipy", "torch", "triton", "typer")
    assert result.stdout.startswith("[] ") and "'optimize'" in result.stdout, result.stdout + result.stderr


def test_every_exported_name_is_there():
    import eqsat

    assert all(callable(getattr(eqsat, name)) for name in eqsat.__all__)
    with pytest.raises(AttributeError, match="module 'eqsat' has no attribute 'optimise'"):
        _ = eqsat.optimise


def test_changelog_names_the_version():
    import eqsat

    text = (ROOT / "CHANGELOG.md").read_text()
    assert "## [Unreleased]" in text or f"## [{eqsat.__version__}]" in text
