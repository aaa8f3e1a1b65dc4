"""What a caller gets wrong: one sentence each, with what is required and what was got, and nothing raw of Python's or JAX's."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import eqsat
from eqsat.__main__ import main
from eqsat.program import Program

X = jax.ShapeDtypeStruct((4,), "float32")
ONES = jnp.ones(4)


@pytest.fixture(scope="module")
def program() -> Program:
    return eqsat.optimize(jnp.tanh, X, target="cpu", cache=False)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


FILE = "a file in a folder that can be written required, got"
PLACES: list[tuple[Callable[[Program], Any], type[Exception], str]] = [
    (lambda p: p.view("."), IsADirectoryError, rf"^view of tanh: {FILE} a folder \('.'\); choose another"),
    (lambda p: p.view("no/page.html"), FileNotFoundError, rf"^view of tanh: {FILE} no such folder \('no/page.html'\)"),
    (lambda p: p.view(3), TypeError, "^view of tanh: a path required, got 3"),  # type: ignore[arg-type]
    (lambda p: p.save(None), TypeError, "^save: a path required, got None"),  # type: ignore[arg-type]
    (lambda p: p.save("."), FileExistsError, "^save to .: a folder other than the current one required"),
    (lambda p: p.save("new", autotune="x"), TypeError, "^save to new: a number of schedules required"),  # type: ignore[arg-type]
    (lambda p: p.to_onnx("."), IsADirectoryError, f"^tanh as ONNX: {FILE} a folder"),
    (lambda p: p.to_onnx(3), TypeError, "^tanh as ONNX: a path required, got 3"),  # type: ignore[arg-type]
    (lambda p: p.to_stablehlo("no/m.mlir"), FileNotFoundError, f"^tanh as StableHLO: {FILE} no such folder"),
    (lambda p: p.to_stablehlo(3), TypeError, "^tanh as StableHLO: a path required, got 3"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("call, kind, message", PLACES)
def test_a_place_that_can_not_be_written_is_named(
    program: Program, folder: Path, call: Callable[[Program], Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        call(program)
    assert not list(folder.iterdir())


def test_models_are_written_where_a_path_says_so(program: Program, folder: Path) -> None:
    onnx = pytest.importorskip("onnx")
    assert program.to_onnx("m.onnx") == onnx.load("m.onnx")
    assert program.to_stablehlo("m.mlir") == Path("m.mlir").read_text()
    program.to_stablehlo("m.mlirbc")
    for name in ("m.onnx", "m.mlir", "m.mlirbc"):
        read = eqsat.Graph.from_onnx if name.endswith("onnx") else eqsat.Graph.from_stablehlo
        assert len(read(name).inputs) == 1


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="a file system that refuses what its modes allow")
@pytest.mark.parametrize(
    "words", [["optimize", "-o", "/proc/x"], ["view", "-o", "/proc/x.html"], ["optimize", "--onnx", "/proc/x"]]
)
def test_a_place_is_tried_before_the_search(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("eqsat.cli_options.Search.optimize", lambda *_: pytest.fail("searched"))
    assert main([words[0], "jax.nn:softmax", "--args", "float32[4,8]", *words[1:]]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "that can be written required, got" in error


def test_a_folder_with_other_files_is_refused_before_the_search(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "out").mkdir()
    (folder / "out" / "thesis.tex").touch()
    monkeypatch.setattr("eqsat.cli_options.Search.optimize", lambda *_: pytest.fail("searched"))
    assert main(["optimize", "jax.nn:softmax", "--args", "float32[4,8]", "-o", "out"]) == 2
    assert "an empty folder or an earlier save required" in capsys.readouterr().err


READERS: list[tuple[str, Callable[[], Any]]] = [
    ("an ONNX file", lambda: eqsat.Graph.from_onnx("none.model")),
    ("an ONNX file", lambda: eqsat.function("none.onnx")),
    ("the folder of a SavedModel", lambda: eqsat.Graph.from_tensorflow("none")),
]


@pytest.mark.parametrize("kind, read", READERS)
def test_a_file_that_is_not_there_is_said_before_a_package_that_is_not(
    kind: str, read: Callable[[], Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [n for n in sys.modules if n.startswith(("eqsat.frontends.onnx", "eqsat.frontends.tensorflow"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "onnx", None)
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with pytest.raises(FileNotFoundError, match=f"{kind} required, got none at 'none"):
        read()


# --- tracing ------------------------------------------------------------------------------------------------------


def branches(x: jax.Array) -> jax.Array:
    return x if x.sum() > 0 else -x


def times(x: jax.Array, n: Any) -> jax.Array:
    return x * len(n)


static = eqsat.jit(times, target="cpu", static_argnums=1)
CALLS: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: eqsat.jit(branches)(ONES), TypeError, r"^branches: .*test_misuse.py:\d+\); choose by value with jnp.where"),
    (lambda: eqsat.jit(branches).program(X), TypeError, "^branches: .*; choose by value with jnp.where"),
    (lambda: eqsat.jit(lambda x: x[x > 0])(ONES), ValueError, "^function: .*; keep the shape, with jnp.where"),
    (lambda: eqsat.jit(lambda x: x * float(x[0]))(ONES), TypeError, "^function: .*; compute with jnp in place of"),
    (
        lambda: static(ONES, [1, 2]),
        ValueError,
        r"^times: static arguments that have a hash required, got the list \[1, 2\]; pass a",
    ),
    (lambda: static.program(ONES, [1, 2]), ValueError, "^times: static arguments that have a hash required, got the list"),
    (lambda: eqsat.jit(times)(ONES, "ab"), TypeError, "^times: arrays required, got str for n; name it in static_argnums"),
    (lambda: eqsat.optimize(times, X, "ab"), TypeError, "^times: arrays or jax.ShapeDtypeStruct required, got str for n; bind"),
]


@pytest.mark.parametrize("call, kind, message", CALLS)
def test_what_jax_can_not_trace_is_said_in_one_line(call: Callable[[], Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message) as caught:
        call()
    said = str(caught.value)
    assert "\n" not in said and " flat " not in said and " at 0x" not in said


def test_an_error_of_the_functions_own_stays_what_it_is() -> None:
    own = KeyError("mine")

    @eqsat.jit
    def raises(x: jax.Array) -> jax.Array:
        raise own

    with pytest.raises(KeyError) as caught:
        raises(ONES)
    assert caught.value is own


# --- arguments ----------------------------------------------------------------------------------------------------


def test_an_option_misspelt_is_not_taken_for_the_functions_argument() -> None:
    graph = eqsat.Graph.from_jax(jnp.tanh, X)
    with pytest.raises(
        TypeError, match="^optimize: an argument of tanh or an option required, got one named targt; did you mean t"
    ):
        eqsat.optimize(jnp.tanh, X, targt="cpu")  # type: ignore[call-arg]
    with pytest.raises(
        TypeError, match="^optimize: an argument of tanh or an option required, got one named numeric; did you mean n"
    ):
        eqsat.optimize(graph, numeric="exact")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="^tanh: no arguments beside a graph required, got 1"):
        eqsat.optimize(graph, X)
    kept = eqsat.optimize(lambda x, **more: x + more["targt"], X, targt=X, target="cpu", cache=False)
    assert len(kept.inputs) == 2


def test_another_structure_of_arguments_is_spelled_as_a_call(program: Program) -> None:
    with pytest.raises(
        TypeError, match=r"^tanh: a call tanh\(\*\) required, got tanh\(\*, \{'a': \*\}\); call eqsat.optimize again"
    ):
        program(ONES, {"a": ONES})
    with pytest.raises(TypeError, match=r"^tanh: a call tanh\(\*\) required, got tanh\(x=\*\); trace it again"):
        program.graph(x=ONES)


def test_of_many_arguments_those_that_differ_are_named() -> None:
    weights = {f"layer_{n}": {"weight": ONES, "bias": ONES} for n in range(20)}
    graph = eqsat.Graph.from_jax(lambda p, x: x + sum(v["bias"] for v in p.values()), weights, ONES)
    other = {**weights, "layer_3": {"weight": ONES, "bais": ONES}}
    with pytest.raises(TypeError) as caught:
        graph(other, ONES)
    assert "got one without argument 0['layer_3']['bias'] and one with argument 0['layer_3']['bais'];" in str(caught.value)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize("option", [{"cache": 3}, {"cache": None}, {"memory_limit": "1 GB"}])
def test_an_option_of_another_type_is_named(option: dict[str, Any]) -> None:
    name, value = next(iter(option.items()))
    with pytest.raises(TypeError, match=f"^{name}: .* required, got {value!r}"):
        eqsat.optimize(jnp.tanh, X, **option)
