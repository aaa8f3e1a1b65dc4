"""The command `eqsat`: optimise a function by name, ask how its program came about, keep rules, list the devices.

Results go to standard output, progress to standard error. Exit codes: 0 for success; 1 for a check that failed (validation, a
wrong rule, a bisection that found a fault); 2 for a mistake of the caller, which is one line on standard error; 130 for an
interruption.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import runpy
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from eqsat import __version__
from eqsat.cli_options import AsJson, Talk, shared
from eqsat.cli_programs import add_program_commands
from eqsat.devices import DEVICES
from eqsat.rule_cli import app as rules

EXIT_CODES = "Exit codes: 0 success, 1 a check failed, 2 a mistake of the caller, 130 interrupted."
INTERRUPTED = 130

app = typer.Typer(
    help="Equality saturation for tensor programs, with readable, checked GPU kernels as the result.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EXIT_CODES,
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


add_program_commands(app)
app.add_typer(rules, name="rules")


@app.command(epilog="Example: eqsat devices --calibrate h100 --name my-h100")
@shared
def devices(
    talk: Talk,
    calibrate: Annotated[
        str, typer.Option(metavar="DEVICE", help="Measure this computer: 'cpu', or its first GPU as a row of the table.")
    ] = "",
    name: Annotated[str, typer.Option(help="What --calibrate keeps the device as, for --target; default: DEVICE-measured.")] = "",
    as_json: AsJson = False,
) -> None:
    """Print the table of devices and those measured here, with the source of the numbers; or measure one."""
    from eqsat.calibrate import measure, measured

    if calibrate:
        with talk.phase(f"measuring {calibrate}"):
            made = measure(calibrate, name)
        known = {made.name: made}
    else:
        known = {**DEVICES, **measured()}
    facts = {name: dict(_facts(device)) for name, device in known.items()}
    console = Console(width=None if sys.stdout.isatty() else 200, highlight=False)
    with console.capture() as text:
        for table in _tables(facts, console.width):
            console.print(table)
        for name, device in known.items():
            console.print(f"{name}: {device.source}")
    talk.show(text.get().rstrip(), lambda: {name: dataclasses.asdict(device) for name, device in known.items()}, as_json)


def _tables(facts: Mapping[str, Mapping[str, str]], width: int) -> Iterator[Table]:
    """One column for each device, in as many tables as a width of characters needs."""
    longest = sorted(facts.values(), key=len, reverse=True)
    labels = list(dict.fromkeys(fact for row in longest for fact in row))
    widest = 2 + max(len(word) for name, row in facts.items() for word in (name, *row.values()))
    room = max(1, (width - max(map(len, labels), default=0)) // widest)
    names = list(facts)
    for start in range(0, len(names), room):
        shown = names[start : start + room]
        table = Table("", *shown, box=None, pad_edge=False)
        for fact in labels:
            table.add_row(fact, *(facts[name].get(fact, "") for name in shown))
        yield table


def _facts(device: Any) -> Iterator[tuple[str, str]]:
    """The numbers of a row; a field that holds several gives one each."""
    for field in dataclasses.fields(device):
        value = getattr(device, field.name)
        if isinstance(value, Mapping):
            yield from ((f"{field.name} {key}", _number(number)) for key, number in value.items())
        elif not isinstance(value, str | bool):
            yield field.name, _number(value)


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}"


@app.command(epilog="Example: eqsat cache --clear")
@shared
def cache(
    talk: Talk,
    clear: Annotated[bool, typer.Option("--clear", help="Delete every entry.")] = False,
    as_json: AsJson = False,
) -> None:
    """Look at what searches have left in the cache, or clear it. EQSAT_CACHE_DIR names its folder; empty, it is off."""
    from eqsat.cache import VARIABLE, cache_of
    from eqsat.places import in_the_way

    own = cache_of(True)
    if own is None:
        raise ValueError(f"cache: a folder required, got an empty {VARIABLE}; unset it for the usual one")
    obstacle = in_the_way(own.folder)
    if obstacle and (clear or not own.folder.is_dir()):  # plans in a read-only folder are found all the same
        what = f"{obstacle} in the way" if own.folder != obstacle or not obstacle.is_dir() else "a read-only one"
        raise ValueError(f"cache {own.folder}: a folder that can be written required, got {what}; let {VARIABLE} name another")
    before = own.statistics()
    if clear:
        own.clear()
    found = f"{before.entries} entries, {before.nbytes:,} bytes, used {before.hits} times"
    facts = {**dataclasses.asdict(before), "folder": str(before.folder), "cleared": clear}
    talk.show(f"{before.folder}: {found}{', deleted' if clear else ''}", lambda: facts, as_json)


_FORWARDED: dict[str, Any] = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


@app.command(context_settings=_FORWARDED, epilog="Example: eqsat bench --quick")
def bench(context: typer.Context) -> None:
    """Run the benchmarks of a checkout; every option goes to `python -m benchmarks`."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    if importlib.util.find_spec("benchmarks") is None:
        raise ValueError("bench: the folder benchmarks of a checkout required, found none here; run it at the root of a checkout")
    sys.argv = ["eqsat bench", *context.args]
    runpy.run_module("benchmarks", run_name="__main__", alter_sys=True)


# --- the program -------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code, as the module says."""
    try:
        code = app(args=list(sys.argv[1:] if arguments is None else arguments), prog_name="eqsat", standalone_mode=False)
    except BrokenPipeError:
        return 0
    except SystemExit as stop:  # of a command that is forwarded, or of shell completion
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
        said = error.format_message().rstrip(".")  # empty where the help was printed for want of a command
        return _failed(f"{said}; see `eqsat --help`", 2) if said else 2
    return _failed("interrupted", code) if code == INTERRUPTED else code if isinstance(code, int) else 0


def _failed(error: Any, code: int) -> int:
    print(f"eqsat: {' '.join(str(error).split())}", file=sys.stderr)
    return code
