"""Control flow: primitives whose parameters hold programs, as a table of how JAX runs them over other bodies.

The functions that run them take the bodies as functions from flat arrays to flat arrays, and use nothing but JAX: a saved
program holds their text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
from jax import lax


@dataclass(frozen=True)
class Control:
    """A primitive that holds programs.

    bodies: parameters that hold them, each with the word for its part. settings: parameters that `run` takes.
    trips: the parameter that says how often each body runs; "" for once, None where values decide.
    invariant: for each body whose first inputs never change, the parameter that counts them, behind those that count the
    operands before theirs.
    """

    run: Callable[..., list[Any]]
    bodies: Mapping[str, str]
    settings: tuple[str, ...] = ()
    trips: str | None = ""
    invariant: tuple[tuple[str, ...], ...] = ()
    chooses: bool = False  # one of the bodies runs
    saved: bool = True  # its settings can be written as text


def scan(bodies, operands, num_consts, num_carry, length, reverse, unroll):
    """lax.scan: constants, carried values, and arrays of which each trip takes one element."""
    consts, rest = operands[:num_consts], operands[num_consts:]

    def trip(carry, elements):
        results = list(bodies[0](*consts, *carry, *elements))
        return results[:num_carry], results[num_carry:]

    carry, stacked = lax.scan(trip, list(rest[:num_carry]), list(rest[num_carry:]), length, reverse, unroll)
    return [*carry, *stacked]


def while_loop(bodies, operands, cond_nconsts, body_nconsts):
    """lax.while_loop: constants of the condition, constants of the body, carried values."""
    start = cond_nconsts + body_nconsts
    of_condition, of_body = operands[:cond_nconsts], operands[cond_nconsts:start]
    return lax.while_loop(
        lambda carry: bodies[0](*of_condition, *carry)[0],
        lambda carry: list(bodies[1](*of_body, *carry)),
        list(operands[start:]),
    )


def cond(bodies, operands):
    """lax.switch: the number of the branch, then what it is called with."""
    return lax.switch(operands[0], [lambda *given, body=body: list(body(*given)) for body in bodies], *operands[1:])


def shard_map(bodies, operands, mesh, in_specs, out_specs, check_vma, newly_manual_axes):
    """jax.shard_map: the body on every device's part."""
    run = jax.shard_map(
        lambda *parts: list(bodies[0](*parts)),
        mesh=mesh,
        in_specs=tuple(in_specs),
        out_specs=list(out_specs),
        check_vma=check_vma,
        axis_names=set(newly_manual_axes),
    )
    return run(*operands)


CONTROL: dict[str, Control] = {
    "scan": Control(
        scan, {"jaxpr": "body"}, ("num_consts", "num_carry", "length", "reverse", "unroll"), "length", (("num_consts",),)
    ),
    "while": Control(
        while_loop,
        {"cond_jaxpr": "condition", "body_jaxpr": "body"},
        ("cond_nconsts", "body_nconsts"),
        None,
        (("cond_nconsts",), ("cond_nconsts", "body_nconsts")),
    ),
    "cond": Control(cond, {"branches": "branch"}, chooses=True),
    "shard_map": Control(
        shard_map, {"jaxpr": "body"}, ("mesh", "in_specs", "out_specs", "check_vma", "newly_manual_axes"), saved=False
    ),
}


def counted(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Parameters with the operands of each kind as counts: newer JAX (0.12) a tree of them instead."""
    if "ft_in" not in params:
        return params
    consts, carry, _ = map(len, params["ft_in"].unpack())
    return {**{k: v for k, v in params.items() if k not in ("ft_in", "ft_out")}, "num_consts": consts, "num_carry": carry}


def jaxprs(name: str, params: Mapping[str, Any]) -> list[Any]:
    """The programs that an equation holds, by its `counted` parameters; none where it cannot be run over others."""
    row = CONTROL.get(name)
    if row is None or params.get("branches_platforms") is not None or any(p not in params for p in (*row.bodies, *row.settings)):
        return []
    held = [params[p] for p in row.bodies]
    found = [j for value in held for j in (value if isinstance(value, tuple | list) else (value,))]
    arrays = all(type(v.aval).__name__ == "ShapedArray" for j in found for v in (*_jaxpr(j).invars, *_jaxpr(j).outvars))
    return found if arrays else []  # a mutable reference stays with the equation that was traced


def varying(values: Iterable[Any], atoms: Iterable[Any]) -> list[Any]:
    """Values with the types of the traced atoms: inside of shard_map JAX wants to know over which devices each may differ.

    Reading drops the casts that say so, since they change no number.
    """
    return [_varying(value, _devices(atom.aval)) for value, atom in zip(values, atoms, strict=True)]


def _varying(value: Any, wanted: frozenset[str]) -> Any:
    missing = wanted - _devices(jax.typeof(value)) if wanted else wanted
    return lax.pcast(value, tuple(sorted(missing)), to="varying") if missing else value


def _devices(aval: Any) -> frozenset[str]:
    """The mesh axes over which a value may differ."""
    return getattr(getattr(aval, "manual_axis_type", None), "varying", frozenset())


def _jaxpr(held: Any) -> Any:
    return getattr(held, "jaxpr", held)


def parts(name: str, count: int) -> list[str]:
    """A word for each body: body, condition, branch 0, branch 1."""
    words = list(CONTROL[name].bodies.values())
    return words if len(words) == count else [f"{words[0]} {n}" for n in range(count)]


def settings(name: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `run` besides bodies and operands."""
    return {p: params[p] for p in CONTROL[name].settings}


def invariants(name: str) -> list[tuple[tuple[str, ...], str]]:
    """For each body: the parameters that count the operands before its unchanging ones, and the one that counts these."""
    return [(counts[:-1], counts[-1]) for counts in CONTROL[name].invariant]


def trips(name: str, params: Mapping[str, Any]) -> int | None:
    """How often each body runs; None where values decide."""
    row = CONTROL[name]
    return None if row.trips is None else int(params[row.trips]) if row.trips else 1
