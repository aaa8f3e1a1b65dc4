"""Small spellings of Python: names, numbers, and as few parentheses as an expression needs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence

from eqsat.scalars import DTYPES, SCALARS
from eqsat.tile import TileProgram

LINE = 118  # characters; a longer call is written with one argument a line
PROPAGATE = ", propagate_nan=tl.PropagateNan.ALL"  # said of floats alone


OWN_NAMES = ("tl", "triton", "libdevice", "launch", "tensors", "range", "float", "GRID")  # of an emitted file


def identifier(text: str) -> str:
    """A valid Python name near `text`."""
    text = re.sub(r"\W", "_", text, flags=re.ASCII) or "_"
    return f"_{text}" if text[0].isdigit() else text


def kernel_name(program: TileProgram) -> str:
    """Name of the kernel function in the emitted file."""
    name = identifier(program.name)
    return f"{name}_kernel" if name in OWN_NAMES else name


def literal(value: float | int | bool, dtype: str) -> str:
    """A number as a person writes it for `dtype`."""
    kind = DTYPES[dtype].kind
    if kind == "bool":
        return str(bool(value))
    if kind != "float":
        return str(int(value))
    text = repr(float(value))
    return f'float("{text}")' if text.lstrip("-") in ("inf", "nan") else text


def operation(name: str, dtype: str) -> str:
    """Triton's spelling of a scalar operation, with places for its operands."""
    spelling = SCALARS[name].triton
    return spelling if DTYPES[dtype].kind == "float" else spelling.replace(PROPAGATE, "")


def shape_text(sizes: Iterable[int]) -> str:
    sizes = tuple(sizes)
    return f"({', '.join(map(str, sizes))}{',' if len(sizes) == 1 else ''})"


def docstring(lines: tuple[str, ...]) -> str:
    body = "\n".join(line.rstrip().replace("\\", "\\\\").replace('"""', "'''") for line in lines)
    return f'"""{body}\n"""' if len(lines) > 1 else f'"""{body}"""'


def file_text(
    program: TileProgram,
    helpers: tuple[str, ...],
    name: str,
    parameters: tuple[str, ...],
    lines: Sequence[str],
) -> str:
    """The file of a kernel: what it is, how it is launched, and its function."""
    body = "\n".join(lines) or "    pass"
    library = "from triton.language.extra import libdevice\n" if "libdevice." in body else ""
    signature = f"def {name}({', '.join(parameters)}):"
    if len(signature) > LINE:
        signature = "\n".join([f"def {name}(", *(f"    {p}," for p in parameters), "):"])
    constants: dict[str, object] = {
        "GRID": (program.programs,),
        "NUM_WARPS": program.num_warps,
        "NUM_STAGES": program.num_stages,
        "FP_FUSION": not program.exact,  # may an addition take a product unrounded?
    }
    if program.in_place:  # outputs written in the buffer of an input: the numbers of both
        constants["IN_PLACE"] = program.in_place
    if program.zeroed:  # outputs that the kernel adds to
        constants["ZEROED"] = program.zeroed
    return (
        f"{docstring(program.header or (program.name,))}\n\nimport triton\nimport triton.language as tl\n{library}\n"
        + "".join(f"{key} = {value}\n" for key, value in constants.items())
        + "\n\n"
        + "".join(f"{text}\n\n\n" for text in helpers)
        + f"@triton.jit\n{signature}\n{body}\n\n\n"
        + 'def launch(*tensors):\n    """Run the kernel on torch tensors: the inputs, then the outputs."""\n'
        + "".join(f"    tensors[{len(program.inputs) + n}].zero_()\n" for n in program.zeroed)
        + f"    {name}[GRID](*tensors, num_warps=NUM_WARPS, num_stages=NUM_STAGES, enable_fp_fusion=FP_FUSION)\n"
    )


def is_primary(text: str) -> bool:
    """True for a name, call, subscript or parenthesised text: what `.to` and `[...]` can follow."""
    depth = 0
    for c in text:
        depth += (c in "([") - (c in ")]")
        if depth == 0 and not (c.isalnum() or c in "_.)]"):
            return False
    return not text[:1].isdigit()


def primary(text: str) -> str:
    return text if is_primary(text) else f"({text})"


def one_argument(text: str) -> str:
    """An argument of a call, `name=value` included."""
    name, equals, value = text.partition("=")
    return f"{name}={bare(value)}" if equals and name.isidentifier() and value[0] != "=" else bare(text)


def bare(text: str) -> str:
    """The same expression with only the parentheses that it needs."""
    return ast.unparse(ast.parse(text, mode="eval")).replace("'", '"')
