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
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import copysign
from pathlib import Path
from typing import Any, NamedTuple

from eqsat.index import Axis, Index
from eqsat.notation import Stored, Tensor, Term, const, const_value
from eqsat.ranges import range_of
from eqsat.regions import Region, definition_at
from eqsat.rule import PHASES, SIGNATURES, Rule, lower
from eqsat.scalars import DTYPES, SCALARS
from eqsat.splitting import split

MAX_AXES = 62  # axis sets are 64-bit masks
_DTYPE_OF_BIT = {d.bit: d.name for d in DTYPES.values()}


class UnsoundRule(AssertionError):
    """Two terms of different dtype were made equal: some rule is wrong."""


class Row(NamedTuple):
    """An e-node: `head`, `data` and `dtype` as in `Term`, classes instead of operands, and the rule that made it."""

    head: str
    args: tuple[int, ...]
    data: Any
    dtype: str
    rule: str | None


@dataclass
class Saturated:
    """The frozen e-graph."""

    classes: dict[int, list[Row]]
    axes: dict[int, frozenset[Axis]]
    class_of: dict[Stored, int]
    stopped: str  # "saturated", or the budget that ended the search
    seconds: float
    exact: bool = True  # every rule of the search keeps the bits
    growth: dict[str, int] = field(default_factory=dict)  # matches per rule
    bypassed: dict[int, frozenset[str]] = field(
        default_factory=dict
    )  # rules that made no e-node of a class, only merged it (x*1 = x)

    @property
    def rows(self) -> int:
        return sum(map(len, self.classes.values()))

    @property
    def rows_of_rule(self) -> Counter[str]:
        """E-nodes that each rule made."""
        return Counter(row.rule for rows in self.classes.values() for row in rows if row.rule)


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
    """An engine with these rules: loading them takes as long as a small search, so the last few are kept."""
    kept: dict[tuple[int, ...], Engine] = _engines.__dict__.setdefault("kept", {})
    key = tuple(map(id, rules))  # an engine holds its rules, so these are not used again while it lives
    engine = kept.pop(key, None)
    if engine is None or engine.failed:
        engine = Engine(rules)
    kept[key] = engine
    if len(kept) > ENGINES:
        del kept[next(iter(kept))]
    return engine


class Engine:
    """An egglog engine with the language and a set of rules loaded; `saturate` may be called for many regions."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        from egglog import bindings  # imported late: it costs half a second

        self._bindings = bindings
        if (chatter := logging.getLogger("egglog")).level == logging.NOTSET:
            chatter.setLevel(logging.WARNING)  # it logs thousands of lines a search at info level
        self.rules = tuple(rules)
        self.failed = False
        self._folder = tempfile.TemporaryDirectory(prefix="eqsat-")
        self._graph = bindings.EGraph(fact_directory=self._folder.name)
        for text in _declarations():
            self._run(text)
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

    def saturate(self, region: Region, budget: Budget | None = None) -> Saturated:
        """All terms equal to the region's definitions that the rules reach within the budget."""
        budget = budget or Budget()
        start = time.perf_counter()
        ingest = _Ingest(region, budget.nesting)
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

    def _read(self, ingest: _Ingest, stopped: str, growth: dict[str, int], start: float) -> Saturated:
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
        dtype = {class_of(r.inputs[0]): _DTYPE_OF_BIT[graph.value_to_i64(r.output)] for r in functions["dtype"].rows}
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
            all(r.tier == "exact" for r in self.rules),
            growth,
            {c: frozenset(names) for c, names in bypassed.items()},
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
    ]
    texts += [f"(function {f} (i64) i64 :merge old)" for f in ("map_axes", "tensor_dtype", "leaf_dtype", "extent")]
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
    for f in ("map_axes", "tensor_dtype", "leaf_dtype", "extent"):
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
    if name == "Cast":
        dtype = "a1"
    if name == "Const":
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
    return f'(rule ({" ".join(facts)}) ((set (axes e) {_or(masks)}) (set (dtype e) {dtype})) :ruleset ana :name "ana-{name}")'


