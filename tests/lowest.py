"""The lowest versions that pyproject.toml allows, as constraints for pip: `python lowest.py > constraints.txt`."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).resolve().parent.parent / "pyproject.toml").read_text())["project"]
extras = project["optional-dependencies"]
for requirement in (*project["dependencies"], *extras["triton"], *extras["onnx"]):
    name, lowest = re.match(r"([\w-]+)>=([\w.]+)", requirement).groups()
    print(f"{name}=={lowest}")
