"""Laws that a search finds are true, new and few, and come as a file that a person can read."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from eqsat.check import check_rule
from eqsat.cli import app
from eqsat.discovery import Candidate, Vocabulary, candidate, derived, discover
from eqsat.discovery_text import pack_text
from eqsat.packs import rules_in, rules_named
from eqsat.pattern import Axis, Bool, Float, Integer, Pattern
from eqsat.rule import absent, birewrite, exp, op, rewrite, rule, select, sum_

WORDS = Vocabulary.of(["add", "mul", "sum", "exp"])

# --- what a search that knows nothing must find --------------------------------------------------------------------------


@rule("exact")
def commutativity(a: Float, b: Float):
    return rewrite(a + b, b + a)


@rule("exact")
def commutativity_of_products(a: Float, b: Float):
    return rewrite(a * b, b * a)


@rule("reassociate", gives_up="roundings")
def associativity(a: Float, b: Float, c: Float):
    return birewrite((a + b) + c, a + (b + c))


@rule("reassociate", gives_up="roundings")
def associativity_of_products(a: Float, b: Float, c: Float):
    return birewrite((a * b) * c, a * (b * c))


@rule("reassociate", gives_up="roundings")
def distributivity(a: Float, b: Float, c: Float):
    return birewrite(a * b + a * c, a * (b + c))


@rule("reassociate", gives_up="roundings")
def linearity(a: Float, b: Float, k: Axis):
    return birewrite(sum_(k, a * b), a * sum_(k, b), absent(k, a))


@rule("reassociate", gives_up="roundings")
def sum_of_sum(a: Float, b: Float, k: Axis):
    return birewrite(sum_(k, a + b), sum_(k, a) + sum_(k, b))


@rule("reassociate", gives_up="roundings")
def order_of_sums(a: Float, k: Axis, l: Axis):  # noqa: E741
    return rewrite(sum_(k, sum_(l, a)), sum_(l, sum_(k, a)))


@rule("fast", gives_up="range")
def exponentials(a: Float, b: Float):
    return rewrite(exp(a) * exp(b), exp(a + b))


TEXTBOOK = [r for r in list(globals().values()) if type(r).__name__ == "Rule"]


def lacking(r) -> dict[str, frozenset[str]]:
    """Which axes the variables of a rule lack by its conditions."""
    lacks: dict[str, frozenset[str]] = {}
    for g in r.equation.guards:
        axis, *terms = (m.data for m in g.mentions)
        lacks |= {t: lacks.get(t, frozenset()) | {axis} for t in terms}
    return lacks


def as_candidate(r) -> Candidate:
    return candidate(r.equation.left, r.equation.right, lacking(r))


@pytest.fixture(scope="module")
def found():
    return discover(WORDS, 3)


@pytest.mark.slow
@pytest.mark.parametrize("law", TEXTBOOK, ids=lambda r: r.name)
def test_the_textbook_is_found_in_its_tier(found, law):
    assert derived(select(found.rules, law.tier), [as_candidate(law)], WORDS), found.rules


@pytest.mark.slow
def test_none_follows_from_the_others(found):
    assert found.stopped == "complete"
    for r in found.rules:
        others = [o for o in found.rules if o is not r]
        assert not derived(select(others, r.tier), [as_candidate(r)], WORDS), r.law


@pytest.mark.slow
def test_the_file_loads_and_its_rules_hold(found, tmp_path):
    path = tmp_path / "found.py"
    path.write_text(pack_text(found, "a search"))
    loaded = rules_in(path)
    assert [(r.name, r.tier, r.law) for r in loaded] == [(r.name, r.tier, r.law) for r in found.rules]
    assert all(check_rule(r, seed=1).passed for r in loaded)
    assert all(f"{f.verdict.samples} instances" in r.doc for f, r in zip(found.found, loaded, strict=True))


# --- small searches ------------------------------------------------------------------------------------------------------


def test_the_same_question_has_the_same_answer():
    first, second = (discover(Vocabulary.of(["neg", "abs"]), 2) for _ in range(2))
    assert pack_text(first, "a search") == pack_text(second, "a search")
    assert {r.name for r in first.rules} >= {"abs_of_neg_is_abs"}


def test_what_the_packs_derive_is_not_proposed():
    assert not discover(Vocabulary.of(["add", "sub", "neg"]), 1, rules_named(())).found
    new = discover(Vocabulary.of(["mul", "neg"]), 2, rules_named(())).rules
    assert not derived(rules_named(()), [as_candidate(r) for r in new], Vocabulary.of(["mul"]))


def test_false_laws_become_near_misses_with_a_counterexample():
    d = discover(Vocabulary.of(["mul", "abs", "sqrt"]), 2)
    laws = " ".join(r.law for r in d.rules)
    assert "sqrt((a * a)) = abs(a)" in laws
    missed = {v.rule.law: v.problem for v in d.missed}
    assert "a = -1" in missed["abs(a) -> a"]
    text = pack_text(d, "a search")
    assert re.search(r"#   law      abs\(a\) -> a\n#   tier .*\n#   with     a = -1", text)


def test_a_domain_is_part_of_a_law():
    """sqrt|a| is sqrt(a) and log(a*b) is log(a) + log(b) for positive numbers only, where others are NaN."""
    d = discover(Vocabulary.of(["abs", "sqrt"]), 2)
    assert "sqrt(abs(a))" not in " ".join(r.law for r in d.rules)


def test_integers_and_truth_values_have_laws_of_their_own():
    d = discover(Vocabulary.of(["xor"], "int32", [0.0]), 2)
    assert {s for r in d.rules for s in r.sorts.values()} == {Integer} and all(r.tier == "exact" for r in d.rules)
    a = Pattern("variable", (), "a", Integer)
    assert derived(d.rules, [candidate(op("xor", a, op("xor", a, a)), a, {})], Vocabulary.of(["xor"], "int32"))
    truths = discover(Vocabulary(("and", "not"), (), "bool"), 1).rules
    assert {r.name for r in truths} == {"and_commutes", "and_is_a"} and all(s is Bool for r in truths for s in r.sorts.values())


def test_a_budget_ends_the_search_and_says_so():
    assert discover(WORDS, 2, seconds=0.0).stopped == "time budget of 0 s"
    short = discover(Vocabulary.of(["neg", "mul"]), 10**9, seconds=1.0)  # no time would do for these
    assert short.stopped == "time budget of 1 s" and short.terms > 10 and short.candidates


def test_from_a_shell(tmp_path):
    path = tmp_path / "found.py"
    command = ["rules", "discover", "--ops", "mul", "--size", "1", "--alone", "-o", str(path)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0 and "a * b) -> (b * a)" in result.output, result.output
    assert CliRunner().invoke(app, ["rules", "check", str(path)]).exit_code == 0
    for words, message in ((["--ops", "mull"], "mull"), (["--ops", "where"], "where"), (["--dtype", "int9"], "int9")):
        with pytest.raises(ValueError, match=message):
            CliRunner().invoke(app, ["rules", "discover", *words], catch_exceptions=False)
    with pytest.raises(ValueError, match="a new file"):
        CliRunner().invoke(app, command, catch_exceptions=False)
