"""Terms as text: index notation on one line, or on several where something long is used more than once."""

from __future__ import annotations

import itertools
import textwrap
from collections import Counter

from eqsat.index import Index
from eqsat.notation import Kernel, Tensor, Term, Window, const_value, dimension_indices, load, rebuild
from eqsat.online import ONLINE
from eqsat.scalars import DTYPES, SCALARS

LIMIT = 4000  # characters of one formula; longer subterms are abbreviated
NAMED = 24  # characters from which a subterm that occurs twice gets a name


def named_formula(kernel: Kernel) -> str:
    """A kernel's formula; what occurs more than once and is long is written once, under a name."""
    uses = Counter(a for t in kernel.terms for a in t.args)
    names = (f"t{n}" for n in itertools.count(1))
    taken = {t.name for t in (*kernel.inputs, *kernel.outputs)}
    short: dict[Term, Term] = {}
    lines = []
    for term in kernel.terms:
        new = short[term] = rebuild(term, tuple(short[a] for a in term.args))
        if uses[term] > 1 and len(formula(new)) >= NAMED:
            axes = tuple(sorted(term.axes, key=lambda a: (a not in kernel.axes, a.name)))
            name = next(n for n in names if n not in taken)
            short[term] = load(Tensor(name, tuple(a.extent for a in axes), term.dtype), tuple(map(Index.of, axes)))
            lines.append(
                f"{name}[{', '.join(map(str, axes))}] = {_bare(formula(new))}" if axes else f"{name} = {_bare(formula(new))}"
            )
    for o in kernel.outputs:
        places = o.places if isinstance(o, Window) else dimension_indices(o.shape, o.axes)
        indices = ", ".join(map(str, places))
        lines.append(f"{o.name}[{indices}] = {_bare(formula(short[o.term]))}")
    return "\n".join(lines)


def formula(term: Term, limit: int = LIMIT) -> str:
    """Index notation on one line; shared subterms are written out, but nothing beyond `limit` characters."""
    texts: dict[Term, str] = {}
    for t in term.walk():
        text = _spell(t, [texts[a] for a in t.args])
        texts[t] = text if len(text) <= limit else f"{t.data[0] if t.head == 'reduce' else t.head}(...)"
    return texts[term]


def _spell(term: Term, args: list[str]) -> str:
    match term.head:
        case "load":
            return f"{term.tensor.name}[{_indices(term, args)}]"
        case "const":
            return f"{const_value(term):g}" if DTYPES[term.dtype].kind == "float" else str(const_value(term))
        case "pos":
            return f"({term.data})" if term.data.constant or len(term.data.terms) > 1 else str(term.data)
        case "cast":
            return f"{term.dtype}({_bare(args[0])})"
        case "reduce":
            axis = term.data[1]
            return f"{term.data[0]}[{axis}:{axis.extent}]({_bare(args[0])})"
        case "scan":
            name, axis, reverse = term.data
            return f"cum{name}[{'-' if reverse else ''}{axis}]({'; '.join(map(_bare, reversed(args)))})"
        case "online":
            name, axis, dtype = term.data
            weight = "" if dtype == term.args[0].dtype else f", {dtype}"
            return f"{ONLINE[name].symbol}[{axis}:{axis.extent}]({_bare(args[0])}; {_bare(args[1])}{weight})"
    row = SCALARS.get(term.head)
    if row is not None and row.symbol:
        return f"({f' {row.symbol} '.join(args)})"
    return f"{term.head}({', '.join(map(_bare, args))})"


def _indices(term: Term, args: list[str]) -> str:
    text = ", ".join(map(str, term.indices))
    for slot, arg in reversed(list(enumerate(args))):
        text = text.replace(f"${slot}", _bare(arg))
    return text


def _bare(text: str) -> str:
    """Without the outermost parentheses when they enclose everything."""
    if not text.startswith("("):
        return text
    depth = 0
    for i, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0:
            return text[1:-1] if i == len(text) - 1 else text
    return text


def type_of(tensor: Tensor) -> str:
    """A tensor's type as text: float32[4,8]."""
    return f"{tensor.dtype}[{','.join(map(str, tensor.shape))}]"


def wrapped(text: str, width: int, indent: str = "") -> list[str]:
    """Lines of at most `width` characters; continuations are indented further."""
    further = indent + "    "
    return textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=further, break_on_hyphens=False) or [indent]
