"""The function around a kernel: pads inputs, calls the kernel over its grid, cuts outputs to shape."""

from __future__ import annotations

from eqsat.backends.pallas.text import WIDTH, Names, dtype_name, indented, tupled
from eqsat.backends.pallas.views import Tiles, View
from eqsat.notation import Tensor
from eqsat.tile import TileProgram


def wrapper(program: TileProgram, views: dict[Tensor, View], tiles: Tiles) -> list[str]:
    """Lines of `run`."""
    names = Names()
    arrays = {t: names(t, t.name) for t in (*program.inputs, *program.outputs)}
    inputs, outputs = [arrays[t] for t in program.inputs], [arrays[t] for t in program.outputs]
    grid = [t.count for t in program.grid if t.count > 1]
    cut = any(axis for view in views.values() for axis in view.cuts)
    steps = [names((t.axis, "step"), f"{t.axis.name}_tile") for t in program.grid if t.count > 1] if cut else []
    prepared = [line for t in program.inputs for line in _prepare(arrays[t], views[t])]
    zeroed = [program.outputs[n] for n in program.zeroed]
    options = [f"grid={tupled(map(str, grid))},"] if grid else []
    if cut:
        given = [*program.inputs, *zeroed]
        options += ["in_specs=[", *indented(_spec(views[t], steps, program, tiles) for t in given), "],"]
        options += ["out_specs=[", *indented(_spec(views[t], steps, program, tiles) for t in program.outputs), "],"]
    shapes = [f"jax.ShapeDtypeStruct({tupled(map(str, views[t].padded))}, {dtype_name(t.dtype)})," for t in program.outputs]
    zeros = [f"jnp.zeros({tupled(map(str, views[t].padded))}, {dtype_name(t.dtype)})" for t in zeroed]
    aliases = {taken: n for n, taken in program.in_place.items()}
    aliases |= {len(inputs) + k: n for k, n in enumerate(program.zeroed)}
    if aliases:
        options.append(f"input_output_aliases={aliases},")
    options += ["out_shape=[", *indented(shapes), "],", "interpret=interpret,", "compiler_params=compiler_params,"]
    call = [f"{tupled(outputs) if len(outputs) == 1 else ', '.join(outputs)} = pl.pallas_call(", *indented(["kernel,", *options])]
    results = [_restored(arrays[t], views[t]) for t in program.outputs]
    body = [*prepared, *call, f")({', '.join([*inputs, *zeros])})", f"return {tupled(results)}"]
    arguments = "".join(f"{name}, " for name in inputs)
    return [f"def run({arguments}*, interpret=False, compiler_params=None):", *indented([*_about(program), *body])]


def empty_wrapper(program: TileProgram) -> list[str]:
    """Lines of `run` where no output has an element."""
    names = Names()
    arguments = "".join(f"{names(t, t.name)}, " for t in program.inputs)
    empty = [f"jnp.zeros({tupled(map(str, t.shape))}, {dtype_name(t.dtype)})" for t in program.outputs]
    head = f"def run({arguments}*, interpret=False, compiler_params=None):"
    return [head, *indented(['"""The outputs have no elements."""', f"return {tupled(empty)}"])]


def _about(program: TileProgram) -> list[str]:
    """The docstring of `run`."""
    inputs, outputs = (", ".join(str(t) for t in tensors) for tensors in (program.inputs, program.outputs))
    line = f'"""{program.name}: ({inputs}) -> ({outputs}).'
    listed = [*(f"in  {t}" for t in program.inputs), *(f"out {t}" for t in program.outputs)]
    tensors = [line] if len(line) <= WIDTH else [f'"""{program.name}.', "", *listed]
    options = f"num_warps={program.num_warps}, num_stages={program.num_stages}"
    return [*tensors, "", f"On a GPU, compiler_params=jax.experimental.pallas.triton.CompilerParams({options}).", '"""']


def _prepare(name: str, view: View) -> list[str]:
    text = name if view.shape == view.tensor.shape else f"{name}.reshape({', '.join(map(str, view.shape))})"
    if any(pad != (0, 0) for pad in view.pads):
        text = f"jnp.pad({text}, {tupled(map(str, view.pads))})"
    return [] if text == name else [f"{name} = {text}"]


def _restored(name: str, view: View) -> str:
    """An output without its padding, in its own shape."""
    if view.padded != view.shape:
        parts = [_inside(n, low, high) for n, (low, high) in zip(view.shape, view.pads, strict=True)]
        name = f"{name}[{', '.join(parts)}]"
    return name if view.shape == view.tensor.shape else f"{name}.reshape({', '.join(map(str, view.tensor.shape)) or '()'})"


def _inside(extent: int, low: int, high: int) -> str:
    if not low and not high:
        return ":"
    return f"{low or ''}:{low + extent}"


def _spec(view: View, steps: list[str], program: TileProgram, tiles: Tiles) -> str:
    """The block of an array: cut where the view is cut, whole elsewhere."""
    if not any(view.cuts):
        return "pl.BlockSpec(),"
    numbers = dict(zip([t.axis for t in program.grid if t.count > 1], steps, strict=True))
    sizes = [tiles.size(axis) if axis else n for axis, n in zip(view.cuts, view.padded, strict=True)]
    shape = ["None" if axis and n == 1 else str(n) for axis, n in zip(view.cuts, sizes, strict=True)]
    index = [numbers[axis] if axis else "0" for axis in view.cuts]
    return f"pl.BlockSpec({tupled(shape)}, lambda {', '.join(steps)}: {tupled(index)}),"
