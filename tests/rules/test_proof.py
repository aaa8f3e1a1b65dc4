"""Proofs by z3: what is proved, what is refuted, and the words where neither is."""

from __future__ import annotations

import sys

import pytest

from eqsat.check import SAMPLES, check_rule
from eqsat.packs import rules_named
from eqsat.proof import prove, proved
from eqsat.rule import Bool, Float, Integer, const, max_of, op, rewrite, rule
from eqsat.rule_cli import app


@rule("exact")
def lowest_bit(a: Integer):
    """a & 1 = a holds for truth values only."""
    return rewrite(op("and", a, const(1)), a)


@rule("exact")
def drop_zero(a: Float):
    """a + 0 = a, but for -0."""
    return rewrite(a + const(0), a)


@rule("reassociate", gives_up="nothing")
def relu_of_sum(a: Float, b: Float):
    """relu(a + b) = relu(a) + relu(b)."""
    return rewrite(max_of(a + b, const(0)), max_of(a, const(0, a)) + max_of(b, const(0, b)))


@rule("exact")
def truth_of_and(p: Bool):
    """p and true is p."""
    return rewrite(op("and", p, const(1)), p)


@pytest.fixture(autouse=True)
def solver():
    pytest.importorskip("z3")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("factor_common", "proved over the reals"),
        ("and_with_itself", "proved for every value of bool, int8, uint8, int32, uint32"),
        ("not_lt", "proved for every value of int8, uint8, int32, uint32"),
        ("mul_by_one", "proved for every value of int8, uint8, int32, uint32, float16"),
        ("div_by_2_to_3", "proved for every value of float16"),
        ("swap_sums", "not proved (no theory of reduce)"),
        ("div_by_literal", "proved over the reals"),
        ("recognise_logistic", "not proved (true of these functions only)"),
        ("quotient_of_equals", "not proved (true by its conditions)"),
    ],
)
def test_what_is_proved_is_said(name, words):
    (known,) = rules_named([name])
    assert str(prove(known)).startswith(words)


def test_a_law_of_truth_values_is_proved_for_them_only():
    assert prove(truth_of_and).proved == ("bool",)
    assert "int8: a = " in prove(lowest_bit).refuted


def test_the_sign_of_zero_refutes_a_law_of_floats():
    assert "float16: a = -0" in prove(drop_zero).refuted


def test_a_refuted_rule_does_not_pass():
    fine = check_rule(rules_named(["negation_twice"])[0], samples=4)
    verdict = proved(fine.__class__(relu_of_sum, SAMPLES))
    assert not verdict.passed and "z3       reals: a = " in str(verdict)


def test_without_the_solver_the_report_says_so(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "z3", None)
    app(args=["check", "negation_twice", "--samples", "4", "--prove"], standalone_mode=False)
    assert "ok, " in (out := capsys.readouterr().out) and "not proved (z3 is not installed; pip install 'eqsat[prove]')" in out
