"""What an installed eqsat must do outside of its tree: `python installed.py FOLDER`, where eqsat must lie under FOLDER.

Run by `make dist-test` in an environment of its own, and by test_packaging.py on a wheel that was unpacked.
"""

from __future__ import annotations

import importlib.metadata
import importlib.resources
import sys
import tempfile
from pathlib import Path

import jax

import eqsat
from eqsat.rules import PACKS


def softmax(x):
    return jax.nn.softmax(x, axis=-1)


def main(folder: str) -> None:
    assert Path(eqsat.__file__).is_relative_to(Path(folder).resolve()), f"{eqsat.__file__} is not under {folder}"
    assert importlib.resources.files("eqsat").joinpath("py.typed").is_file()
    assert "sums" in PACKS
    program = eqsat.optimize(softmax, jax.ShapeDtypeStruct((8, 37), "float32"), cache=False)
    assert len(program.launches) == 1
    program.validate()
    assert all("softmax" in program.kernels[0].source(backend) for backend in ("triton", "pallas", "jax"))
    with tempfile.TemporaryDirectory() as place:
        page = Path(place, "page.html")
        program.view(str(page))
        assert "softmax" in page.read_text()
    (script,) = importlib.metadata.distribution("eqsat").entry_points.select(group="console_scripts")
    assert script.load()(["devices"]) == 0


main(sys.argv[1])
