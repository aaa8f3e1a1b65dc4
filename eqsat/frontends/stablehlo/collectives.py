"""Parts of a program that devices run each on its own piece, and what passes between them: Shardy's manual computations.

A manual computation becomes a `jax.shard_map` over JAX's first devices, in the order of the module's mesh. Inside, the groups of
devices of a collective are those along some of the mesh's axes.
"""

from __future__ import annotations

import itertools
import re
from typing import Any

import jax
import jax.extend.mlir.ir as ir
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from eqsat.frontends.stablehlo.bodies import single
from eqsat.frontends.stablehlo.table import Array, Node, Unsupported, op, operations

_NAME = re.compile(r'"([^"\\]+)"')
_SHARDING = re.compile(r"<@([\w.$-]+|\"[^\"]*\"), \[([^\]]*)\]")


@op("sdy.manual_computation")
def manual_computation(node: Node, *operands: Array) -> Any:
    if node.importer.mesh is not None:
        raise node.error("one manual computation around another refused", Unsupported)
    given, made = (_SHARDING.findall(str(node.attribute(name))) for name in ("in_shardings", "out_shardings"))
    named = {name.strip('"') for name, _ in (*given, *made)}
    if len(named) != 1 or (len(given), len(made)) != (len(operands), len(node.operation.results)):
        raise node.error(f"a sharding over one mesh for each operand and result required, got {sorted(named)}", Unsupported)
    mesh = _mesh(node, named.pop())
    inner = set(_NAME.findall(str(node.attribute("manual_axes"))))
    if inner != set(mesh.axis_names):
        raise node.error(f"all axes {mesh.axis_names} of the mesh as manual ones required, got {sorted(inner)}", Unsupported)
    in_specs, out_specs = ([_spec(node, dims) for _, dims in shardings] for shardings in (given, made))
    body = node.body()

    def part(*pieces: Array) -> list[Array]:
        node.importer.mesh = mesh
        try:
            return [jnp.asarray(value) for value in body(*pieces)]
        finally:
            node.importer.mesh = None

    run = jax.shard_map(part, mesh=mesh, in_specs=tuple(in_specs), out_specs=out_specs, check_vma=False)
    return tuple(run(*map(jnp.asarray, operands)))


def _mesh(node: Node, name: str) -> Mesh:
    for found in operations(node.importer.module.body):
        if found.name == "sdy.mesh" and ir.StringAttr(found.attributes["sym_name"]).value == name:
            text = str(found.attributes["mesh"])
            axes = [(axis, int(size)) for axis, size in re.findall(r'"([^"\\]+)"=(\d+)', text)]
            count = int(np.prod([size for _, size in axes]))
            if "device_ids" in text or not axes:
                raise node.error(f"a mesh of devices in their own order required, got {text}", Unsupported)
            if _copies(node, "mhlo.num_replicas") != 1:
                raise node.error("one replica of the module required, got several", Unsupported)
            if len(jax.devices()) < count:
                raise node.error(f"{count} devices of JAX required, got {len(jax.devices())}", Unsupported)
            devices = np.asarray(jax.devices()[:count]).reshape([size for _, size in axes])
            return Mesh(devices, tuple(axis for axis, _ in axes))
    raise node.error(f"a mesh of the module required, got @{name}")


def _spec(node: Node, dims: str) -> PartitionSpec:
    if ":(" in dims or "?" in dims:
        raise node.error(f"closed shardings over whole axes required, got [{dims}]", Unsupported)
    return PartitionSpec(*(tuple(_NAME.findall(dim)) or None for dim in re.findall(r"\{([^}]*)\}", dims)))


def _around(node: Node) -> Mesh | None:
    """The mesh of the manual computation around; None where one device runs the module."""
    if node.importer.mesh is None and _copies(node) != 1:
        raise node.error("a manual computation around it required, which says what the devices are", Unsupported)
    return node.importer.mesh


def _copies(node: Node, *names: str) -> int:
    """How many devices run the module."""
    given = node.importer.module.operation.attributes
    names = names or ("mhlo.num_partitions", "mhlo.num_replicas")
    return int(np.prod([int(given[name].value) for name in names if name in given]))


def _between_parts(node: Node) -> bool:
    """True where a collective names parts of a program, not copies of it."""
    return node.attribute("channel_handle") is not None


def _axes(node: Node, everywhere: bool = True) -> tuple[str, ...]:
    """The axes along which the groups of a collective lie; none where each is one device."""
    if (mesh := _around(node)) is None:
        return ()
    if not (node.flag("use_global_device_ids") if everywhere else _between_parts(node)):
        raise node.error("groups of global devices required, got groups of replicas", Unsupported)
    groups = np.asarray(node.attribute("replica_groups"))
    numbers = np.arange(mesh.devices.size).reshape(mesh.devices.shape)
    for count in range(len(mesh.axis_names) + 1):
        for chosen in itertools.combinations(range(numbers.ndim), count):
            along = np.moveaxis(numbers, chosen, range(-count, 0)).reshape(-1, int(np.prod([numbers.shape[d] for d in chosen])))
            if sorted(along.tolist()) == sorted(groups.tolist()):
                return tuple(mesh.axis_names[d] for d in chosen)
    raise node.error(f"groups along axes of the mesh {dict(mesh.shape)} required, got {groups.tolist()}", Unsupported)


def _combined(node: Node, known: dict[str, Any]) -> Any:
    found = single(node)
    if found not in known:
        raise node.error(f"a body among {', '.join(known)} required, got {found or 'another'}", Unsupported)
    return known[found]


@op("stablehlo.all_reduce")
def all_reduce(node: Node, *operands: Array) -> Any:
    function, axes = _combined(node, {"add": lax.psum, "maximum": lax.pmax, "minimum": lax.pmin}), _axes(node)
    return tuple(function(x, axes) if axes else x for x in operands)


@op("stablehlo.reduce_scatter")
def reduce_scatter(node: Node, x: Array) -> Array:
    function, axes = _combined(node, {"add": lax.psum_scatter}), _axes(node)
    return function(x, axes, scatter_dimension=node.integer("scatter_dimension"), tiled=True) if axes else x


@op("stablehlo.all_gather")
def all_gather(node: Node, *operands: Array) -> Any:
    axes, dimension = _axes(node), node.integer("all_gather_dim")
    return tuple(lax.all_gather(x, axes, axis=dimension, tiled=True) if axes else x for x in operands)


@op("stablehlo.all_to_all")
def all_to_all(node: Node, *operands: Array) -> Any:
    axes, dims = _axes(node, everywhere=False), [node.integer(f"{name}_dimension") for name in ("split", "concat")]
    return tuple(lax.all_to_all(x, axes, *dims, tiled=True) if axes else x for x in operands)


@op("stablehlo.collective_permute")
def collective_permute(node: Node, x: Array) -> Array:
    mesh = _around(node)
    if mesh is not None and not _between_parts(node):
        raise node.error("pairs of parts required, got pairs of replicas", Unsupported)
    pairs = [(int(a), int(b)) for a, b in np.asarray(node.attribute("source_target_pairs"))]
    if mesh is None:
        return x if pairs else jnp.zeros_like(x)
    return lax.ppermute(x, mesh.axis_names, pairs)


@op("stablehlo.partition_id", "stablehlo.replica_id")
def device_number(node: Node) -> Array:
    mesh = _around(node)
    if mesh is None or node.name.endswith("replica_id"):
        return jnp.zeros((), jnp.uint32)
    return lax.axis_index(mesh.axis_names).astype(jnp.uint32)
