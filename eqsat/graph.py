"""The program as JAX traces it, or as a networkx graph holds it: equations with names, constants and source lines.

Calls (jit, custom_jvp, custom_vjp, remat) are inlined and dead equations removed. Inlining a custom_vjp call drops its
derivative rule, so differentiate first: ``Graph.from_jax(jax.grad(f), x)``.

As a networkx graph (`to_networkx`) every node has

======== ==========================================================================================================
op       the primitive; or "input", "constant", "result" (of an operation with several), "output"
params   the primitive's parameters; {"index": n} for input, result and output; {"value": array} for a constant
shape    tuple of int, absent on operations with several results
dtype    name of the dtype, likewise
source   "file.py:12" or ""
======== ==========================================================================================================

and every edge has `positions`, the operand positions that it fills. A graph made by hand names functions of `jax.lax` as
`op`, may say `position=1` for one position or nothing for a single operand, and needs shape and dtype on inputs only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import jax
import jax.extend.core as jex
import numpy as np

from eqsat import control, names
from eqsat.expansion import expansion
from eqsat.misuse import unlike, untraceable

_WIDE = {"int64", "uint64", "float64", "complex128"}


_dtype_name = lru_cache(maxsize=1 << 8)(str)  # NumPy makes the name of a dtype anew each time


class Source(NamedTuple):
    """The line of the user's program that an equation comes from, and the function around it."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file.rsplit('/', 1)[-1]}:{self.line}"


@dataclass(frozen=True, eq=False)
class Variable:
    """The result of an equation, an input or a constant; compared by identity."""

    aval: Any

    @cached_property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.aval.shape)

    @cached_property
    def dtype(self) -> str:
        return _dtype_name(self.aval.dtype)

    @property
    def type(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True, eq=False)
class Literal:
    """A number written in the program."""

    value: np.ndarray
    aval: Any

    @cached_property
    def dtype(self) -> str:
        return _dtype_name(self.aval.dtype)


@dataclass(frozen=True, eq=False)
class Equation:
    """One primitive applied. `origin` is JAX's equation, kept so that evaluation binds exactly what was traced.

    One that holds programs is applied by `run` over its bodies, and has the parameters that this takes (`control.counted`).
    """

    primitive: Any
    params: Mapping[str, Any]
    inputs: tuple[Variable | Literal, ...]
    outputs: tuple[Variable, ...]
    source: Source | None
    transposed: bool  # belongs to a backward pass
    origin: Any
    bodies: tuple[Graph, ...] = ()  # the programs of a loop, a branch or a sharded part (`eqsat.control`)

    @property
    def name(self) -> str:
        return self.primitive.name

    def run(self, functions: Sequence[Callable[..., Any]], *values: Any) -> list[Any]:
        """As `bind`, with functions of flat arrays in place of the bodies; traceable."""
        return list(control.CONTROL[self.name].run(functions, values, **control.settings(self.name, self.params)))

    @property
    def trips(self) -> int | None:
        """How often the bodies run; None where values decide."""
        return control.trips(self.name, self.params)

    def bind(self, *values: Any) -> list[Any]:
        """Apply the primitive to values; traceable."""
        if self.bodies:  # they may have been changed
            return self.run([body.evaluate for body in self.bodies], *values)
        params = self.primitive.get_bind_params(dict(self.params))
        if isinstance(params, tuple):
            functions, params = params
            values = (*functions, *values)
        with self.origin.ctx.manager:
            result = self.primitive.bind(*values, **params)
        return list(result) if self.primitive.multiple_results else [result]


