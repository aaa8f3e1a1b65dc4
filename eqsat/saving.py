"""Saving a program: a folder with each kernel's sources and a module that runs it with JAX alone.

The folder appears whole or not at all: it is written beside its place and renamed.
"""

from __future__ import annotations

import base64
import inspect
import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.export
import numpy as np

from eqsat.control import CONTROL, settings
from eqsat.cost import ranked
from eqsat.devices import device
from eqsat.formula import type_of
from eqsat.lower import lower
from eqsat.notation import Kernel, Tensor
from eqsat.places import in_the_way, path_of
from eqsat.program import KEEP_CASTS, PlannedKernel
from eqsat.read import Call
from eqsat.running import backend
from eqsat.scalars import DTYPES
from eqsat.schedule import Schedule
from eqsat.self_test import OWN_NAMES, self_test

if TYPE_CHECKING:
    from eqsat.program import Program, Step

MARK = "plan.json"  # a folder with this file is an earlier save
FORMAT = "eqsat program 1"


def save(program: Program, folder: str | os.PathLike[str], autotune: int = 1) -> None:
    """Write `program` to `folder`, replacing an earlier save there; raises FileExistsError for any other content.

    Each Triton file has up to `autotune` schedules to time; raises ValueError for less than one.
    """
    place = check_place(folder)
    if not isinstance(autotune, int):
        raise TypeError(f"save to {place}: a number of schedules required, got autotune={autotune!r}")
    if autotune < 1:
        raise ValueError(f"save to {place}: at least one schedule for each kernel required, got autotune={autotune}")
    with program.graph.mode():
        files = _files(program, autotune)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
    except OSError as error:
        raise OSError(f"save to {place}: a folder that can be written required, got {error.strerror}; choose another") from error
    try:
        for name, content in files.items():
            (part / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        part.chmod(0o755)
        _exchange(part, place)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def check_place(folder: str | os.PathLike[str]) -> Path:
    """The path, if a program can be saved there; raises TypeError or OSError otherwise."""
    place = path_of("save", folder)
    if place.exists() and place.resolve() == Path.cwd():
        raise FileExistsError(f"save to {place}: a folder other than the current one required, got that; give it a name")
    if place.exists() and not place.is_dir():
        raise FileExistsError(f"save to {place}: a folder required, got a file; choose another place")
    if place.is_dir() and any(place.iterdir()) and not _is_save(place):
        raise FileExistsError(
            f"save to {place}: an empty folder or an earlier save required, got one with other files; choose another place"
        )
    if obstacle := in_the_way(place.absolute().parent):  # where the new folder is made
        raise OSError(f"save to {place}: a folder that can be written required, got {obstacle} in the way; choose another")
    return place


def _is_save(place: Path) -> bool:
    try:
        return json.loads((place / MARK).read_text()).get("format") == FORMAT
    except (OSError, ValueError, AttributeError):
        return False


def _exchange(part: Path, place: Path) -> None:
    """Put the new folder in place of the old one, which comes back if that fails."""
    if not place.exists():
        os.rename(part, place)
        return
    old = part.with_name(f"{part.name}-old")
    os.rename(place, old)
    try:
        os.rename(part, place)
    except OSError:
        os.rename(old, place)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _files(program: Program, autotune: int) -> dict[str, str | bytes]:
    """The content of every file; computed before anything is written."""
    files: dict[str, str | bytes] = {}
    names = _kernel_names(program)
    for planned in program.kernels:
        if planned.schedule is None:
            continue
        name = names[planned.kernel]
        kernel = replace(planned.kernel, name=name)
        tiles = lower(kernel, planned.schedule)
        said = f"predicted {planned.cost.seconds * 1e6:.1f} us on {program.target}, bound by {planned.cost.bound}"
        tiles = replace(tiles, header=(*tiles.header, said))
        others = [lower(kernel, s) for s in _next_best(planned, program.target)[: autotune - 1]] if autotune > 1 else []
        triton = backend("triton").emit_autotuned([tiles, *others])
        files[f"{name}_triton.py"] = triton + self_test(planned, tiles, program.graph.wide)
        files[f"{name}_pallas.py"] = backend("pallas").emit(tiles)
    files["program.py"] = _module(program, names)
    arrays = [np.asarray(a) for part in _written(program) for a in part.constants.values()]
    if arrays:
        files["constants.npz"] = _archive({f"c{n}": a for n, a in enumerate(arrays)})
    files["report.txt"] = program.report()
    files[MARK] = json.dumps(_plan(program, names), indent=1) + "\n"
    return files


def _next_best(planned: PlannedKernel, target: str) -> list[Schedule]:
    """The kernel's other schedules, the best by prediction first."""
    return [s for _, s in ranked(planned.kernel, device(target)) if s != planned.schedule]


def _archive(arrays: Mapping[str, np.ndarray]) -> bytes:
    """An .npz of bytes, since NumPy stores no bfloat16; the module knows the types."""
    content: dict[str, Any] = {k: np.frombuffer(np.ascontiguousarray(a).tobytes(), np.uint8) for k, a in arrays.items()}
    buffer = BytesIO()
    np.savez(buffer, **content)
    return buffer.getvalue()


def _written(program: Program) -> list[Program]:
    """The program and the bodies of its loops, except for loops that are exported whole."""
    inner = [part for loop in program.loops if _spelled(loop) for body in loop.programs for part in _written(body)]
    return list(dict.fromkeys([program, *inner]))


def _spelled(call: Call) -> bool:
    return bool(call.programs) and CONTROL[call.name].saved


def _kernel_names(program: Program) -> dict[Kernel, str]:
    identifier = backend("jax").identifier
    names: dict[Kernel, str] = {}
    taken = {"program", "run", "steps", "main", "constants", *OWN_NAMES, *(row.run.__name__ for row in CONTROL.values())}
    for step in (s for part in program.parts for s in part.steps):
        if isinstance(step, PlannedKernel) and step.kernel not in names:
            names[step.kernel] = identifier(step.kernel.name, taken)
            taken.add(names[step.kernel])
    return names


# --- program.py ----------------------------------------------------------------------------------------------------------


def _module(program: Program, names: dict[Kernel, str]) -> str:
    """A module with a function for each kernel and `run` for the program."""
    jax_backend = backend("jax")
    kernels = [jax_backend.emit_kernel(k, name, program.numerics) for k, name in names.items()]
    parts = _written(program)
    exports = [s for part in parts for s in part.steps if isinstance(s, Call) and not _spelled(s)]
    calls = {c: f"call_{n}_{jax_backend.identifier(c.name, ())}" for n, c in enumerate(exports)}
    bodies = {part: f"body_{n}_{part.name}" for n, part in enumerate(parts[1:])}
    exported = [f'{name} = _exported("{_exported(c)}")' for c, name in calls.items()]
    if exported:
        exported = [EXPORTED, "\n".join(exported)]
    head = [f'"""{program.name}, optimised by eqsat: run(*inputs) gives a list of outputs; it needs JAX and NumPy only."""', ""]
    head += ["import base64", ""] if calls else []
    head += ["from pathlib import Path", ""] if any(part.constants for part in parts) else []
    head += ["import jax", *(["import jax.export"] if calls else [])]
    head += ["import jax.numpy as jnp", "import numpy as np", "from jax import lax"]
    if program.graph.wide:
        head += ["", 'jax.config.update("jax_enable_x64", True)  # the program has numbers of 64 bits']
    main = MAIN.format(_types(program))
    loops = {s.name: CONTROL[s.name].run for part in parts for s in part.loops if _spelled(s)}
    functions = _Functions(parts, names, calls, bodies)
    steps = [inspect.getsource(run).rstrip() for run in loops.values()]
    steps += [
        *(functions.text(part, name) for part, name in reversed(bodies.items())),
        functions.text(program, "steps"),
        COMPILED,
    ]
    texts = ["\n".join(head), jax_backend.HELPERS, *_constants(parts), *exported, *kernels, *steps, main]
    return "\n\n\n".join(texts) + "\n"


def _constants(parts: Sequence[Program]) -> list[str]:
    tensors = [t for part in parts for t in part.constants]
    if not tensors:
        return []
    rows = [f'    _constant("c{n}", "{t.dtype}", {t.shape}),  # {t.name}' for n, t in enumerate(tensors)]
    loader = (
        '_ARRAYS = np.load(Path(__file__).with_name("constants.npz"))\n\n\n'
        "def _constant(name, dtype, shape):\n"
        "    return np.frombuffer(_ARRAYS[name].tobytes(), jnp.dtype(dtype)).reshape(shape)"
    )
    return [loader, "\n".join(["CONSTANTS = [", *rows, "]"])]


class _Functions:
    """Functions with a line for each step, of the program and of the bodies of its loops."""

    def __init__(
        self, parts: Sequence[Program], kernels: Mapping[Kernel, str], calls: Mapping[Call, str], bodies: Mapping[Program, str]
    ) -> None:
        self.kernels, self.calls, self.bodies = kernels, calls, bodies
        self.numbers = {t: n for n, t in enumerate(t for part in parts for t in part.constants)}
        loops = (row.run.__name__ for row in CONTROL.values())
        self.globals = {*kernels.values(), *calls.values(), *bodies.values(), *loops, "run", "steps", "CONSTANTS"}

    def text(self, program: Program, function: str) -> str:
        identifier, taken = backend("jax").identifier, set(self.globals)
        name_of: dict[Tensor, str] = {}

        def name(tensor: Tensor) -> str:
            if tensor not in name_of:
                name_of[tensor] = identifier(tensor.name, taken)
                taken.add(name_of[tensor])
            return name_of[tensor]

        lines = [f"def {function}({', '.join(map(name, program.inputs))}):"]
        lines += [f"    {name(t)} = CONSTANTS[{self.numbers[t]}]" for t in program.constants]
        for step in program.steps:
            value = self.value(step, [name(x) if isinstance(x, Tensor) else _literal(x) for x in step.inputs])
            results = [name(t) for t in step.outputs]
            only = "[0]" if len(results) == 1 else ""
            lines.append(f"    {', '.join(results)} = {value}{only}" if results else f"    {value}")
        return "\n".join([*lines, f"    return [{', '.join(map(name, program.outputs))}]"])

    def value(self, step: Step, operands: list[str]) -> str:
        """The expression whose value is the sequence of a step's results."""
        if isinstance(step, PlannedKernel):
            return f"{self.kernels[step.kernel]}({', '.join(operands)})"
        if not _spelled(step):  # literals are inside what was exported
            tensors = [o for o, x in zip(operands, step.inputs, strict=True) if isinstance(x, Tensor)]
            return f"{self.calls[step]}({', '.join(tensors)})"
        bodies = ", ".join(self.bodies[p] for p in step.programs)
        given = "".join(f", {k}={v!r}" for k, v in settings(step.name, step.eqn.params).items())
        return f"{CONTROL[step.name].run.__name__}([{bodies}], [{', '.join(operands)}]{given})"


def _literal(value: Any) -> str:
    value = np.asarray(value)
    return f'np.asarray({backend("jax").number(value.item())}, jnp.dtype("{value.dtype.name}"))'


COMPILED = f"""# XLA would drop casts. Inside another jit call `steps`: options are for the outermost.
run = jax.jit(steps, compiler_options={KEEP_CASTS})"""

EXPORTED = """def _exported(text):
    return jax.export.deserialize(bytearray(base64.b64decode(text))).call"""

MAIN = """INPUTS = {}

if __name__ == "__main__":
    key = jax.random.key(0)
    arrays = [np.asarray(jax.random.normal(key, shape)).astype(jnp.dtype(dtype)) for dtype, shape in INPUTS]
    for output in run(*arrays):
        print(output.dtype, output.shape)"""


def _types(program: Program) -> str:
    return "[" + ", ".join(f'("{t.dtype}", {t.shape})' for t in program.inputs) + "]"


def _exported(call: Call) -> str:
    """The call as a serialised StableHLO function of its tensors."""

    def function(*arrays: Any) -> tuple[Any, ...]:
        values = iter(arrays)
        return tuple(call.run([next(values) if isinstance(x, Tensor) else x for x in call.inputs]))

    tensors = [t for t in call.inputs if isinstance(t, Tensor)]
    odd = [t for t in (*tensors, *call.outputs) if t.dtype not in DTYPES]
    if odd:
        raise ValueError(f"save: call of {call.name} uses {odd[0]}, a dtype that cannot be saved; keep this program in memory")
    try:
        exported = jax.export.export(jax.jit(function))(*(jax.ShapeDtypeStruct(t.shape, t.dtype) for t in tensors))
        return base64.b64encode(exported.serialize()).decode()
    except ModuleNotFoundError as error:
        raise ValueError(
            f"save: call of {call.name} is saved by jax.export, which requires the package {error.name}; "
            f"install it: pip install {error.name}"
        ) from error
    except Exception as error:
        raise ValueError(f"save: a call that jax.export can serialise required, got {call.name}: {error}") from error


# --- plan.json -----------------------------------------------------------------------------------------------------------


def _plan(program: Program, names: dict[Kernel, str]) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "name": program.name,
        "target": program.target,
        "numerics": program.numerics,
        "inputs": [_described(t) for t in program.inputs],
        "outputs": [_described(t) for t in program.outputs],
        "before": _cost(program.baseline),
        "after": _cost(program.cost),
        "rules": list(program.notes.get("rules", ())),
        "kernels": [_kernel(k, names) for k in program.kernels],
        "steps": [_step(s, names) for s in program.steps],
    }