def _or(masks: list[str]) -> str:
    if not masks:
        return "0"
    result = masks[0]
    for m in masks[1:]:
        result = f"(| {result} {m})"
    return result


class _Ingest:
    """Numbers the terms, axes, tensors and index tuples of a region, and inlines definitions beside their loads."""

    def __init__(self, region: Region, nesting: int) -> None:
        self.region = region
        self.number: dict[Term, int] = {}
        self.tables: dict[str, list[tuple[Any, ...]]] = {
            t: [] for t in ("map_axes", "tensor_dtype", "leaf_dtype", "extent", "union", "low", "high", "finite")
        }
        self._axes: list[Axis] = []
        self._bit: dict[Axis, int] = {}
        self._maps: dict[tuple[Index, ...], int] = {}
        self._tensors: dict[Tensor, int] = {}
        self._leaves: dict[Term, int] = {}
        self._budget: dict[Term, int] = {}
        self._defined = set(region.definitions)
        for stored in region.definitions:
            for axis in stored.axes:
                self.bit(axis)
            self.add(stored.term)
            self._inline(stored.term, nesting)

    def bit(self, axis: Axis) -> int:
        if axis not in self._bit:
            if len(self._axes) >= MAX_AXES:
                raise OverflowError(f"region: at most {MAX_AXES} axes, got more; cut it smaller")
            self._bit[axis] = 1 << len(self._axes)
            self._axes.append(axis)
            self.tables["extent"].append((self._bit[axis], axis.extent))
        return self._bit[axis]

    def axes_of(self, mask: int) -> frozenset[Axis]:
        return frozenset(a for a in self._axes if mask & self._bit[a])

    def map_id(self, indices: tuple[Index, ...]) -> int:
        if indices not in self._maps:
            self._maps[indices] = len(self._maps)
            mask = 0
            for axis in sorted(frozenset().union(*(i.axes for i in indices))):
                mask |= self.bit(axis)
            self.tables["map_axes"].append((self._maps[indices], mask))
        return self._maps[indices]

    def tensor_id(self, tensor: Tensor) -> int:
        if tensor not in self._tensors:
            self._tensors[tensor] = len(self._tensors)
            self.tables["tensor_dtype"].append((self._tensors[tensor], DTYPES[tensor.dtype].bit))
        return self._tensors[tensor]

    def add(self, term: Term) -> int:
        """Number of a term; its row goes to the table of its operation."""
        for t in term.walk():
            if t not in self.number:
                self.number[t] = len(self.number)
                name, columns = self._row_of(t)
                self.tables.setdefault(name, []).append((self.number[t], *columns))
                self._bounds(t)
        return self.number[term]

    def _bounds(self, t: Term) -> None:
        """What is proved of a term's values."""
        low, high, finite = range_of(t)
        if low > float("-inf"):
            self.tables["low"].append((self.number[t], low))
        if high < float("inf"):
            self.tables["high"].append((self.number[t], high))
        if finite:
            self.tables["finite"].append((self.number[t],))

    def _row_of(self, t: Term) -> tuple[str, tuple[Any, ...]]:
        args = tuple(self.number[a] for a in t.args)
        match t.head:
            case "const":
                if (value := _exact_float(t)) is not None:
                    return "Const", (value, DTYPES[t.dtype].bit)
                self._leaves[t] = len(self._leaves)
                self.tables["leaf_dtype"].append((self._leaves[t], DTYPES[t.dtype].bit))
                return "Leaf", (self._leaves[t],)
            case "pos":
                return "Pos", (self.map_id((t.data,)), DTYPES[t.dtype].bit)
            case "load":
                return f"Load{len(args) or ''}", (self.tensor_id(t.tensor), self.map_id(t.indices), *args)
            case "cast":
                return "Cast", (*args, DTYPES[t.dtype].bit)
            case "reduce":
                return f"R_{t.data[0]}", (self.bit(t.data[1]), *args)
            case "online":
                return f"O_{t.data[0]}", (self.bit(t.data[1]), *args, DTYPES[t.data[2]].bit)
        return f"S_{t.head}", args

    def _inline(self, term: Term, nesting: int) -> None:
        """Beside each load of a defined tensor put its term, while contractions nest at most `nesting` deep.

        A contraction that is a factor of another counts for nothing: chains of products are associated as a whole.
        """
        if self._budget.get(term, -1) >= nesting:
            return
        self._budget[term] = nesting
        if is_contraction(term):
            for factor in _factors(term):
                chained = factor.head == "load" and factor.tensor in self._defined and is_contraction(factor.tensor.term)
                self._inline(factor, nesting if chained else nesting - 1)
        for arg in term.args:
            self._inline(arg, nesting - 1 if is_contraction(term) else nesting)
        if term.head == "reduce" and len(self._axes) < MAX_AXES // 2:
            for other in split(term, self._definition):
                self.tables["union"].append((self.number[term], self.add(other)))
                self._inline(other, nesting)
        if (inlined := self._definition(term)) is not None:
            if nesting > 0 or not any(is_contraction(t) for t in inlined.walk()):
                self.tables["union"].append((self.number[term], self.add(inlined)))
                self._inline(inlined, nesting)

    def _definition(self, term: Term) -> Term | None:
        """What a load of a defined tensor stands for."""
        if term.head != "load" or term.tensor not in self._defined:
            return None
        return definition_at(term.tensor, term.indices, term.args)

    def row(self, name: str, args: tuple[Any, ...], dtype: str, rule: str | None) -> Row:
        """Decode a frozen row."""
        if name.startswith("S_"):
            return Row(name[2:], args, None, dtype, rule)
        if name.startswith("R_"):
            return Row("reduce", args[1:], (name[2:], self._axis(args[0])), dtype, rule)
        if name.startswith("O_"):
            return Row("online", args[1:3], (name[2:], self._axis(args[0]), _DTYPE_OF_BIT[args[3]]), dtype, rule)
        match name:
            case "Cast":
                return Row("cast", args[:1], None, dtype, rule)
            case "Const":
                return Row("const", (), const(args[0], dtype).data, dtype, rule)
            case "Leaf":
                return Row("const", (), next(t for t, n in self._leaves.items() if n == args[0]).data, dtype, rule)
            case "Pos":
                return Row("pos", (), self._map(args[0])[0], dtype, rule)
        tensors = list(self._tensors)
        return Row("load", args[2:], (tensors[args[0]], self._map(args[1])), dtype, rule)

    def text(self, data: Any) -> str:
        """A row's data for ordering, in which tensors are numbers: names decide nothing."""
        return str(tuple(self._tensors[d] if isinstance(d, Tensor) else d for d in data) if isinstance(data, tuple) else data)

    def _axis(self, bit: int) -> Axis:
        return self._axes[bit.bit_length() - 1]

    def _map(self, number: int) -> tuple[Index, ...]:
        return list(self._maps)[number]


def is_contraction(term: Term) -> bool:
    """A sum of products of which each factor has an axis that the other lacks."""
    if term.head != "reduce" or term.data[0] != "sum":
        return False
    if len(factors := _factors(term)) != 2:
        return False
    a, b = factors
    return bool(a.axes - b.axes) and bool(b.axes - a.axes)


def _factors(term: Term) -> tuple[Term, ...]:
    """The two operands of the product that nested sums are over, if it is one."""
    while term.head == "reduce":
        term = term.args[0]
    return term.args if term.head == "mul" else ()


def _exact_float(t: Term) -> float | None:
    """The value as a float if the engine can hold it: it knows neither -0.0 nor NaN nor integers beyond 2**53."""
    value = const_value(t)
    as_float = float(value)
    if (
        as_float != as_float
        or (as_float == 0 and copysign(1, as_float) < 0)
        or (isinstance(value, int) and int(as_float) != value)
    ):
        return None
    return as_float
