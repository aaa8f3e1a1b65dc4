"""The options that commands share, each said once, and what a command shows while it runs."""

from __future__ import annotations

import functools
import inspect
import json
import logging
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from eqsat.cli_subject import graph_of, numbers
from eqsat.cost import OBJECTIVES
from eqsat.devices import DEVICES
from eqsat.rule import TIERS, select, unique

if TYPE_CHECKING:
    from eqsat.graph import Graph
    from eqsat.optimizer import Request
    from eqsat.program import Program

AsJson = Annotated[bool, typer.Option("--json", help="The result as JSON on standard output.")]
Command = Callable[..., None]


# --- what is shown meanwhile --------------------------------------------------------------------------------------


class _Phase(logging.Handler):
    """Shows the pipeline's messages as the text of a spinner, and warnings as lines above it."""

    def __init__(self, status: Any) -> None:
        super().__init__(logging.INFO)
        self.status = status

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.WARNING:
            self.status.update(escape(textwrap.shorten(record.getMessage(), 100)))
        else:
            self.status.console.print(f"eqsat: {record.getMessage()}", soft_wrap=True, markup=False, highlight=False)


@dataclass(frozen=True)
class Talk:
    """How much a command says on standard error."""

    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No report and no progress; only errors.")] = False
    verbose: Annotated[
        int, typer.Option("--verbose", "-v", count=True, help="What each phase did; twice, each region's details.")
    ] = 0

    @contextmanager
    def phase(self, start: str) -> Iterator[None]:
        """The logger `eqsat` while something runs: lines if verbose, else warnings, and a spinner on a terminal."""
        log, console = logging.getLogger("eqsat"), Console(stderr=True)
        status, form, level = None, "eqsat: %(message)s", logging.WARNING
        handler: logging.Handler = logging.StreamHandler()
        if self.verbose:
            form, level = "%(relativeCreated)6d ms  %(message)s", logging.DEBUG if self.verbose > 1 else logging.INFO
        elif self.quiet:
            handler = logging.NullHandler()
        elif console.is_terminal:
            status, level = console.status(escape(start)), logging.INFO
            handler = _Phase(status)
        handler.setFormatter(logging.Formatter(form))
        before = log.level
        log.addHandler(handler)
        log.setLevel(level)
        try:
            if status is None:
                yield
            else:
                with status:
                    yield
        finally:
            log.removeHandler(handler)
            log.setLevel(before)

    def show(self, result: Any, facts: Callable[[], Any] | None = None, as_json: bool = False) -> None:
        """Print a command's result: as JSON if that was asked for, as text unless quiet."""
        if as_json and facts is not None:
            print(json.dumps(facts(), indent=1))
        elif not self.quiet:
            print(result)


# --- what is searched --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Search:
    """A function and the options of `eqsat.optimize`."""

    subject: Annotated[
        str,
        typer.Argument(metavar="SUBJECT", help="module:function, file.py:function, a model.onnx, a model.pt2, or a module.mlir"),
    ]
    args: Annotated[
        str,
        typer.Option(
            "--args",
            metavar="SHAPES",
            help="Example arguments: 'float32[4,8] int32[]'; @name for a tuple, or a function that makes one, in the same "
            "module; for an ONNX model the sizes of its named dimensions: 'batch=4'; for a StableHLO module open shapes: "
            "'x=4x128'.",
        ),
    ] = ""
    target: Annotated[
        str, typer.Option(help="A device of the table (see `eqsat devices`).", autocompletion=lambda: list(DEVICES))
    ] = "h100"
    numerics: Annotated[
        str, typer.Option(help="What a rule may change: exact, reassociate or fast.", autocompletion=lambda: list(TIERS))
    ] = "reassociate"
    objective: Annotated[
        str,
        typer.Option(
            help="What kernels are judged by: time, launches, traffic or memory.", autocompletion=lambda: list(OBJECTIVES)
        ),
    ] = "time"
    rules: Annotated[
        str,
        typer.Option(
            "--rules", metavar="FILES", help="Files or packs of rules to use beside the default ones: 'mine.py expansion'."
        ),
    ] = ""
    constants: Annotated[str, typer.Option(metavar="NUMBERS", help="Numbers of arguments that never change: '0,2'.")] = ""
    time_limit: Annotated[float, typer.Option(metavar="SECONDS", help="Afterwards, the best program so far.")] = 300.0
    memory_limit: Annotated[
        int | None, typer.Option(metavar="BYTES", help="Most bytes of temporaries that may be alive at once.")
    ] = None
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Search anew, and keep nothing.")] = False

    def traced(self) -> tuple[Graph, Request]:
        """The graph, and what is asked of the search."""
        from eqsat.optimizer import Request
        from eqsat.packs import default_rules, rules_named

        words = self.rules.replace(",", " ").split()
        chosen = unique([*default_rules(), *(rules_named(words) if words else ())])
        fixed = numbers(self.constants)
        if self.numerics not in TIERS:
            raise ValueError(f"numerics {self.numerics!r}: one of {', '.join(TIERS)} required")
        admitted = select(chosen, self.numerics)
        request = Request(
            self.target, self.numerics, self.objective, fixed, self.time_limit, admitted, cache=not self.no_cache,
            memory_limit=self.memory_limit,
        )  # fmt: skip
        return graph_of(self.subject, self.args), request

    def optimize(self, talk: Talk) -> Program:
        """The program that the search finds."""
        with talk.phase(f"reading {self.subject}"):
            graph, request = self.traced()
            return request.optimize(graph)


def shared(command: Command) -> Command:
    """The command with the options of its parameters of type Search and Talk in place of these."""
    own = inspect.signature(command, eval_str=True).parameters
    kinds = {name: p.annotation for name, p in own.items() if p.annotation in (Search, Talk)}
    options: dict[str, inspect.Parameter] = {}
    for name, parameter in own.items():
        kind = kinds.get(name)
        options |= {p.name: p for p in (_parameters(kind) if kind else [parameter])}

    @functools.wraps(command)
    def run(**given: Any) -> None:
        made = {name: kind(**{f.name: given.pop(f.name) for f in fields(kind)}) for name, kind in kinds.items()}
        command(**made, **given)

    keyword = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in options.values()]
    run.__signature__ = inspect.Signature(keyword)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in keyword}
    del run.__wrapped__  # type: ignore[attr-defined]
    return run


def _parameters(kind: Any) -> list[inspect.Parameter]:
    return list(inspect.signature(kind, eval_str=True).parameters.values())
