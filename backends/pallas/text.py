"""Spelling: names, literals and sums of Python text."""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Hashable, Iterable

WIDTH = 120
RESERVED = ("jax", "jnp", "lax", "pl", "run", "kernel", "interpret", "compiler_params", "carry", "None", "True", "False")


class Names:
    """Valid identifiers, each given once; the first to ask for a name gets it."""

    def __init__(self) -> None:
        self._taken = set(RESERVED)
        self._of: dict[Hashable, str] = {}

    def __call__(self, key: Hashable, wanted: str) -> str:
        """The name of `key`: `wanted` made valid and, where it is taken, numbered."""
        if key not in self._of:
            self._of[key] = self._free(identifier(wanted))
        return self._of[key]

    def _free(self, name: str) -> str:
        free, number = name, 2
        while free in self._taken:
            free, number = f"{name}_{number}", number + 1
        self._taken.add(free)
        return free


def identifier(text: str) -> str:
    name = re.sub(r"\W", "_", text, flags=re.ASCII) or "_"
    name = f"_{name}" if name[0].isdigit() else name
    return f"{name}_" if keyword.iskeyword(name) else name


def literal(value: float | int | bool, dtype: str) -> str:
    """A Python literal of the dtype's kind; JAX gives it the dtype of what it meets."""
    if "float" not in dtype:
        return repr(bool(value) if dtype == "bool" else int(value))
    value = float(value)
    if math.isnan(value):
        return "jnp.nan"
    if math.isinf(value):
        return "jnp.inf" if value > 0 else "-jnp.inf"
    return repr(value)


def dtype_name(dtype: str) -> str:
    return "jnp.bool_" if dtype == "bool" else f"jnp.{dtype}"


def total(parts: Iterable[tuple[str, int]], constant: int) -> str:
    """A sum of texts with integer coefficients."""
    out = ""
    for text, coefficient in parts:
        sign = "-" if coefficient < 0 else "+"
        scaled = text if abs(coefficient) == 1 else f"{abs(coefficient)} * {text}"
        out += f" {sign} {scaled}" if out else f"-{scaled}" if coefficient < 0 else scaled
    if constant or not out:
        out += f" {'-' if constant < 0 else '+'} {abs(constant)}" if out else str(constant)
    return out


def bare(text: str) -> str:
    """Without the parentheses that enclose everything."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for i, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0 and i < len(text) - 1:
            return text
    return text[1:-1]


def atomic(text: str) -> bool:
    """True if the text needs no parentheses inside a product or before a subscript."""
    return re.fullmatch(r"[\w.]+(\[[^\[\]]*\])?(\.\w+\([^()]*\))?", text) is not None or bare(text) != text


def enclosed(text: str) -> str:
    return text if atomic(text) else f"({text})"


def tupled(items: Iterable[str]) -> str:
    items = list(items)
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"


def indented(lines: Iterable[str], depth: int = 1) -> list[str]:
    return [f"{'    ' * depth}{line}" if line else line for line in lines]
