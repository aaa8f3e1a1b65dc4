"""Programs as people write them in JAX: they optimise and validate, and little of them stays with JAX."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from jax_programs import PROGRAMS

import eqsat
from eqsat.graph import Graph
from eqsat.program import Program

TABLE = Path(__file__).resolve().parents[1] / "docs" / "jax-coverage.md"
MOST = 0.05  # of the predicted time
# Programs that are about what no kernel computes here: sorting, Fourier transforms, factorisations.
APART = {"sort", "fft", "lu"}


def called(program: Program) -> list[str]:
    """The primitives that stay calls and move something."""
    return sorted({c.name for c in program.calls if any(0 not in t.shape for t in c.outputs)})


def optimized(name: str, size: str, **options: Any) -> Program:
    given = getattr(PROGRAMS[name], size)
    return eqsat.optimize(given.fn, *given.args, **options)


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_stays_a_call_is_known(name):
    """Also inside loops."""
    waiting, found = [Graph.from_jax(PROGRAMS[name].small.fn, *PROGRAMS[name].small.args)], set()
    while waiting:
        graph = waiting.pop()
        waiting += [body for e in graph.equations for body in e.bodies]
        found |= {operation for operation, reason, _ in graph.summary().calls if reason != "no elements"}
    assert found == set(PROGRAMS[name].expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dropout", "graph network", "top-p sampling"])
def test_programs_validate_and_say_how_much_is_opaque(name):
    program = optimized(name, "small", time_limit=1.0)
    program.validate()
    assert bool(called(program)) == ("stay calls of JAX (" in program.report()) == (program.opaque_share > 0)


@pytest.mark.nightly
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program_validates(name):
    optimized(name, "small", time_limit=5.0).validate()


@pytest.mark.nightly
def test_the_opaque_share_of_every_program(request):
    programs = {name: optimized(name, "full", time_limit=10.0) for name in PROGRAMS}
    for name, program in programs.items():
        assert program.opaque_share <= MOST or set(called(program)) & APART, name
    text = coverage(programs)
    if request.config.getoption("--update-golden"):
        TABLE.write_text(text)
    assert text == TABLE.read_text(), "docs/jax-coverage.md differs; pytest -m nightly --update-golden writes it"


def coverage(programs: dict[str, Program]) -> str:
    """No predicted times: a search that ends with the clock may end elsewhere."""
    lines = [
        "# JAX coverage",
        "",
        "Programs of `tests/jax_programs.py` at their full sizes, optimised for an H100; written by",
        "`pytest -m nightly tests/test_jax_programs.py --update-golden`. A call of JAX is priced as a launch that moves its",
        f"operands and results once. At most {MOST:.0%} of the predicted time may be such calls, sorts, Fourier transforms",
        "and factorisations aside.",
        "",
        "| program | equations | calls of JAX | share of the predicted time |",
        "| --- | ---: | --- | --- |",
    ]
    for name, program in programs.items():
        lines.append(f"| {name} | {program.notes['equations']} | {', '.join(called(program))} | {share(program)} |")
    return "\n".join([*lines, ""])


def share(program: Program) -> str:
    """To the next step of 5 %."""
    return "" if not called(program) else f"up to {5 * -(-program.opaque_share // 0.05):.0f} %"
