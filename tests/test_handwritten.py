"""Our kernels beside hand-written ones of the same function: the compiler makes as little of ours, by its static report."""

import pytest

pytest.importorskip("triton")
pytestmark = pytest.mark.slow

from benchmarks.handwritten.compare import compared  # noqa: E402
from benchmarks.handwritten.programs import PROGRAMS  # noqa: E402

LOOP, TIME = 1.10, 1.05  # of the hand-written kernel's instructions in the hot loop, under the same tiles; of its estimated time


MISSED = {  # by ours, see docs/reference/handwritten.md
    "layer norm 8192×4096": "one reduction more than by hand: its code is a sixth longer, its time the same",
    "causal attention, depth 64": "one multiplication more for each score; on Ampere smaller tiles",
    "causal attention, depth 128": "one multiplication more for each score; on Ampere smaller tiles",
}


def cases():
    for name in PROGRAMS:
        yield pytest.param(name, marks=[pytest.mark.xfail(reason=MISSED[name], strict=True)] if name in MISSED else [])


@pytest.mark.nightly
@pytest.mark.parametrize("card", ["h100", "a100"])
@pytest.mark.parametrize("name", cases())
def test_ours_are_as_short_and_as_fast_as_those_written_by_hand(name, card):
    found = compared(PROGRAMS[name], card)
    assert found.ours.report.spills == 0
    assert found.ours.instructions <= LOOP * found.same.instructions
    assert found.ours.seconds <= TIME * found.theirs.seconds