def _described(tensor: Tensor) -> dict[str, str]:
    return {"name": tensor.name, "type": type_of(tensor)}


def _cost(cost: Any) -> dict[str, Any]:
    return {"seconds": cost.seconds, "launches": cost.launches, "nbytes": cost.nbytes, "flops": cost.flops, "bound": cost.bound}


def _kernel(planned: PlannedKernel, names: dict[Kernel, str]) -> dict[str, Any]:
    schedule = planned.schedule
    tiles = [] if schedule is None else schedule.axes
    return {
        "name": names[planned.kernel],
        "formula": planned.formula.split("\n"),
        "inputs": [_described(t) for t in planned.kernel.inputs],
        "outputs": [_described(t) for t in planned.kernel.outputs],
        "axes": [{"axis": t.axis.name, "extent": t.axis.extent, "tile": t.tile, "role": t.role} for t in tiles],
        **{f.name: getattr(schedule, f.name) if schedule else None for f in fields(Schedule) if f.name != "axes"},
        "cost": _cost(planned.cost),
    }


def _body(program: Program, names: dict[Kernel, str]) -> dict[str, Any]:
    return {
        "name": program.name,
        "inputs": [_described(t) for t in program.inputs],
        "outputs": [_described(t) for t in program.outputs],
        "steps": [_step(s, names) for s in program.steps],
    }


def _step(step: Any, names: dict[Kernel, str]) -> dict[str, Any]:
    if isinstance(step, PlannedKernel):
        what: dict[str, Any] = {"kernel": names[step.kernel]}
    elif step.programs:
        what = {"loop": step.name, "trips": step.eqn.trips, "bodies": [_body(p, names) for p in step.programs]}
    else:
        what = {"call": step.name, "reason": step.reason}
    inputs = [t.name if isinstance(t, Tensor) else np.asarray(t).tolist() for t in step.inputs]
    return {**what, "inputs": inputs, "outputs": [t.name for t in step.outputs]}
