"""What the command line is about: functions by name, files, shapes and sizes as text."""

from __future__ import annotations

import difflib
import importlib
import inspect
import logging
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eqsat.places import file_to_write, there
from eqsat.shapes import shapes

if TYPE_CHECKING:
    from eqsat.graph import Graph

STABLEHLO = (".mlir", ".mlirbc", ".stablehlo")  # text or bytecode


def function_of(name: str) -> Callable[..., Any]:
    """The function that ``module:function`` or ``file.py:function`` names; modules are also looked up in the current folder."""
    value = _value_of(name)
    if not callable(value):
        raise ValueError(f"{name}: a function required, got {type(value).__name__}")
    return value


def _value_of(name: str) -> Any:
    module_name, separator, attribute = name.rpartition(":")
    if not (module_name and separator and attribute):
        raise ValueError(
            f"subject {name!r}: module:function, file.py:function or a file of type .onnx, .pt2 or .mlir required; "
            "for instance jax.nn:softmax"
        )
    value: Any = _module(module_name)
    for part in attribute.split("."):
        if not hasattr(value, part):
            near = difflib.get_close_matches(part, dir(value), 3)
            hint = f"; did you mean {', '.join(near)}?" if near else ""
            raise ValueError(f"{name}: a name that {module_name} has required, found no {attribute!r}{hint}")
        value = getattr(value, part)
    return value


def _module(name: str) -> Any:
    path = Path(name)
    is_file = path.suffix == ".py"
    if is_file and not path.is_file():
        raise ValueError(f"file {name!r}: a Python file required, found none there")
    folder = str(path.resolve().parent) if is_file else os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(path.stem if is_file else name)
    except (Exception, SystemExit) as error:
        raise ValueError(f"module {name!r}: one that can be imported required, got {type(error).__name__}: {error}") from error


def graph_of(subject: str, args: str) -> Graph:
    """The program that the command is about, traced."""
    from eqsat.graph import Graph

    if subject.endswith(".onnx"):
        return Graph.from_onnx(subject, dims=dimensions(args))
    if subject.endswith(STABLEHLO):
        return Graph.from_stablehlo(Path(subject), shapes=named_shapes(args))
    if subject.endswith(".pt2"):
        return _exported(subject, shapes(args))
    function = function_of(subject)
    if _is_torch_module(function):
        return Graph.from_torch(function, _arguments(subject, args))
    examples = _arguments(subject, args)
    try:
        inspect.signature(function).bind(*examples)
    except ValueError:  # a builtin, whose arguments are not known
        pass
    except TypeError as error:
        raise ValueError(
            f"{subject}: shapes of its arguments required, got {args!r}: {error}; give them as --args 'float32[4,8] int32[]'"
        ) from error
    return Graph.from_jax(function, *examples)


def _is_torch_module(value: Any) -> bool:
    torch = sys.modules.get("torch")  # a module of it cannot be there without
    return torch is not None and isinstance(value, torch.nn.Module)


def _exported(path: str, examples: tuple[Any, ...]) -> Graph:
    """A program saved by `torch.export.save`; without arguments, for the inputs that it was exported with."""
    from eqsat.graph import Graph

    there(path, "a file of torch.export.save")  # asked first: reading it needs a package that may not be there
    try:
        import torch
    except ImportError as error:
        raise ValueError(f"{path}: the package torch required, got none; pip install 'eqsat[torch]'") from error
    log = logging.getLogger("torch.export")
    disabled, log.disabled = log.disabled, True  # it prints stack traces
    try:
        program = torch.export.load(path)
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        raise ValueError(f"{path}: a file of torch.export.save required, got {type(error).__name__}: {reason}") from error
    finally:
        log.disabled = disabled
    return Graph.from_torch(program, examples or None)


def dimensions(text: str) -> dict[str, int]:
    """Sizes of a model's named dimensions: ``batch=4 sequence=128``."""
    words = [w.partition("=") for w in text.replace(",", " ").split()]
    if wrong := ["".join(w) for w in words if not w[2].isdigit()]:
        raise ValueError(f"arguments {text!r}: sizes of the model's dimensions, such as 'batch=4', got {wrong[0]!r}")
    return {name: int(size) for name, _, size in words}


def named_shapes(text: str) -> dict[str, tuple[int, ...]]:
    """Shapes of a module's arguments: ``x=4x128 mask=4``."""
    words = [w.partition("=") for w in text.replace(",", " ").split()]
    if wrong := ["".join(w) for w in words if not re.fullmatch(r"\d+(x\d+)*", w[2])]:
        raise ValueError(f"arguments {text!r}: shapes of the module's arguments, such as 'x=4x128', got {wrong[0]!r}")
    return {name: tuple(int(n) for n in shape.split("x")) for name, _, shape in words}


def _arguments(subject: str, args: str) -> tuple[Any, ...]:
    """Example arguments: shapes, or ``@name``, a tuple in the function's module or a function that makes one."""
    if not args.startswith("@"):
        return shapes(args)
    value = _value_of(args[1:] if ":" in args else f"{subject.rpartition(':')[0]}:{args[1:]}")
    try:
        value = value() if callable(value) else value
    except Exception as error:
        raise ValueError(
            f"arguments {args!r}: a function that makes them required, got {type(error).__name__}: {error}"
        ) from error
    if not isinstance(value, tuple | list):
        raise ValueError(f"arguments {args!r}: a tuple of arguments required, got {type(value).__name__}")
    return tuple(value)


def numbers(text: str) -> tuple[int, ...]:
    """Whole numbers from text: ``0,2``."""
    words = text.replace(",", " ").split()
    if wrong := [w for w in words if not re.fullmatch(r"-?\d+", w)]:
        raise ValueError(f"constants {text!r}: numbers of arguments, such as 0,2, got {wrong[0]!r}")
    return tuple(map(int, words))


def place_for_file(path: str) -> str:
    """The path, if a file can be written there: asked before a search, not after it; raises OSError otherwise."""
    if path:
        file_to_write(path, path)
    return path
