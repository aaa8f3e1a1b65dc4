"""Bisection: a planted fault is found where it was planted."""

from __future__ import annotations

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqsat
from eqsat.engines import engine
from eqsat.rule import Float, op, rewrite, rule
from eqsat.rules import RULES


@rule("reassociate", gives_up="the truth")
def tanh_is_its_operand(a: Float):
    """Wrong: tanh(a) = a."""
    return rewrite(op("tanh", a), a)


def shape(*extents: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(extents, "float32")


def softened(x):
    return jnp.tanh(jax.nn.softmax(x) * 2.0) + 1.0


WRONG = (*RULES[:40], tanh_is_its_operand, *RULES[40:])


def test_a_wrong_rule_is_found_and_proved_wrong():  # P5-03
    found = eqsat.optimize(softened, shape(6, 5), rules=WRONG).bisect()
    assert (found.stage, found.culprit) == ("rule", "tanh_is_its_operand")
    text = str(found)
    assert "leaving it out is enough" in text and "tanh_is_its_operand: WRONG" in text and "of pack test_bisect" in text


@pytest.mark.slow
def test_a_right_program_is_right_in_every_stage():
    found = eqsat.optimize(softened, shape(6, 5)).bisect()
    assert found.stage == "" and [what for what, _ in found.tried][-1] == "kernel by kernel, pallas"
    assert "within tolerance in every stage" in str(found)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["triton", "pallas"])
def test_a_fault_of_a_printer_is_its_backend_s(name, monkeypatch):
    backend = importlib.import_module(f"eqsat.backends.{name}")
    emit = backend.emit
    monkeypatch.setattr(backend, "emit", lambda tiles: emit(tiles).replace("1.0", "1.5").replace("exp2", "exp"))
    found = eqsat.optimize(softened, shape(6, 5)).bisect()
    assert found.stage == name and found.culprit


def test_a_fault_of_lowering_is_the_tiles(monkeypatch):
    engines = importlib.import_module("eqsat.engines")
    run = engines.interpret.interpret
    monkeypatch.setattr(engines.interpret, "interpret", lambda *args: [a * 1.01 for a in run(*args)])
    assert eqsat.optimize(softened, shape(6, 5)).bisect().stage == "tiles"


def test_a_fault_of_reading_is_reading(monkeypatch):
    primitives = importlib.import_module("eqsat.primitives")
    monkeypatch.setitem(primitives.TABLE, "tanh", primitives.TABLE["exp"])
    assert eqsat.optimize(softened, shape(6, 5)).bisect().stage == "reading"


def test_a_reference_of_the_user_s_judges_the_original_first():
    program = eqsat.optimize(softened, shape(6, 5))
    assert program.bisect(lambda x: softened(x) + 0.1).stage == "original"
    x = np.linspace(-1, 1, 30, dtype=np.float32).reshape(6, 5)
    assert program.bisect(np.asarray(softened(x)), x, tolerance=1e-4).stage == ""
    with pytest.raises(ValueError, match="a tolerance required beside a reference of arrays"):
        program.bisect(np.asarray(softened(x)), x)


def test_a_tolerance_is_a_share_of_the_largest_value():
    program = eqsat.optimize(softened, shape(6, 5), rules=WRONG)
    assert program.bisect(tolerance=0.5).stage == ""
    assert program.bisect(tolerance=1e-4).culprit == "tanh_is_its_operand"


def test_engines_have_names():
    with pytest.raises(ValueError, match="engine 'cuda': one of meaning, tiles, triton, pallas required"):
        engine("cuda")
