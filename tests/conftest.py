"""Settings for all tests: JAX on the CPU, repeatable examples, golden files."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["EQSAT_CONFIG_DIR"] = tempfile.mkdtemp()  # the devices that were measured on this computer are not those of tests
os.environ["EQSAT_CACHE_DIR"] = ""  # searches are what is tested

import hypothesis  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402

hypothesis.settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=100, database=None)
hypothesis.settings.load_profile("repeatable")

ROOT = Path(__file__).resolve().parent.parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="accept what the golden tests produce")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture
def no_own_devices(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Only the devices of the table; other tests measure this computer."""
    monkeypatch.setenv("EQSAT_CONFIG_DIR", str(tmp_path))


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(name, text)`: the text must equal tests/golden/<test module>/<name>."""
    folder = ROOT / "tests" / "golden" / request.path.stem.removeprefix("test_")

    def compare(name: str, text: str) -> None:
        path = folder / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"{path.relative_to(ROOT)} is missing; pytest --update-golden writes it"
        assert text == path.read_text(), f"differs from {path.relative_to(ROOT)}; pytest --update-golden accepts it"

    return compare
