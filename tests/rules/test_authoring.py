"""What an author of rules uses: the commands, files of rules, the pytest plugin."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest

from eqsat.demo_rules import TABLE, digest, said
from eqsat.packs import rules_in, rules_named
from eqsat.rule_cli import app
from eqsat.rule_trial import trial
from eqsat.rules import PACKS, RULES

pytest_plugins = "pytester"

WRONG = """
from eqsat.rule import Float, max_of, const, rewrite, rule

@rule("reassociate", gives_up="the rounding of the sum")
def relu_of_sum(a: Float, b: Float):
    "relu(a + b) = relu(a) + relu(b)."
    return rewrite(max_of(a + b, const(0)), max_of(a, const(0, a)) + max_of(b, const(0, b)))

@rule("exact")
def commute(a: Float, b: Float):
    "a + b = b + a."
    return rewrite(a + b, b + a)
"""


def command(*words: str) -> None:
    if code := app(args=list(words), standalone_mode=False):
        raise SystemExit(code)


@pytest.fixture
def wrong(tmp_path):
    path = tmp_path / "wrong_rules.py"
    path.write_text(WRONG)
    return path


# --- naming rules ----------------------------------------------------------------------------------------------------------


def test_rules_are_named_by_pack_by_name_and_by_file(wrong):
    assert rules_named(["online"]) == PACKS["online"]
    assert [r.name for r in rules_named(["add_commutes", str(wrong)])] == ["add_commutes", "relu_of_sum", "commute"]
    assert len(rules_named([])) == sum(map(len, PACKS.values()))


@pytest.mark.parametrize(
    ("word", "message"),
    [
        (
            "add_comutes",
            "rules 'add_comutes': a pack, a rule or a .py file required, found none of that name; did you mean add_commutes",
        ),
        ("qqq", "packs: algebra, bounds"),
        ("nowhere.py", "nowhere.py: a Python file of rules required, found none"),
    ],
)
def test_a_name_that_nothing_has_is_an_error(word, message):
    with pytest.raises(ValueError) as caught:
        rules_named([word])
    assert message in str(caught.value)


def test_a_file_without_rules_is_an_error(tmp_path):
    path = tmp_path / "empty.py"
    path.write_text("x = 1\n")
    with pytest.raises(ValueError, match="at least one rule required, found none"):
        rules_in(path)


@pytest.mark.parametrize(("text", "message"), [("x = (\n", "broken.py:1: Python required"), ("rewrit(1)\n", "broken.py:1")])
def test_a_file_that_python_cannot_run_is_an_error(tmp_path, text, message):
    path = tmp_path / "broken.py"
    path.write_text(text)
    with pytest.raises(ValueError) as caught:
        rules_in(path)
    assert message in str(caught.value)


# --- commands --------------------------------------------------------------------------------------------------------------


def test_list_prints_a_line_for_each_rule(capsys):
    command("list", "online", "contractions")
    out = capsys.readouterr().out
    assert f"online: {len(PACKS['online'])} rules" in out and "rules in 2 packs" in out
    assert "  merge_contractions" in out and "(sum(k, (a * b)) + sum(k, (a * c))) -> sum(k, (a * (b + c)))" in out
    command("list", "--tier", "fast")
    assert " exact " not in capsys.readouterr().out


def test_show_prints_all_that_is_known(capsys):
    command("show", "pull_factor_out_of_sum")
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[:5] == [
        "pull_factor_out_of_sum",
        "law sum(k, (a * b)) -> (a * sum(k, b))",
        "if a does not mention k",
        "variables a: Float, b: Float, k: Axis",
        "tier reassociate, gives up the rounding of each product",
    ]
    assert any(line.startswith("source ") and "sums.py:" in line for line in lines[5:])
    assert any(line.startswith("demo ") for line in lines[5:])


def test_check_prints_a_counterexample_and_fails(wrong, capsys):
    with pytest.raises(SystemExit) as stop:
        command("check", str(wrong))
    out = capsys.readouterr().out
    assert stop.value.code == 1
    assert "relu_of_sum: WRONG\nlaw      max((a + b), 0) -> (max(a, 0) + max(b, 0))" in out
    assert "commute: ok, " in out and "2 rules checked in " in out and ", 1 wrong" in out


def test_check_of_true_rules_passes(capsys):
    command("check", "add_commutes", "--samples", "10", "--seed", "5")
    assert "add_commutes: ok, " in capsys.readouterr().out


def test_new_writes_a_rule_that_passes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    command("new", "pull_out")
    assert "eqsat rules check pull_out.py" in capsys.readouterr().out
    command("check", "pull_out.py", "--samples", "20")
    assert "pull_out: ok" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"pull_out.py: a new file required, this one exists"):
        command("new", "pull_out")
    with pytest.raises(ValueError, match="a Python name required"):
        command("new", "pull-out")


def test_try_prints_equal_forms(capsys):
    command("try", "sums", "sum(a * b, axis=1)", "--args", "a=float32[4,1] b=float32[4,8]")
    assert capsys.readouterr().out.splitlines() == [
        "  sum[r0:8](a[x0, 0] * b[x0, r0])",
        "= (a[x0, 0] * sum[r0:8](b[x0, r0]))   by pull_factor_out_of_sum",
        "6 e-nodes, saturated; fired: pull_factor_out_of_sum",
    ]


def test_try_of_what_is_no_expression_says_so():
    for expression, message in [("a +", "Python in JAX's words required"), ("1 + 1", "at least one operand required")]:
        with pytest.raises(ValueError, match=message):
            trial(RULES, expression)
    with pytest.raises(ValueError, match="operands of the expression required, got b"):
        trial(RULES, "exp(a)", "b=float32[3]")


# --- the plugin --------------------------------------------------------------------------------------------------------------


def test_the_plugin_makes_a_test_of_each_rule(pytester, wrong):
    result = pytester.runpytest_inprocess(
        "-p", "eqsat.pytest_plugin", str(wrong), "--rule-samples", "40", "-p", "no:cacheprovider"
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["relu_of_sum: wrong in tier reassociate", "law      max((a + b), 0) -> *", "right    *"])


def test_the_plugin_reports_a_file_that_does_not_load(pytester):
    path = Path(pytester.makepyfile(bad_rules=textwrap.dedent(WRONG).replace('"exact"', '"precise"')))
    result = pytester.runpytest_inprocess("-p", "eqsat.pytest_plugin", str(path), "-p", "no:cacheprovider")
    result.assert_outcomes(errors=2)  # pytest's own collector imports the file too
    result.stdout.fnmatch_lines(["*rule commute (*bad_rules.py:*): tier in *"])


# --- what rules did in the demo ---------------------------------------------------------------------------------------------


def test_what_a_rule_did_in_the_demo_is_recorded(capsys):
    command("show", "softmax_sum")
    assert "the chosen kernels have some of them; without it +" in capsys.readouterr().out
    assert json.loads(TABLE.read_text())["fired"].keys() <= {r.name for r in RULES}


def test_a_table_of_other_rules_is_said_to_be_old():
    did = {"matches": 2, "rows": 1, "in the result": False, "seconds": 2e-6, "nbytes": 3000}
    table = {"program": "demo", "rules": digest(RULES), "fired": {"add_zero": did}}
    assert said("add_zero", RULES, table) == (
        "matches 2 times in distinct regions, makes 1 e-nodes; the chosen kernels have none of them; "
        "without it +2.0 us, +3.0 kB, in demo"
    )
    assert said("mul_by_one", RULES[1:], table) == "never fires, in demo (recorded with other rules than these)"
