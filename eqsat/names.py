"""Names for the variables of a program, taken from its source: arguments, assignment targets, functions.

Everything here is a best effort over what JAX records with each equation; where nothing is found, a name falls back to the
primitive's. No lookup raises.
"""

from __future__ import annotations

import inspect
import keyword
import linecache
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from traceback import extract_tb
from typing import TYPE_CHECKING, Any

import jax

from eqsat.primitives import TABLE

if TYPE_CHECKING:
    from eqsat.graph import Equation, Graph, Source, Variable

_LIBRARIES = tuple(os.path.dirname(os.path.abspath(path)) + os.sep for path in (jax.__file__, __file__))
_ASSIGNED = re.compile(r"^\s*([A-Za-z_]\w*)\s*(?::[^=]+)?(?:[-+*/@&|^]|//)?=(?!=)")
_RETURNED = re.compile(r"^\s*return\b")
_RESERVED = re.compile(r"[xrk]\d+")  # names of axes
_SHORT = {
    "dot_general": "dot", "conv_general_dilated": "conv", "broadcast_in_dim": "broadcast", "convert_element_type": "cast",
    "select_n": "where", "gather": "take", "dynamic_update_slice": "update", "integer_pow": "pow", "concatenate": "concat",
}  # fmt: skip


def identifier(text: str) -> str:
    """The nearest valid identifier that is no keyword and no axis name."""
    name = re.sub(r"\W+", "_", text).strip("_") or "v"
    name = f"v{name}" if name[0].isdigit() else name
    return f"{name}_" if keyword.iskeyword(name) or _RESERVED.fullmatch(name) else name


def function_name(fn: Any) -> str:
    while hasattr(fn, "func"):  # functools.partial
        fn = fn.func
    name = getattr(fn, "__name__", type(fn).__name__)
    return "function" if name == "<lambda>" else identifier(name)


def parameters_of(fn: Callable[..., Any], count: int) -> list[str]:
    """Names of the first `count` positional parameters."""
    try:
        found = [
            p
            for p in inspect.signature(fn).parameters.values()
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL)
        ]
    except (TypeError, ValueError):
        found = []
    named = [p.name for p in found if p.kind != p.VAR_POSITIONAL][:count]
    rest = next((p.name for p in found if p.kind == p.VAR_POSITIONAL), "arg")
    return named + [f"{rest}_{n}" for n in range(count - len(named))]


def signature(parameters: Iterable[str]) -> inspect.Signature:
    """Of a function with these parameters, as identifiers; a second one of a name gets a number."""
    found: dict[str, None] = {}
    for number, name in enumerate(map(identifier, parameters)):
        found[name if name not in found else f"{name}_{number}"] = None
    return inspect.Signature([inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in found])


def path_name(path: Sequence[Any], parameters: Sequence[str]) -> str:
    """The name of a leaf of (args, kwargs): the parameter, then its keys."""
    keys = [str(next((getattr(k, a) for a in ("name", "key", "idx") if hasattr(k, a)), k)) for k in path]
    first = parameters[int(keys[1])] if keys[0] == "0" else keys[1]
    return "_".join([first, *keys[2:]])


def closure_name(fn: Any, value: Any) -> str | None:
    """The name under which a function closes over an array."""
    try:
        scope = inspect.getclosurevars(inspect.unwrap(fn))
        return next((n for part in (scope.nonlocals, scope.globals) for n, v in part.items() if v is value), None)
    except Exception:
        return None


def jaxpr_name(jaxpr: Any, fallback: str) -> str:
    """The name of the function that a jaxpr was traced from; `fallback` for a lambda and for JAX's own."""
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    try:
        name = inner.debug_info.func_src_info.split(" at ", 1)[0]
    except Exception:
        return identifier(fallback)
    return identifier(fallback if "<" in name or is_library_code(inner) else name.rsplit(".", 1)[-1])


