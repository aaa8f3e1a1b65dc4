"""A kernel's file for Triton's autotuner: schedules whose kernels differ in whole numbers only, as a list of configurations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain, count

from eqsat.tile import TileProgram

from .emit import emit

NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.])")
LAUNCH_OPTIONS = re.compile(r"^(GRID|NUM_WARPS|NUM_STAGES) = .*\n", re.MULTILINE)
OPTIONS_GIVEN = "num_warps=NUM_WARPS, num_stages=NUM_STAGES, "
PROGRAMS = "PROGRAMS"  # the parameter that is the number of programs to launch

Column = tuple[int, ...]  # a number of the kernel's text, in each of the programs
Parts = tuple[str, str, str]  # what stands before the kernel, the kernel, what follows


def emit_autotuned(programs: Sequence[TileProgram]) -> str:
    """The file of the first program; its first `launch` times the others beside it and keeps the fastest.

    Left out are programs whose kernel differs from the first's in more than whole numbers.
    """
    if len(programs) == 1:
        return emit(programs[0])
    texts = [_parts(emit(p)) for p in programs]
    same = [n for n, parts in enumerate(texts) if _wording(parts) == _wording(texts[0])]
    if len(same) == 1:
        return emit(programs[0])
    chosen, (head, kernel, launch) = [programs[n] for n in same], texts[0]
    columns = list(zip(*(map(int, NUMBER.findall(texts[n][1])) for n in same), strict=True))
    names = _names(chosen, columns, taken={PROGRAMS, *re.findall(r"\w+", kernel)})
    place = iter(columns)
    kernel = NUMBER.sub(lambda found: names.get(next(place), found[0]), kernel)
    configs = "".join(f"    {_config(p, {name: column[n] for column, name in names.items()})},\n" for n, p in enumerate(chosen))
    tuned = f"CONFIGS = [  # the best by prediction first\n{configs}]\n"
    tuned += "if triton.knobs.runtime.interpret:\n    del CONFIGS[1:]  # nothing to time\n"
    return (
        LAUNCH_OPTIONS.sub("", head).replace("FP_FUSION =", f"{tuned}FP_FUSION =")
        + f"@triton.autotune(CONFIGS, key=[]{_restored(programs[0], kernel)})\n"
        + _with_parameters(kernel, [*names.values(), PROGRAMS])
        + launch.replace("[GRID]", f'[lambda config: (config["{PROGRAMS}"],)]').replace(OPTIONS_GIVEN, "")
    )


def _parts(text: str) -> Parts:
    start = text.rindex("@triton.jit\n")
    end = text.index("\n\n\ndef launch", start)
    return text[:start], text[start:end], text[end:]


def _wording(parts: Parts) -> tuple[str, str]:
    """Helper functions and the kernel, its numbers aside."""
    head, kernel, _ = parts
    return head[head.index("FP_FUSION =") :], NUMBER.sub("0", kernel)


def _names(programs: Sequence[TileProgram], columns: Sequence[Column], taken: set[str]) -> dict[Column, str]:
    """A name for each number that is not the same in all programs: of the axes whose tile, or count of tiles, it is."""
    axes = list(zip(*(p.axes for p in programs), strict=True))
    names: dict[Column, str] = {}
    for column in columns:
        if len(set(column)) == 1 or column in names:
            continue
        tiles = [ts[0].axis.name for ts in axes if column == tuple(t.tile for t in ts)]
        counts = [ts[0].axis.name for ts in axes if column == tuple(t.count for t in ts)]
        base = "_".join([*tiles, "tile"] if tiles else [*counts, "tiles"] if counts else ["number"]).upper()
        names[column] = next(n for n in chain([base], (f"{base}_{k}" for k in count(2))) if n not in taken)
        taken.add(names[column])
    return names


def _config(program: TileProgram, numbers: dict[str, int]) -> str:
    given = {**numbers, PROGRAMS: program.programs}
    inside = ", ".join(f'"{name}": {number}' for name, number in given.items())
    return f"triton.Config({{{inside}}}, num_warps={program.num_warps}, num_stages={program.num_stages})"


def _restored(program: TileProgram, kernel: str) -> str:
    """What the autotuner must undo between launches: writes in an input's buffer, and sums that start as zeros."""
    pointers = re.findall(r"\w+_ptr\w*", kernel[: kernel.index("):")])
    outputs = pointers[len(program.inputs) :]
    asked = {"restore_value": program.in_place, "reset_to_zero": program.zeroed}
    return "".join(f", {word}={[outputs[n] for n in found]}".replace("'", '"') for word, found in asked.items() if found)


def _with_parameters(kernel: str, names: Sequence[str]) -> str:
    """The kernel with constants as further parameters, one a line."""
    end = kernel.index("):")
    opening, given = kernel[:end].split("(", 1)
    parameters = [p.strip() for p in given.split(",") if p.strip()] + [f"{name}: tl.constexpr" for name in names]
    return f"{opening}(\n" + "".join(f"    {p},\n" for p in parameters) + kernel[end:]
