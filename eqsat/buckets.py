"""`eqsat.jit` for many shapes: a program for each bucket of sizes, so that the number of programs has a bound.

The function is traced once, for symbolic sizes. A call takes the smallest bucket that holds its sizes, fills its arrays up and
cuts the results; `eqsat.padding` makes sure that the filling is never seen.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from eqsat.graph import Graph, trace
from eqsat.jitted import Jitted, Settings
from eqsat.names import function_name
from eqsat.padding import padded, symbolic, value_of
from eqsat.program import Program
from eqsat.transform import traced


class Bucketed:
    """A function that runs as one program per bucket; made by `jit`. Under a transformation of JAX sizes are as they are."""

    def __init__(self, fn: Callable[..., Any], options: Settings, shapes: Any, buckets: Mapping[str, Sequence[int]]) -> None:
        functools.update_wrapper(self, fn)
        self._fn, self._options, self._shapes = fn, options, shapes
        self._buckets = {name: tuple(sorted(int(n) for n in extents)) for name, extents in buckets.items()}
        for name, extents in self._buckets.items():
            if not extents or extents[0] < 1:
                raise ValueError(f"buckets[{name!r}]: extents of at least 1 required, got {list(buckets[name])}")
        self._exact = Jitted(fn, options, {}, {"donate_argnums": None, "donate_argnames": None})
        self._traced: dict[Hashable, _Traced] = {}
        self._lock = threading.RLock()

    @property
    def bound(self) -> int:
        """At most so many programs serve all sizes, for arguments of one structure and dtypes."""
        return prod(map(len, self._buckets.values()))

    @property
    def programs(self) -> tuple[Program, ...]:
        """The programs made so far."""
        return tuple(p for t in self._traced.values() for p in t.jitted.programs) + self._exact.programs

    def __call__(self, *args: Any) -> Any:
        if traced():
            return self._exact(*args)
        known, sizes, extents, leaves = self._placed(args)
        filled = [_filled(x, [value_of(n, extents) for n in shape]) for x, shape in zip(leaves, known.shapes, strict=True)]
        results = known.jitted(_numbers(sizes), *filled)
        cut = [_cut(r, [value_of(n, sizes) for n in v.aval.shape]) for r, v in zip(results, known.graph.outputs, strict=True)]
        return jax.tree_util.tree_unflatten(known.graph.out_tree, cut)

    def program(self, *args: Any) -> Program:
        """The program of the bucket for arguments, or `jax.ShapeDtypeStruct`s; it takes the true sizes, then filled arrays."""
        known, sizes, extents, leaves = self._placed(args)
        filled = [
            jax.ShapeDtypeStruct(tuple(value_of(n, extents) for n in shape), a.dtype, weak_type=a.weak_type)
            for a, shape in zip(map(_aval, leaves), known.shapes, strict=True)
        ]
        return known.jitted.program(_numbers(sizes), *filled)

    def _placed(self, args: Sequence[Any]) -> tuple[_Traced, dict[str, int], dict[str, int], list[Any]]:
        """What the arguments were traced as, their sizes by symbol, the extents of the bucket, and their leaves."""
        leaves, tree = jax.tree_util.tree_flatten(tuple(args))
        fixed = tuple((str(a.dtype), a.weak_type, len(a.shape)) for a in map(_aval, leaves))
        with self._lock:
            if (key := (tree, fixed)) not in self._traced:
                self._traced[key] = _Traced(self._fn, self._options, self._shapes, self._buckets, tuple(args))
            known = self._traced[key]
        sizes = known.sizes(leaves)
        return known, sizes, {name: next(e for e in self._buckets[name] if e >= n) for name, n in sizes.items()}, leaves


class _Traced:
    """The function traced for symbolic sizes, and the jitted function of buckets."""

    def __init__(
        self, fn: Callable[..., Any], options: Settings, shapes: Any, buckets: Mapping[str, Sequence[int]], args: Any
    ) -> None:
        self.name, self.buckets = function_name(fn), buckets
        limits = [f"{name} <= {extents[-1]}" for name, extents in buckets.items()]
        scope = jax.export.SymbolicScope(limits)
        self.symbols = {name: jax.export.symbolic_shape(name, scope=scope)[0] for name in buckets}
        try:
            leaves, tree = jax.tree_util.tree_flatten(jax.export.symbolic_args_specs(args, shapes, scope=scope))
            self.shapes = [tuple(leaf.shape) for leaf in leaves]
            self._check()
            weak = [_aval(leaf).weak_type for leaf in jax.tree_util.tree_leaves(args)]
            specs = [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=w) for a, w in zip(leaves, weak, strict=True)]
            self.graph: Graph = trace(fn, jax.tree_util.tree_unflatten(tree, specs), {})
        except (ValueError, TypeError) as error:
            reason = str(error).strip().split("\n")[0].rstrip(".")
            raise ValueError(
                f"{self.name}: a function that JAX traces for shapes={shapes!r} required, got {type(error).__name__}: {reason}; "
                "name in shapes= only the sizes on which nothing but extents depends"
            ) from error
        run = padded(self.graph, self.symbols)

        def bucket(sizes: Mapping[str, Any], *args: Any) -> Any:
            flat = jax.tree_util.tree_leaves(args)
            return run(sizes, self._extents(flat), *flat)

        bucket.__name__ = self.name
        bucket.__signature__ = _behind(inspect.signature(bucket), fn)  # type: ignore[attr-defined]
        names = ", ".join(f"{name} of {' or '.join(map(str, extents))}" for name, extents in buckets.items())
        count = prod(map(len, buckets.values()))
        notes = {"buckets": f"{names}: at most {count} program{'s' * (count > 1)} for all sizes up to these"}
        self.jitted = Jitted(bucket, options, {}, {"donate_argnums": None, "donate_argnames": None}, notes)

    def _check(self) -> None:
        """Each symbol is the size of an axis, up to a constant."""
        used = {str(n) for shape in self.shapes for n in shape if symbolic(n)}
        if unknown := used - set(self.buckets):
            raise ValueError(f"sizes {sorted(unknown)}, for which buckets= has no extents")
        if unused := set(self.buckets) - used:
            raise ValueError(f"buckets of {sorted(unused)}, which are sizes of no argument")

    def _extents(self, leaves: Sequence[Any]) -> dict[str, int]:
        """The size of each symbol in arrays; raises ValueError where they disagree."""
        found: dict[str, int] = {}
        for n, (leaf, shape) in enumerate(zip(leaves, self.shapes, strict=True)):
            got = np.shape(leaf)
            sizes = [found.setdefault(str(m), size) if symbolic(m) else m for m, size in zip(shape, got, strict=False)]
            if len(got) != len(shape) or tuple(sizes) != got:
                wanted = f"({', '.join(map(str, shape))})"
                known = ", ".join(f"{name} = {size}" for name, size in found.items())
                raise ValueError(f"{self.name}: array {n} of its arguments of shape {wanted} with {known} required, got {got}")
        return found

    def sizes(self, leaves: Sequence[Any]) -> dict[str, int]:
        """The true size of each symbol; raises ValueError where shapes disagree, or no bucket is large enough."""
        found = self._extents(leaves)
        for name, size in found.items():
            if not 1 <= size <= self.buckets[name][-1]:
                raise ValueError(
                    f"{self.name}: {name} of 1 to {self.buckets[name][-1]} required, got {size}; add a larger extent to buckets="
                )
        return found


def _behind(own: inspect.Signature, fn: Callable[..., Any]) -> inspect.Signature:
    """A signature with the parameters of `fn` behind its first, which name the tensors of a program."""
    first, rest = own.parameters.values()
    try:
        theirs = [p for p in inspect.signature(fn).parameters.values() if p.kind == p.POSITIONAL_OR_KEYWORD]
    except ValueError:  # a builtin
        theirs = []
    return own.replace(parameters=[first, *(p.replace(default=p.empty) for p in theirs if p.name != first.name), rest])


def _aval(leaf: Any) -> Any:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.core.ShapedArray(leaf.shape, leaf.dtype, weak_type=leaf.weak_type)
    return jax.typeof(leaf)


def _numbers(sizes: Mapping[str, int]) -> dict[str, np.int32]:
    return {name: np.int32(size) for name, size in sizes.items()}


def _filled(x: Any, shape: Sequence[int]) -> Any:
    """An array with zeros behind its elements, up to a shape."""
    behind = [(0, m - n) for n, m in zip(np.shape(x), shape, strict=True)]
    if not any(m for _, m in behind):
        return x
    return np.pad(x, behind) if isinstance(x, np.ndarray) else jnp.pad(x, behind)


def _cut(x: Any, shape: Sequence[int]) -> Any:
    return x if x.shape == tuple(shape) else jax.lax.slice(x, [0] * x.ndim, shape)