def jaxpr_arguments(jaxpr: Any) -> list[str]:
    """Names of the last arguments of the function that a jaxpr was traced from, as far as they are recorded."""
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    found = getattr(getattr(inner, "debug_info", None), "arg_names", None) or ()
    return [] if is_library_code(inner) else [str(name or "constant") for name in found]


# --- source lines -----------------------------------------------------------------------------------------------


def source_of(equation: Any) -> Source | None:
    """The innermost line of a traced equation that is not JAX's."""
    from eqsat.graph import Source

    try:
        for frame in equation.source_info.traceback.frames:
            if not _is_library(frame.file_name):
                return Source(frame.file_name, int(frame.line_num), str(frame.function_name).rsplit(".", 1)[-1])
    except Exception:
        return None
    return None


def line_of_error(error: BaseException) -> str:
    """`` (file:line)`` of the innermost line that raised an error and is not JAX's or Python's own; empty if there is none."""
    frames = [f for f in extract_tb(error.__traceback__) if not _is_library(f.filename)]
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""


def is_library_code(jaxpr: Any) -> bool:
    """True if the traced function is JAX's own: its cached body then carries the lines of whoever called it first."""
    try:
        return _is_library(jaxpr.debug_info.func_src_info.split(" at ", 1)[1])
    except Exception:
        return False


@lru_cache(maxsize=1 << 12)
def _is_library(path: str) -> bool:
    return path.startswith(_LIBRARIES) or path.startswith("<")


@lru_cache(maxsize=1 << 14)
def target_of(source: Source) -> str | None:
    """What the line assigns to; the function's name where it returns."""
    if source.function == "<lambda>":  # the line assigns the function or what it is passed to
        return None
    line = linecache.getline(source.file, source.line)
    if (found := _ASSIGNED.match(line)) is not None:
        return found.group(1).strip("_") or None
    if _RETURNED.match(line) and source.function.isidentifier():
        return source.function.strip("_") or None
    return None


# --- assignment of names ----------------------------------------------------------------------------------------


class Namer:
    """Hands out unique identifiers; a taken one gets a number."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)
        self._next: dict[str, int] = {}

    def __call__(self, wanted: str) -> str:
        name = base = identifier(wanted)
        while name in self._taken:
            self._next[base] = self._next.get(base, 1) + 1
            name = f"{base}_{self._next[base]}"
        self._taken.add(name)
        return name


def assign(graph: Graph) -> Mapping[Variable, str]:
    """Unique names for all variables: hints first, then what the source line assigns, else the primitive."""
    namer = Namer()
    wanted = _targets(graph.equations) | dict(graph.hints)
    names: dict[Variable, str] = {}
    for variable in (*graph.inputs, *graph.constants):
        names[variable] = namer(wanted.get(variable, "constant"))
    hinted = [v for e in graph.equations for v in e.outputs if v in graph.hints]
    names |= {v: namer(graph.hints[v]) for v in hinted}
    for equation in graph.equations:
        for variable in equation.outputs:
            if variable not in names:
                names[variable] = namer(wanted.get(variable, short(equation)))
    return names


def short(equation: Equation) -> str:
    return _SHORT.get(equation.name, equation.name.removeprefix("reduce_"))


def _targets(equations: Sequence[Equation]) -> dict[Variable, str]:
    """Of the equations of one line, the last that computes has the target's name, the others theirs behind it."""
    wanted: dict[Variable, str] = {}
    start = 0
    for end in range(1, len(equations) + 1):
        if end < len(equations) and _place(equations[end]) == _place(equations[start]):
            continue
        run = equations[start:end]
        source = run[0].source
        if source is not None and (target := target_of(source)) is not None:
            target = f"grad_{target}" if run[0].transposed else target
            final = next((e for e in reversed(run) if not _is_view(e)), run[-1])
            for equation in run:
                name = target if equation is final else f"{target}_{short(equation)}"
                wanted |= {v: name for v in equation.outputs}
        start = end
    return wanted


def _place(equation: Equation) -> tuple[Any, bool]:
    return equation.source, equation.transposed


def _is_view(equation: Equation) -> bool:
    row = TABLE.get(equation.name)
    return row is not None and row.view
