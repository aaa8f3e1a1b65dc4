"""Tensors of torch as arrays of JAX and back, sharing memory where both allow it; 64-bit dtypes need JAX's 64-bit mode."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from eqsat.frontends.torch.table import Unsupported

Array = Any


def dtype_of(dtype: torch.dtype, subject: str = "torch dtype") -> np.dtype:
    """JAX's dtype for torch's, which has the same name."""
    name = str(dtype).removeprefix("torch.")
    try:
        return np.dtype(jnp.dtype(name))
    except TypeError:
        raise Unsupported(f"{subject}: a dtype that JAX has required, got torch.{name}") from None


def array_of(tensor: torch.Tensor, *, copy: bool = False) -> Array:
    """An array with the tensor's elements. Without `copy` it shares the memory of a contiguous tensor."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.is_sparse or tensor.is_quantized:
        raise Unsupported(f"tensor {tuple(tensor.shape)}: dense numbers required, got layout {tensor.layout} of {tensor.dtype}")
    dtype = dtype_of(tensor.dtype)
    if tensor.numel() == 0:
        return jnp.zeros(tuple(tensor.shape), dtype)
    if copy:
        tensor = tensor.clone(memory_format=torch.contiguous_format)
    return jax.dlpack.from_dlpack(tensor.contiguous())


def tensor_of(array: Array) -> torch.Tensor:
    """A tensor with the array's elements, in the array's memory."""
    if array.size == 0:
        return torch.empty(tuple(array.shape), dtype=getattr(torch, str(array.dtype)))
    return torch.from_dlpack(array)
