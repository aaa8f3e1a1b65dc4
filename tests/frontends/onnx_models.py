"""Real ONNX models, judged one process each: they import, optimise and agree with ONNX Runtime.

The files come from packages on PyPI, kept in a cache, and from the package onnx itself, whose `light` graphs are real topologies
with weights that are all alike: their outputs are one number a thousand times, so they are also run with drawn weights.

python tests/frontends/onnx_models.py --fetch     fetches the packages
python tests/frontends/onnx_models.py [NAME ...]  judges what has no row yet (or the models named), and writes docs/onnx-models.md
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import onnx

import eqsat
from eqsat.graph import Graph
from eqsat.program import Program
from eqsat.validate import Judge

ROOT = Path(__file__).resolve().parents[2]
ROWS = ROOT / "benchmarks" / "results" / "onnx-models.json"
TABLE = ROOT / "docs" / "onnx-models.md"
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
        from PIL import Image, ImageDraw, ImageFont

        sheet = Image.new("L", (width, height), 255)
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


class Missing(Exception):
    """A file that is not in the cache."""


def _wheel_members() -> dict[str, Recipe]:
    names = [f"{r.package}/{Path(r.file).stem}" for r in RECIPES]
    full = [f"{r.package}/{Path(r.file).parent.name}/{Path(r.file).stem}" for r in RECIPES]
    return {(n if names.count(n) == 1 else f): r for n, f, r in zip(names, full, RECIPES, strict=True)}


PACKAGED = _wheel_members()
LIGHTS = {f"{path.stem}{drawn}": path for path in sorted(LIGHT.glob("*.onnx")) for drawn in ("", ", drawn weights")}
MODELS = (*PACKAGED, *LIGHTS)


def member(recipe: Recipe) -> bytes:
    wheels = [wheel for wheel in sorted(CACHE.glob("*.whl")) if wheel.name.startswith(recipe.package)]
    if not wheels:
        raise Missing(f"{recipe.package} is not in the cache")
    with zipfile.ZipFile(wheels[0]) as archive:
        return archive.read(next(name for name in archive.namelist() if name.endswith(recipe.file)))


def with_drawn_weights(content: bytes, rng: np.random.Generator) -> bytes:
    """A light graph with weights as trained ones are scaled, in place of those that ConstantOfShape makes."""
    model = onnx.load_from_string(content)
    held = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    for node in [n for n in model.graph.node if n.op_type == "ConstantOfShape"]:
        shape = held[node.input[0]]
        if len(shape) < 2:  # of a normalization, whose variances are positive, or a bias
            weight = rng.uniform(0.5, 1.5, shape)
        else:
            weight = rng.standard_normal(shape, np.float32) * np.sqrt(2 / np.prod(shape[1:]))
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight.astype(np.float32), node.output[0]))
        model.graph.node.remove(node)
    return model.SerializeToString()


class Case(NamedTuple):
    """A model as bytes, its inputs, and the names of those that are bound."""

    content: bytes
    given: Arrays
    constants: tuple[str, ...] = ()


def case(name: str) -> Case:
    """The model of a name; raises Missing."""
    rng = np.random.default_rng(0)
    if name in PACKAGED:
        recipe = PACKAGED[name]
        return Case(member(recipe), recipe.inputs(rng), recipe.constants)
    content = LIGHTS[name].read_bytes()
    if name != LIGHTS[name].stem:
        content = with_drawn_weights(content, rng)
    image = rng.standard_normal((1, 3, 224, 224)).astype(np.float32)
    declared = onnx.load_from_string(content).graph
    held = {t.name for t in declared.initializer}
    return Case(content, {v.name: image for v in declared.input if v.name not in held})


class Judged(NamedTuple):
    """A program that agrees, the largest error over what is allowed, and seconds by stage."""

    program: Program
    ratio: float
    seconds: Mapping[str, float]


def judged(case: Case, vacuous: bool = False) -> Judged:
    """Outputs have the names, shapes and dtypes that ONNX Runtime gives; the optimised program's values lie within the bound of
    the two oracles, some times the rounding of the model evaluated one operation after the other. So do ONNX Runtime's, or they
    are `CLOSE` to them, relative to the largest. vacuous: constants in place of the outputs may pass too.
    """
    import onnxruntime

    session = onnxruntime.InferenceSession(case.content, providers=["CPUExecutionProvider"])
    wanted = dict(zip([o.name for o in session.get_outputs()], session.run(None, case.given), strict=True))
    del session
    clock = [time.perf_counter()]
    free = {name: a for name, a in case.given.items() if name not in case.constants}
    with jax.enable_x64(True):
        model = onnx.load_from_string(case.content)
        graph = Graph.from_onnx(model, inputs=free, constants={name: case.given[name] for name in case.constants})
        del model
        clock.append(time.perf_counter())
        program = eqsat.optimize(graph)
        clock.append(time.perf_counter())
        got = program(*free.values())
        clock.append(time.perf_counter())
        judge = Judge(graph, list(free.values()))
        assert list(got) == list(wanted)
        ratio = 0.0
        for n, (name, theirs) in enumerate(wanted.items()):
            ratio = max(ratio, judge.check(n, name, np.asarray(got[name])).ratio)
            if not np.allclose(theirs, got[name], rtol=CLOSE, atol=CLOSE * float(np.abs(theirs).max(initial=0))):
                judge.check(n, f"{name} by ONNX Runtime", theirs)
            assert (theirs.shape, theirs.dtype) == (got[name].shape, got[name].dtype)
            assert vacuous or not judge.vacuous(n), f"{name}: a constant would pass"
    stages = ("import", "search", "run")
    return Judged(program, ratio, dict(zip(stages, np.diff(clock).tolist(), strict=True)))


# --- one process a model, and the table ---------------------------------------------------------------------------


def nodes(graph: Any) -> int:
    """Their number, those in branches and loops included."""
    return len(graph.node) + sum(nodes(a.g) for node in graph.node for a in node.attribute if a.HasField("g"))


def row(name: str) -> dict[str, Any]:
    """What the table says of a model; in this process."""
    given = case(name)
    program, ratio, seconds = judged(given, vacuous=name in LIGHTS and name == LIGHTS[name].stem)
    return {
        "nodes": nodes(onnx.load_from_string(given.content).graph),
        "equations": len(program.graph.equations),
        "calls": sorted({c.name for c in program.calls}),
        "opaque": program.opaque_share,
        "launches": [program.baseline.launches, program.cost.launches],
        "allowed": ratio,
        "seconds": seconds,
        "gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
    }


def row_of_process(name: str, limit: float = 900.0) -> dict[str, Any]:
    """The same, in a process of its own; {"error": text} where it fails or takes more than `limit` seconds."""
    command = [sys.executable, __file__, "--row", name]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "EQSAT_CACHE_DIR": ""}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, env=environment)
    except subprocess.TimeoutExpired:
        return {"error": f"took more than {limit:.0f} s"}
    if done.returncode:
        return {"error": (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]}
    return dict(json.loads(done.stdout.splitlines()[-1]))


def table(rows: Mapping[str, Mapping[str, Any]]) -> str:
    lines = [
        "# Real ONNX models",
        "",
        "Files as packages on PyPI ship them, with natural inputs, optimised for an H100; each was judged in a process of its",
        "own by `python tests/frontends/onnx_models.py`. A model agrees if the values of the optimised program lie within the",
        "bound of the two oracles (`allowed` is the largest error over that bound) and ONNX Runtime's lie there too, or within",
        "1e-4 of the largest value. The `light` graphs of onnx have weights that are all alike, hence also a row with drawn",
        "weights. *JAX* is the share of the predicted time of calls of JAX. Seconds are of a shared machine with two cores;",
        "memory is the process's peak: ONNX Runtime, both oracles and the compiled program.",
        "",
        "| model | nodes | equations | launches | JAX | allowed | import, search, first run (s) | memory (GB) |",
        "| --- | ---: | ---: | ---: | --- | ---: | ---: | ---: |",
    ]
    lines += [f"| {name} | {_cells(rows[name])} |" for name in MODELS if name in rows]
    return "\n".join([*lines, ""])


def _cells(row: Mapping[str, Any]) -> str:
    if "error" in row:
        return " | ".join([f"**{row['error']}**".replace("|", "&#124;"), *[""] * 6])
    before, after = row["launches"]
    calls = f"{row['opaque']:.1%}: {', '.join(row['calls'])}" if row["calls"] else ""
    seconds = ", ".join(f"{s:.1f}" for s in row["seconds"].values())
    cells = (
        row["nodes"],
        row["equations"],
        f"{before} → {after}",
        calls,
        f"{row['allowed']:.0%}",
        seconds,
        f"{row['gigabytes']:.1f}",
    )
    return " | ".join(map(str, cells))


def fetch() -> None:
    CACHE.mkdir(parents=True, exist_ok=True)
    for package, version in PACKAGES.items():
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(CACHE), f"{package}=={version}"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="parts of the names of models; all that have no row yet")
    parser.add_argument("--fetch", action="store_true")
    parser.add_argument("--row", metavar="NAME", help="judge one model here and print its row as JSON")
    given = parser.parse_args()
    if given.fetch:
        return fetch()
    if given.row:
        return print(json.dumps(row(given.row)))
    rows = json.loads(ROWS.read_text()) if ROWS.exists() else {}
    for name in MODELS:
        if any(part in name for part in given.names) or (not given.names and "error" in rows.get(name, {"error": ""})):
            rows[name] = row_of_process(name)
            print(name, rows[name], flush=True)
            ROWS.write_text(json.dumps({n: rows[n] for n in MODELS if n in rows}, indent=1) + "\n")
            TABLE.write_text(table(rows))


if __name__ == "__main__":
    main()
