"""The command `eqsat`: optimise a function by name, look at what came out, list the devices.

A mistake of the caller is one line on standard error and exit code 2; results go to standard output, progress to standard error.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import importlib.util
import json
import logging
import os
import runpy
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from eqsat import __version__
from eqsat.cli_subject import function_of, graph_of, numbers, shapes
from eqsat.cost import OBJECTIVES
from eqsat.devices import DEVICES
from eqsat.rule import TIERS

if TYPE_CHECKING:
    from eqsat.program import PlannedKernel, Program, Uses

# --- options -----------------------------------------------------------------------------------------------------

Subject = Annotated[
    str, typer.Argument(metavar="SUBJECT", help="module:function, file.py:function, a model.onnx, or a module.mlir")
]
Args = Annotated[
    str,
    typer.Option(
        "--args",
        metavar="SHAPES",
        help="Example arguments: 'float32[4,8] int32[]'; @name for a tuple, or a function that makes one, in the same module; "
        "for an ONNX model the sizes of its named dimensions: 'batch=4'; for a StableHLO module open shapes: 'x=4x128'.",
    ),
]
Target = Annotated[str, typer.Option(help="A device of the table (see `eqsat devices`).", autocompletion=lambda: list(DEVICES))]
Numerics = Annotated[
    str, typer.Option(help="What a rule may change: exact, reassociate or fast.", autocompletion=lambda: list(TIERS))
]
Objective = Annotated[
    str, typer.Option(help="What kernels are judged by: time, launches or traffic.", autocompletion=lambda: list(OBJECTIVES))
]
Constants = Annotated[str, typer.Option(metavar="NUMBERS", help="Numbers of arguments that never change: '0,2'.")]
TimeLimit = Annotated[float, typer.Option(metavar="SECONDS", help="Afterwards, the best program so far.")]
Rules = Annotated[
    str, typer.Option("--rules", metavar="FILES", help="Files of rules to use beside the built-in ones: 'mine.py'.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No report and no progress; only errors.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="What each phase did, on standard error.")]
AsJson = Annotated[bool, typer.Option("--json", help="The result as JSON on standard output.")]

__all__ = ["app", "function_of", "main", "shapes"]

app = typer.Typer(
    help="Equality saturation for tensor programs, with readable, checked GPU kernels as the result.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"eqsat {__version__}")
        raise typer.Exit()


@app.callback()
def _top(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Equality saturation for tensor programs, with readable, checked GPU kernels as the result."""


# --- progress ----------------------------------------------------------------------------------------------------


class _Phase(logging.Handler):
    """Shows the pipeline's messages as the text of a spinner."""

    def __init__(self, status: Any) -> None:
        super().__init__(logging.INFO)
        self.status = status

    def emit(self, record: logging.LogRecord) -> None:
        from rich.markup import escape

        self.status.update(escape(textwrap.shorten(record.getMessage(), 100)))


@contextmanager
def _progress(start: str, quiet: bool, verbose: bool) -> Iterator[None]:
    """The current phase while something runs: a spinner on a terminal, lines if verbose."""
    log, console = logging.getLogger("eqsat"), Console(stderr=True)
    before = log.level
    if verbose:
        handler: logging.Handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(relativeCreated)6d ms  %(message)s"))
        status = None
    elif console.is_terminal and not quiet:
        status = console.status(start)
        handler = _Phase(status)
    else:
        yield
        return
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        if status is None:
            yield
        else:
            with status:
                yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before)


def _optimized(subject: str, args: str, constants: str, rules: str, quiet: bool, verbose: bool, **options: Any) -> Program:
    """The program of a subject; `options` are those of `eqsat.optimize`."""
    import eqsat
    from eqsat.packs import packs, rules_named

    with _progress(f"reading {subject}", quiet, verbose):
        fixed = numbers(constants)
        chosen = rules_named([*packs(), *rules.replace(",", " ").split()])
        return eqsat.optimize(graph_of(subject, args), constants=fixed, rules=chosen, **options)


