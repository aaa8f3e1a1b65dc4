"""The e-graph: a region in, every term that the rules make equal out.

A thin layer over egglog's low-level bindings (its high-level DSL costs 10 ms a rule and is quadratic in nodes).
Nodes go in by table, rows come out by `freeze`; nothing is ever printed or extracted by the engine. Fusion is an
equality here: beside each load of a defined tensor stands the term that defines it, at the load's index.
"""

from __future__ import annotations

import logging
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eqsat.index import Axis, Index
from eqsat.ingest import ATTRIBUTES, DTYPE_OF_BIT, Ingest, Row
from eqsat.notation import Stored, Term, Window, dimension_indices, substitute
from eqsat.regions import Region
from eqsat.rule import PHASES, SIGNATURES, Rule, lower
from eqsat.scalars import DTYPES, SCALARS

NOWHERE = -1  # the class of a term that an e-graph has not


class UnsoundRule(AssertionError):
    """Two terms of different dtype were made equal: some rule is wrong."""


@dataclass
class Saturated:
    """The frozen e-graph."""

    classes: dict[int, list[Row]]
    axes: dict[int, frozenset[Axis]]
    class_of: dict[Stored, int]
    stopped: str  # "saturated", or the budget that ended the search
    seconds: float
    growth: dict[str, int] = field(default_factory=dict)  # matches per rule
    bypassed: dict[int, frozenset[str]] = field(
        default_factory=dict
    )  # rules that made no e-node of a class, only merged it (x*1 = x)
    ingest: Ingest | None = field(default=None, repr=False)  # the region's tables, for e-graphs of it with other rules

    @property
    def rows(self) -> int:
        return sum(map(len, self.classes.values()))

    @property
    def rows_of_rule(self) -> Counter[str]:
        """E-nodes that each rule made."""
        return Counter(row.rule for rows in self.classes.values() for row in rows if row.rule)

    def smallest(self) -> dict[int, Term]:
        """The smallest term of each class; of several, the one that was made first."""
        found: dict[int, tuple[int, int, Term]] = {}
        changed = True
        while changed:
            changed = False
            for c, rows in self.classes.items():
                for r in rows:
                    if all(a in found for a in r.args):
                        size = 1 + sum(found[a][0] for a in r.args)
                        if c not in found or size <= found[c][0]:
                            term = Term(r.head, tuple(found[a][2] for a in r.args), r.data, r.dtype)
                            if c not in found or (size, term.serial) < found[c][:2]:
                                found[c], changed = (size, term.serial, term), True
        return {c: term for c, (_, _, term) in found.items()}

    def has(self, definitions: Iterable[tuple[Stored, Stored]]) -> bool:
        """True if the term of each second tensor is in the class of the first, which later terms may load.

        What no e-graph has (the parts of reductions in chunks, sums into windows) it has not.
        """
        class_of = {(r.head, r.args, r.data, r.dtype): c for c, rows in self.classes.items() for r in rows}
        stored = dict(self.class_of)
        for tensor, by in definitions:
            found: dict[Term, int] = {}
            own_axes = {mine: Index.of(axis) for mine, axis in zip(by.axes, tensor.axes, strict=True)}
            try:
                term = substitute(by.term, own_axes)
            except ValueError:  # it binds one of them
                return False
            for t in term.walk():
                found[t] = class_of.get((t.head, tuple(found[a] for a in t.args), t.data, t.dtype), NOWHERE)
                if t.head == "load" and t.tensor in stored and t.indices == dimension_indices(t.tensor.shape, t.tensor.axes):
                    found[t] = stored[t.tensor]
            own = found[term]
            if own == NOWHERE or stored.setdefault(tensor, own) != own or isinstance(by, Window):
                return False
        return True


@dataclass(frozen=True)
class Budget:
    """Limits of one saturation."""

    seconds: float = 3.0
    rows: int = 2000
    iterations: int = 10
    matches: int = 400  # per rule and iteration
    nesting: int = 2  # contractions inlined into contractions


