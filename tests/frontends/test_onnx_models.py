"""Real models: they import, run, and agree with ONNX Runtime. Files come from packages on PyPI, kept in a cache.

`python tests/frontends/test_onnx_models.py` fetches them; without, their tests are skipped.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

import eqsat  # noqa: E402
from eqsat.graph import Graph  # noqa: E402
from eqsat.program import Program  # noqa: E402
from eqsat.validate import Judge  # noqa: E402

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "eqsat" / "models"
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
PACKAGES = {
    "basic-pitch": "0.4.0", "chython-rxnmap": "2.0", "ddddocr": "1.6.1", "magika": "1.0.3", "pipecat-ai": "1.14.0",
    "rapidocr-onnxruntime": "1.4.4", "silero-vad": "6.2.3", "speechmos": "0.0.1.1", "swift-f0": "0.3.0",
}  # fmt: skip

CLOSE = 1e-4

Arrays = dict[str, np.ndarray]


class Recipe(NamedTuple):
    """A file in a package and natural inputs; `constants` names those that are bound."""

    package: str
    file: str
    inputs: Callable[[np.random.Generator], Arrays]
    constants: tuple[str, ...] = ()


def noise(**shapes: tuple[int, ...]) -> Callable[[np.random.Generator], Arrays]:
    return lambda rng: {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def tones(seconds: float) -> np.ndarray:
    time = np.arange(int(16000 * seconds)) / 16000
    return (0.5 * np.sin(2 * np.pi * 220 * time) + 0.2 * np.sin(2 * np.pi * 660 * time)).astype(np.float32)


def sound(rng: np.random.Generator, seconds: float) -> np.ndarray:
    """Tones in noise: logarithms of a silent spectrum would magnify roundings."""
    clean = tones(seconds)
    return (clean + 0.01 * rng.standard_normal(clean.shape)).astype(np.float32)


def voice(rng: np.random.Generator) -> Arrays:
    sound = tones(0.032)[None]
    return {"input": sound, "state": np.zeros((2, 1, 128), np.float32), "sr": np.asarray(16000, np.int64)}


def page(height: int, width: int, name: str = "x", channels: int = 3, white: float = 1) -> Callable[[Any], Arrays]:
    """Black text on white, between 0 and `white`."""

    def draw(rng: np.random.Generator) -> Arrays:
        images = pytest.importorskip("PIL.Image")
        from PIL import ImageDraw, ImageFont

        sheet = images.new("L", (width, height), 255)
        ImageDraw.Draw(sheet).text((width // 12, height // 8), "Graph 42", fill=0, font=ImageFont.load_default(height // 2))
        pixels = np.asarray(sheet, np.float32) * (white / 255)
        return {name: np.broadcast_to(pixels, (1, channels, height, width)).copy()}

    return draw


def text(rng: np.random.Generator) -> Arrays:
    content = (b"def f(x):\n    return x + 1\n\n" * 100)[:2048]
    return {"bytes": np.frombuffer(content, np.uint8).astype(np.int32)[None]}


def reaction(rng: np.random.Generator) -> Arrays:
    """A chain of atoms after the one that stands for the whole."""
    count = 24
    steps = np.abs(np.arange(count)[:, None] - np.arange(count)[None, :])
    atoms = rng.integers(6, 10, count)
    roles = np.repeat([1, 2], count // 2)
    near, far = np.full((1, count), 3), 2 + np.minimum(steps, 8)
    return {"atoms": atoms[None], "neighbors": near, "distances": far[None], "roles": roles[None]}


def frames(rng: np.random.Generator, width: int) -> Arrays:
    return {"input": rng.standard_normal((1, 3, 20, 160)).astype(np.float32), "h0": np.zeros((4, 1, width), np.float32)}


def waveform(rng: np.random.Generator) -> Arrays:
    return {"input_1": np.resize(sound(rng, 1), (1, 144160))}


RECIPES = [
    Recipe("basic_pitch", "nmp.onnx", noise(**{"serving_default_input_2:0": (1, 43844, 1)})),
    Recipe("chython_rxnmap", "rxnmap.onnx", reaction),
    Recipe("ddddocr", "ddddocr/common.onnx", page(64, 128, "input1", 1)),
    Recipe("ddddocr", "ddddocr/common_old.onnx", page(64, 128, "input1", 1)),
    Recipe("ddddocr", "ddddocr/common_det.onnx", page(416, 416, "images", 3, 255)),
    Recipe("magika", "models/standard_v3_3/model.onnx", text),
    Recipe("pipecat_ai", "smart-turn-v3.2-cpu.onnx", noise(input_features=(1, 80, 800))),
    Recipe("pipecat_ai", "vad/data/silero_vad.onnx", voice, constants=("sr",)),
    Recipe("rapidocr", "ch_PP-OCRv4_det_infer.onnx", page(96, 160)),
    Recipe("rapidocr", "ch_PP-OCRv4_rec_infer.onnx", page(48, 160)),
    Recipe("rapidocr", "ch_ppocr_mobile_v2.0_cls_infer.onnx", page(48, 192)),
    Recipe("silero_vad", "data/silero_vad.onnx", voice, constants=("sr",)),
    Recipe("silero_vad", "data/silero_vad_16k_op15.onnx", voice, constants=("sr",)),
    Recipe("silero_vad", "data/silero_vad_half.onnx", lambda rng: {k: v for k, v in voice(rng).items() if k != "sr"}),
    Recipe("silero_vad", "data/silero_vad_op18_ifless.onnx", voice, constants=("sr",)),
    Recipe(
        "silero_vad",
        "data/silero_vad_16k_sequence.onnx",
        lambda rng: {
            "input": np.resize(sound(rng, 1), (5, 576)),
            "h": np.zeros((1, 1, 128), np.float32),
            "c": np.zeros((1, 1, 128), np.float32),
        },
    ),
    Recipe(
        "silero_vad",
        "data/silero_vad_openvino_16k.onnx",
        lambda rng: {"input": np.resize(sound(rng, 1), (1, 576)), "state": np.zeros((2, 1, 128), np.float32)},
    ),
    Recipe("speechmos", "speechmos/dnsmos_models/sig_bak_ovr.onnx", waveform),
    Recipe("speechmos", "pdnsmos_models/sig_bak_ovr.onnx", waveform),
    Recipe("speechmos", "dnsmos_models/sig.onnx", noise(input_1=(1, 901, 161))),
    Recipe("speechmos", "dnsmos_models/bak_ovr.onnx", noise(input_1=(1, 901, 161))),
    Recipe("speechmos", "dnsmos_models/model_v8.onnx", noise(input_1=(1, 900, 120))),
    Recipe("speechmos", "plcmos_models/plcmos_v2.onnx", noise(degraded_audio=(1, 1, 100, 257), rater_embed=(1, 64))),
    Recipe("speechmos", "Run_1663829550_Stage_0.onnx", lambda rng: frames(rng, 64)),
    Recipe("speechmos", "Run_1663915512_Stage_0.onnx", lambda rng: frames(rng, 64)),
    Recipe("speechmos", "Run_1668423760_Stage_0.onnx", lambda rng: frames(rng, 96)),
    Recipe(
        "swift_f0",
        "model.onnx",
        lambda rng: {
            "audio": sound(rng, 1)[None],
            "fmin": np.asarray(46.875, np.float32),
            "fmax": np.asarray(2093.75, np.float32),
        },
    ),
]


def member(recipe: Recipe) -> bytes:
    wheels = [wheel for wheel in sorted(CACHE.glob("*.whl")) if wheel.name.startswith(recipe.package)]
    if not wheels:
        pytest.skip(f"{recipe.package} is not in the cache")
    with zipfile.ZipFile(wheels[0]) as archive:
        return archive.read(next(name for name in archive.namelist() if name.endswith(recipe.file)))


def agree(content: bytes, given: Arrays | None, constants: tuple[str, ...] = ()) -> Program:
    """Outputs have the names, shapes and dtypes that ONNX Runtime gives; the optimised program's values lie within the bound of
    the two oracles, some times the rounding of the model evaluated one operation after the other. So do ONNX Runtime's, or they
    are `CLOSE` to them, relative to the largest.
    """
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    if not given:
        rng = np.random.default_rng(0)
        sizes = {i.name: [n if isinstance(n, int) else 1 for n in i.shape] for i in session.get_inputs()}
        given = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in sizes.items()}
    wanted = session.run(None, given)
    free = {name: a for name, a in given.items() if name not in constants}
    with jax.enable_x64(True):
        graph = Graph.from_onnx(onnx.load_from_string(content), inputs=free, constants={name: given[name] for name in constants})
        program = eqsat.optimize(graph)
        got = program(*free.values())
        judge = Judge(graph, list(free.values()))
        assert list(got) == [o.name for o in session.get_outputs()]
        for n, (name, theirs) in enumerate(zip(got, wanted, strict=True)):
            judge.check(n, name, np.asarray(got[name]))
            if not np.allclose(theirs, got[name], rtol=CLOSE, atol=CLOSE * float(np.abs(theirs).max(initial=0))):
                judge.check(n, f"{name} by ONNX Runtime", theirs)
            assert (theirs.shape, theirs.dtype) == (got[name].shape, got[name].dtype)
            assert not judge.vacuous(n)
    return program


@pytest.mark.nightly
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: f"{recipe.package}-{Path(recipe.file).stem}")
def test_models_of_packages(recipe):
    agree(member(recipe), recipe.inputs(np.random.default_rng(0)), recipe.constants)


def test_a_voice_model_loses_every_branch():
    recipe = next(recipe for recipe in RECIPES if recipe.file == "data/silero_vad.onnx")
    graph = agree(member(recipe), voice(np.random.default_rng(0)), recipe.constants).graph
    assert "cond" not in {equation.name for equation in graph.equations} and len(graph.equations) < 100


@pytest.mark.nightly  # constant weights make some of their sums overflow or not, as threads happen to add
@pytest.mark.parametrize("name", [path.stem for path in sorted(LIGHT.glob("*.onnx"))])
def test_light_models_of_onnx(name):
    graph = agree((LIGHT / f"{name}.onnx").read_bytes(), None).graph
    assert sum(np.asarray(c).nbytes for c in graph.constants.values()) < 1 << 20  # the weights stay broadcasts


if __name__ == "__main__":
    CACHE.mkdir(parents=True, exist_ok=True)
    for package, version in PACKAGES.items():
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(CACHE), f"{package}=={version}"])