# --- commands ----------------------------------------------------------------------------------------------------


@app.command(
    epilog="Example: eqsat optimize examples.softmax:softmax --args 'float32[8192,4096]' --target a100 -o softmax-kernels"
)
def optimize(
    subject: Subject,
    args: Args = "",
    target: Target = "h100",
    numerics: Numerics = "reassociate",
    objective: Objective = "time",
    rules: Rules = "",
    constants: Constants = "",
    time_limit: TimeLimit = 300.0,
    validate: Annotated[bool, typer.Option("--validate", help="Compare with the original at these shapes.")] = False,
    out: Annotated[
        str, typer.Option("--out", "-o", "--save", metavar="FOLDER", help="Write the kernels and a module that runs them.")
    ] = "",
    as_json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Optimise a function and print the report."""
    options = {"target": target, "numerics": numerics, "objective": objective, "time_limit": time_limit}
    program = _optimized(subject, args, constants, rules, quiet, verbose, **options)
    if as_json:
        print(json.dumps(_facts_of_program(program), indent=1))
    elif not quiet:
        print(program.report())
    if validate:
        with _progress("validating", quiet, verbose):
            result = program.validate()
        print(result, file=sys.stderr if as_json else sys.stdout)
    if out:
        with _progress(f"writing {out}", quiet, verbose):
            program.save(out)


@app.command(epilog="Example: eqsat inspect examples.attention:attention --args '" + " ".join(["bfloat16[1,8,512,64]"] * 3) + "'")
def inspect(subject: Subject, args: Args = "", as_json: AsJson = False) -> None:
    """Print the graph, how often each operation occurs, and what stays a call of JAX and why."""
    from eqsat.read import read

    graph = graph_of(subject, args)
    reading = read(graph)
    counts = Counter(e.name for e in graph.equations).most_common()
    calls = Counter((c.name, c.reason) for c in reading.calls).most_common()
    if as_json:
        opaque = [{"operation": name, "reason": reason, "count": n} for (name, reason), n in calls]
        facts = {"name": graph.name, "equations": len(graph.equations), "views": reading.views, "operations": dict(counts)}
        print(json.dumps({**facts, "calls": opaque}, indent=1))
        return
    print(graph)
    print(f"\n{len(graph.equations)} equations, {reading.views} of them views, {reading.opaque} calls of JAX")
    print("\n".join(f"{n:>6}  {name}" for name, n in counts))
    if calls:
        print("\ncalls of JAX")
        print("\n".join(f"{n:>6}  {name}: {reason}" for (name, reason), n in calls))


@app.command(
    epilog="Example: eqsat explain examples.lora:lora --args '"
    + "float32[512,256] float32[256,256] float32[256,8] float32[8,256]'"
)
def explain(
    subject: Subject,
    args: Args = "",
    target: Target = "h100",
    numerics: Numerics = "reassociate",
    objective: Objective = "time",
    rules: Rules = "",
    constants: Constants = "",
    time_limit: TimeLimit = 300.0,
    seconds: Annotated[float, typer.Option(metavar="SECONDS", help="For finding out what each rule was worth.")] = 60.0,
    as_json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Say which rules the program needed and what each is worth, what was considered and lost, why neighbours are two kernels."""
    options = {"target": target, "numerics": numerics, "objective": objective, "time_limit": time_limit}
    program = _optimized(subject, args, constants, rules, quiet, verbose, **options)
    with _progress("explaining", quiet, verbose):
        explanation = program.explain(seconds)
    print(json.dumps(explanation.to_dict(), indent=1) if as_json else explanation)


@app.command(epilog="Example: eqsat reduce mine.py:f --args 'float32[64,32]' --rules my_rules.py -o test_reduced.py")
def reduce(
    subject: Subject,
    args: Args = "",
    target: Target = "h100",
    numerics: Numerics = "reassociate",
    objective: Objective = "time",
    rules: Rules = "",
    constants: Constants = "",
    time_limit: TimeLimit = 30.0,
    engine: Annotated[
        str,
        typer.Option(metavar="ENGINE", help="meaning, compiled, tiles, triton or pallas: what runs it (the first that fails)."),
    ] = "",
    seed: Annotated[int, typer.Option(help="Of the random inputs.")] = 0,
    seconds: Annotated[float, typer.Option(metavar="SECONDS", help="Afterwards, the smallest program so far.")] = 300.0,
    out: Annotated[str, typer.Option("--out", "-o", metavar="FILE", help="Where to write the pytest file.")] = "test_reduced.py",
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Shrink a program that fails to the smallest that fails in the same way, and write it as a pytest file."""
    from eqsat.reduction import reduce as reduced_by
    from eqsat.reduction_text import test_text

    if Path(out).exists():
        raise ValueError(f"{out}: a new file required, this one exists; choose another with -o")
    options = {"target": target, "numerics": numerics, "objective": objective, "time_limit": time_limit}
    program = _optimized(subject, args, constants, rules, quiet, verbose, **options)
    assert program.request is not None
    with _progress(f"reducing {subject}", quiet, verbose):
        found = reduced_by(program.graph, program.request, engine, seed=seed, seconds=seconds)
    Path(out).write_text(test_text(found), encoding="utf-8")
    if not quiet:
        print(f"{found}\nwrote {out}")


@app.command(epilog="Example: eqsat view examples.softmax:softmax --args 'float32[8192,4096]' -o softmax.html")
def view(
    subject: Subject,
    args: Args = "",
    target: Target = "h100",
    numerics: Numerics = "reassociate",
    objective: Objective = "time",
    rules: Rules = "",
    constants: Constants = "",
    time_limit: TimeLimit = 300.0,
    out: Annotated[str, typer.Option("--out", "-o", metavar="FILE", help="Where to write the page.")] = "",
    static: Annotated[
        bool, typer.Option("--static", help="Compile each kernel and add registers, spills and occupancy.")
    ] = False,
    show: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Write the program as one page of HTML: kernels, roofline, sources, rules."""
    from eqsat.view import view as page

    options = {"target": target, "numerics": numerics, "objective": objective, "time_limit": time_limit}
    program = _optimized(subject, args, constants, rules, quiet, verbose, **options)
    place = Path(out or f"{program.name}.html")
    with _progress(f"drawing {place}", quiet, verbose):
        page(program, place, static=static)
    if not quiet:
        print(place)
    if show:
        typer.launch(str(place))


@app.command(epilog="Example: eqsat devices --json")
def devices(as_json: AsJson = False) -> None:
    """Print the table of devices, with the source of its numbers."""
    if as_json:
        print(json.dumps({name: dataclasses.asdict(device) for name, device in DEVICES.items()}, indent=1))
        return
    facts = {name: dict(_facts(device)) for name, device in DEVICES.items()}
    table = Table("", *DEVICES, box=None, pad_edge=False)
    longest = sorted(facts.values(), key=len, reverse=True)
    for fact in dict.fromkeys(fact for row in longest for fact in row):
        table.add_row(fact, *(row.get(fact, "") for row in facts.values()))
    console = Console(width=None if sys.stdout.isatty() else 200, highlight=False)
    console.print(table)
    for name, device in DEVICES.items():
        console.print(f"{name}: {device.source}")


def _facts(device: Any) -> Iterator[tuple[str, str]]:
    """The numbers of a row; a field that holds several gives one each."""
    for field in dataclasses.fields(device):
        value = getattr(device, field.name)
        if isinstance(value, Mapping):
            yield from ((f"{field.name} {key}", _number(number)) for key, number in value.items())
        elif not isinstance(value, str):
            yield field.name, _number(value)


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}"


@app.command(epilog="Example: eqsat cache --clear")
def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Delete every entry.")] = False,
    as_json: AsJson = False,
) -> None:
    """Look at what searches have left in the cache, or clear it. EQSAT_CACHE_DIR names its folder; empty, it is off."""
    from eqsat.cache import VARIABLE, cache_of

    own = cache_of(True)
    if own is None:
        raise ValueError(f"cache: a folder required, got an empty {VARIABLE}; unset it for the usual one")
    before = own.statistics()
    if clear:
        own.clear()
    if as_json:
        print(json.dumps({**dataclasses.asdict(before), "folder": str(before.folder), "cleared": clear}, indent=1))
        return
    found = f"{before.entries} plans, {before.nbytes:,} bytes, used {before.hits} times"
    print(f"{before.folder}: {found}{', deleted' if clear else ''}")


