"""The commands about one program: optimize, inspect, explain, bisect, reduce, view."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eqsat.cli_options import AsJson, Command, Search, Talk, shared
from eqsat.cli_subject import graph_of, place_for_file

if TYPE_CHECKING:
    from eqsat.program import PlannedKernel, Program, Uses

SOFTMAX = "jax.nn:softmax --args 'float32[8192,4096]'"  # a function that every user has
ATTENTION = "jax.nn:dot_product_attention --args 'bfloat16[4,512,8,64] bfloat16[4,512,8,64] bfloat16[4,512,8,64]'"

Tune = Annotated[
    int,
    typer.Option(min=0, metavar="N", help="Time the N best schedules of each kernel on this machine's GPU; keep the fastest."),
]
SpillFree = Annotated[
    int,
    typer.Option(min=0, metavar="N", help="Compile each kernel's N best schedules for the target; keep the best without spills."),
]
Autotune = Annotated[
    int, typer.Option(min=1, metavar="N", help="In saved Triton files, the N best schedules for Triton's autotuner.")
]


def add_program_commands(app: typer.Typer) -> None:
    """Add the commands of this module to `eqsat`."""
    examples: dict[Command, str] = {
        optimize: f"optimize {SOFTMAX} --target a100 -o softmax-kernels",
        inspect: f"inspect {ATTENTION}",
        explain: f"explain {ATTENTION}",
        bisect: "bisect mine.py:f --args 'float32[64,32]' --rules my_rules.py",
        reduce: "reduce mine.py:f --args 'float32[64,32]' --rules my_rules.py -o test_reduced.py",
        view: f"view {SOFTMAX} -o softmax.html",
    }
    for command, example in examples.items():
        app.command(epilog=f"Example: eqsat {example}")(shared(command))


def optimize(
    search: Search,
    talk: Talk,
    validate: Annotated[bool, typer.Option("--validate", help="Compare with the original at these shapes.")] = False,
    out: Annotated[
        str,
        typer.Option(
            "--out",
            "-o",
            "--save",
            metavar="FOLDER",
            help="Write the kernels and a module that runs them.",
        ),
    ] = "",
    tune: Tune = 0,
    spill_free: SpillFree = 0,
    autotune: Autotune = 1,
    stablehlo: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            callback=place_for_file,
            help="Write the rewritten graph, without kernels: text, or bytecode to FILE.mlirbc.",
        ),
    ] = "",
    onnx: Annotated[
        str,
        typer.Option(
            metavar="FILE", callback=place_for_file, help="Write the rewritten graph, without kernels, as an ONNX model."
        ),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Optimise a function and print the report."""
    if out:
        from eqsat.saving import check_place

        check_place(out)  # before a search, not after it
    program = _tuned(search, talk, tune, spill_free)
    talk.show(program.report(seconds=True) if not as_json else "", lambda: facts_of_program(program), as_json)
    if validate:
        with talk.phase("validating"):
            result = program.validate()
        print(result, file=sys.stderr if as_json else sys.stdout)
    if out:
        with talk.phase(f"writing {out}"):
            program.save(out, autotune)
    if stablehlo:
        from eqsat.writers.stablehlo import save as save_stablehlo

        with talk.phase(f"writing {stablehlo}"):
            save_stablehlo(program, stablehlo)
    if onnx:
        from eqsat.writers.onnx import save as save_onnx

        with talk.phase(f"writing {onnx}"):
            save_onnx(program, onnx)


def _tuned(search: Search, talk: Talk, count: int, compiled: int) -> Program:
    """The program that the search finds, with the best schedules by a timer or by static reports if that was asked for."""
    if not (count or compiled):
        return search.optimize(talk)
    from eqsat.devices import device
    from eqsat.tuning import static_timer, timer

    seconds = (timer if count else static_timer)(device(search.target))  # says what is missing before there is a search
    program = search.optimize(talk)
    with talk.phase("timing schedules" if count else "compiling schedules"):
        return program.tune(count or compiled, seconds)


def inspect(
    subject: Annotated[str, typer.Argument(metavar="SUBJECT", help="As for `optimize`.")],
    talk: Talk,
    args: Annotated[str, typer.Option("--args", metavar="SHAPES", help="Example arguments, as for `optimize`.")] = "",
    as_json: AsJson = False,
) -> None:
    """Print the graph, how often each operation occurs, what stays a call of JAX and why, and the constants."""
    with talk.phase(f"reading {subject}"):
        graph = graph_of(subject, args)
        summary = graph.summary()
    talk.show(f"{graph}\n\n{summary}", summary.to_dict, as_json)


