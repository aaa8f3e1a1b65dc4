"""The lowest versions that pyproject.toml allows, as constraints for pip: `python lowest.py > constraints.txt`."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).resolve().parent.parent / "pyproject.toml").read_text())["project"]
for requirement in (*project["dependencies"], *project["optional-dependencies"]["triton"], *project["optional-dependencies"]["onnx"]):
    name, lowest = re.match(r"([\w-]+)>=([\w.]+)", requirement).groups()
    print(f"{name}=={lowest}")
