"""Reductions over whole dimensions and over windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

from eqsat.index import Axis, Index
from eqsat.notation import Term, cast, const, level_of, online, pos, reduce, scalar, substitute
from eqsat.primitives.table import Opaque, Out, View, choose, fold_axes, folded, reads
from eqsat.scalars import DTYPES, REDUCTIONS, is_float

_ROUNDING = ("sum", "prod")


def accumulator(dtype: str) -> str:
    """The dtype in which a sum of floats of `dtype` is held: rounding at each step would lose the sum.

    So a sum or product of 16 or 8 bits that overflows on its way, which JAX's own primitives may lead to an infinity or a NaN as
    their order has it, has here the value of the whole, in every tier.
    """
    return DTYPES[dtype].compute


def over(axes: Sequence[int], out: Out, x: View) -> tuple[list[Index], tuple[Axis, ...]]:
    """Indices into `x`, and the axes that stand in its reduced dimensions."""
    bound = fold_axes(x.shape[d] for d in axes)
    place = {d: Index.of(axis) for d, axis in zip(axes, bound, strict=True)}
    kept = iter(out.indices)
    return [place[d] if d in place else next(kept) for d in range(len(x.shape))], tuple(a for a in bound if a.extent > 1)


def rounded_fold(name: str, axes: tuple[Axis, ...], term: Term) -> Term:
    """A fold in its accumulator's dtype, rounded once."""
    wide = accumulator(term.dtype) if name in _ROUNDING else term.dtype
    return cast(term.dtype, folded(name, axes, cast(wide, term))) if axes else term


def _reduction(name: str) -> Callable[..., Term]:
    def read(out: Out, x: View, axes: Sequence[int], **_: Any) -> Term:
        indices, bound = over([int(d) for d in axes], out, x)
        return rounded_fold(name, bound, x.at(indices))

    return read


for _name in REDUCTIONS:
    reads(f"reduce_{_name}")(_reduction(_name))


def _passed(place: Index, own: Index, reverse: bool) -> Term:
    """True for the positions that a cumulative operation has passed at its own."""
    return scalar("ge" if reverse else "le", pos(place, "int32"), pos(own, "int32"))


def _running(name: str) -> Callable[..., Term]:
    """A cumulative operation: a fold of the positions up to one's own, or from it on."""

    def read(out: Out, x: View, axis: int, reverse: bool = False, **_: Any) -> Term:
        if x.shape[axis] == 1:
            return x.at(out.indices)
        bound = fold_axes([x.shape[axis]])
        indices = [Index.of(bound[0]) if d == axis else i for d, i in enumerate(out.indices)]
        wide = accumulator(x.dtype) if name in _ROUNDING else x.dtype
        identity = const(REDUCTIONS[name].identity(wide), wide)
        element = scalar("where", _passed(indices[axis], out.indices[axis], reverse), cast(wide, x.at(indices)), identity)
        return cast(x.dtype, folded(name, bound, element))

    return read


for _primitive, _name in {"cumsum": "sum", "cumprod": "prod", "cummax": "max", "cummin": "min"}.items():
    reads(_primitive)(_running(_name))


@reads("cumlogsumexp")
def _running_log_sum_exp(out: Out, x: View, axis: int, reverse: bool = False, **_: Any) -> Term:
    """The maximum up to one's own position, and the logarithm of the sum relative to it, where that is finite."""
    if x.shape[axis] == 1:
        return x.at(out.indices)
    (place,) = fold_axes([x.shape[axis]])
    indices = [Index.of(place) if d == axis else i for d, i in enumerate(out.indices)]
    wide = accumulator(x.dtype)
    passed = _passed(indices[axis], out.indices[axis], reverse)
    element = scalar("where", passed, cast(wide, x.at(indices)), const(-inf, wide))
    bound = Axis(f"r{level_of([element], [place])}", place.extent)
    element = substitute(element, {place: Index.of(bound)})
    largest = reduce("max", bound, element)
    total = online(bound, element, const(1, wide), wide)
    finite = scalar("lt", scalar("abs", largest), const(inf, wide))
    return cast(x.dtype, scalar("where", finite, scalar("add", largest, scalar("log", total)), largest))


def _extreme_place(name: str) -> Callable[..., Term]:
    def read(out: Out, x: View, axes: Sequence[int], index_dtype: Any = None, **_: Any) -> Term:
        """The first place that holds the extreme value; a NaN is the extreme value of all."""
        if len(axes) != 1:
            raise Opaque("place of an extreme over several dimensions")
        indices, bound = over([int(axes[0])], out, x)
        if not bound:
            return const(0, out.dtype)
        element = x.at(indices)
        found = scalar("eq", element, folded(name, bound, element))
        if is_float(x.dtype):
            found = scalar("or", found, scalar("ne", element, element))
        (axis,) = bound
        return folded("min", bound, scalar("where", found, pos(Index.of(axis), out.dtype), const(axis.extent - 1, out.dtype)))

    return read


reads("argmax")(_extreme_place("max"))
reads("argmin")(_extreme_place("min"))


def window_places(
    out: Sequence[Index],
    window: Sequence[Axis | int],
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    base_dilation: Sequence[int],
    window_dilation: Sequence[int],
) -> tuple[list[Index], list[Term]]:
    """Indices into the operand of a window operation, and tests that they hit an element of a dilated operand."""
    places, tests = [], []
    for i, w, stride, (low, _), base, dilation in zip(out, window, strides, padding, base_dilation, window_dilation, strict=True):
        place = i * int(stride) + Index.of(w) * int(dilation) - int(low)
        places.append(place // int(base))
        if (on_grid := place % int(base)) != Index():
            tests.append(scalar("eq", pos(on_grid, "int32"), const(0, "int32")))
    return places, tests


def _window(name: str) -> Callable[..., Term]:
    def read(out: Out, x: View, **params: Any) -> Term:
        size = params["window_dimensions"]
        bound = fold_axes(int(n) for n in size)
        dilations = (params.get("base_dilation") or (1,) * len(size), params.get("window_dilation") or (1,) * len(size))
        places, tests = window_places(out.indices, bound, params["window_strides"], params["padding"], *dilations)
        fill = const(REDUCTIONS[name].identity(x.dtype), x.dtype)
        element = choose(tests, x.padded(places, None if name == "sum" else fill), fill)
        return rounded_fold(name, tuple(a for a in bound if a.extent > 1), element)

    return read


for _name in ("sum", "max", "min"):
    reads(f"reduce_window_{_name}")(_window(_name))
