"""The speeds against jax.jit as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def plot(records: Mapping[str, dict[str, Any]], path: Path) -> None:
    """A dot and its confidence interval for every workload; a line where jax.jit is. Raises ImportError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("--plot: matplotlib required; pip install matplotlib") from error
    found = [(name, r["run"]["engines"].get("eqsat", {}).get("ratio")) for name, r in records.items() if r.get("run")]
    points = [(name, ratio) for name, ratio in found if ratio]
    figure = Figure(figsize=(7, 0.22 * len(points) + 1.2), layout="constrained")
    axes = figure.subplots()
    rows = range(len(points), 0, -1)
    values = [r["value"] for _, r in points]
    errors = [[r["value"] - r["low"] for _, r in points], [r["high"] - r["value"] for _, r in points]]
    axes.errorbar(values, list(rows), xerr=errors, fmt="o", markersize=3, linewidth=1, color="#1f5f8b")
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_yticks(list(rows), [name for name, _ in points], fontsize=7)
    axes.set_xscale("log")
    axes.set_xlabel("times as fast as jax.jit")
    figure.savefig(path)
