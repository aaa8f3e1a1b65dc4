"""What torch.export makes of a module: a functional graph of ATen operators, with a signature that says what is what."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import torch
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind
from torch.utils import _pytree as pytree

from eqsat import names
from eqsat.frontends.torch.interpreter import op_name
from eqsat.frontends.torch.random import DECOMPOSED, KEPT
from eqsat.frontends.torch.table import TABLE, TorchError, Unsupported
from eqsat.frontends.torch.tensors import array_of

TENSORS = {InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR}
WRITES = {OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION, OutputKind.USER_INPUT_MUTATION}


def decompositions() -> dict[Any, Any]:
    """How torch decomposes operators that have no row, into what is equal and draws the same random numbers."""
    known = {**torch._decomp.decomposition_table, **torch.export.default_decompositions(), **DECOMPOSED}
    return {target: rule for target, rule in known.items() if op_name(target) not in TABLE.keys() | KEPT}


@dataclass(frozen=True, eq=False)
class Exported:
    """An exported program with example inputs. Arguments without tensors are bound: they are in `fixed`, not in `kwargs`."""

    name: str
    program: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    fixed: dict[str, Any]

    @property
    def module(self) -> Any:
        return self.program.graph_module

    @property
    def mutated(self) -> list[str]:
        return [str(s.target) for s in self.program.graph_signature.output_specs if s.kind in WRITES]

    def constants(self) -> dict[str, Any]:
        """Copies of parameters, buffers and other tensors by name; tied ones are one array."""
        arrays: dict[Any, Any] = {}
        found = {}
        for spec in self.program.graph_signature.input_specs:
            if spec.kind in TENSORS:
                held = self.program.state_dict if spec.target in self.program.state_dict else self.program.constants
                tensor = held[spec.target]
                place = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
                found[spec.target] = arrays.setdefault(place, array_of(tensor, copy=True) if place not in arrays else None)
        return found

    @cached_property
    def input_names(self) -> Any:
        """The arguments with the names of their placeholders in place of tensors."""
        specs = [s for s in self.program.graph_signature.input_specs if s.kind == InputKind.USER_INPUT]
        leaves = [None if isinstance(s.arg, ConstantArgument) else s.arg.name for s in specs]
        args, kwargs = pytree.tree_unflatten(leaves, self.program.call_spec.in_spec)
        return tuple(args), {key: value for key, value in kwargs.items() if key in self.kwargs}

    @property
    def tensors(self) -> list[Any]:
        """What torch knows of the tensors that a call gives, with symbols as dynamic sizes."""
        known = {n.name: n.meta["val"] for n in self.module.graph.nodes if n.op == "placeholder"}
        return [known[name] for name in jax.tree_util.tree_leaves(self.input_names)]

    def placeholders(self, args: Sequence[Any], kwargs: Mapping[str, Any], constants: Mapping[str, Any]) -> list[Any]:
        """A value for each placeholder of the graph. The keys of dictionaries may come in another order than at export."""
        leaves = iter(self.program.call_spec.in_spec.flatten_up_to((tuple(args), {**kwargs, **self.fixed})))
        values = []
        for spec in self.program.graph_signature.input_specs:
            if spec.kind in TENSORS:
                values.append(constants[spec.target])
            elif spec.kind == InputKind.USER_INPUT:
                values.append(next(leaves))
            else:
                raise Unsupported(f"{self.name}: tensors and numbers required as inputs, got {spec.kind.name} {spec.target!r}")
        return values

    def results(self, outputs: Sequence[Any]) -> tuple[Any, dict[str, Any]]:
        """The module's results, and what it writes by name."""
        specs = self.program.graph_signature.output_specs
        own = [v for v, s in zip(outputs, specs, strict=True) if s.kind == OutputKind.USER_OUTPUT]
        written = {str(s.target): v for v, s in zip(outputs, specs, strict=True) if s.kind in WRITES}
        return plain(pytree.tree_unflatten(own, self.program.call_spec.out_spec)), written


