"""What rules make of a small expression: its equal forms, smallest first."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from eqsat.egraph import Budget, Engine, Row, Saturated
from eqsat.graph import Graph
from eqsat.notation import Term
from eqsat.read import read
from eqsat.regions import Region, cut, kept_steps, local
from eqsat.rule import Rule
from eqsat.shapes import shape

KEPT = 8  # forms of each class
ROUNDS = 8
_ARGUMENT = re.compile(r"(\w+)\s*=\s*(\w+)\[([\d,\s]*)\]")
_SHORT = ("exp", "log", "tanh", "sqrt", "sin", "cos", "sum", "max", "min", "mean", "abs", "where", "maximum", "minimum", "square")
_WORDS: dict[str, Any] = {
    "jnp": jnp, "lax": lax, "jax": jax, "softmax": jax.nn.softmax, "relu": jax.nn.relu, "gelu": jax.nn.gelu,
    "rsqrt": lax.rsqrt, **{name: getattr(jnp, name) for name in _SHORT},
}  # fmt: skip


@dataclass(frozen=True)
class Form:
    """A term equal to the expression, and the rules that made it."""

    term: Term
    rules: tuple[str, ...]


@dataclass(frozen=True)
class Trial:
    forms: tuple[Form, ...]
    rows: int
    stopped: str
    fired: tuple[str, ...]


def trial(rules: Sequence[Rule], expression: str, arguments: str = "", limit: int = 12) -> Trial:
    """The forms of an expression; its free names are operands, float32[4,4] unless `arguments` says otherwise."""
    function, shapes = _function(expression, arguments)
    regions = regions_of(function, *shapes)
    if not regions:
        raise ValueError(f"expression {expression!r}: an operation required, got what needs no kernel")
    region = regions[-1]
    done = Engine(rules).saturate(region, Budget(seconds=5.0, rows=3000))
    forms = forms_of(done, region)[done.class_of[region.outputs[-1]]]
    original = _inlined_first(region.outputs[-1].term, forms)
    return Trial(tuple(original[:limit]), done.rows, done.stopped, tuple(sorted(done.growth)))


def regions_of(function: Callable[..., Any], *shapes: Any) -> list[Region]:
    """The regions of a function, each over leaf inputs."""
    reading = read(Graph.from_jax(function, *shapes))
    steps, renamed = kept_steps(reading.steps, reading.outputs)
    parts = cut(steps, tuple(renamed.get(t, t) for t in reading.outputs), frozenset())
    return [local(part) for part in parts if isinstance(part, Region)]


def _function(expression: str, arguments: str) -> tuple[Callable[..., Any], list[jax.ShapeDtypeStruct]]:
    try:
        tree = ast.parse(expression, mode="eval")
    except SyntaxError as error:
        raise ValueError(f"expression {expression!r}: Python in JAX's words required; {error.msg}") from error
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id not in _WORDS:
            known = ", ".join(word for word, meaning in _WORDS.items() if callable(meaning))
            raise ValueError(f"expression {expression!r}: functions among {known} required, got {node.func.id!r}")
    names = [n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id not in _WORDS]
    names = sorted(dict.fromkeys(names), key=names.index)
    if rest := _ARGUMENT.sub("", arguments).strip(", "):
        raise ValueError(f"arguments {arguments!r}: a list such as 'a=float32[4,8] b=int32[4]' required, got {rest!r}")
    given = {name: shape(dtype, extents) for name, dtype, extents in _ARGUMENT.findall(arguments)}
    if stray := given.keys() - set(names):
        raise ValueError(f"arguments {arguments!r}: operands of the expression required, got {', '.join(sorted(stray))}")
    if not names:
        raise ValueError(f"expression {expression!r}: at least one operand required, such as a in 'exp(a)'")
    code = compile(tree, "<expression>", "eval")

    def expression_of(*values: Any) -> Any:
        return eval(code, {**_WORDS, **dict(zip(names, values, strict=True))})

    expression_of.__name__ = "expression"
    return _with_names(expression_of, names), [given.get(n, shape("float32", "4,4")) for n in names]


def _with_names(function: Callable[..., Any], names: list[str]) -> Callable[..., Any]:
    """The function with parameters of these names, which the reading keeps."""
    scope: dict[str, Any] = {"function": function}
    exec(f"def expression({', '.join(names)}): return function({', '.join(names)})", scope)
    return scope["expression"]


def forms_of(done: Saturated, region: Region) -> dict[int, list[Form]]:
    """The smallest terms of every class, over the region's inputs."""
    defined = set(region.definitions)
    forms: dict[int, dict[Term, tuple[int, frozenset[str]]]] = {c: {} for c in done.classes}
    for _ in range(ROUNDS):
        before = {c: set(f) for c, f in forms.items()}
        for c, rows in done.classes.items():
            for row in rows:
                if row.head != "load" or row.data[0] not in defined:
                    _add(forms, c, row, done.bypassed.get(c, frozenset()))
        if {c: set(f) for c, f in forms.items()} == before:
            break
    return {c: [Form(t, tuple(sorted(rules))) for t, (_, rules) in f.items()] for c, f in forms.items()}


def _add(forms: dict[int, dict[Term, tuple[int, frozenset[str]]]], c: int, row: Row, bypassed: frozenset[str]) -> None:
    """Terms of one row, from those of its operands."""
    own = bypassed | {row.rule} if row.rule else bypassed
    for args in itertools.product(*(list(forms[a].items())[:4] for a in row.args)):
        term = Term(row.head, tuple(t for t, _ in args), row.data, row.dtype)
        size = 1 + sum(n for _, (n, _) in args)
        rules = own.union(*(r for _, (_, r) in args))
        old = forms[c].get(term)
        if old is None or len(rules) < len(old[1]):
            forms[c][term] = size, rules
    smallest = sorted(forms[c].items(), key=lambda item: (item[1][0], len(item[1][1]), item[0].serial))[:KEPT]
    forms[c] = dict(smallest)


def _inlined_first(term: Term, forms: list[Form]) -> list[Form]:
    """The original form first."""
    return sorted(forms, key=lambda f: (bool(f.rules), 0 if f.term is term else 1))
