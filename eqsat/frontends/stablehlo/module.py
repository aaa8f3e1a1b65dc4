"""StableHLO modules: reading text, bytecode and portable artifacts, and binding open dimensions."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import jax.extend.mlir as mlir
import jax.extend.mlir.ir as ir
from jax.extend.mlir.dialects import func, stablehlo
from jax.interpreters.mlir import make_ir_context

from eqsat.frontends.stablehlo import bytecode
from eqsat.frontends.stablehlo.table import StablehloError, operations, problem
from eqsat.places import there

MAGIC = b"ML\xefR"
DEEPEST = 200  # brackets within brackets; MLIR's parser calls itself for each
SECONDS = 60  # to read bytecode
ESCAPES = re.compile(r"(?:\\[89A-Fa-f][0-9A-Fa-f])+")

Shapes = Mapping[str, Any]


def load(source: Any) -> tuple[Any, str | None]:
    """The module in a context of its own, and the file's name if it came from one."""
    if isinstance(source, os.PathLike) or (isinstance(source, str) and _is_path(source)):
        path = there(source, "a StableHLO file")
        return parse(path.read_bytes(), path.name), path.stem
    if isinstance(source, str):
        return parse(source.encode(), "stablehlo text"), None
    if isinstance(source, bytes | bytearray | memoryview):
        return parse(bytes(source), "stablehlo bytes"), None
    if hasattr(source, "mlir_module_serialized"):  # jax.export.Exported
        return bytecode.parsed(source.mlir_module_serialized), None
    if hasattr(source, "operation"):  # a module of some context
        return parse(source.operation.get_asm(enable_debug_info=True).encode(), "stablehlo module"), None
    raise TypeError(f"Graph.from_stablehlo: text, bytes, a path or a module required, got {type(source).__name__}")


def _is_path(text: str) -> bool:
    return "\n" not in text and "{" not in text and 0 < len(text) < 4096


def parse(data: bytes, name: str) -> Any:
    """The module that bytes spell; raises StablehloError."""
    try:
        text = (_text_of(data, name) if data.startswith(MAGIC) else data).decode()
        _check_depth(text, name)
        text = ESCAPES.sub(_escaped, text)
        return ir.Module.parse(text, make_ir_context())
    except StablehloError:
        raise
    except UnicodeDecodeError:
        raise StablehloError(f"{name}: StableHLO text or bytecode required, got other bytes; is the file whole?") from None
    except Exception as error:
        raise _unparsed(name, str(error)) from None


def _unparsed(name: str, reason: str) -> StablehloError:
    short = " ".join(reason.split())[:300]
    return StablehloError(f"{name}: a StableHLO module required, got one that does not parse ({short}); is the file whole?")


def _text_of(data: bytes, name: str) -> bytes:
    """Bytecode as text, by a process of its own: damaged bytecode was seen to crash MLIR's reader."""
    command = [sys.executable, "-P", bytecode.__file__]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        done = subprocess.run(command, input=data, capture_output=True, timeout=SECONDS, env=environment)
    except subprocess.TimeoutExpired:
        raise StablehloError(f"{name}: bytecode that is read within {SECONDS} s required, got more") from None
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or [f"the reader ended with {done.returncode}"]
        raise _unparsed(name, next((line for line in lines if "error:" in line), lines[-1]))
    return done.stdout


def _escaped(found: re.Match[str]) -> str:
    """Bytes written as escapes; those that are no UTF-8 end the process when the bindings make a string of them."""
    try:
        bytes.fromhex(found.group().replace("\\", "")).decode()
    except UnicodeDecodeError:
        return "_"
    return found.group()


