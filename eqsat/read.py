"""A program in index notation: one stored tensor per computing equation, views as index expressions, the rest as opaque calls.

Reading never fails. An equation without a row in `eqsat.primitives`, or whose row declines it, becomes a `Call` that JAX runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from eqsat.control import varying
from eqsat.graph import Equation, Graph, Literal, Variable
from eqsat.names import Namer
from eqsat.notation import Kernel, Stored, Tensor, Term, const, output_axes
from eqsat.primitives import TABLE, Opaque, Out, Row, View
from eqsat.scalars import DTYPES, is_integer
from eqsat.scatters import is_added, is_unordered

if TYPE_CHECKING:
    from eqsat.program import Program

# Above this many subterms a value computed from positions alone is stored like any other.
_LARGEST_POSITIONAL = 16


@dataclass(frozen=True, eq=False)
class Call:
    """An equation that JAX evaluates: `eqn.bind` on the values of `inputs` gives those of `outputs`.

    One that holds programs (a loop, a branch) is no opaque one: JAX runs it over the optimised `programs`, one for each of
    `eqn.bodies`.
    """

    name: str
    eqn: Equation
    inputs: tuple[Tensor | np.ndarray, ...]  # an array is a literal
    outputs: tuple[Tensor, ...]
    reason: str
    programs: tuple[Program, ...] = ()

    @property
    def opaque(self) -> bool:
        return not self.eqn.bodies

    def run(self, values: Sequence[Any]) -> list[Any]:
        """The results for the values of `inputs`; traceable."""
        values = varying(values, self.eqn.inputs)
        if not self.programs:
            return self.eqn.bind(*values)
        return self.eqn.run([program.inline for program in self.programs], *values)

    def __str__(self) -> str:
        operands = [x.name if isinstance(x, Tensor) else str(x) for x in self.inputs]
        return f"{', '.join(map(str, self.outputs))} = call {self.name}({', '.join(operands)})   # {self.reason}"


@dataclass(frozen=True, eq=False)
class Reading:
    """A program in index notation, in program order."""

    inputs: tuple[Tensor, ...]
    constants: Mapping[Tensor, Any]
    steps: tuple[Stored | Call, ...]
    outputs: tuple[Tensor, ...]
    views: int  # equations that became index expressions
    exact: bool = False  # its kernels are to be (see `Kernel`)

    @property
    def calls(self) -> tuple[Call, ...]:
        """The opaque calls."""
        return tuple(s for s in self.steps if isinstance(s, Call) and s.opaque)

    @property
    def opaque(self) -> int:
        return len(self.calls)

    def __str__(self) -> str:
        lines = [f"input {t}" for t in self.inputs] + [f"constant {t}" for t in self.constants]
        lines += [str(s) if isinstance(s, Call) else Kernel(s.name, (s,)).formula for s in self.steps]
        return "\n".join([*lines, f"return {', '.join(t.name for t in self.outputs)}"])


def read(graph: Graph, exact: bool = False) -> Reading:
    """The program of a graph in index notation; an `exact` one leaves to JAX what a kernel would add in no fixed order."""
    return _Reader(graph, exact).reading()


class _Reader:
    """Reads equations in order, keeping the value of every variable."""

    def __init__(self, graph: Graph, exact: bool) -> None:
        self.graph, self.exact = graph, exact
        self.names = Namer(graph.name_of.values())
        self.values: dict[Variable, View] = {}
        self.leaves: dict[Variable, Tensor] = {}  # tensors whose dtype or size has no terms
        self.stored: dict[tuple[Term, tuple[int, ...]], Tensor] = {}  # materialised views
        self.constants: dict[Tensor, Any] = {}
        self.steps: list[Stored | Call] = []
        self.views = 0

    def reading(self) -> Reading:
        inputs = tuple(self.leaf(v) for v in self.graph.inputs)
        for variable, value in self.graph.constants.items():
            self.constant(variable, value)
        for equation in self.graph.equations:
            self.equation(equation)
        outputs = tuple(self.output(atom, n) for n, atom in enumerate(self.graph.outputs))
        return Reading(inputs, self.constants, tuple(self.steps), outputs, self.views, self.exact)

    # --- values

    def leaf(self, variable: Variable) -> Tensor:
        """A tensor that is given: an input or the result of a call."""
        tensor = Tensor(self.graph.name_of[variable], variable.shape, variable.dtype)
        if unreadable(variable) is None:
            self.values[variable] = View.of(tensor)
        else:
            self.leaves[variable] = tensor
        return tensor

    def constant(self, variable: Variable, value: Any) -> None:
        if variable.shape == () and variable.dtype in DTYPES:
            self.values[variable] = literal(value, variable.dtype)
        else:
            self.constants[self.leaf(variable)] = value

    def view(self, atom: Variable | Literal) -> View:
        return literal(atom.value, atom.dtype) if isinstance(atom, Literal) else self.values[atom]

    def tensor(self, view: View, name: str) -> Tensor:
        """The tensor that holds a value, written first where there is none."""
        if view.tensor is not None:
            return view.tensor
        key = (view.term, view.shape)
        if key not in self.stored:
            self.stored[key] = self.store(view.term, view.shape, self.names(name))
        return self.stored[key]

    def store(self, term: Term, shape: tuple[int, ...], name: str) -> Stored:
        stored = Stored(name, shape, term.dtype, term, output_axes(shape))
        self.steps.append(stored)
        return stored

    # --- equations

    def equation(self, equation: Equation) -> None:
        row = TABLE.get(equation.name)
        try:
            if equation.bodies:
                raise Opaque("runs over its optimised bodies")
            if row is None:
                raise Opaque(f"{equation.name} has no reading")
            terms = self.terms(row, equation)
        except Opaque as reason:
            self.call(equation, str(reason))
            return
        keeps = row.view or all(map(is_index_expression, terms))
        self.views += keeps
        for variable, term in zip(equation.outputs, terms, strict=True):
            if keeps:
                self.values[variable] = View(term, variable.shape)
            else:
                self.values[variable] = View.of(self.store(term, variable.shape, self.graph.name_of[variable]))

    def terms(self, row: Row, equation: Equation) -> tuple[Term, ...]:
        """One term for each result; raises Opaque."""
        for atom in (*equation.inputs, *equation.outputs):
            if (reason := unreadable(atom)) is not None:
                raise Opaque(reason)
        if equation.origin.effects:
            raise Opaque("has effects")
        operands = [self.view(atom) for atom in equation.inputs]
        for n in row.loads:
            operands[n] = (
                operands[n]
                if operands[n].is_load
                else View.of(self.tensor(operands[n], f"{self.graph.name_of[equation.outputs[0]]}_from"))
            )
        outs = tuple(Out(v.shape, v.dtype) for v in equation.outputs)
        try:
            result = row.read(outs if row.results else outs[0], *operands, **equation.params)
        except Opaque:
            raise
        except TypeError as error:  # an operation that the tables do not have for this dtype
            raise Opaque(str(error)) from error
        except Exception as error:  # parameters of another JAX release
            raise Opaque(f"reading {equation.name} failed with {type(error).__name__}: {error}") from error
        terms = tuple(result) if row.results else (result,)
        for out, term in zip(outs, terms, strict=True):
            if term.dtype != out.dtype:
                raise Opaque(f"reads as {term.dtype}, JAX gives {out.dtype}")
            if self.exact and is_unordered(term, output_axes(out.shape)):
                raise Opaque("the exact tier adds floats in a fixed order")
            if self.exact and equation.name == "scatter-add" and is_added(term):
                raise Opaque("the exact tier keeps -0 where nothing is added")
        return terms

    def call(self, equation: Equation, reason: str) -> None:
        inputs = tuple(self.operand(atom) for atom in equation.inputs)
        outputs = tuple(self.leaf(v) for v in equation.outputs)
        self.steps.append(Call(equation.name, equation, inputs, outputs, reason))

    def operand(self, atom: Variable | Literal) -> Tensor | np.ndarray:
        if isinstance(atom, Literal):
            return atom.value
        return self.leaves[atom] if atom in self.leaves else self.tensor(self.values[atom], self.graph.name_of[atom] + "_stored")

    def output(self, atom: Variable | Literal, number: int) -> Tensor:
        if isinstance(atom, Variable) and atom in self.leaves:
            return self.leaves[atom]
        name = f"{self.graph.name_of[atom]}_stored" if isinstance(atom, Variable) else f"output_{number}"
        return self.tensor(self.view(atom), name)


def literal(value: Any, dtype: str) -> View:
    return View(const(np.asarray(value).item(), dtype), ())


def is_index_expression(term: Term) -> bool:
    """True for what needs no tensor: a load (padding with zeros, a sum over one element) or a value of positions."""
    return (term.head == "load" and not term.args) or is_positional(term)


def is_positional(term: Term) -> bool:
    """True for a small value computed from positions alone (a mask, a stride, a scalar): cheaper anew than loaded."""
    if term.axes and not (term.dtype == "bool" or is_integer(term.dtype)):
        return False
    within = enumerate(term.walk(), 1)
    return all(n <= _LARGEST_POSITIONAL and t.head not in ("load", "reduce", "online") for n, t in within)


def unreadable(atom: Variable | Literal) -> str | None:
    """Why a value has no terms, if so."""
    if atom.dtype not in DTYPES:
        return f"dtype {atom.dtype}"
    shape = atom.aval.shape
    if not all(isinstance(n, int) for n in shape):
        return "symbolic size"
    return "no elements" if 0 in shape else None
