"""Programs under JAX's transformations: a primitive whose derivatives, transposes and batched forms are programs of their own.

`apply` binds the primitive. Differentiating it optimises two functions: one that gives the results with what the derivative
needs of them (the residuals), and the transpose of the derivative; `jax.vmap` optimises the batched function. Each is
made from the function as it was traced, so that custom derivatives hold, and is kept. Under `jax.jit` the steps are in line.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad, batching, mlir

from eqsat.graph import from_jaxpr

if TYPE_CHECKING:
    from eqsat.program import Program

Array = Any
PLACING = {"shard_map", "sharding_constraint", "reshard", "mesh_cast", "device_put"}


def _state_of_a_new_thread() -> Any:
    """JAX's state where nothing is traced, wherever this module is imported."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(jex.get_opaque_trace_state(convention="nnx")))
    thread.start()
    thread.join()
    return found[0]


_NOTHING_TRACED = _state_of_a_new_thread()


def traced() -> bool:
    """True while JAX traces or transforms something, also where no argument shows it."""
    return bool(_NOTHING_TRACED != jex.get_opaque_trace_state(convention="nnx"))


class Function:
    """A function of flat arrays, and its program, which is made when it is first run.

    closed: the function as JAX traced it. linear: how many of its last arguments it is linear in. optimise: makes the program of
    a graph; None for functions that run as they were traced.
    """

    def __init__(
        self, name: str, closed: Any, optimise: Callable[..., Program] | None, linear: int = 0, program: Program | None = None
    ) -> None:
        self.name, self.closed, self.linear = name, closed, linear
        self._optimise, self._program = optimise, program
        self._derived: dict[Hashable, Any] = {}
        self._lock = threading.RLock()

    @property
    def program(self) -> Program | None:
        """The optimised program; None where the function runs as it was traced."""
        with self._lock:
            if self._program is None and self._optimise is not None:
                with jax.ensure_compile_time_eval():
                    self._program = self._optimise(from_jaxpr(self.closed, self.name))
            return self._program

    @cached_property
    def plain(self) -> Callable[..., list[Array]]:
        """The function as it was traced."""
        return jex.jaxpr_as_fun(self.closed)

    @cached_property
    def in_line(self) -> bool:
        """True for what a primitive would hide from JAX: effects, and the devices of a mesh."""
        return bool(self.closed.effects) or _places(self.closed.jaxpr)

    def held(self, flat: Sequence[Array]) -> list[Array]:
        """What a program holds: operands before the arguments, so that compiled code does not hold it."""
        return [] if self.program is None else self.program.held(flat)

    def split(self, operands: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """What is held, and the arguments."""
        start = len(operands) - len(self.closed.in_avals)
        return list(operands[:start]), list(operands[start:])

    def evaluate(self, *operands: Array) -> list[Array]:
        """The results for what is held and the arguments; traceable."""
        return self.plain(*operands) if self.program is None else self.program.evaluate(*self.split(operands))

    # --- functions made from it

    def _made(self, key: Hashable, make: Callable[[], Any]) -> Any:
        with self._lock:
            if key not in self._derived:
                self._derived[key] = make()
            return self._derived[key]

    def _function(self, suffix: str, fn: Callable[..., Sequence[Array]], avals: Sequence[Any], linear: int = 0) -> Function:
        with from_jaxpr(self.closed, self.name).mode():
            closed = jax.make_jaxpr(fn)(*map(_typed, avals))
        return Function(f"{self.name}_{suffix}", closed, self._optimise, linear)

    def linearized(self, moving: tuple[bool, ...]) -> tuple[Function, Function]:
        """(results followed by residuals, derivative as a function of residuals and the tangents of the moving arguments).

        The derivative gives a tangent for each result of `differentiable`.
        """
        return self._made(("linearized", moving), lambda: self._linearized(moving))

    def _linearized(self, moving: tuple[bool, ...]) -> tuple[Function, Function]:
        trees: list[Any] = []

        def forward(*flat: Array) -> list[Array]:
            results, derivative, others = jax.linearize(self._split(flat, moving), *_where(flat, moving), has_aux=True)
            residuals, tree = jax.tree_util.tree_flatten(derivative)
            trees.append(tree)
            found = {**dict(zip(self.differentiable, results, strict=True)), **dict(zip(self._others, others, strict=True))}
            return [*(found[n] for n in range(len(found))), *residuals]

        made = self._function("with_residuals", forward, self.closed.in_avals)
        residuals = made.closed.out_avals[len(self.closed.out_avals) :]
        tangents = [a.to_tangent_aval() for a in _where(self.closed.in_avals, moving)]

        def derivative(*operands: Array) -> list[Array]:
            known, moved = operands[: len(residuals)], operands[len(residuals) :]
            return jax.tree_util.tree_unflatten(trees[0], known)(*moved)

        return made, self._function("derivative", derivative, [*residuals, *tangents], len(tangents))

    def _split(self, flat: Sequence[Array], moving: tuple[bool, ...]) -> Callable[..., tuple[list[Array], list[Array]]]:
        """The function of the moving arguments alone: results that have a derivative, and the others."""

        def function(*moved: Array) -> tuple[list[Array], list[Array]]:
            rest = iter(moved)
            results = self.plain(*(next(rest) if m else x for x, m in zip(flat, moving, strict=True)))
            return [results[n] for n in self.differentiable], [results[n] for n in self._others]

        return function

    @cached_property
    def differentiable(self) -> list[int]:
        """Numbers of the results that have a derivative."""
        return [n for n, a in enumerate(self.closed.out_avals) if jnp.issubdtype(a.dtype, np.inexact)]

    @cached_property
    def _others(self) -> list[int]:
        return [n for n in range(len(self.closed.out_avals)) if n not in self.differentiable]

    def transposed(self, unknown: tuple[bool, ...], given: tuple[bool, ...]) -> Function:
        """From known arguments and the given cotangents of results to the cotangents of the unknown arguments."""
        return self._made(("transposed", unknown, given), lambda: self._transposed(unknown, given))

    def _transposed(self, unknown: tuple[bool, ...], given: tuple[bool, ...]) -> Function:
        avals, results = self.closed.in_avals, self.closed.out_avals
        known = [a for a, u in zip(avals, unknown, strict=True) if not u]
        linear = [_typed(a) for a in _where(avals, unknown)]

        def transpose(*operands: Array) -> list[Array]:
            values, cotangents = operands[: len(known)], iter(operands[len(known) :])

            def function(*moved: Array) -> list[Array]:
                rest, fixed = iter(moved), iter(values)
                every = self.plain(*(next(rest) if u else next(fixed) for u in unknown))
                return _where(every, given)

            return list(jax.linear_transpose(function, *linear)(list(cotangents)))

        return self._function("transposed", transpose, [*known, *_where(results, given)], sum(given))

    def batched(self, dims: tuple[int | None, ...], size: int) -> Function:
        """The function over arguments with a batch dimension (None: without); results have it first."""
        return self._made(("batched", dims, size), lambda: self._batched(dims, size))

    def _batched(self, dims: tuple[int | None, ...], size: int) -> Function:
        fn = jax.vmap(self.plain, in_axes=dims, out_axes=0, axis_size=size)
        avals = [
            _typed(a) if d is None else _typed(a, (*a.shape[:d], size, *a.shape[d:]))
            for a, d in zip(self.closed.in_avals, dims, strict=True)
        ]
        return self._function("batched", fn, avals, self.linear)


def _typed(aval: Any, shape: tuple[int, ...] | None = None) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape if shape is None else shape, aval.dtype, weak_type=getattr(aval, "weak_type", False))


