"""ONNX's own node tests, through the importer: a sample by default, all of them nightly, with the coverage table of docs/."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import jax
import pytest

onnx = pytest.importorskip("onnx")
pytestmark = pytest.mark.slow

import onnx_backend  # noqa: E402
import onnx_cases  # noqa: E402

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
# Tests that ONNX's runner fails after optimisation, and why.
ZEROS = "zeros among sums near 10, where the runner allows 1e-7 in float32"
TIE = "a tie of rounding: XLA:CPU divides by a scalar to one unit in the last place, also op by op"
JUDGED = {
    **dict.fromkeys([f"test_dft{kind}" for kind in ("", "_axis", "_opset19", "_axis_opset19")], ZEROS),
    **dict.fromkeys([f"test_dynamicquantizelinear{form}" for form in ("", "_expanded")], TIE),
    "test_loop16_seq_none": "the runner takes an element of rank 0 of a sequence for a sequence",
}


def evaluated(graph: Any) -> Any:
    return jax.jit(lambda *arguments: graph(*arguments))


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
    """In the exact tier, through kernels, as ONNX's runner judges."""
    for case in onnx_cases.cases(module)[:1]:
        if case.name not in DIFFERENT | JUDGED and not MISSING.keys() & set(onnx_cases.operators(case.model)):
            onnx_backend.judged(case)


# --- coverage ---------------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_all_node_cases_and_the_coverage_table(request):
    """ONNX's runner over `optimize`, and each case imported."""
    counts: dict[str, Counter[str]] = {}
    failed: dict[str, str] = {}
    cases = [case for module in onnx_cases.modules() for case in onnx_cases.cases(module)]
    for number, (name, test) in enumerate(onnx_backend.node_tests()):
        try:
            test()
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"
        if number % 64 == 0:
            jax.clear_caches()
    with jax.enable_x64(True):
        for case in cases:
            kind = "expanded" if "_expanded" in case.name else next(onnx_cases.operators(case.model))
            count, said = counts.setdefault(kind, Counter()), verdict(case)
            count[said] += 1
            count["judged"] += said == "passes" and case.name not in failed
            assert case.name not in failed or said != "passes" or case.name in JUDGED, failed[case.name]
    total = sum(counts.values(), Counter())
    assert total["judged"] >= 0.95 * (total["passes"] + total["differs"])
    text = coverage(counts, total)
    if request.config.getoption("--update-golden"):
        TABLE.write_text(text)
    assert text == TABLE.read_text(), "docs/onnx-coverage.md differs; pytest -m nightly --update-golden writes it"


def coverage(counts: dict[str, Counter[str]], total: Counter[str]) -> str:
    tests = total["passes"] + total["missing"] + total["differs"]
    lines = [
        "# ONNX coverage",
        "",
        f"Node tests of onnx {onnx.__version__}: run through `Graph.from_onnx` in 64-bit JAX, and by ONNX's own runner over",
        "`eqsat.optimize` in the exact tier; written by",
        "`pytest -m nightly tests/frontends/test_onnx_nodes.py --update-golden`.",
        "",
        f"**{total['passes']} of {tests} pass imported, {total['judged']} optimised**; {total['missing']} are of operators that "
        f"are missing, {total['differs']} draw random numbers.",
        "",
        "A test of an `_expanded` model replaces an operator by its definition in others. Operators that ONNX defines by others",
        "are imported by their definition where the table has no row of its own.",
        "",
        "Tests that pass imported, but not by the runner after optimisation:",
        "",
        *(f"- `{name}`: {reason}" for name, reason in JUDGED.items()),
        "",
        "| operator | tests | imported | optimised | note |",
        "| --- | ---: | ---: | ---: | --- |",
    ]
    for name in sorted(counts, key=lambda name: (name == "expanded", name)):
        count = counts[name]
        note = MISSING.get(name, RANDOM if count["differs"] else "")
        every = count["passes"] + count["missing"] + count["differs"]
        lines.append(f"| {name} | {every} | {count['passes']} | {count['judged']} | {note} |")
    return "\n".join([*lines, ""])
