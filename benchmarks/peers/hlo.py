"""Bytes of library calls in XLA's optimised text, which its own count leaves out."""

from __future__ import annotations

import re
from math import prod

INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?(\S+) = (.+?) ([a-z][\w-]*)\((.*)$")
TYPE = re.compile(r"\b(pred|bf16|f8\w*|[suf]\d+)\[([\d,]*)\]")
OPERAND = re.compile(r"%([\w.-]+)")


def nbytes(text: str) -> int:
    """Bytes of every array type in a text."""
    return sum(_width(dtype) * prod(int(n) for n in extents.split(",") if n) for dtype, extents in TYPE.findall(text))


def _width(dtype: str) -> int:
    if dtype == "pred" or dtype.startswith("f8"):
        return 1
    return max(1, int(re.sub(r"\D", "", dtype)) // 8)


def library_nbytes(text: str) -> int:
    """Operands and results of cuBLAS and cuDNN calls; scratch memory is no traffic."""
    types: dict[str, str] = {}
    total = 0
    for line in text.splitlines():
        found = INSTRUCTION.match(line)
        if not found:
            continue
        name, kind, operation, rest = found.groups()
        types[name] = kind
        if operation == "custom-call" and '"__cu' in rest:
            operands = OPERAND.findall(rest.split("), ")[0])
            total += nbytes(_without_scratch(kind)) + sum(nbytes(types.get(o, "")) for o in operands)
    return total


def _without_scratch(kind: str) -> str:
    return re.sub(r"s8\[\d*\](\{0\})?|u8\[\d*\](\{0\})?", "", kind)
