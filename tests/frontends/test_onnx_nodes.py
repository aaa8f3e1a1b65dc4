"""ONNX's own node tests, through the importer: a sample by default, all of them nightly, with the coverage table of docs/."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import jax
import pytest

onnx = pytest.importorskip("onnx")
pytestmark = pytest.mark.slow

import onnx_cases  # noqa: E402

import eqsat  # noqa: E402
from eqsat.frontends.onnx import Unsupported  # noqa: E402

TABLE = Path(__file__).resolve().parents[2] / "docs" / "onnx-coverage.md"

# Operators without meaning here, and why. Their tests must fail with an error that names them.
MISSING = {
    "ImageDecoder": "decodes files, no tensor program",
    "NonMaxSuppression": "the number of its results depends on values",
    "RegexFullMatch": "strings",
    "StringConcat": "strings",
    "StringNormalizer": "strings",
    "StringSplit": "strings",
}
# Tests of operators that are there but need not agree.
RANDOM = "draws random numbers, and ONNX leaves the generator open"
DIFFERENT = {
    **dict.fromkeys([f"test_bernoulli{kind}{form}" for kind in ("", "_double", "_seed") for form in ("", "_expanded")], RANDOM),
    **dict.fromkeys([f"test_training_dropout{kind}" for kind in ("", "_default", "_mask", "_default_mask")], RANDOM),
}


def evaluated(graph: Any) -> Any:
    return jax.jit(lambda *arguments: graph(*arguments))


def optimized(graph: Any) -> Any:
    return eqsat.optimize(graph, numerics="exact", time_limit=5.0)


def verdict(case: Any) -> str:
    """ "passes", "missing" or "differs" as the tables above say; anything else is an error."""
    if case.name in DIFFERENT:
        return "differs"
    if MISSING.keys() & set(onnx_cases.operators(case.model)):
        with pytest.raises(Unsupported, match="operators of the table required"):
            onnx_cases.check(case, evaluated)
        return "missing"
    try:
        onnx_cases.check(case, evaluated)
    except Exception as error:
        raise AssertionError(f"{case.name}: {type(error).__name__}: {error}") from error
    return "passes"


@pytest.mark.parametrize("module", onnx_cases.modules())
def test_sampled_node_cases_give_what_onnx_says(module):
    with jax.enable_x64(True):
        for case in onnx_cases.cases(module):
            if onnx_cases.is_sampled(case.name, 24 if "_expanded" in case.name else 8):
                verdict(case)


@pytest.mark.parametrize("module", [m for m in onnx_cases.modules() if onnx_cases.is_sampled(m, 3)])
def test_sampled_node_cases_survive_optimization(module):
    """In the exact tier, through kernels."""
    with jax.enable_x64(True):
        for case in onnx_cases.cases(module)[:1]:
            if case.name not in DIFFERENT and not MISSING.keys() & set(onnx_cases.operators(case.model)):
                onnx_cases.check(case, optimized)


# --- coverage ---------------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_all_node_cases_and_the_coverage_table(request):
    counts: dict[str, Counter[str]] = {}
    with jax.enable_x64(True):
        for module in onnx_cases.modules():
            for case in onnx_cases.cases(module):
                kind = "expanded" if "_expanded" in case.name else next(onnx_cases.operators(case.model))
                counts.setdefault(kind, Counter())[verdict(case)] += 1
    total = sum(counts.values(), Counter())
    assert total["passes"] >= 0.95 * (total["passes"] + total["differs"])
    text = coverage(counts, total)
    if request.config.getoption("--update-golden"):
        TABLE.write_text(text)
    assert text == TABLE.read_text(), "docs/onnx-coverage.md differs; pytest -m nightly --update-golden writes it"


def coverage(counts: dict[str, Counter[str]], total: Counter[str]) -> str:
    lines = [
        "# ONNX coverage",
        "",
        f"Node tests of onnx {onnx.__version__}, run through `Graph.from_onnx` in 64-bit JAX; written by",
        "`pytest -m nightly tests/frontends/test_onnx_nodes.py --update-golden`.",
        "",
        f"**{total['passes']} of {total.total()} pass**; {total['missing']} are of operators that are missing, "
        f"{total['differs']} draw random numbers.",
        "",
        "A test of an `_expanded` model replaces an operator by its definition in others. Operators that ONNX defines by others",
        "are imported by their definition where the table has no row of its own.",
        "",
        "| operator | tests | pass | note |",
        "| --- | ---: | ---: | --- |",
    ]
    for name in sorted(counts, key=lambda name: (name == "expanded", name)):
        count = counts[name]
        note = MISSING.get(name, RANDOM if count["differs"] else "")
        lines.append(f"| {name} | {count.total()} | {count['passes']} | {note} |")
    return "\n".join([*lines, ""])
