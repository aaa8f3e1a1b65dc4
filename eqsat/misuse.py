"""Calls that do not fit, as sentences: what JAX says while it traces, arguments of another structure, options misspelt."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax

from eqsat import names

REMEDIES = (  # of errors under JAX's tracing, the first that fits
    (jax.errors.TracerBoolConversionError, "choose by value with jnp.where or jax.lax.cond"),
    (jax.errors.NonConcreteBooleanIndexError, "keep the shape, with jnp.where(mask, x, other)"),
    (
        (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError, jax.errors.TracerIntegerConversionError),
        "compute with jnp in place of numpy, float or int; if the value is known before, bind it with functools.partial",
    ),
)
NO_ARRAY = re.compile(r"Error interpreting argument to .*type <class '([\w.]+)'> and was passed to the function at path ([^.]*)")
NO_HASH = re.compile(r"Non-hashable static arguments .*an object of type <class '([\w.]+)'>, (.{,80})", re.DOTALL)
BIND = "bind other arguments with functools.partial"
LONGEST = 120  # letters of a call that is spelled out


def untraceable(fn: Callable[..., Any], error: Exception, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Exception:
    """What to raise where a function could not be traced for arguments."""
    name = names.function_name(fn)
    kind = TypeError if isinstance(error, TypeError) else ValueError
    if found := NO_ARRAY.match(str(error)):
        leaves, _ = jax.tree_util.tree_flatten_with_path((tuple(args), dict(kwargs)))
        position = re.search(r"\d+", found[2])
        leaf = names.path_name(leaves[int(position[0])][0], names.parameters_of(fn, len(args))) if position else found[2]
        return kind(f"{name}: arrays or jax.ShapeDtypeStruct required, got {found[1]} for {leaf}; {BIND}")
    reason = re.sub(r"<function \S+ at 0x\w+>", name, str(error).strip().split("\n")[0].rstrip(".")) or "no reason given"
    where = names.line_of_error(error)
    own = "mend that line, or the shapes and dtypes that it is given" if where else f"pass arrays or jax.ShapeDtypeStruct; {BIND}"
    remedy = next((remedy for kinds, remedy in REMEDIES if isinstance(error, kinds)), own)
    return kind(f"{name}: a function that JAX can trace is required, got {type(error).__name__}: {reason}{where}; {remedy}")


def untraceable_call(fn: Callable[..., Any], error: Exception) -> Exception | None:
    """What to raise in place of an error that `jax.jit` raised for a call; None for one of the function's own."""
    name = names.function_name(fn)
    if any(isinstance(error, kinds) for kinds, _ in REMEDIES):
        return untraceable(fn, error, (), {})
    if found := NO_ARRAY.match(str(error)):
        return TypeError(f"{name}: arrays required, got {found[1]} for {found[2]}; name it in static_argnums or static_argnames")
    if found := NO_HASH.match(str(error)):
        value = found[2].split(". The error was")[0]
        return ValueError(f"{name}: static arguments that have a hash required, got the {found[1]} {value}; pass a tuple instead")
    return None


# --- arguments ----------------------------------------------------------------------------------------------------


def unlike(name: str, required: Any, got: Any) -> str:
    """What is required and what was got, of calls whose arguments have different structures."""
    wanted, given = _spelled(name, required), _spelled(name, got)
    if len(wanted) + len(given) <= 2 * LONGEST and wanted != given:
        return f"a call {wanted} required, got {given}"
    ours, theirs = _leaves(required), _leaves(got)
    only = [("without", sorted(ours - theirs)), ("with", sorted(theirs - ours))]
    listed = " and ".join(f"one {word} {', '.join(p[:3])}{', ...' * (len(p) > 3)}" for word, p in only if p)
    return f"a call of {len(ours)} arrays in the containers of before required, got {listed or 'other types of containers'}"


class _Array:
    def __repr__(self) -> str:
        return "*"


def _spelled(name: str, tree: Any) -> str:
    """A call with a star for each array."""
    try:
        args, kwargs = jax.tree_util.tree_unflatten(tree, [_Array()] * tree.num_leaves)
    except Exception:  # a container of the user's that holds arrays only
        return str(tree)
    return f"{name}({', '.join([*map(repr, args), *(f'{key}={value!r}' for key, value in kwargs.items())])})"


def _leaves(tree: Any) -> set[str]:
    """The places of the arrays, as a reader would index them."""
    paths, _ = jax.tree_util.tree_flatten_with_path(jax.tree_util.tree_unflatten(tree, range(tree.num_leaves)))
    words = ("argument ", "keyword ")
    return {f"{words[p[0].idx]}{getattr(p[1], 'idx', getattr(p[1], 'key', ''))}{jax.tree_util.keystr(p[2:])}" for p, _ in paths}


def named_parameters(fn: Callable[..., Any]) -> list[str] | None:
    """What a function takes by name; None if that is not known, or anything."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(p.kind == p.VAR_KEYWORD for p in parameters):
        return None
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]


def check_named(name: str, known: list[str] | None, given: Iterable[str], options: Iterable[str]) -> None:
    """Raises TypeError for an argument by a name that is neither the function's nor an option's."""
    if known is None:
        return
    for word in given:
        if word not in known:
            near = difflib.get_close_matches(word, [*options, *known], 1)
            remedy = f"did you mean {near[0]}?" if near else f"options are {', '.join(options)}"
            raise TypeError(f"optimize: an argument of {name} or an option required, got one named {word}; {remedy}")