ENGINES = 4  # kept for further searches by each thread
_engines = threading.local()


def engine_for(rules: Sequence[Rule]) -> Engine:
    """An engine with these rules, until the next call: the last few are kept, and the one unused for longest is given others."""
    kept: list[Engine] = _engines.__dict__.setdefault("kept", [])
    kept[:] = (e for e in kept if not e.failed)
    asked = tuple(map(id, rules))  # an engine holds its rules, so these are not used again while it lives
    if (engine := next((e for e in kept if tuple(map(id, e.rules)) == asked), None)) is not None:
        kept.remove(engine)
    elif len(kept) < ENGINES:
        engine = Engine(rules)
    else:
        engine = kept.pop(0)
        engine.load(rules)
    kept.append(engine)
    return engine


class Engine:
    """An egglog engine with the language and a set of rules loaded; `saturate` may be called for many regions."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        from egglog import bindings  # imported late: it costs half a second

        self._bindings = bindings
        if (chatter := logging.getLogger("egglog")).level == logging.NOTSET:
            chatter.setLevel(logging.WARNING)  # it logs thousands of lines a search at info level
        self.failed = False
        self._folder = tempfile.TemporaryDirectory(prefix="eqsat-")
        self._graph = bindings.EGraph(fact_directory=self._folder.name)
        for text in _declarations():
            self._run(text)
        self._run("(push)")
        self.load(rules)

    def load(self, rules: Sequence[Rule]) -> None:
        """Take these rules in place of those it has: most of what a new engine takes goes into the language."""
        self.rules = tuple(rules)
        self._run("(pop)")
        self._run("(push)")
        for number, rule in enumerate(self.rules, 1):
            for _, text in lower(rule, number):
                self._run(text, rule.source)

    def _run(self, text: str, where: str | None = None) -> Any:
        try:
            return self._graph.run_program(*self._graph.parse_program(text, where))
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            raise RuntimeError(f"egglog: {str(error).strip()} in {text[:300]}") from None

    def saturate(self, region: Region, budget: Budget | None = None, ingest: Ingest | None = None) -> Saturated:
        """All terms equal to the region's definitions that the rules reach within the budget.

        ingest: the region's tables, if another e-graph was filled from them.
        """
        budget = budget or Budget()
        start = time.perf_counter()
        ingest = ingest or Ingest(region, budget.nesting, any(r.tier == "fast" for r in self.rules))
        self._run("(push)")
        try:
            for name, rows in ingest.tables.items():
                path = Path(self._folder.name, f"{name}.tsv")
                path.write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))
                self._run(f'(input in_{name} "{name}.tsv")')
            self._run("(run-schedule (saturate (run ingest)))")
            stopped, growth = self._search(budget, start)
            return self._read(ingest, stopped, growth, start)
        except BaseException:
            self.failed = True
            raise
        finally:
            self._run("(pop)")

    def _search(self, budget: Budget, start: float) -> tuple[str, dict[str, int]]:
        growth: dict[str, int] = {}
        limit, previous = budget.matches, -1
        self._step("(saturate (seq (saturate (run ana)) (run normalise)))", growth)
        for _ in range(budget.iterations):
            scheduled = (
                f"(let-scheduler s (back-off :match-limit {limit} :ban-length 1)) "
                f"(let-scheduler x (back-off :match-limit {max(limit // 8, 8)} :ban-length 1)) "
                "(seq (run-with s structural) (run-with x explore) (saturate (seq (saturate (run ana)) (run normalise))))"
            )
            self._step(scheduled, growth)
            size = self._size()
            if size > budget.rows:
                return f"row budget of {budget.rows}", growth
            if time.perf_counter() - start > budget.seconds:
                return f"time budget of {budget.seconds:g} s", growth
            if size == previous:
                if limit >= 64 * budget.matches:
                    return "saturated", growth
                limit *= 8
            previous = size
        return f"iteration budget of {budget.iterations}", growth

    def _step(self, schedule: str, growth: dict[str, int]) -> None:
        try:
            (output,) = self._run(f"(run-schedule {schedule})")
        except RuntimeError as error:
            if "dtype" in str(error):
                recent = ", ".join(sorted(growth)) or "none"
                raise UnsoundRule(f"e-graph: terms of one class need one dtype, got two; rules fired so far: {recent}") from error
            raise
        for name, matches in output.report.num_matches_per_rule.items():
            if matches and not name.startswith(("ana-", "ingest-")):
                growth[name] = growth.get(name, 0) + matches

    def _size(self) -> int:
        span = self._bindings.RustSpan(__file__, 1, 1)
        (output,) = self._graph.run_program(self._bindings.PrintSize(span, None))
        sizes: dict[str, int] = dict(output.sizes)  # type: ignore[union-attr]
        return sum(n for name, n in sizes.items() if name in SIGNATURES)

    def _read(self, ingest: Ingest, stopped: str, growth: dict[str, int], start: float) -> Saturated:
        graph, functions = self._graph, self._graph.freeze().functions
        ids: dict[Any, int] = {}
        decode = {"i64": graph.value_to_i64, "f64": graph.value_to_f64}

        def class_of(value: Any) -> int:
            return ids.setdefault(value, len(ids))

        rule_name: dict[int, str | None] = {0: None, **{n: r.name for n, r in enumerate(self.rules, 1)}}
        raw: list[tuple[str, tuple[Any, ...], int, str | None]] = []
        for name, signature in SIGNATURES.items():
            rows = functions[name].rows
            if not rows:
                continue
            tags = {tuple(r.inputs): graph.value_to_i64(r.output) for r in functions[f"by_{name}"].rows}
            for row in rows:
                if row.subsumed:
                    continue
                args = tuple(class_of(v) if s == "T" else decode[s](v) for s, v in zip(signature, row.inputs, strict=True))
                raw.append((name, args, class_of(row.output), rule_name.get(tags.get(tuple(row.inputs), 0))))
        dtype = {class_of(r.inputs[0]): DTYPE_OF_BIT[graph.value_to_i64(r.output)] for r in functions["dtype"].rows}
        axes = {class_of(r.inputs[0]): ingest.axes_of(graph.value_to_i64(r.output)) for r in functions["axes"].rows}
        classes: dict[int, list[Row]] = {}
        for name, args, out, rule in raw:
            classes.setdefault(out, []).append(ingest.row(name, args, dtype[out], rule))
        for members in classes.values():
            members.sort(key=lambda r: (r.rule is not None, r.head, r.args, ingest.text(r.data)))
        root = {graph.value_to_i64(r.inputs[0]): class_of(r.output) for r in functions["Id"].rows}
        _drop_dead(classes)
        bypassed: dict[int, set[str]] = {}
        for r in functions["bypassed"].rows:
            if (rule := rule_name.get(graph.value_to_i64(r.inputs[1]))) is not None:
                bypassed.setdefault(class_of(r.inputs[0]), set()).add(rule)
        class_of_tensor = {s: root[ingest.number[s.term]] for s in ingest.region.definitions}
        return Saturated(
            classes,
            axes,
            class_of_tensor,
            stopped,
            time.perf_counter() - start,
            growth,
            {c: frozenset(names) for c, names in bypassed.items()},
            ingest,
        )


def _drop_dead(classes: dict[int, list[Row]]) -> None:
    """Remove rows that no finite term has: those that mention a class without rows (a scheduler can leave such) or their own."""
    while dead := [(c, r) for c, rows in classes.items() for r in rows if any(a not in classes or a == c for a in r.args)]:
        for c, r in dead:
            classes[c].remove(r)
            if not classes[c]:
                del classes[c]


def _declarations() -> list[str]:
    """The language in egglog: a constructor per operation, analyses, and a rule per input table."""
    texts = ["(sort T)", "(constructor Id (i64) T :unextractable)", "(relation bypassed (T i64))"]
    texts += ["(function axes (T) i64 :merge (& old new))", "(function dtype (T) i64 :no-merge)"]
    texts += [
        "(function low (T) f64 :merge (max old new))",
        "(function high (T) f64 :merge (min old new))",
        "(relation finite (T))",
        "(function literal (T) f64 :merge old)",
    ]
    texts += [f"(function {f} (i64) i64 :merge old)" for f in ATTRIBUTES]
    texts += [f"(ruleset {r})" for r in ("ingest", "ana", *PHASES)]
    for name, signature in SIGNATURES.items():
        texts.append(f"(constructor {name} ({' '.join(signature)}) T)")
        texts.append(f"(function by_{name} ({' '.join(signature)}) i64 :merge old)")
        columns = " ".join("i64" if s == "T" else s for s in signature)
        texts.append(f"(relation in_{name} (i64 {columns}))")
        variables = [f"a{i}" for i in range(len(signature))]
        args = " ".join(f"(Id {v})" if s == "T" else v for v, s in zip(variables, signature, strict=True))
        texts.append(
            f"(rule ((in_{name} i {' '.join(variables)})) ((union (Id i) ({name} {args})) (set (by_{name} {args}) 0))"
            f' :ruleset ingest :name "ingest-{name}")'
        )
        texts.append(_analysis(name, signature))
    texts.append("(relation in_union (i64 i64))")
    texts.append('(rule ((in_union a b)) ((union (Id a) (Id b))) :ruleset ingest :name "ingest-union")')
    for f in ("low", "high"):
        texts.append(f"(relation in_{f} (i64 f64))")
        texts.append(f'(rule ((in_{f} a b)) ((set ({f} (Id a)) b)) :ruleset ingest :name "ingest-{f}")')
    texts.append("(relation in_finite (i64))")
    texts.append('(rule ((in_finite a)) ((finite (Id a))) :ruleset ingest :name "ingest-finite")')
    for f in ATTRIBUTES:
        texts.append(f"(relation in_{f} (i64 i64))")
        texts.append(f'(rule ((in_{f} a b)) ((set ({f} a) b)) :ruleset ingest :name "ingest-{f}")')
    return texts


def _analysis(name: str, signature: tuple[str, ...]) -> str:
    """The rule that sets axes and dtype of an operation from its operands."""
    variables = [f"a{i}" for i in range(len(signature))]
    terms = [v for v, s in zip(variables, signature, strict=True) if s == "T"]
    facts = [f"(= e ({name} {' '.join(variables)}))"]
    facts += [f"(= x_{v} (axes {v}))" for v in terms] + [f"(= d_{v} (dtype {v}))" for v in terms]
    masks = [f"x_{v}" for v in terms]
    dtype = f"d_{terms[-1]}" if terms else "0"
    if name.startswith("S_") and SCALARS[name[2:]].result == "bool":
        dtype = str(DTYPES["bool"].bit)
    if name.startswith(("R_", "O_")):
        joined = _or(masks)
        masks = [f"(^ (| {joined} a0) a0)"]
    if name in ("Cast", "Const"):
        dtype = "a1"
    if name == "Pos" or name.startswith("Load"):
        column = "a0" if name == "Pos" else "a1"
        facts.append(f"(= m (map_axes {column}))")
        masks.append("m")
        if name == "Pos":
            dtype = "a1"
        else:
            facts.append("(= td (tensor_dtype a0))")
            dtype = "td"
    if name == "Leaf":
        facts.append("(= ld (leaf_dtype a0))")
        dtype = "ld"
    known = [f"(set (axes e) {_or(masks)})", f"(set (dtype e) {dtype})", *(["(set (literal e) a0)"] if name == "Const" else [])]
    return f'(rule ({" ".join(facts)}) ({" ".join(known)}) :ruleset ana :name "ana-{name}")'


def _or(masks: list[str]) -> str:
    if not masks:
        return "0"
    result = masks[0]
    for m in masks[1:]:
        result = f"(| {result} {m})"
    return result
