"""Ratios of paired times, with bootstrap confidence intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

RESAMPLES = 2000
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Ratio:
    """How many times faster: the median over pairs, its confidence interval, and the ratio of the best times.

    Other load on the computer only ever adds time, so the best times tell a slow engine from an unlucky one.
    """

    value: float
    low: float
    high: float
    best: float
    pairs: int

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def paired_ratio(baseline: Sequence[float], seconds: Sequence[float], seed: int = 0) -> Ratio:
    """baseline[i] and seconds[i] were measured one after the other, on the same inputs."""
    logs = np.log(np.asarray(baseline, float)) - np.log(np.asarray(seconds, float))
    picks = np.random.default_rng(seed).integers(0, logs.size, (RESAMPLES, logs.size))
    medians = np.median(logs[picks], axis=1)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(medians, [tail, 1 - tail])
    best = min(baseline) / min(seconds)
    return Ratio(float(np.exp(np.median(logs))), float(np.exp(low)), float(np.exp(high)), best, int(logs.size))


def geometric_mean(values: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(values)))) if len(values) else float("nan")
