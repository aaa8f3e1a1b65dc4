"""The command `eqsat`: optimise a function by name, list the devices.

A mistake of the caller is one line on standard error and exit code 2.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from eqsat import __version__
from eqsat.scalars import DTYPES

SHAPE = re.compile(r"([a-z]\w*)\[\s*(\d+(?:\s*,\s*\d+)*)?\s*\]")


def shapes(text: str) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Example arguments from text: ``float32[4,8] bfloat16[8,8] int32[]``."""
    rest = SHAPE.sub("", text).replace(",", " ").strip()
    if rest:
        raise ValueError(f"arguments {text!r}: a list such as 'float32[4,8] int32[]', got {rest!r}")
    return tuple(_shape(dtype, extents) for dtype, extents in SHAPE.findall(text))


def _shape(dtype: str, extents: str) -> jax.ShapeDtypeStruct:
    if dtype not in DTYPES:
        raise ValueError(f"no dtype {dtype!r}; known: {', '.join(DTYPES)}")
    return jax.ShapeDtypeStruct(tuple(int(n) for n in extents.split(",") if n.strip()), dtype)


def function_of(name: str) -> Callable[..., Any]:
    """The function that ``module:function`` names; modules are also looked up in the current folder."""
    module_name, separator, attribute = name.partition(":")
    if not (module_name and separator and attribute):
        raise ValueError(f"function {name!r}: module:function, such as examples.softmax:softmax")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        value: Any = importlib.import_module(module_name)
    except Exception as error:
        raise ValueError(f"module {module_name!r} cannot be imported: {type(error).__name__}: {error}") from error
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise ValueError(f"module {module_name!r} has no {attribute!r}")
        value = getattr(value, part)
    if not callable(value):
        raise ValueError(f"{name}: a function, got {type(value).__name__}")
    return value


def optimize(options: argparse.Namespace) -> None:
    import eqsat

    function, args = function_of(options.function), shapes(options.args)
    program = eqsat.optimize(
        function,
        *args,
        target=options.target,
        numerics=options.numerics,
        constants=tuple(options.constants),
        time_limit=options.time_limit,
    )
    print(program.report())
    if options.validate:
        print(program.validate())
    if options.save:
        program.save(options.save)


def devices(options: argparse.Namespace) -> None:
    from rich.console import Console
    from rich.table import Table

    from eqsat.devices import DEVICES

    facts = {name: dict(_facts(device)) for name, device in DEVICES.items()}
    table = Table("", *DEVICES, box=None, pad_edge=False)
    longest = sorted(facts.values(), key=len, reverse=True)
    for fact in dict.fromkeys(fact for row in longest for fact in row):
        table.add_row(fact, *(row.get(fact, "") for row in facts.values()))
    width = None if sys.stdout.isatty() else 200
    console = Console(width=width, highlight=False)
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


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="eqsat", description="Equality saturation for tensor programs.")
    top.add_argument("--version", action="version", version=f"eqsat {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="command")

    one = commands.add_parser("optimize", help="optimise a JAX function and print the report")
    one.add_argument("function", help="module:function")
    one.add_argument("--args", default="", help="shapes of the example arguments: 'float32[4,8] bfloat16[8,8]'")
    one.add_argument("--target", default="h100", help="a device of the table (see `eqsat devices`)")
    one.add_argument("--numerics", default="reassociate", help="exact, reassociate or fast")
    one.add_argument("--constants", type=int, nargs="*", default=[], help="numbers of arguments that never change")
    one.add_argument("--time-limit", type=float, default=30.0, metavar="SECONDS")
    one.add_argument("--validate", action="store_true", help="compare with the original at these shapes")
    one.add_argument("--save", metavar="FOLDER", help="write the kernels and a module that runs them")
    one.set_defaults(run=optimize)

    table = commands.add_parser("devices", help="print the table of devices")
    table.set_defaults(run=devices)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        options.run(options)
    except BrokenPipeError:
        return 0
    except (ValueError, TypeError, OSError) as error:
        print(f"eqsat: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