def _places(jaxpr: Any) -> bool:
    """True if a traced function, or one in it, names devices."""
    held = [getattr(j, "jaxpr", j) for e in jaxpr.eqns for j in jex.jaxprs_in_params(e.params)]
    return any(e.primitive.name in PLACING for e in jaxpr.eqns) or any(map(_places, held))


def _where(values: Sequence[Any], chosen: Sequence[bool]) -> list[Any]:
    return [v for v, c in zip(values, chosen, strict=True) if c]


# --- the primitive ----------------------------------------------------------------------------------------------------

program_p = jex.Primitive("eqsat")
program_p.multiple_results = True


def apply(function: Function, flat: Sequence[Array]) -> list[Array]:
    """The results of a function's program, to be transformed."""
    if function.in_line:
        return _in_line(function, flat)
    return program_p.bind(*function.held(flat), *flat, function=function)


def _in_line(function: Function, flat: Sequence[Array]) -> list[Array]:
    """Step after step, so that JAX sees effects and devices; derivatives are those of the function as it was traced."""
    inline = jax.custom_jvp(lambda *flat: function.evaluate(*function.held(flat), *flat))
    inline.defjvp(lambda primals, tangents: jax.jvp(function.plain, primals, tangents))
    return list(inline(*flat))


@program_p.def_impl
def _run(*operands: Array, function: Function) -> list[Array]:
    return function.plain(*operands) if function.program is None else function.program.apart(*function.split(operands))


