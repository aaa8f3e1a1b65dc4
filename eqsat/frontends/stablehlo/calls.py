"""Custom calls that JAX itself can make: the LAPACK routines that its CPU modules name, as functions of `jax.lax.linalg`.

A function takes the call's settings and operands and returns all results, in LAPACK's order; `info` is 0, or 1 where JAX's
function gave NaN, which is how it says that a routine failed. Results of no use to a caller (an overwritten operand) are zeros.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, cast

import jax.extend.mlir.ir as ir
import jax.numpy as jnp
from jax import lax

from eqsat.frontends.stablehlo.contractions import triangular_factor
from eqsat.frontends.stablehlo.table import Array, Node

Settings = Mapping[str, Any]
IDENTITIES = ("Sharding", "annotate_sharding")  # calls that say only where a value lies
LAPACK: dict[str, Callable[..., tuple[Array, ...]]] = {}


def _routine(*names: str) -> Callable[[Callable[..., tuple[Array, ...]]], Callable[..., tuple[Array, ...]]]:
    def declare(function: Callable[..., tuple[Array, ...]]) -> Callable[..., tuple[Array, ...]]:
        LAPACK.update(dict.fromkeys(names, function))
        return function

    return declare


def find(target: str) -> Callable[..., Any] | None:
    """What a target computes, as a function of settings and operands; None where only its own runtime knows."""
    if target in IDENTITIES:
        return lambda settings, x: x
    named = re.fullmatch(r"lapack_[sdcz]([a-z]+)_ffi", target)
    return LAPACK.get(named.group(1)) if named else None


def target_of(operation: Any) -> str:
    return ir.StringAttr(operation.attributes["call_target_name"]).value


def apply(node: Node, operands: list[Array]) -> Any:
    function = find(target_of(node.operation))
    assert function is not None  # checked before anything runs
    given = node.attribute("mhlo.backend_config")
    settings = {a.name: _plain(a.attr) for a in cast(Any, given)} if isinstance(given, ir.DictAttr) else {}
    return function(settings, *operands)


def _plain(value: Any) -> Any:
    """LAPACK's letters arrive as numbers of 8 bits."""
    if isinstance(value, ir.IntegerAttr):
        return chr(value.value) if str(value.type) == "ui8" else value.value
    return value


def _info(result: Array, rank: int) -> Array:
    """For each matrix, whether its result holds NaN."""
    axes = tuple(range(result.ndim - rank, result.ndim))
    return jnp.isnan(result).any(axes).astype(jnp.int32)


@_routine("potrf")
def cholesky(settings: Settings, a: Array) -> tuple[Array, ...]:
    factor = triangular_factor(a, settings["uplo"] == "L")
    return factor, _info(factor, 2)


@_routine("getrf")
def lu(settings: Settings, a: Array) -> tuple[Array, ...]:
    """Rows are counted from 1."""
    factors, pivots, _ = lax.linalg.lu(a)
    return factors, pivots + 1, _info(factors, 2)


@_routine("geqrf")
def reflectors(settings: Settings, a: Array) -> tuple[Array, ...]:
    packed, factors = jnp.linalg.qr(a, mode="raw")
    return jnp.swapaxes(packed, -1, -2), factors


@_routine("orgqr", "ungqr")
def product_of_reflectors(settings: Settings, a: Array, factors: Array) -> tuple[Array, ...]:
    return (lax.linalg.householder_product(a, factors),)


@_routine("trsm")
def triangular_solve(settings: Settings, a: Array, b: Array) -> tuple[Array, ...]:
    trans = settings["trans_x"]
    return (
        lax.linalg.triangular_solve(
            a, b, left_side=settings["side"] == "L", lower=settings["uplo"] == "L", transpose_a=trans != "N",
            conjugate_a=trans == "C", unit_diagonal=settings["diag"] == "U",
        ),
    )  # fmt: skip


@_routine("syevd", "heevd")
def symmetric_eigenvectors(settings: Settings, a: Array) -> tuple[Array, ...]:
    vectors, values = lax.linalg.eigh(a, lower=settings["uplo"] == "L", symmetrize_input=False, sort_eigenvalues=True)
    return vectors, values, _info(values, 1)


@_routine("gesdd")
def singular_values(settings: Settings, a: Array) -> tuple[Array, ...]:
    """Modes: A(ll), S(mall) or N(o) vectors."""
    u, values, v = lax.linalg.svd(a, full_matrices=settings["mode"] != "S", compute_uv=True)
    return jnp.zeros_like(a), values, u, v, _info(values, 1)


@_routine("geev")
def eigenvectors(settings: Settings, a: Array) -> tuple[Array, ...]:
    """Real matrices give the parts of their eigenvalues."""
    values, left, right = lax.linalg.eig(a)
    parts = (values,) if jnp.iscomplexobj(a) else (jnp.real(values), jnp.imag(values))
    return *parts, left, right, _info(jnp.real(values), 1)


@_routine("gehrd")
def hessenberg(settings: Settings, a: Array) -> tuple[Array, ...]:
    packed, factors = lax.linalg.hessenberg(a)
    return packed, factors, _info(packed, 2)


@_routine("gtsv")
def tridiagonal_solve(settings: Settings, low: Array, main: Array, high: Array, b: Array) -> tuple[Array, ...]:
    x = lax.linalg.tridiagonal_solve(low, main, high, b)
    return jnp.zeros_like(low), jnp.zeros_like(main), jnp.zeros_like(high), x, _info(x, 2)
