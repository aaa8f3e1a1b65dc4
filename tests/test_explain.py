"""The ledger: rules leave traces, what they are worth is measured, and neighbours are apart for a reason."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import eqsat
import eqsat.explain
import eqsat.optimizer
from eqsat.cost import FREE
from eqsat.egraph import Engine
from eqsat.makers import smallest
from eqsat.program import Program
from eqsat.rule import Float, const, op, rewrite, rule
from eqsat.rule_trial import trial
from eqsat.rules import RULES
from examples.lora import lora


def shape(*extents: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(extents, dtype)


def chain(a, b, v):
    return (a @ b) @ v


CHAIN = (shape(512, 512), shape(512, 512), shape(512))


TWO = [r for r in RULES if r.name in ("associate_contraction", "mul_commutes")]


@pytest.fixture(scope="module")
def explained() -> eqsat.explain.Explanation:
    return eqsat.optimize(chain, *CHAIN, rules=TWO).explain()


def test_a_rule_whose_right_side_is_bare_leaves_a_trace():
    program = eqsat.optimize(lambda x, y: jnp.exp(lax.mul(x, jnp.float32(1))) + lax.neg(lax.neg(y)), shape(64, 64), shape(64, 64))
    assert program.notes["rules"] == ("mul_by_one", "negation_twice")
    assert trial(tuple(program.request.rules), "exp(a * 1.0)").forms[0].rules == ("mul_by_one",)


def test_a_rule_that_changed_nothing_leaves_none():
    program = eqsat.optimize(lambda x, y: x * y, shape(64, 64), shape(64, 64))
    assert program.notes["rules"] == ()


def test_needed_rules_are_those_without_which_the_plan_costs_more(explained):
    program = eqsat.optimize(chain, *CHAIN, rules=TWO)
    assert "associate_contraction" in explained.needed
    worth = next(w for w in explained.rules if w.rule == "associate_contraction").more
    without = program.request.optimize(program.graph, [r for r in program.request.rules if r.name != "associate_contraction"])
    assert worth.seconds == pytest.approx(without.cost.seconds - program.cost.seconds)
    assert worth.flops == without.cost.flops - program.cost.flops > 0


def test_a_rule_that_another_can_replace_is_not_needed():
    twin = [replace(r, name=f"{r.name}_again") for r in TWO]
    explanation = eqsat.optimize(chain, *CHAIN, rules=[*TWO, *twin]).explain()
    used = {w.rule: w for w in explanation.rules}
    assert explanation.needed == () and used["associate_contraction"].here.seconds > 0
    assert explanation.fusion_alone is not None and explanation.fusion_alone.seconds > 0
    assert "another way costs the same" in str(explanation)


def test_what_a_kernel_made_by_rules_stores_is_fused_without_capture():
    program = eqsat.optimize(chain, shape(2048, 2048), shape(2048, 2048), shape(2048), rules=TWO)
    (boundary,) = program.explain(0.0).boundaries
    assert boundary.seconds is None or boundary.seconds > 0


def test_one_pass_sums_are_fused_with_their_neighbours():
    def two(x, w):
        y = jax.nn.softmax(x) @ w
        return jax.nn.softmax(y) @ w

    program = eqsat.optimize(two, shape(4096, 1024), shape(1024, 1024))
    boundaries = program.explain(0.0).boundaries
    assert any("softsum" in k.formula for k in program.kernels) and any(b.seconds is not None for b in boundaries)


def test_tiers_say_what_is_given_up(explained):
    assert "the rounding of the inner product" in explained.tiers["reassociate"]


def test_every_rule_that_made_an_e_node_is_counted(explained):
    assert explained.rows["associate_contraction"] > 0
    assert all(explained.matches.get(rule, 0) + explained.matches.get(f"{rule}_back", 0) for rule in explained.rows)


def test_own_rules_that_matched_nowhere_are_named():  # P5-11
    @rule("exact")
    def of_a_sine(a: Float):
        return rewrite(op("sin", op("neg", a)), op("neg", op("sin", a)))

    explained = eqsat.optimize(chain, *CHAIN, rules=(*TWO, of_a_sine)).explain()
    assert explained.idle == ("of_a_sine",) and "\n  fired 0 times: of_a_sine\n" in str(explained)


def test_a_rule_that_feeds_itself_is_stopped_and_named():  # P5-02
    @rule("reassociate", gives_up="two roundings")
    def double_and_halve(a: Float, b: Float):
        return rewrite(op("mul", a, b), op("mul", op("mul", a, const(2, a)), op("mul", b, const(0.5, b))))

    def softmax(x):
        return jax.nn.softmax(x, -1) * x

    alone = eqsat.optimize(softmax, shape(64, 128), cache=False)
    program = eqsat.optimize(softmax, shape(64, 128), rules=(*RULES, double_and_halve), cache=False)
    (search,) = program.notes["search"]
    assert "double_and_halve" in search.partition("most made by ")[2] and "most made by" not in alone.report()
    assert program.cost.seconds <= 1.01 * alone.cost.seconds < program.baseline.seconds
    program.validate()


def test_what_lost_costs_more_or_as_much(explained):
    assert explained.lost
    assert all(lost.more.seconds >= -1e-12 and lost.instead for lost in explained.lost)


def test_plans_that_cost_as_much_are_counted_not_listed(explained):
    after, lost = explained.after.seconds, explained.lost[0]
    alike, dearer = (replace(lost, more=replace(lost.more, seconds=share * after)) for share in (0.004, 0.006))
    text = str(replace(explained, lost=(alike, alike, dearer)))
    assert "considered and as good, within 0.5% of the time: 2 plans (in to_dict)" in text
    assert text.count(f"instead of {lost.chosen[:20]}") == 1
    assert "considered and lost" not in str(replace(explained, lost=(alike,)))


def test_text_and_dictionary_agree(explained):
    facts = json.loads(json.dumps(explained.to_dict()))
    text = str(explained)
    assert all(rule in text for rule in facts["needed"]) and facts["after"]["seconds"] == explained.after.seconds
    assert max(map(len, text.splitlines())) <= 120


def test_what_one_kernel_would_compute_again_and_again_is_said():
    program = eqsat.optimize(lambda a, b, c: jnp.exp(a @ b) @ c, *[shape(2048, 2048, dtype="bfloat16")] * 3)
    (boundary,) = program.explain().boundaries
    assert "us longer: exp would be computed" in boundary.reason and "times over" in boundary.reason
    assert boundary.seconds > 0


def test_what_does_not_fit_is_said():
    program = eqsat.optimize(lora, *[shape(*e) for e in ((512, 256), (256, 256), (256, 32), (32, 256))])
    (boundary,) = program.explain().boundaries
    assert "would not fit the registers or the shared memory of h100" in boundary.reason and boundary.seconds is None


def test_a_call_is_a_reason():
    program = eqsat.optimize(lambda x: jnp.sort(jnp.exp(x)) * 2, shape(64, 64))
    reasons = [b.reason for b in program.explain().boundaries]
    assert len(reasons) == 2 and all("sort is a call of JAX" in r for r in reasons)


def test_what_is_still_equal_without_a_rule_is_not_searched_for_again(monkeypatch):
    twin = [replace(r, name=f"{r.name}_again") for r in TWO]
    program = eqsat.optimize(chain, shape(8192, 4096), shape(4096, 4096), shape(4096, 1024), rules=[*TWO, *twin])
    graphs, pools, saturate, pool = [], [], Engine.saturate, eqsat.optimizer.Pool
    monkeypatch.setattr(Engine, "saturate", lambda self, *args: graphs.append(self.rules) or saturate(self, *args))
    monkeypatch.setattr(eqsat.optimizer, "Pool", lambda *args: pools.append(graphs[-1]) or pool(*args))
    assert program.explain().needed == ()
    assert len(pools) < len(graphs) and () in pools  # without any rule the chain as written costs more


def test_time_that_did_not_suffice_is_said():
    explanation = eqsat.optimize(chain, *CHAIN, rules=TWO).explain(seconds=0.0)
    assert (
        "reassociate" in explanation.tiers
        and "associate_contraction" in explanation.untried
        and "stopped at the 0 s given" in str(explanation)
    )


def test_a_program_without_its_search_is_refused():
    program = eqsat.optimize(chain, *CHAIN)
    bare = Program(
        program.graph,
        program.inputs,
        program.constants,
        program.steps,
        program.outputs,
        "h100",
        "exact",
        program.baseline,
        program.cost,
    )
    with pytest.raises(ValueError, match=r"explain chain: a program that eqsat.optimize made required"):
        bare.explain()


def test_a_loop_that_never_runs_counts_for_nothing():
    program = eqsat.optimize(lambda x: lax.fori_loop(0, 0, lambda _, y: jnp.exp(y @ y), x) + x, shape(64, 64))
    explanation = program.explain()
    assert explanation.fusion_alone == FREE and all(w.more == FREE for w in explanation.rules)


def test_a_second_explanation_comes_from_the_cache(tmp_path, monkeypatch):
    first = eqsat.optimize(chain, *CHAIN, rules=TWO, cache=tmp_path).explain()
    program = eqsat.optimize(chain, *CHAIN, rules=TWO, cache=tmp_path)
    engines, saturate = [], Engine.saturate
    monkeypatch.setattr(Engine, "saturate", lambda self, *args: engines.append(self) or saturate(self, *args))
    assert program.explain().needed == first.needed
    assert len(engines) == 1  # the search itself, whose candidates are asked for


def test_the_search_that_made_a_program_is_not_repeated(monkeypatch):
    program = eqsat.optimize(chain, *CHAIN, rules=TWO, cache=False)
    rules, saturate = [], Engine.saturate
    monkeypatch.setattr(Engine, "saturate", lambda self, *args: rules.append(len(self.rules)) or saturate(self, *args))
    explained = program.explain()
    assert explained.needed and max(rules) < len(TWO)
    eqsat.optimize(chain, *CHAIN, rules=TWO[:1], cache=False)
    assert program.explain().needed == explained.needed and max(rules) == len(TWO)


LONG = shape(8192, 65536)


def softmax(s):
    return jnp.exp(s - jnp.maximum(-jnp.inf, jnp.max(s, -1, keepdims=True))).sum(-1)


def test_a_rule_that_another_takes_further_is_one_of_those_used():
    program = eqsat.optimize(softmax, LONG, cache=False)
    assert {"max_with_negative_infinity_first", "softmax_sum"} <= set(program.notes["rules"])
    assert "max_with_negative_infinity_first" in program.explain().needed
    without = [r for r in program.request.rules if r.name in program.notes["rules"]]
    assert program.request.optimize(program.graph, without).cost == program.cost


def test_rules_used_come_from_the_cache_too(tmp_path):
    used = [eqsat.optimize(softmax, LONG, cache=tmp_path).notes["rules"] for _ in range(2)]
    assert used[0] == used[1] and "max_with_negative_infinity_first" in used[0]


@pytest.mark.parametrize("needed", [{0}, {3}, {9}, {0, 9}, {2, 3, 7}, set(range(10)), set()])
def test_no_more_is_kept_than_suffices(needed):
    asked = []
    kept = smallest(["traced"], list(range(10)), lambda given: asked.append(given) or needed <= set(given))
    assert set(kept) == {"traced", *needed} and len(asked) <= min(8 * len(needed) + 1, 2 * 10)


def test_no_e_graph_is_asked_for_the_rules_used_when_time_is_up(monkeypatch):
    saturate, clock, asked = Engine.saturate, [0.0], []

    def slow(engine, *given):
        asked.append(engine)
        clock[0] += 100.0
        return saturate(engine, *given)

    monkeypatch.setattr(Engine, "saturate", slow)
    monkeypatch.setattr(eqsat.optimizer, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    program = eqsat.optimize(softmax, LONG, cache=False, time_limit=60.0)
    assert len(asked) == 1 and "softmax_sum" in program.notes["rules"]