def explain(
    search: Search,
    talk: Talk,
    seconds: Annotated[float, typer.Option(metavar="SECONDS", help="For finding out what each rule was worth.")] = 60.0,
    as_json: AsJson = False,
) -> None:
    """Say which rules the program needed and what each is worth, what was considered and lost, why neighbours are two kernels."""
    program = search.optimize(talk)
    with talk.phase("explaining"):
        explanation = program.explain(seconds)
    talk.show(explanation, explanation.to_dict, as_json)


def bisect(
    search: Search,
    talk: Talk,
    tolerance: Annotated[
        float, typer.Option(help="Largest error, as a share of the largest value (0: a few times the original's own).")
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Of the random inputs.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Find the first stage or rule that takes an output out of tolerance; exit code 1 if there is one."""
    program = search.optimize(talk)
    with talk.phase("bisecting"):
        found = program.bisect(tolerance=tolerance or None, seed=seed)
    talk.show(found, lambda: dataclasses.asdict(found), as_json)
    if found.stage:
        raise typer.Exit(1)


def reduce(
    search: Search,
    talk: Talk,
    engine: Annotated[
        str,
        typer.Option(metavar="ENGINE", help="What runs it: meaning, compiled, tiles, triton or pallas (the first that fails)."),
    ] = "",
    seed: Annotated[int, typer.Option(help="Of the random inputs.")] = 0,
    seconds: Annotated[float, typer.Option(metavar="SECONDS", help="Afterwards, the smallest program so far.")] = 300.0,
    out: Annotated[
        str, typer.Option("--out", "-o", metavar="FILE", callback=place_for_file, help="Where to write the pytest file.")
    ] = "test_reduced.py",
    as_json: AsJson = False,
) -> None:
    """Shrink a program that fails to the smallest that fails in the same way, and write it as a pytest file."""
    from eqsat import reduction
    from eqsat.reduction_text import test_text

    if Path(out).exists():
        raise ValueError(f"{out}: a new file required, this one exists; choose another with -o")
    with talk.phase(f"reducing {search.subject}"):
        graph, request = search.traced()
        found = reduction.reduce(graph, request, engine, seed=seed, seconds=seconds)
    Path(out).write_text(test_text(found), encoding="utf-8")
    talk.show(f"{found}\nwrote {out}", lambda: {**found.to_dict(), "file": out}, as_json)


def view(
    search: Search,
    talk: Talk,
    out: Annotated[
        str, typer.Option("--out", "-o", metavar="FILE", callback=place_for_file, help="Where to write the page.")
    ] = "",
    static: Annotated[
        bool, typer.Option("--static", help="Compile each kernel and add registers, spills and occupancy.")
    ] = False,
    show: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> None:
    """Write the program as one page of HTML: kernels, roofline, sources, rules."""
    from eqsat.view import view as page

    program = search.optimize(talk)
    place = Path(out or f"{program.name}.html")
    with talk.phase(f"drawing {place}"):
        page(program, place, static=static)
    talk.show(place)
    if show:
        typer.launch(str(place))


# --- a program in numbers ----------------------------------------------------------------------------------------


def facts_of_program(program: Program) -> dict[str, Any]:
    """What the report says, for other programs to read."""
    notes, known = program.notes, {r.name: r for r in program.request.rules} if program.request else {}
    used = [known[name] for name in notes.get("rules", ()) if name in known]
    return {
        "name": program.name,
        "target": program.target,
        "numerics": program.numerics,
        "before": dataclasses.asdict(program.baseline),
        "after": dataclasses.asdict(program.cost),
        "kernels": [_facts_of_kernel(p, program.uses[p.kernel]) for p in program.kernels],
        "rules": [{"name": r.name, "tier": r.tier, "law": r.law} for r in used],
        "calls": [{"operation": c.name, "reason": c.reason} for c in program.calls],
        "search": list(map(str, notes.get("search", ()))),
        "objective": program.request.objective if program.request else None,
        **{name: notes.get(name) for name in ("gap", "price", "bound", "search_seconds")},
    }


def _facts_of_kernel(planned: PlannedKernel, uses: Uses) -> dict[str, Any]:
    kernel = planned.kernel
    facts = {"name": planned.name, "launches": 0, "formula": planned.formula, **dataclasses.asdict(planned.cost)}
    facts |= {"launches": uses.count, "per_iteration": uses.per_iteration, "at_most": uses.at_most}
    return {
        **facts,
        "reads": list(map(str, kernel.inputs)),
        "writes": list(map(str, kernel.outputs)),
        "schedule": str(planned.schedule),
    }