@dataclass(frozen=True, eq=False)
class Graph:
    """A straight-line program: equations from inputs and constants to outputs."""

    name: str
    inputs: tuple[Variable, ...]
    constants: Mapping[Variable, Any]
    equations: tuple[Equation, ...]
    outputs: tuple[Variable | Literal, ...]
    in_tree: Any
    out_tree: Any
    argument_leaves: tuple[tuple[int, ...], ...]  # per positional argument, its flat inputs
    keyword_leaves: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    hints: Mapping[Variable, str] = field(default_factory=dict)  # names wanted for variables
    closed: Any = None  # as JAX traced it, calls not inlined

    @staticmethod
    def from_jax(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Graph:
        """Trace `fn` for arguments that are arrays, `jax.ShapeDtypeStruct`s, or pytrees of them."""
        if not callable(fn):
            raise TypeError(f"Graph.from_jax: a function is required, got {type(fn).__name__}; pass the function, not its result")
        try:
            return trace(fn, args, kwargs)
        except Exception as error:
            raise untraceable(fn, error, args, kwargs) from error

    @staticmethod
    def from_onnx(
        source: Any,
        *,
        inputs: Mapping[str, Any] | None = None,
        dims: Mapping[str, int] | None = None,
        constants: Mapping[str, Any] | None = None,
    ) -> Graph:
        """Import an ONNX model, given by path or as `onnx.ModelProto`; options as in `eqsat.frontends.onnx.read`."""
        from eqsat.frontends import look

        look("onnx", source)
        from eqsat.frontends import onnx

        return onnx.read(source, inputs=inputs, dims=dims, constants=constants)

    @staticmethod
    def from_torch(
        source: Any, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None, *, mutations: bool = False
    ) -> Graph:
        """Import a `torch.nn.Module` or `torch.export.ExportedProgram` for example inputs; as in `eqsat.frontends.torch.read`."""
        from eqsat.frontends import torch

        return torch.read(source, args, kwargs, mutations=mutations)

    @staticmethod
    def from_stablehlo(source: Any, *, shapes: Mapping[str, Any] | None = None) -> Graph:
        """Import a StableHLO module: text, bytes, a path, or a `jax.export.Exported`; see `eqsat.frontends.stablehlo.read`."""
        from eqsat.frontends import stablehlo

        return stablehlo.read(source, shapes=shapes)

    @staticmethod
    def from_tensorflow(source: Any, *args: Any, signature: str = "serving_default", **kwargs: Any) -> Graph:
        """Import a TensorFlow function, a Keras model or a SavedModel's folder; as in `eqsat.frontends.tensorflow.read`."""
        from eqsat.frontends import look

        look("tensorflow", source)
        from eqsat.frontends import tensorflow

        return tensorflow.read(source, args, kwargs, signature=signature)

    @staticmethod
    def from_networkx(graph: Any) -> Graph:
        """Build from a directed graph of operations; the module describes its attributes."""
        from eqsat import networks

        return networks.read(graph)

    def to_networkx(self) -> Any:
        """The program as a `networkx.DiGraph`; the module describes its attributes."""
        from eqsat import networks

        return networks.written(self)

    def summary(self) -> Any:
        """Counts by operation, calls of JAX and why, constants and their size, symbolic sizes; prints as text."""
        from eqsat.summary import summary

        return summary(self)

    @cached_property
    def name_of(self) -> Mapping[Variable, str]:
        """A unique, valid identifier for each variable."""
        return names.assign(self)

    @cached_property
    def wide(self) -> bool:
        """True if a value has 64-bit numbers, which JAX has only in its 64-bit mode."""
        made = (v for e in self.equations for v in e.outputs)
        return any(str(getattr(v.aval, "dtype", "")) in _WIDE for v in (*self.inputs, *self.constants, *made, *self.outputs))

    def mode(self) -> AbstractContextManager[Any]:
        """JAX's 64-bit mode if the program needs it; to run it in."""
        return jax.enable_x64(True) if self.wide else nullcontext()

    def in_mode(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, run in that mode."""

        def run(*args: Any, **kwargs: Any) -> Any:
            with self.mode():
                return function(*args, **kwargs)

        return run

    def evaluate(self, *flat: Any) -> list[Any]:
        """The outputs for flat arguments, one equation after the other; traceable."""
        if len(flat) != len(self.inputs):
            raise TypeError(f"{self.name}: takes {len(self.inputs)} flat arguments, got {len(flat)}")
        with self.mode():
            return self._evaluate(flat)

    def _evaluate(self, flat: Sequence[Any]) -> list[Any]:
        known: dict[Any, Any] = {**self.constants, **dict(zip(self.inputs, flat, strict=True))}

        def value(atom: Variable | Literal) -> Any:
            return atom.value if isinstance(atom, Literal) else known[atom]

        for equation in self.equations:
            known.update(zip(equation.outputs, equation.bind(*map(value, equation.inputs)), strict=True))
        return [value(atom) for atom in self.outputs]

    @cached_property
    def jaxpr(self) -> Any:
        """The function of flat arrays as JAX traced it, with the derivative rules of its calls."""
        closed = self.closed  # of a graph with fewer outputs than were traced, it is another function
        if closed is not None and (len(closed.in_avals), len(closed.out_avals)) == (len(self.inputs), len(self.outputs)):
            return self.closed
        return jax.make_jaxpr(self.evaluate)(*(jax.ShapeDtypeStruct(v.shape, v.aval.dtype) for v in self.inputs))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function, evaluated one equation after the other."""
        leaves, tree = jax.tree_util.tree_flatten((args, kwargs))
        if tree != self.in_tree:
            raise TypeError(f"{self.name}: {unlike(self.name, self.in_tree, tree)}; trace it again for these")
        return jax.tree_util.tree_unflatten(self.out_tree, self.evaluate(*leaves))

    def spell(self, atom: Variable | Literal) -> str:
        """A variable's name or a literal's value."""
        return str(atom.value) if isinstance(atom, Literal) else self.name_of[atom]

    def __str__(self) -> str:
        arguments = [f"{self.name_of[v]}: {v.type}" for v in self.inputs]
        lines = [f"{self.name}({', '.join(arguments)})"]
        lines += [f"  {self.name_of[v]}: {v.type} = constant" for v in self.constants]
        lines += [f"  {line}" for equation in self.equations for line in _spelled(self, equation)]
        return "\n".join([*lines, f"  return {', '.join(map(self.spell, self.outputs))}"])


def _spelled(graph: Graph, equation: Equation) -> list[str]:
    results = ", ".join(f"{graph.name_of[v]}: {v.type}" for v in equation.outputs)
    text = f"{results} = {equation.name}({', '.join(map(graph.spell, equation.inputs))})"
    parts = control.parts(equation.name, len(equation.bodies)) if equation.bodies else []
    bodies = [f"  {part} {line}" for part, body in zip(parts, equation.bodies, strict=True) for line in [_indented(body)]]
    return [f"{text}   # {equation.source}" if equation.source else text, *bodies]


def _indented(body: Graph) -> str:
    return str(body).replace("\n", "\n    ")


@dataclass(frozen=True)
class Static:
    """An argument, or a leaf of one, that the function takes as it is."""

    value: Any


# --- tracing ----------------------------------------------------------------------------------------------------


def trace(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Graph:
    """The graph of a function; errors are those of the function and of JAX. A `Static` leaf of the arguments is no input."""
    leaves, in_tree = jax.tree_util.tree_flatten_with_path((tuple(args), dict(kwargs)))
    paths = [(path, leaf) for path, leaf in leaves if not isinstance(leaf, Static)]
    structure: list[Any] = []

    def flat(*values: Any) -> list[Any]:
        given = iter(values)
        every = [leaf.value if isinstance(leaf, Static) else next(given) for _, leaf in leaves]
        args, kwargs = jax.tree_util.tree_unflatten(in_tree, every)
        results, tree = jax.tree_util.tree_flatten(fn(*args, **kwargs))
        arrays = (hasattr(r, "dtype") or hasattr(r, "__jax_array__") or isinstance(r, int | float | complex) for r in results)
        if other := [type(r).__name__ for r, array in zip(results, arrays, strict=True) if not array]:
            raise TypeError(f"a result of type {other[0]}, which is no array")
        structure.append(tree)
        return results

    closed = jax.make_jaxpr(flat)(*(leaf for _, leaf in paths))
    inputs, constants, equations, outputs = _Inliner().program(closed)
    parameters = names.parameters_of(fn, len(args))
    hints = dict(zip(inputs, (names.path_name(path, parameters) for path, _ in paths), strict=True))
    hints |= {v: hint for v, value in constants.items() if (hint := names.closure_name(fn, value))}
    where = [tuple(getattr(key, "idx", getattr(key, "key", None)) for key in path[:2]) for path, _ in paths]
    positional = tuple(tuple(i for i, w in enumerate(where) if w == (0, a)) for a in range(len(args)))
    keyword = {k: tuple(i for i, w in enumerate(where) if w == (1, k)) for k in kwargs}
    name = names.function_name(fn)
    return pruned(Graph(name, inputs, constants, equations, outputs, in_tree, structure[-1], positional, keyword, hints, closed))


# Calls whose body is inlined, with the parameter that holds the body.
_INLINED = {
    "jit": ("jaxpr",),
    "pjit": ("jaxpr",),
    "custom_jvp_call": ("call_jaxpr",),
    "custom_vjp_call": ("call_jaxpr", "fun_jaxpr"),
    "custom_vjp_call_jaxpr": ("fun_jaxpr", "call_jaxpr"),
    "remat": ("jaxpr",),
    "remat2": ("jaxpr",),
    "remat3": ("jaxpr",),
    "checkpoint": ("jaxpr",),
    "closed_call": ("call_jaxpr",),
    "core_call": ("call_jaxpr",),
    "core_closed_call": ("call_jaxpr",),
}


class _Inliner:
    """Copies a jaxpr into fresh variables, with the bodies of calls in their place."""

    def __init__(self) -> None:
        self.equations: list[Equation] = []
        self.constants: dict[Variable, Any] = {}
        self._constant_of: dict[int, Variable] = {}
        self._bodies: dict[int, Graph] = {}
        self._wrapped: dict[Any, Any] = {}  # random keys, and the data that they were made of

    def program(self, closed: Any) -> tuple[tuple[Variable, ...], dict[Variable, Any], tuple[Equation, ...], tuple[Any, ...]]:
        jaxpr = closed.jaxpr
        inputs = tuple(Variable(v.aval) for v in jaxpr.invars)
        outputs = self.body(jaxpr, closed.consts, inputs, None)
        return inputs, self.constants, tuple(self.equations), tuple(outputs)

    def body(
        self, jaxpr: Any, consts: Sequence[Any], inputs: Sequence[Any], caller: tuple[Source | None, bool] | None
    ) -> list[Any]:
        """Append a jaxpr's equations. `caller` overrides their source: the body is JAX's own code."""
        known: dict[Any, Any] = dict(
            zip(jaxpr.constvars, (self.constant(c, v.aval) for c, v in zip(consts, jaxpr.constvars, strict=True)), strict=True)
        )
        known.update(zip(jaxpr.invars, inputs, strict=True))

        def atom(v: Any) -> Any:
            return self.literal(v) if isinstance(v, jex.Literal) else known[v]

        for equation in jaxpr.eqns:
            operands = tuple(atom(v) for v in equation.invars)
            known.update(zip(equation.outvars, self.equation(equation, operands, caller), strict=True))
        return [atom(v) for v in jaxpr.outvars]

    def equation(self, equation: Any, operands: tuple[Any, ...], caller: tuple[Source | None, bool] | None) -> Sequence[Any]:
        source, transposed = caller or (None, False)
        source = source or names.source_of(equation)
        transposed = transposed or "transpose(" in str(getattr(equation.source_info, "name_stack", ""))
        for parameter in _INLINED.get(equation.primitive.name, ()):
            body = equation.params.get(parameter)
            if body is not None and len(body.jaxpr.invars if hasattr(body, "jaxpr") else body.invars) == len(operands):
                jaxpr = getattr(body, "jaxpr", body)
                inherited = (source if names.is_library_code(jaxpr) else None, transposed)
                return self.body(jaxpr, getattr(body, "consts", ()), operands, inherited)
        if equation.primitive.name == "platform_index" and None in equation.params["platforms"]:
            default = np.asarray(equation.params["platforms"].index(None), np.int32)
            return [Literal(default, equation.outvars[0].aval)]
        if equation.primitive.name == "cond" and isinstance(operands[0], Literal):  # as that of a platform
            branches = equation.params["branches"]
            taken = branches[min(max(int(operands[0].value), 0), len(branches) - 1)]
            return self.body(taken.jaxpr, taken.consts, operands[1:], (source, transposed))
        if equation.primitive.name == "random_unwrap" and operands[0] in self._wrapped:
            return [self._wrapped[operands[0]]]
        if (function := expansion(equation)) is not None:
            traced = jax.make_jaxpr(function)(*(v.aval for v in equation.invars))
            return self.body(traced.jaxpr, traced.consts, operands, (source, transposed))
        outputs = tuple(Variable(v.aval) for v in equation.outvars)
        params = control.counted(equation.params)
        bodies = self.bodies(equation.primitive.name, params)
        params = params if bodies else equation.params
        if equation.primitive.name == "random_wrap":
            self._wrapped[outputs[0]] = operands[0]
        self.equations.append(Equation(equation.primitive, params, operands, outputs, source, transposed, equation, bodies))
        return outputs

    def bodies(self, name: str, params: Mapping[str, Any]) -> tuple[Graph, ...]:
        """The programs that an equation holds; one that several equations hold is one graph."""
        held = control.jaxprs(name, params)
        words = control.parts(name, len(held)) if held else []
        for jaxpr, word in zip(held, words, strict=True):
            if id(jaxpr) not in self._bodies:
                self._bodies[id(jaxpr)] = from_jaxpr(jaxpr, names.jaxpr_name(jaxpr, word))
        return tuple(self._bodies[id(jaxpr)] for jaxpr in held)

    def constant(self, value: Any, aval: Any) -> Variable:
        """One variable for each closed-over array, however many calls close over it."""
        if id(value) not in self._constant_of:
            variable = self._constant_of[id(value)] = Variable(aval)
            self.constants[variable] = value
        return self._constant_of[id(value)]

    def literal(self, literal: Any) -> Variable | Literal:
        value = np.asarray(literal.val, dtype=getattr(literal.aval, "dtype", None))
        return Literal(value, literal.aval) if value.ndim == 0 else self.constant(literal.val, literal.aval)


def from_jaxpr(jaxpr: Any, name: str) -> Graph:
    """The graph of a traced function of flat arrays; `jaxpr` may be closed or open."""
    closed = jaxpr if hasattr(jaxpr, "jaxpr") else jex.ClosedJaxpr(jaxpr, ())
    inputs, constants, equations, outputs = _Inliner().program(closed)
    in_tree = jax.tree_util.tree_structure(((0,) * len(inputs), {}))
    out_tree = jax.tree_util.tree_structure([0] * len(outputs))
    leaves = tuple((n,) for n in range(len(inputs)))
    hints = dict(zip(reversed(inputs), reversed(names.jaxpr_arguments(closed)), strict=False))
    return pruned(Graph(name, inputs, constants, equations, outputs, in_tree, out_tree, leaves, {}, hints, closed))


def lifted(graph: Graph) -> tuple[list[Any], Graph]:
    """Values of an outer trace that a traced function closes over, and its graph with them as its first inputs."""
    closed = graph.jaxpr
    captured = [c for c in closed.consts if isinstance(c, jax.core.Tracer)]
    if not captured:
        return [], graph

    def function(*operands: Any) -> list[Any]:
        given = iter(operands)
        consts = [next(given) if isinstance(c, jax.core.Tracer) else c for c in closed.consts]
        return jax.core.eval_jaxpr(closed.jaxpr, consts, *given)

    inputs = [
        jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in (*map(jax.typeof, captured), *closed.in_avals)
    ]
    return captured, replace(from_jaxpr(jax.make_jaxpr(function)(*inputs), graph.name), out_tree=graph.out_tree)


def pruned(graph: Graph) -> Graph:
    """Without equations and constants that no output or effect needs."""
    needed: set[Any] = set(graph.outputs)
    kept: list[Equation] = []
    for equation in reversed(graph.equations):
        if equation.origin.effects or not needed.isdisjoint(equation.outputs):
            kept.append(equation)
            needed.update(equation.inputs)
    constants = {v: c for v, c in graph.constants.items() if v in needed}
    return replace(graph, constants=constants, equations=tuple(reversed(kept)))
