"""ATen operators that only say where elements lie: shapes, slices, joins and padding."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from eqsat.frontends.torch.table import Array, Node, TorchError, axes_of, axis_of, cast, op


@op("view", "_unsafe_view", "reshape", "view_copy")
def view(node: Node, self: Array, size: Sequence[int]) -> Array:
    return jnp.reshape(self, _inferred(self, size))


def _inferred(x: Array, size: Sequence[int]) -> tuple[int, ...]:
    """The size with its -1 worked out, also where x has no elements."""
    rest = prod(n for n in size if n != -1)
    return tuple((prod(x.shape) // rest if rest != 0 else 0) if n == -1 else n for n in size)


@op("view.dtype")
def view_dtype(node: Node, self: Array, dtype: Any) -> Array:
    if jnp.dtype(node.dtype).itemsize != jnp.dtype(self.dtype).itemsize:
        raise node.error(f"a dtype of {jnp.dtype(self.dtype).itemsize} bytes required, got {node.dtype}")
    return lax.bitcast_convert_type(self, node.dtype)


@op("view_as_real", "view_as_real_copy")
def view_as_real(node: Node, self: Array) -> Array:
    return jnp.stack([jnp.real(self), jnp.imag(self)], -1)


@op("view_as_complex", "view_as_complex_copy")
def view_as_complex(node: Node, self: Array) -> Array:
    return lax.complex(self[..., 0], self[..., 1])


@op("expand", "expand_copy")
def expand(node: Node, self: Array, size: Sequence[int], *, implicit: bool = False) -> Array:
    lead = len(size) - self.ndim
    return jnp.broadcast_to(self, [self.shape[n - lead] if m == -1 else m for n, m in enumerate(size)])


@op("permute", "permute_copy")
def permute(node: Node, self: Array, dims: Sequence[int]) -> Array:
    return jnp.transpose(self, axes_of(dims, self.ndim))


@op("transpose.int")
def transpose(node: Node, self: Array, dim0: int, dim1: int) -> Array:
    return jnp.swapaxes(self, dim0, dim1) if self.ndim else self


@op("t")
def t(node: Node, self: Array) -> Array:
    return self.T


@op("unsqueeze", "unsqueeze_copy")
def unsqueeze(node: Node, self: Array, dim: int) -> Array:
    return jnp.expand_dims(self, dim % (self.ndim + 1))


@op("squeeze", "squeeze.dim", "squeeze.dims")
def squeeze(node: Node, self: Array, dim: Any = None) -> Array:
    axes = () if isinstance(dim, Sequence) and not dim else axes_of(dim, self.ndim)
    return jnp.squeeze(self, tuple(a for a in axes if self.shape[a] == 1))


@op("select.int", "select_copy.int")
def select(node: Node, self: Array, dim: int, index: int) -> Array:
    axis = axis_of(dim, self.ndim)
    return lax.index_in_dim(self, index % self.shape[axis], axis, keepdims=False)


def _range(size: Any, start: Any, end: Any) -> tuple[Any, Any]:
    """Positions counted from the front and kept inside."""
    if jax.export.is_symbolic_dim(size):
        first = 0 if start is None else start + size if start < 0 else start
        last = size if end is None or end is size or (isinstance(end, int) and end >= 2**31) else end + size if end < 0 else end
        return first, last
    first = 0 if start is None else min(max(start + size if start < 0 else start, 0), size)
    last = size if end is None else min(max(end + size if end < 0 else end, 0), size)
    return first, max(first, last)


@op("slice.Tensor", "slice_copy.Tensor")
def slice_(node: Node, self: Array, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Array:
    axis = axis_of(dim, self.ndim)
    return lax.slice_in_dim(self, *_range(self.shape[axis], start, end), step, axis)


@op("split_with_sizes", "split_with_sizes_copy")
def split_with_sizes(node: Node, self: Array, split_sizes: Sequence[int], dim: int = 0) -> list[Array]:
    axis = axis_of(dim, self.ndim)
    ends = np.cumsum(split_sizes)
    return [lax.slice_in_dim(self, int(e) - n, int(e), axis=axis) for n, e in zip(split_sizes, ends, strict=True)]


@op("split.Tensor", "split_copy.Tensor")
def split(node: Node, self: Array, split_size: int, dim: int = 0) -> list[Array]:
    size = self.shape[axis_of(dim, self.ndim)]
    widths = [min(split_size, size - n) for n in range(0, size, split_size)] if split_size else []
    return split_with_sizes(node, self, widths or [size], dim)


@op("unbind.int", "unbind_copy.int")
def unbind(node: Node, self: Array, dim: int = 0) -> list[Array]:
    return [select(node, self, dim, n) for n in range(self.shape[axis_of(dim, self.ndim)])]


@op("cat")
def cat(node: Node, tensors: Sequence[Array], dim: int = 0) -> Array:
    """An empty vector joins anything."""
    parts = [cast(x, node.dtype) for x in tensors if x.shape != (0,)] or [cast(x, node.dtype) for x in tensors]
    return jnp.concatenate(parts, axis_of(dim, parts[0].ndim))


@op("stack")
def stack(node: Node, tensors: Sequence[Array], dim: int = 0) -> Array:
    return jnp.stack([cast(x, node.dtype) for x in tensors], dim)


@op("repeat")
def repeat(node: Node, self: Array, repeats: Sequence[int]) -> Array:
    return jnp.tile(self, tuple(repeats)) if repeats else self


@op("flip")
def flip(node: Node, self: Array, dims: Sequence[int]) -> Array:
    return jnp.flip(self, axes_of(dims, self.ndim)) if dims and self.ndim else self


@op("diagonal", "diagonal_copy")
def diagonal(node: Node, self: Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Array:
    return jnp.diagonal(self, offset, dim1, dim2)


@op("as_strided", "as_strided_copy")
def as_strided(node: Node, self: Array, size: Sequence[int], stride: Sequence[int], storage_offset: Any = None) -> Array:
    return jnp.take(jnp.reshape(self, (-1,)), _memory(node, self, size, stride, storage_offset), mode="clip")


@op("as_strided_scatter", "prims.as_strided_scatter.default")
def as_strided_scatter(
    node: Node, self: Array, src: Array, size: Sequence[int], stride: Sequence[int], storage_offset: Any = None
) -> Array:  # fmt: skip
    places = _memory(node, self, size, stride, storage_offset)
    return jnp.reshape(jnp.reshape(self, (-1,)).at[places].set(cast(src, self.dtype), mode="drop"), self.shape)


def _memory(node: Node, x: Array, size: Sequence[int], stride: Sequence[int], storage_offset: Any) -> np.ndarray:
    """Places in memory, which are places in the flat tensor where that lies in the order of its indices."""
    _plain(node)
    places = np.full(tuple(size), storage_offset or 0, np.int64)
    for axis, (n, step) in enumerate(zip(size, stride, strict=True)):
        places += np.arange(n).reshape([-1 if a == axis else 1 for a in range(len(size))]) * step
    if places.size and places.max() >= x.size:
        raise node.error(f"places inside the tensor's {x.size} elements required, got {int(places.max())}", TorchError)
    return places.astype(np.int32)


def _plain(node: Node) -> None:
    """Not even torch could run it on what a program makes, which is contiguous."""
    if not node.contiguous:
        raise node.error(
            "a contiguous tensor required, got one that lies in memory in another order; call .contiguous() first", TorchError
        )


# --- a part replaced --------------------------------------------------------------------------------------------


@op("select_scatter")
def select_scatter(node: Node, self: Array, src: Array, dim: int, index: int) -> Array:
    axis = axis_of(dim, self.ndim)
    return _replaced(self, jnp.expand_dims(src, axis), axis, index % self.shape[axis], 1)


@op("slice_scatter")
def slice_scatter(
    node: Node, self: Array, src: Array, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Array:  # fmt: skip
    axis = axis_of(dim, self.ndim)
    first, last = _range(self.shape[axis], start, end)
    return _replaced(self, src, axis, first, step) if first < last else self


@op("diagonal_scatter")
def diagonal_scatter(node: Node, self: Array, src: Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Array:
    first, second = axis_of(dim1, self.ndim), axis_of(dim2, self.ndim)
    n = np.arange(src.shape[-1])
    rows = jnp.moveaxis(self, (first, second), (-2, -1)).at[..., n + max(-offset, 0), n + max(offset, 0)].set(src)
    return jnp.moveaxis(rows, (-2, -1), (first, second))


def _replaced(x: Array, part: Array, axis: int, first: int, step: int) -> Array:
    """x with every step-th element along an axis, from the first on, from `part`."""
    count = part.shape[axis]
    after = x.shape[axis] - first - ((count - 1) * step + 1)
    edges = [(first, after, step - 1) if a == axis else (0, 0, 0) for a in range(x.ndim)]
    spread = lax.pad(cast(part, x.dtype), np.zeros((), x.dtype), edges)
    place = np.arange(x.shape[axis]) - first
    taken = (place >= 0) & (place < count * step) & (place % step == 0)
    return jnp.where(taken.reshape([-1 if a == axis else 1 for a in range(x.ndim)]), spread, x)


# --- padding ----------------------------------------------------------------------------------------------------


def _edges(pad: Sequence[int], rank: int) -> list[tuple[int, int]]:
    """torch names the last axis first."""
    pairs = [(pad[n], pad[n + 1]) for n in range(0, len(pad), 2)]
    return [(0, 0)] * (rank - len(pairs)) + pairs[::-1]


@op("constant_pad_nd")
def constant_pad(node: Node, self: Array, pad: Sequence[int], value: Any = 0) -> Array:
    return lax.pad(self, cast(value, self.dtype), [(low, high, 0) for low, high in _edges(pad, self.ndim)])


@op("reflection_pad1d", "reflection_pad2d", "reflection_pad3d")
def reflection_pad(node: Node, self: Array, padding: Sequence[int]) -> Array:
    return _padded(self, padding, "reflect")


@op("replication_pad1d", "replication_pad2d", "replication_pad3d")
def replication_pad(node: Node, self: Array, padding: Sequence[int]) -> Array:
    return _padded(self, padding, "edge")


def _padded(x: Array, padding: Sequence[int], mode: str) -> Array:
    """Negative widths crop first."""
    edges = _edges(padding, x.ndim)
    cropped = lax.slice(
        x, [max(-low, 0) for low, _ in edges], [n - max(-high, 0) for n, (_, high) in zip(x.shape, edges, strict=True)]
    )  # fmt: skip
    widths = [(max(low, 0), max(high, 0)) for low, high in edges]
    if not x.size:  # the batch is empty
        return jnp.zeros([n + low + high for n, (low, high) in zip(cropped.shape, widths, strict=True)], x.dtype)
    return jnp.pad(cropped, widths, mode=mode)


# --- sizes ------------------------------------------------------------------------------------------------------


@op("sym_size.int")
def sym_size(node: Node, self: Array, dim: int) -> int:
    return self.shape[dim]


@op("sym_numel")
def sym_numel(node: Node, self: Array) -> int:
    return prod(self.shape)


@op("sym_stride.int")
def sym_stride(node: Node, self: Array, dim: int) -> int:
    _plain(node)
    return prod(self.shape[axis_of(dim, self.ndim) + 1 :])


@op("_assert_scalar", "sym_constrain_range_for_size", "sym_constrain_range")
def assert_scalar(node: Node, self: Any, *message: Any, **_: Any) -> None:
    """What was known while importing is checked there."""
    if not isinstance(self, bool | int | float):
        raise node.error("a condition on sizes required, got one on values")
    if node.op == "_assert_scalar.default" and not self:
        raise node.error(f"a condition that holds required, got {message[0] if message else 'one that does not'}")