@program_p.def_abstract_eval
def _types(*_: Any, function: Function) -> list[Any]:
    return list(function.closed.out_avals)


def _differentiate(primals: Sequence[Array], tangents: Sequence[Any], *, function: Function) -> tuple[list[Array], list[Any]]:
    _, flat = function.split(primals)
    _, tangents = function.split(tangents)
    moving = tuple(not isinstance(t, ad.Zero) and t.dtype != jax.dtypes.float0 for t in tangents)
    first = len(flat) - function.linear
    if function.linear and not any(moving[:first]):  # linear in all that moves: its derivative is itself
        results = apply(function, flat)
        changes = [ad.instantiate_zeros(t) for t in tangents[first:]]
        return results, apply(function, [*flat[:first], *changes]) if any(moving) else _zeros(results)
    if not any(moving):
        results = apply(function, flat)
        return results, _zeros(results)
    forward, derivative = function.linearized(moving)
    everything = apply(forward, flat)
    count = len(function.closed.out_avals)
    changes = apply(derivative, [*everything[count:], *_where(tangents, moving)])
    out = _zeros(everything[:count])
    for n, change in zip(function.differentiable, changes, strict=True):
        out[n] = change
    return everything[:count], out


def _zeros(results: Sequence[Array]) -> list[Any]:
    return [ad.Zero(jax.typeof(r).to_tangent_aval()) for r in results]


def _transpose(cotangents: Sequence[Any], *operands: Any, function: Function) -> list[Any]:
    held, flat = function.split(operands)
    unknown = tuple(ad.is_undefined_primal(x) for x in flat)
    given = tuple(not isinstance(c, ad.Zero) for c in cotangents)
    if not any(given):
        return [None] * len(operands)
    known = [x for x, u in zip(flat, unknown, strict=True) if not u]
    found = iter(apply(function.transposed(unknown, given), [*known, *_where(cotangents, given)]))
    return [*[None] * len(held), *(next(found) if u else None for u in unknown)]


def _batch(operands: Sequence[Array], dims: Sequence[Any], *, function: Function) -> tuple[list[Array], list[int]]:
    size = next(x.shape[d] for x, d in zip(operands, dims, strict=True) if d is not None)
    results = apply(function.batched(tuple(function.split(dims)[1]), size), function.split(operands)[1])
    return results, [0] * len(results)


def _evaluated(*operands: Array, function: Function) -> list[Array]:
    return function.evaluate(*operands)


ad.primitive_jvps[program_p] = _differentiate
ad.primitive_transposes[program_p] = _transpose
batching.primitive_batchers[program_p] = _batch
mlir.register_lowering(program_p, mlir.lower_fun(_evaluated, multiple_results=True))
