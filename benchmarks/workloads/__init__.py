"""The workloads: each module of this folder has a table ``PROGRAMS`` of name -> `Workload`; a new entry is run by being there.

Every workload has two sizes. ``full`` has the published shapes, for predictions; ``small`` is the same program at a size that
this computer runs in milliseconds, for wall time and correctness.
"""

from __future__ import annotations

import fnmatch
import importlib
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import jax
import jax.numpy as jnp

from eqsat.shapes import shapes

Specs = tuple[Any, ...]
Function = Callable[..., Any]


@dataclass(frozen=True)
class Expected:
    """What a good plan of the full size has; None: not said. `why` names the law or the fusion."""

    launches: int | None = None  # at most
    flops: float | None = None  # at most
    nbytes: float | None = None  # at most
    unchanged: bool = False  # the right answer is to do nothing
    algebraic: bool = False  # does less arithmetic, so must be faster in plain JAX as well
    why: str = ""


@dataclass(frozen=True)
class Size:
    """A function and the shapes of its arguments."""

    fn: Function
    args: Specs


@dataclass(frozen=True)
class Workload:
    """One program at two sizes; `constants` are the positions of arguments that never change."""

    full: Size
    small: Size
    expected: Expected = field(default_factory=Expected)
    constants: tuple[int, ...] = ()
    quick: bool = False  # part of the short run
    name: str = ""
    family: str = ""


Table = dict[str, Workload]


def case(fn: Function, full: str, small: str, expected: Expected | None = None, **options: Any) -> Workload:
    """A workload whose sizes differ in shapes only, written as text: ``float32[4,8] int32[]``."""
    return Workload(Size(fn, shapes(full)), Size(fn, shapes(small)), expected or Expected(), **options)


def pair(full: Size, small: Size, expected: Expected | None = None, **options: Any) -> Workload:
    return Workload(full, small, expected or Expected(), **options)


class Weights:
    """Weights by shape, in the order a model asks for them: recorded when the specs are made, handed out when it runs."""

    def __init__(self, given: list[Any] | None = None) -> None:
        self.given = iter(given) if given is not None else None
        self.recorded: list[jax.ShapeDtypeStruct] = []

    def __call__(self, *shape: int, dtype: str = "float32") -> Any:
        if self.given is not None:
            return next(self.given)
        self.recorded.append(jax.ShapeDtypeStruct(shape, dtype))
        return jnp.zeros(shape, dtype)


def network(model: Callable[..., Any], inputs: str, **config: Any) -> Size:
    """`model(w, *inputs, **config)` as a function of its inputs and a list of weights, the last argument."""
    specs = shapes(inputs)
    weights = Weights()
    jax.eval_shape(lambda *xs: model(weights, *xs, **config), *specs)

    @wraps(model)
    def run(*args: Any) -> Any:
        return model(Weights(args[-1]), *args[:-1], **config)

    del run.__wrapped__  # type: ignore[attr-defined]
    return Size(run, (*specs, weights.recorded))


def families() -> Iterator[tuple[str, Table]]:
    """Every module's name and table."""
    for module in sorted(m.name for m in pkgutil.iter_modules(__path__)):
        table = getattr(importlib.import_module(f"{__name__}.{module}"), "PROGRAMS", None)
        if table:
            yield module, table


def workloads(pattern: str = "*", quick: bool = False) -> list[Workload]:
    """All workloads, or those whose ``family/name`` fits a pattern (or contains it); `quick`: those of the short run."""
    from dataclasses import replace

    everything = [replace(w, name=name, family=family) for family, table in families() for name, w in table.items()]
    duplicates = {w.name for w in everything if sum(v.name == w.name for v in everything) > 1}
    if duplicates:
        raise ValueError(f"workloads: unique names required, got twice: {', '.join(sorted(duplicates))}")
    return [w for w in everything if (w.quick or not quick) and _fits(w, pattern)]


def _fits(workload: Workload, pattern: str) -> bool:
    name = f"{workload.family}/{workload.name}".lower()
    return fnmatch.fnmatch(name, pattern.lower()) or pattern.lower() in name
