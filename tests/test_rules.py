"""The packs, the mistakes that are found when a rule is loaded, and switching rules off."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest

import eqsat.rules
from eqsat.check import check_rule
from eqsat.egraph import Engine
from eqsat.rule import (
    Axis,
    Float,
    Integer,
    Number,
    Term,
    absent,
    birewrite,
    cast,
    const,
    exp,
    has_dtype,
    max_of,
    op,
    pack,
    position,
    rewrite,
    rule,
    select,
    sum_,
    where,
    without,
)
from eqsat.rules import BUILT_IN, OPTIONAL, PACKS, RULES

EVERY = [r for rules in BUILT_IN.values() for r in rules]

# --- the packs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("law", EVERY, ids=lambda r: r.name)
def test_every_rule_is_true_in_its_tier(law):
    verdict = check_rule(law, samples=48)
    assert verdict.passed, verdict.problem


def test_every_rule_says_what_it_is():
    for r in EVERY:
        assert r.doc, f"{r.name}: a docstring"
        assert r.pack in BUILT_IN
        assert r.law


def test_names_are_unique_over_all_packs():
    names = [r.name for r in EVERY]
    assert len(set(names)) == len(names)


def test_optional_packs_are_not_used_by_default():
    assert OPTIONAL and all(name in PACKS for name in OPTIONAL)
    assert not {r.name for r in RULES} & {r.name for name in OPTIONAL for r in PACKS[name]}


def test_the_engine_takes_every_rule():
    assert len(Engine(EVERY).rules) == len(EVERY)


# --- mistakes at load -----------------------------------------------------------------------------------------------------


def unbound(a: Float, b: Float):
    return rewrite(exp(a), a * b)


def bound_on_one_side(a: Float, b: Float):
    return birewrite(a - a, b - b)


def unknown_operation(a: Float):
    return rewrite(op("softplus", a), a)


def wrong_arity(a: Float):
    return rewrite(op("exp", a, a), a)


def number_for_term(a: Float):
    return rewrite(a * 2, a + a)


def term_for_axis(a: Float, b: Float):
    return rewrite(sum_(a, b), b)


def axis_for_term(a: Float, k: Axis):
    return rewrite(a * k, a)


def dtypes_differ(a: Float, b: Float):
    return rewrite(cast("float32", a) + b, a + b)


def result_of_another_dtype(a: Float):
    return rewrite(cast("float32", a), a)


def division_of_integers(a: Term):
    return rewrite(a + a, a / const(0.5, a))


def truth_of_integers(a: Integer, b: Integer):
    return rewrite(where(a, b, b), b)


def literal_without_dtype(a: Float):
    return rewrite(a + a, a * const(2))


def position_on_the_right(i: Integer, k: Axis):
    return rewrite(i + position(k), position(k) + i)


def computed_on_the_left(a: Float, c: Number):
    return rewrite(a * const(c + c), a)


def everything(a: Float):
    return rewrite(a, a * const(1, a))


def not_used(a: Float, b: Float):
    return rewrite(exp(a), exp(a * const(1, a)))


def condition_on_nothing(a: Float, k: Axis):
    return rewrite(exp(a), exp(a * const(1, a)), absent(k, a))


def no_sort(a, b: Float):
    return rewrite(a + b, b + a)


def no_equation(a: Float):
    return exp(a)


MISTAKES = {
    unbound: "variables of one side must be bound by the other, got b",
    bound_on_one_side: "variables of one side must be bound by the other, got a, b",
    unknown_operation: "operation 'softplus': one of the table of scalar operations required; found none of that name",
    wrong_arity: "operation exp: 1 operands required, got 2",
    number_for_term: "2: a term required, got a Number; write const(2)",
    term_for_axis: "a: an Axis required, got a Float",
    axis_for_term: "k: a term required, got a Axis",
    dtypes_differ: "nothing else makes a (float) and b (float32) equal; add has_dtype or a cast",
    result_of_another_dtype: "nothing else makes a (float) and float32 equal; add has_dtype or a cast",
    division_of_integers: "operands of kind float required, these may be a (float or int or uint); narrow the sorts",
    truth_of_integers: "a (int or uint) and bool meet; cast first",
    literal_without_dtype: "const(2) on a right side: its dtype required; write const(2, like=a)",
    position_on_the_right: "position(k): on a left side only",
    computed_on_the_left: "on a left side a number or a Number variable; compute on the right side",
    everything: "an operation to look for required, got what stands everywhere",
    not_used: "every parameter must stand on the left side, got b",
    condition_on_nothing: "conditions may use the variables of the left side, got k",
    no_sort: "parameter a needs a sort as annotation, got None; one of Term, Float, Integer, Bool, Axis, DType, Number",
    no_equation: "rewrite(...) or birewrite(...) as the result required, got Pattern",
}


@pytest.mark.parametrize("author", MISTAKES, ids=lambda f: f.__name__)
def test_mistakes_are_found_at_load(author):  # P5-11
    with pytest.raises((TypeError, ValueError)) as caught:
        rule("exact")(author)
    message = str(caught.value)
    assert MISTAKES[author] in message
    assert message.startswith(f"rule {author.__name__} (")
    assert f"test_rules.py:{author.__code__.co_firstlineno}): " in message, "file and line of the author"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "tier in "),
        ({"tier": "precise"}, "got 'precise', 'structural'"),
        ({"tier": "exact", "phase": "later"}, "got 'exact', 'later'"),
        ({"tier": "fast"}, "any other says what in gives_up; got '' for fast"),
        ({"tier": "exact", "gives_up": "much"}, "tier exact gives up nothing"),
    ],
)
def test_tier_and_phase_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        rule(**arguments)(not_used)


def test_a_rule_without_parentheses_says_what_is_missing():
    with pytest.raises(ValueError, match=r"rule not_used \(.*test_rules.py:\d+\): a tier required, such as @rule\('exact'\)"):
        rule(not_used)


def test_names_are_given_once():
    @rule("exact")
    def commute(a: Float, b: Float):
        return rewrite(a + b, b + a)

    @rule("exact", name="commute")
    def again(a: Float, b: Float):
        return rewrite(a * b, b * a)

    with pytest.raises(ValueError, match=r"rule commute \(.*\): a name of its own required, .*test_rules.py:\d+ has it too"):
        pack({"one": commute, "two": again})


# --- which rules are used --------------------------------------------------------------------------------------------------


def test_rules_are_switched_off_by_name_and_by_pack():
    left = without(RULES, ["add_commutes", "online"])
    gone = {r.name for r in RULES} - {r.name for r in left}
    assert gone == {"add_commutes", *(r.name for r in PACKS["online"])}
    with pytest.raises(ValueError, match="rule or pack 'add_comutes': none of that name; did you mean add_commutes"):
        without(RULES, ["add_comutes"])


def test_a_tier_admits_those_before_it():
    tiers = [{r.tier for r in select(RULES, t)} for t in ("exact", "reassociate", "fast")]
    assert tiers == [{"exact"}, {"exact", "reassociate"}, {"exact", "reassociate", "fast"}]


def test_installed_packages_offer_packs(monkeypatch):
    @rule("exact")
    def of_a_stranger(a: Float):
        """max(a, a) = a."""
        return rewrite(max_of(a, a), a)

    point = SimpleNamespace(name="strange", value="strange.rules:RULES", load=lambda: [of_a_stranger])
    monkeypatch.setattr(eqsat.rules, "entry_points", lambda group: [point])
    assert eqsat.rules.installed() == {"strange": (of_a_stranger,)}
    broken = SimpleNamespace(name="broken", value="broken:RULES", load=lambda: 1 / 0)
    monkeypatch.setattr(eqsat.rules, "entry_points", lambda group: [broken])
    with pytest.raises(ImportError, match=r"rule pack broken \(broken:RULES\): division by zero; fix or uninstall it"):
        eqsat.rules.installed()


def test_a_law_reads_as_an_equation():
    @rule("reassociate", gives_up="the rounding of each product")
    def pull(a: Float, b: Float, k: Axis):
        return birewrite(sum_(k, a * b), a * sum_(k, b), absent(k, a), has_dtype(b, "float32"))

    assert pull.law == "sum(k, (a * b)) = (a * sum(k, b))   if a does not mention k and b is of dtype float32"
    assert dataclasses.replace(pull, tier="fast").law == pull.law