def plain(value: Any) -> Any:
    """Mappings of other libraries (a model's output of transformers) as dictionaries."""
    if isinstance(value, Mapping):
        fields = {key: plain(v) for key, v in value.items()}
        return OrderedDict(fields) if type(value) is OrderedDict else fields
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(plain, value))
    return type(value)(map(plain, value)) if type(value) in (list, tuple) else value


def exported(source: Any, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> Exported:
    """Export a module for example inputs, or take an exported program; then decompose what has no row."""
    name = _name(source)
    if isinstance(source, torch.export.ExportedProgram):
        if args is None and kwargs is None and source.example_inputs is not None:
            args, kwargs = source.example_inputs
    elif not isinstance(source, torch.nn.Module):
        raise TypeError(
            f"Graph.from_torch: a torch.nn.Module or torch.export.ExportedProgram required, got {type(source).__name__}"
        )
    args, kwargs = tuple(args or ()), dict(kwargs or {})
    free = {key: value for key, value in kwargs.items() if any(map(_is_tensor, pytree.tree_leaves(value)))}
    fixed = {key: value for key, value in kwargs.items() if key not in free}
    for leaf in pytree.tree_leaves((args, free)):
        if leaf is not None and not _is_tensor(leaf):
            raise TypeError(
                f"{name}: tensors required as arguments, got {leaf!r}; pass it by keyword, or bind it in a module around this one"
            )
    program = source if isinstance(source, torch.export.ExportedProgram) else _export(source, name, args, kwargs)
    _check(program, name, args, {**free, **fixed})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Exported(name, program.run_decompositions(decompositions()), args, free, fixed)


def _export(module: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given = pytree.tree_map(_as_tensor, (args, kwargs))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.export.export(module, given[0], given[1] or None)
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        raise TorchError(f"{name}: a module that torch.export takes required, got {type(error).__name__}: {reason}") from error


def _check(program: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Example inputs must have the structure and the fixed sizes that the program was exported with."""
    expected = program.call_spec.in_spec
    try:
        leaves = expected.flatten_up_to((args, kwargs))
    except ValueError as error:
        stated = f"{len(expected.child(0).children())} positional and {list(expected.child(1).context)} by keyword"
        reason = str(error).split("\n")[0]
        raise TypeError(f"{name}: example arguments as exported required, {stated}; got others: {reason}") from error
    _check_sizes(program, name, leaves)


def _check_sizes(program: Any, name: str, leaves: Sequence[Any]) -> None:
    placeholders = {n.name: n.meta.get("val") for n in program.graph.nodes if n.op == "placeholder"}
    specs = [s for s in program.graph_signature.input_specs if s.kind == InputKind.USER_INPUT]
    for leaf, spec in zip(leaves, specs, strict=True):
        fake = None if isinstance(spec.arg, ConstantArgument) else placeholders[spec.arg.name]
        if not isinstance(fake, torch.Tensor):
            continue
        got, wanted = tuple(leaf.shape), tuple(fake.shape)
        sizes = [n for n in zip(got, wanted, strict=False) if isinstance(n[1], int) and n[0] != n[1]]
        if len(got) != len(wanted) or sizes or str(leaf.dtype).removeprefix("torch.") != str(fake.dtype).removeprefix("torch."):
            raise TypeError(
                f"{name}: input {spec.arg.name}: {fake.dtype}{list(map(str, wanted))} required, got {leaf.dtype}{list(got)}"
            )


def _is_tensor(leaf: Any) -> bool:
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def _as_tensor(leaf: Any) -> Any:
    """A tensor for whatever has a shape and a dtype; export reads no numbers."""
    if isinstance(leaf, torch.Tensor) or not _is_tensor(leaf):
        return leaf
    return torch.zeros(tuple(leaf.shape), dtype=getattr(torch, str(leaf.dtype)))


def _name(source: Any) -> str:
    if isinstance(source, torch.export.ExportedProgram):
        stacks = (n.meta.get("nn_module_stack") for n in source.graph.nodes)
        outermost = next((name for s in stacks if s for path, name in [next(iter(s.values()))] if not path), "exported")
        return names.identifier(str(getattr(outermost, "__name__", outermost)).rsplit(".", 1)[-1])
    return names.identifier(type(source).__name__)
