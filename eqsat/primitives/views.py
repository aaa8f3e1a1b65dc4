"""Primitives that only rearrange: index expressions over their operand, composed while a graph is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eqsat.index import Index, flatten, unflatten
from eqsat.notation import Term, const, pos, scalar
from eqsat.primitives.fold import converted
from eqsat.primitives.table import Out, View, choose, reads


@reads("copy", "copy_p", "stop_gradient", "pvary", view=True)
def copy(out: Out, x: View, **_: Any) -> Term:
    return x.term


@reads("optimization_barrier", view=True, results=True)
def optimization_barrier(outs: tuple[Out, ...], *xs: View, **_: Any) -> tuple[Term, ...]:
    return tuple(x.term for x in xs)


@reads("broadcast_in_dim", view=True)
def broadcast_in_dim(out: Out, x: View, *_dynamic: View, broadcast_dimensions: Sequence[int], **_: Any) -> Term:
    return x.at([out.indices[d] if n != 1 else Index() for d, n in zip(broadcast_dimensions, x.shape, strict=True)])


@reads("reshape", view=True)
def reshape(out: Out, x: View, dimensions: Sequence[int] | None = None, **_: Any) -> Term:
    order = tuple(dimensions) if dimensions is not None else tuple(range(len(x.shape)))
    places = unflatten(flatten(out.indices, out.shape), tuple(x.shape[d] for d in order))
    indices = [Index()] * len(order)
    for d, place in zip(order, places, strict=True):
        indices[d] = place
    return x.at(indices)


@reads("transpose", view=True)
def transpose(out: Out, x: View, permutation: Sequence[int], **_: Any) -> Term:
    return x.at([out.indices[list(permutation).index(d)] for d in range(len(x.shape))])


@reads("squeeze", view=True)
def squeeze(out: Out, x: View, dimensions: Sequence[int], **_: Any) -> Term:
    kept = iter(out.indices)
    return x.at([Index() if d in dimensions else next(kept) for d in range(len(x.shape))])


@reads("slice", view=True)
def slice_(out: Out, x: View, start_indices: Sequence[int], strides: Sequence[int] | None = None, **_: Any) -> Term:
    steps = strides if strides is not None else (1,) * len(start_indices)
    return x.at([i * int(step) + int(start) for i, start, step in zip(out.indices, start_indices, steps, strict=True)])


@reads("rev", view=True)
def rev(out: Out, x: View, dimensions: Sequence[int], **_: Any) -> Term:
    return x.at(
        [Index.of(n - 1) - i if d in dimensions else i for d, (n, i) in enumerate(zip(x.shape, out.indices, strict=True))]
    )


@reads("tile", view=True)
def tile(out: Out, x: View, **_: Any) -> Term:
    return x.at([i % n for i, n in zip(out.indices, x.shape, strict=True)])


@reads("split", view=True, results=True)
def split(outs: tuple[Out, ...], x: View, sizes: Sequence[int], axis: int, **_: Any) -> tuple[Term, ...]:
    starts = [int(sum(sizes[:part])) for part in range(len(outs))]
    return tuple(
        x.at([i + start if d == axis else i for d, i in enumerate(out.indices)]) for out, start in zip(outs, starts, strict=True)
    )


@reads("unstack", view=True, results=True)
def unstack(outs: tuple[Out, ...], x: View, axis: int, **_: Any) -> tuple[Term, ...]:
    return tuple(x.at([*out.indices[:axis], Index.of(part), *out.indices[axis:]]) for part, out in enumerate(outs))


@reads("iota", view=True)
def iota(out: Out, *_dynamic: View, dimension: int, **_: Any) -> Term:
    """An iota of floats is the conversion of the integer, rounded as JAX rounds it."""
    return converted(out.dtype, pos(out.indices[dimension], "int32"))


@reads("empty", view=True)
def empty(out: Out, **_: Any) -> Term:
    """Contents are unspecified; zero is as good as any."""
    return const(0, out.dtype)


@reads("concatenate")
def concatenate(out: Out, *xs: View, dimension: int, **_: Any) -> Term:
    """Each part is read out of its bounds at the places of the others, where it is not chosen."""
    starts = [sum(x.shape[dimension] for x in xs[:part]) for part in range(len(xs))]
    return joined(out, [x.at(shifted(out, dimension, start)) for x, start in zip(xs, starts, strict=True)], dimension, starts)


@reads("stack")
def stack(out: Out, *xs: View, axis: int, **_: Any) -> Term:
    return joined(out, [x.at([i for d, i in enumerate(out.indices) if d != axis]) for x in xs], axis, list(range(len(xs))))


def shifted(out: Out, dimension: int, start: int) -> list[Index]:
    return [i - start if d == dimension else i for d, i in enumerate(out.indices)]


def joined(out: Out, parts: list[Term], dimension: int, starts: list[int]) -> Term:
    """The part that owns each position: the last one unless the position lies before its start."""
    position = pos(out.indices[dimension], "int32")
    term = parts[-1]
    for part, end in zip(reversed(parts[:-1]), reversed(starts[1:]), strict=True):
        term = scalar("where", scalar("lt", position, const(end, "int32")), part, term)
    return term


@reads("pad")
def pad(out: Out, x: View, value: View, padding_config: Sequence[tuple[int, int, int]], **_: Any) -> Term:
    indices, tests = [], []
    for i, (low, _high, interior) in zip(out.indices, padding_config, strict=True):
        place, step = i - int(low), int(interior) + 1
        indices.append(place // step)
        if (on_grid := place % step) != Index():
            tests.append(scalar("eq", pos(on_grid, "int32"), const(0, "int32")))
    fill = value.term
    is_zero = fill is const(0, out.dtype)
    return choose(tests, x.padded(indices, None if is_zero else fill), fill)