_FORWARDED: dict[str, Any] = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


class _Parser(argparse.ArgumentParser):
    """A parser whose complaint is one line, like all others."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}; see `{self.prog} --help`")


@app.command("rules", context_settings=_FORWARDED, epilog="Example: eqsat rules list")
def _rules(context: typer.Context) -> None:
    """List, show, check, start and try rules."""
    from eqsat.rule_cli import add_rules_commands

    parser = _Parser(prog="eqsat")
    add_rules_commands(parser.add_subparsers())
    options = parser.parse_args(["rules", *(context.args or ["--help"])])
    options.run(options)


@app.command(context_settings=_FORWARDED, epilog="Example: eqsat bench --quick")
def bench(context: typer.Context) -> None:
    """Run the benchmarks of a checkout; every option goes to `python -m benchmarks`."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    if importlib.util.find_spec("benchmarks.__main__") is None:
        raise ValueError("bench: the folder benchmarks of a checkout required, found none here; run it at the root of a checkout")
    sys.argv = ["eqsat bench", *context.args]
    runpy.run_module("benchmarks", run_name="__main__", alter_sys=True)


# --- a program in words and numbers ------------------------------------------------------------------------------


def _facts_of_program(program: Program) -> dict[str, Any]:
    """What the report says, for other programs to read."""
    notes, tiers = program.notes, program.notes.get("tiers", {})
    return {
        "name": program.name,
        "target": program.target,
        "numerics": program.numerics,
        "before": dataclasses.asdict(program.baseline),
        "after": dataclasses.asdict(program.cost),
        "kernels": [_facts_of_kernel(p, program.uses[p.kernel]) for p in program.kernels],
        "rules": [{"name": r, "tier": tiers.get(r), "law": law} for r, law, _ in _laws(program)],
        "calls": [{"operation": c.name, "reason": c.reason} for c in program.calls],
        "search": list(map(str, notes.get("search", ()))),
        "gap": notes.get("gap"),
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


def _laws(program: Program) -> Iterator[tuple[str, str | None, str]]:
    """Each rule used, with its law and docstring where it is one of the built-in packs."""
    known = {r.name: r for r in importlib.import_module("eqsat.rules").RULES}
    for name in program.notes.get("rules", ()):
        rule = known.get(name)
        yield name, rule.law if rule else None, " ".join(rule.doc.split()) if rule else "not of the built-in packs"


# --- the program -------------------------------------------------------------------------------------------------

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code: 0, 1 for a failed check, 2 for a mistake, 130 for an interruption."""
    try:
        code = app(args=list(sys.argv[1:] if arguments is None else arguments), prog_name="eqsat", standalone_mode=False)
    except BrokenPipeError:
        return 0
    except SystemExit as stop:  # of a command that is forwarded
        return _failed(stop.code, 1) if isinstance(stop.code, str) else stop.code or 0
    except (KeyboardInterrupt, typer.Abort):
        return _failed("interrupted", INTERRUPTED)
    except AssertionError as error:
        return _failed(error, 1)
    except (ValueError, TypeError, OSError, ImportError) as error:
        return _failed(error, 2)
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        return _failed(f"{error.format_message().rstrip('.')}; see `eqsat --help`", 2)
    return _failed("interrupted", code) if code == INTERRUPTED else code if isinstance(code, int) else 0


def _failed(error: Any, code: int) -> int:
    print(f"eqsat: {' '.join(str(error).split())}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
