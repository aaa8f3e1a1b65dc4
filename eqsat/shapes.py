"""Shapes as text: ``float32[4,8] int32[]``."""

from __future__ import annotations

import re

import jax

from eqsat.scalars import DTYPES

SHAPE = re.compile(r"([a-z]\w*)\[\s*(\d+(?:\s*,\s*\d+)*)?\s*\]")


def shapes(text: str) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Example arguments from text: ``float32[4,8] bfloat16[8,8] int32[]``; raises ValueError for what is none."""
    rest = SHAPE.sub("", text).strip(", ")
    if rest:
        raise ValueError(f"arguments {text!r}: a list such as 'float32[4,8] int32[]' required, got {rest!r}")
    return tuple(shape(dtype, extents) for dtype, extents in SHAPE.findall(text))


def shape(dtype: str, extents: str) -> jax.ShapeDtypeStruct:
    """One shape from its dtype and its extents: ``float32`` and ``4,8``; raises ValueError for a dtype that is none."""
    if dtype not in DTYPES:
        raise ValueError(f"dtype: one of {', '.join(DTYPES)} required, got {dtype!r}")
    return jax.ShapeDtypeStruct(tuple(int(n) for n in extents.split(",") if n.strip()), dtype)
