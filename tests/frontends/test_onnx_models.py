"""Real models: they import, optimise, and agree with ONNX Runtime. `onnx_models.py` fetches them; the others are skipped."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import numpy as np  # noqa: E402
from onnx_models import LIGHT, MODELS, ROWS, TABLE, Missing, case, judged, row_of_process, table  # noqa: E402

import eqsat  # noqa: E402


def found(name):
    try:
        return case(name)
    except Missing as reason:
        pytest.skip(str(reason))


@pytest.mark.nightly
@pytest.mark.parametrize("name", MODELS)
def test_every_model(name):
    found(name)
    assert "error" not in (row := row_of_process(name)), row


def test_the_table_is_of_the_rows():
    rows = json.loads(ROWS.read_text())
    assert table(rows) == TABLE.read_text(), "docs/onnx-models.md differs; tests/frontends/onnx_models.py writes it"
    assert list(rows) == list(MODELS) and not [name for name, row in rows.items() if "error" in row]


def test_a_voice_model_loses_every_branch():
    graph = judged(found("silero_vad/silero_vad")).program.graph
    assert "cond" not in {equation.name for equation in graph.equations} and len(graph.equations) < 100


@pytest.mark.nightly
@pytest.mark.parametrize("path", sorted(LIGHT.glob("*.onnx")), ids=lambda path: path.stem)
def test_weights_that_are_all_alike_stay_broadcasts(path):
    graph = eqsat.Graph.from_onnx(path)
    assert sum(np.asarray(c).nbytes for c in graph.constants.values()) < 1 << 20
