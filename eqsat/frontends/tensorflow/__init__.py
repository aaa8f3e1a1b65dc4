"""TensorFlow functions and SavedModels as graphs: TensorFlow's own compiler writes StableHLO, and that is read.

Shapes are static: `tf.function`s are compiled for the example arguments. Variables become constants. Strings, hash tables and
other things that XLA does not compile are refused by TensorFlow, with its reason.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

try:
    import tensorflow as tf
except ImportError as error:
    raise ImportError(
        "Graph.from_tensorflow: the package tensorflow required, got none; pip install 'eqsat[tensorflow]'"
    ) from error

from eqsat import names
from eqsat.frontends import FILES
from eqsat.frontends.stablehlo import read as read_stablehlo
from eqsat.graph import Graph, Variable, pruned
from eqsat.places import there

__all__ = ["TensorflowError", "read"]


class TensorflowError(ValueError):
    """A function that cannot be imported, and why."""


def read(source: Any, args: Sequence[Any], kwargs: Mapping[str, Any], *, signature: str = "serving_default") -> Graph:
    """The graph of a function.

    source: a `tf.function`, any callable that TensorFlow traces (a Keras model), or the path of a SavedModel's folder.
    args, kwargs: example arguments: arrays, `jax.ShapeDtypeStruct`s or `tf.TensorSpec`s, or nests of them. A SavedModel's
    signature takes keywords, and needs only those whose shapes it leaves open.
    signature: which function of a SavedModel.

    Raises `TensorflowError`, a ValueError.
    """
    if isinstance(source, str | os.PathLike):
        function, name, kwargs = _saved(Path(source), signature, kwargs)
    else:
        function, name = source, names.function_name(getattr(source, "python_function", source))
    if not callable(function):
        raise TypeError(f"Graph.from_tensorflow: a function or a folder required, got {type(source).__name__}")
    leaves, tree = jax.tree_util.tree_flatten((tuple(args), dict(kwargs)), is_leaf=lambda x: isinstance(x, tf.TensorSpec))
    specs = [_spec(x, name) for x in leaves]

    def flat(*values: Any) -> Any:
        given, named = jax.tree_util.tree_unflatten(tree, values)
        return function(*given, **named)

    try:
        compiled = tf.function(flat, jit_compile=True, autograph=False)
        concrete = compiled.get_concrete_function(*specs)
        text = compiled.experimental_get_compiler_ir(*specs)(stage="stablehlo")
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise TensorflowError(
            f"{name}: a function that TensorFlow compiles required, got {type(error).__name__}: {reason}"
        ) from error
    paths, _ = jax.tree_util.tree_flatten_with_path(jax.tree_util.tree_unflatten(tree, range(len(leaves))))
    parameters = names.parameters_of(function, len(args))
    labels = [names.identifier(names.path_name(path, parameters)) for path, _ in paths]
    return _bound(read_stablehlo(text), concrete, name, labels, tree)


@contextmanager
def _slots() -> Iterator[None]:
    """Loads models saved with an optimiser of Keras 2, whose class has a method that TensorFlow's stand-in for it lacks."""
    kind = tf.__internal__.tracking.AutoTrackable
    if hasattr(kind, "add_slot"):
        yield
        return
    kind.add_slot = lambda self, var, slot_name: tf.Variable(tf.zeros_like(var))  # what training kept; nothing here reads it
    try:
        yield
    finally:
        del kind.add_slot


def _saved(path: Path, signature: str, kwargs: Mapping[str, Any]) -> tuple[Any, str, dict[str, Any]]:
    """A SavedModel's function, and its arguments: those given, the others as the model declares them."""
    there(path, *FILES["tensorflow"])
    try:
        with _slots():
            loaded = tf.saved_model.load(str(path))
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise TensorflowError(f"{path.name}: a SavedModel required, got one that fails to load: {reason}") from error
    if signature not in loaded.signatures:
        raise TensorflowError(f"{path.name}: a signature among {sorted(loaded.signatures)} required, got {signature!r}")
    function = loaded.signatures[signature]
    declared = function.structured_input_signature[1]
    if unknown := sorted(set(kwargs) - set(declared)):
        raise TensorflowError(f"{path.name}: arguments among {sorted(declared)} required, got {unknown[0]!r}")
    function._eqsat_owner = loaded  # the variables live as long as the model
    return function, names.identifier(path.name), {**declared, **kwargs}


def _spec(value: Any, name: str) -> Any:
    shape, dtype = getattr(value, "shape", np.shape(value)), getattr(value, "dtype", None)
    spec = tf.TensorSpec(shape, tf.as_dtype(dtype if dtype is not None else np.asarray(value).dtype))
    if not spec.shape.is_fully_defined():
        raise TensorflowError(f"{name}: arguments of static shape required, got {spec.shape}; pass shapes or arrays")
    return spec


def _bound(graph: Graph, concrete: Any, name: str, labels: Sequence[str], tree: Any) -> Graph:
    """The graph of the arguments alone: what the function captures is constant."""
    captured = [_value(concrete, c) for c in concrete.captured_inputs]
    count = len(labels)
    if len(graph.inputs) != count + len(captured):
        raise TensorflowError(
            f"{name}: {count} arguments and {len(captured)} variables required in what TensorFlow wrote, got {len(graph.inputs)}"
        )
    known = [*labels, *(names.identifier(n.rsplit(":", 1)[0]) for _, n in captured)]
    hints = {**graph.hints, **dict(zip(graph.inputs, known, strict=True))}
    constants: dict[Variable, Any] = dict(graph.constants)
    for v, (value, _) in zip(graph.inputs[count:], captured, strict=True):
        constants[v] = value
    paths, _ = jax.tree_util.tree_flatten_with_path(jax.tree_util.tree_unflatten(tree, range(count)))
    where = [tuple(getattr(key, "idx", getattr(key, "key", None)) for key in path[:2]) for path, _ in paths]
    given, named = jax.tree_util.tree_unflatten(tree, range(count))
    return pruned(
        replace(
            graph,
            name=name,
            inputs=graph.inputs[:count],
            constants=constants,
            hints=hints,
            in_tree=tree,
            out_tree=_out_tree(concrete, graph),
            argument_leaves=tuple(tuple(i for i, w in enumerate(where) if w == (0, a)) for a in range(len(given))),
            keyword_leaves={k: tuple(i for i, w in enumerate(where) if w == (1, k)) for k in named},
        )
    )


def _value(concrete: Any, captured: Any) -> tuple[np.ndarray, str]:
    """A captured variable's value, or a captured constant's, with its name."""
    if captured.dtype == tf.resource:
        variable = next(v for v in concrete.graph.variables if v.handle is captured)
        return variable.numpy(), variable.name
    return captured.numpy(), "captured"


def _out_tree(concrete: Any, graph: Graph) -> Any:
    tree: Any = jax.tree_util.tree_structure(concrete.structured_outputs)
    return tree if tree.num_leaves == len(graph.outputs) else graph.out_tree
