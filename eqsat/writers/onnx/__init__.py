"""Programs as ONNX models: the plan, traced, one primitive after the other."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

try:
    import onnx
except ImportError as error:
    raise ImportError("to_onnx: the package onnx required, got none; pip install 'eqsat[onnx]'") from error

from onnx import helper

from eqsat.graph import Graph, Literal, Variable, trace
from eqsat.names import Namer
from eqsat.places import file_to_write
from eqsat.writers.onnx import contractions, elementwise, views  # noqa: F401  (each fills the table)
from eqsat.writers.onnx.graph import IR_VERSION, OPSET, TABLE, Builder, Lacking, Value, code, declared
from eqsat.writers.plan import function_of, input_names, output_names, specs_of

if TYPE_CHECKING:
    from eqsat.program import Program

LARGE_BYTES = 1 << 30  # of constants; a file of the format itself ends at twice that


def model(program: Program) -> Any:
    """The program as an `onnx.ModelProto` of opset 20; inputs and outputs keep their names.

    Raises ValueError that lists everything ONNX has no words for.
    """
    graph = trace(function_of(program), specs_of(program), {})
    return _written(program.name, graph, input_names(program), output_names(program), _constant_names(program))


def model_of_graph(graph: Graph) -> Any:
    """A graph as it was loaded, nothing rewritten; otherwise as `model`."""
    inputs = [graph.name_of[v] for v in graph.inputs]
    fresh = Namer(inputs)
    outputs = [fresh(graph.name_of[v] if isinstance(v, Variable) else "output") for v in graph.outputs]
    return _written(graph.name, graph, inputs, outputs, [])


def _written(name: str, graph: Graph, inputs: list[str], outputs: list[str], constant_names: Sequence[tuple[str, Any]]) -> Any:
    builder = Builder([*inputs, *outputs])
    values: dict[Variable, Value] = {}
    lacking: dict[str, int] = {}

    def attempt(make: Any) -> Any:
        try:
            return make()
        except Lacking as reason:
            lacking[str(reason)] = lacking.get(str(reason), 0) + 1
            return None

    for given, v in zip(inputs, graph.inputs, strict=True):
        values[v] = Value(given, v.shape, np.dtype(v.aval.dtype))
        attempt(lambda v=v: code(v.aval.dtype))
    known = {id(value): constant for constant, value in constant_names}
    for v, constant in graph.constants.items():
        array = np.asarray(constant)
        label = known.get(id(constant), "")
        values[v] = attempt(lambda a=array, n=label: builder.constant(a, name=n)) or Value("", v.shape, np.dtype(v.aval.dtype))
    for equation in graph.equations:
        made = attempt(lambda e=equation: _nodes(builder, e, values))
        for n, v in enumerate(equation.outputs):
            values[v] = made[n] if made else Value("", v.shape, np.dtype(v.aval.dtype))
    if lacking:
        listed = "; ".join(f"{reason} ({n} times)" if n > 1 else reason for reason, n in lacking.items())
        raise ValueError(f"{name}: a program that ONNX can hold required, got {listed}")
    return _model(name, graph, builder, values, inputs, outputs)


def _constant_names(program: Program) -> list[tuple[str, Any]]:
    return [(t.name, value) for t, value in program.constants.items()]


def _operand(builder: Builder, atom: Variable | Literal, values: dict[Variable, Value]) -> Value:
    return builder.constant(np.asarray(atom.value)) if isinstance(atom, Literal) else values[atom]


def _nodes(builder: Builder, equation: Any, values: dict[Variable, Value]) -> list[Value]:
    write = TABLE.get(equation.name)
    if write is None:
        raise Lacking(f"the operation {equation.name}")
    made = write(builder, equation, *(_operand(builder, x, values) for x in equation.inputs))
    made = made if isinstance(made, list) else [made]
    for v, value in zip(equation.outputs, made, strict=True):
        assert (value.shape, value.dtype) == (v.shape, np.dtype(v.aval.dtype)), f"{equation.name}: {value} for {v.type}"
    return made


def _model(
    name: str, graph: Graph, builder: Builder, values: dict[Variable, Value], inputs: list[str], outputs: list[str]
) -> Any:
    for output, atom in zip(outputs, graph.outputs, strict=True):
        value = _operand(builder, atom, values)
        builder.nodes.append(helper.make_node("Identity", [value.name], [output]))
    made = helper.make_graph(
        builder.nodes,
        name,
        [declared(n, v) for n, v in zip(inputs, graph.inputs, strict=True)],
        [declared(n, v) for n, v in zip(outputs, graph.outputs, strict=True)],
        [proto for proto, _ in builder.initial.values()],
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="eqsat")


def save(program: Program, path: str | PathLike[str]) -> Any:
    """Write the model and return it; large ones with their constants in a file beside it, `<name>.data`."""
    place = file_to_write(f"{program.name} as ONNX", path)
    made = model(program)
    if sum(len(t.raw_data) for t in made.graph.initializer) <= LARGE_BYTES:
        onnx.save(made, str(place))
        return made
    emptied = onnx.ModelProto()
    emptied.CopyFrom(made)  # saving takes the constants out
    onnx.save(emptied, str(place), save_as_external_data=True, location=f"{place.name}.data")
    return made