def _check_depth(text: str, name: str) -> None:
    depth = 0
    for found in re.finditer(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|->|[<({\[]|[>)}\]]', text):
        mark = found.group()
        if len(mark) == 1:
            depth += 1 if mark in "<({[" else -1
            if depth > DEEPEST:
                raise StablehloError(f"{name}: at most {DEEPEST} brackets within each other required, got more")


def main_of(module: Any, name: str) -> Any:
    """The function to import: `main`, or the only one that is public."""
    found = [f for f in operations(module.body) if f.name == "func.func"]
    named = {ir.StringAttr(f.attributes["sym_name"]).value: f for f in found}
    public = [f for f in found if "sym_visibility" not in f.attributes or "private" not in str(f.attributes["sym_visibility"])]
    if "main" not in named and len(public) != 1:
        raise StablehloError(f"{name}: a function main required, got {sorted(named) or 'none'}")
    chosen = named.get("main", public[0] if public else None)
    if chosen is None or not len(chosen.regions[0].blocks):
        raise StablehloError(f"{name}: a function main with a body required, got a declaration")
    return chosen


def arguments(function: Any) -> list[Any]:
    return list(function.regions[0].blocks[0].arguments)


# --- names ------------------------------------------------------------------------------------------------------


def argument_names(module: Any, function: Any) -> list[str]:
    """As JAX writes them: in locations, as an attribute, or in the function that a `main` of open dimensions calls."""
    found = [_argument_name(function, n, value) for n, value in enumerate(arguments(function))]
    named = {ir.StringAttr(f.attributes["sym_name"]).value: f for f in operations(module.body) if f.name == "func.func"}
    for call in (o for o in operations(function.regions[0].blocks[0]) if o.name == "func.call"):
        inner = named.get(ir.FlatSymbolRefAttr(call.attributes["callee"]).value)
        for n, value in enumerate(arguments(function)):
            for place, operand in enumerate(call.operands):
                if inner is not None and found[n] is None and operand == value:
                    found[n] = _argument_name(inner, place, arguments(inner)[place])
    return [name or f"arg_{n}" for n, name in enumerate(found)]


def _argument_name(function: Any, number: int, value: Any) -> str | None:
    attributes = _at(function, "arg_attrs", number)
    if attributes is not None and "jax.arg_info" in attributes:
        return ir.StringAttr(attributes["jax.arg_info"]).value
    return value.location.name_str if isinstance(value.location, ir.NameLoc) else None


def result_names(function: Any, count: int) -> list[str | None]:
    """As JAX writes them, without the word "result"; None where there is none."""
    names: list[str | None] = []
    for number in range(count):
        attributes = _at(function, "res_attrs", number)
        given = ir.StringAttr(attributes["jax.result_info"]).value if attributes and "jax.result_info" in attributes else ""
        names.append(re.sub(r"^result(?=\W)", "", given).strip() if given not in ("", "result") else None)
    return names


def _at(function: Any, name: str, number: int) -> Any:
    return function.attributes[name][number] if name in function.attributes else None


# --- open dimensions --------------------------------------------------------------------------------------------


def bound(module: Any, name: str, shapes: Shapes | None) -> Any:
    """The module with static shapes: `shapes` gives one for each argument that has open dimensions, by name or position."""
    main = main_of(module, name)
    names = argument_names(module, main)
    given = {str(key): value for key, value in (shapes or {}).items()}
    for key in given:
        if key not in names and not (key.isdigit() and int(key) < len(names)):
            raise StablehloError(f"{name}: arguments among {names} required in shapes, got {key!r}")
    wanted: list[tuple[int, ...]] = []
    unbound: list[str] = []
    for number, (key, value) in enumerate(zip(names, arguments(main), strict=True)):
        if (wrong := problem(value.type, dynamic=True)) is not None:
            raise StablehloError(f"{name}: argument {key!r}: {wrong}")
        shape = given.get(key, given.get(str(number)))
        wanted.append(_shape(value.type, shape, f"{name}: argument {key!r}", unbound))
    if unbound:
        raise StablehloError(f"{name}: sizes of all dimensions required, got {'; '.join(unbound)}; bind them with shapes=")
    if all(value.type.has_static_shape for value in arguments(main)):
        return module
    return _refined(module, main, wanted, name)


def _shape(kind: Any, given: Any, subject: str, unbound: list[str]) -> tuple[int, ...]:
    stated = [None if kind.is_dynamic_dim(n) else kind.get_dim_size(n) for n in range(kind.rank)]
    if given is None:
        if None in stated:
            unbound.append(f"{subject.rsplit(': argument ', 1)[-1]} has {kind}")
        return tuple(n or 0 for n in stated)
    shape = tuple(int(n) for n in getattr(given, "shape", given))
    fits = len(shape) == len(stated) and all(s is None or s == n for s, n in zip(stated, shape, strict=True))
    if not fits or any(n < 0 for n in shape):
        raise StablehloError(f"{subject}: a shape that fits {kind} required, got {list(shape)}")
    return shape


def _refined(module: Any, main: Any, shapes: list[tuple[int, ...]], name: str) -> Any:
    """A main of static shapes that calls the given one, and the shapes that follow from it everywhere."""
    with module.context, ir.Location.unknown():
        inner = "open_main"
        kinds = [v.type for v in arguments(main)]
        locations = [ir.Location.name(n) for n in argument_names(module, main)]
        static = [ir.RankedTensorType.get(s, k.element_type) for s, k in zip(shapes, kinds, strict=True)]
        results = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value).results
        kept = {key: main.attributes[key] for key in ("res_attrs", "arg_attrs") if key in main.attributes}
        main.attributes["sym_name"] = ir.StringAttr.get(inner)
        main.attributes["sym_visibility"] = ir.StringAttr.get("private")
        with ir.InsertionPoint(module.body):
            outer = func.FuncOp("main", (static, results))
            block = ir.Block.create_at_start(outer.regions[0], static, locations)
            for key, value in kept.items():
                outer.attributes[key] = value
            with ir.InsertionPoint(block):
                opened = [stablehlo.convert(k, v) for k, v in zip(kinds, block.arguments, strict=True)]
                called = func.CallOp(results, ir.FlatSymbolRefAttr.get(inner), opened)
                func.ReturnOp(list(called.results))
        written = io.BytesIO()
        module.operation.write_bytecode(written)
    try:
        refined = mlir.refine_polymorphic_shapes(written.getvalue(), validate_static_shapes=True)
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise StablehloError(f"{name}: shapes that fit the module required, got {shapes} ({reason})") from None
    return bytecode.parsed(refined)
