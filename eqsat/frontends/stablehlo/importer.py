"""Running a module's functions over JAX values."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax.extend.mlir.ir as ir
import jax.numpy as jnp
from jax import lax

from eqsat.frontends.errors import fitting
from eqsat.frontends.stablehlo import calls
from eqsat.frontends.stablehlo.constants import value_of
from eqsat.frontends.stablehlo.table import TABLE, Array, Node, StablehloError, Unsupported, operations, problem
from eqsat.graph import Source

DEEPEST = 64  # functions and regions within each other
MOST = 1_000_000  # operations, once calls are inlined

RETURNS = ("func.return", "stablehlo.return", "sdy.return")


class Importer:
    """Evaluates functions of one module."""

    def __init__(self, module: Any, name: str) -> None:
        self.module, self.name = module, name
        self.mesh: Any = None  # that of the manual computation around
        self.functions = {ir.StringAttr(f.attributes["sym_name"]).value: f for f in functions(module)}
        self.trail: list[tuple[Source | None, Array]] = []  # what the traced function itself computes, with its line
        self._constants: dict[Any, Array] = {}
        self._count = self._depth = self._inner = 0

    def run(self, function: Any, operands: Sequence[Array]) -> list[Array]:
        """The results of a function."""
        self.trail.clear()
        self._count = 0
        return self.block(function.regions[0].blocks[0], operands, ChainMap())

    def block(self, block: Any, operands: Sequence[Array], scope: ChainMap[Any, Array]) -> list[Array]:
        if self._depth >= DEEPEST:
            raise StablehloError(
                f"{self.name}: at most {DEEPEST} functions within each other required, got more; do they call themselves?"
            )
        self._depth += 1
        scope.update(zip(block.arguments, operands, strict=True))
        for operation in operations(block):
            if operation.name in RETURNS:
                self._depth -= 1
                return [scope[v] for v in operation.operands]
            self.operation(operation, scope)
        raise StablehloError(f"{self.name}: a block that returns required, got one that does not")

    def body(self, region: Any, scope: ChainMap[Any, Array]) -> Callable[..., list[Array]]:
        """A region as a function; JAX traces it by itself, so that nothing inside is a value of the whole."""

        def apply(*operands: Array) -> list[Array]:
            self._inner += 1
            try:
                return self.block(region.blocks[0], operands, scope.new_child())
            finally:
                self._inner -= 1

        return apply

    def operation(self, operation: Any, scope: ChainMap[Any, Array]) -> None:
        self._count += 1
        if self._count > MOST:
            raise StablehloError(f"{self.name}: at most {MOST} operations required once calls are inlined, got more")
        node = Node(operation, self, scope)
        operands = [scope[v] for v in operation.operands]
        with fitting(StablehloError, node, lambda: ", ".join(str(v.type) for v in operation.operands)):
            results = self.apply(node, operands)
        found = tuple(results) if isinstance(results, tuple | list) else (results,)
        for result, value in zip(operation.results, found, strict=True):
            if isinstance(result.type, ir.RankedTensorType) and tuple(result.type.shape) != jnp.shape(value):
                raise node.error(f"a result of {result.type} required, got shape {list(jnp.shape(value))}")
            scope[result] = value
            if not self._inner and not isinstance(value, tuple):
                self.trail.append((source_of(operation.location), value))

    def apply(self, node: Node, operands: list[Array]) -> Any:
        operation = node.operation
        if node.name == "func.call":
            return self.call(ir.FlatSymbolRefAttr(operation.attributes["callee"]).value, node, operands)
        if node.name == "stablehlo.constant":
            return self.constant(operation)
        if node.name == "stablehlo.composite":
            return self.composite(node, operands)
        if node.name == "stablehlo.custom_call":
            return calls.apply(node, operands)
        return TABLE[node.name](node, *operands)

    def call(self, name: str, node: Node, operands: list[Array]) -> list[Array]:
        if name not in self.functions:
            raise node.error(f"a function of the module required, got {name!r}")
        return self.block(self.functions[name].regions[0].blocks[0], operands, ChainMap())

    def composite(self, node: Node, operands: list[Array]) -> Any:
        """By the name, where it is CHLO's; by the decomposition elsewhere."""
        name, operation = ir.StringAttr(node.attribute("name")).value, node.operation
        if is_known_composite(operation):
            return TABLE[name](Composite(operation, self, node.scope), *operands)
        return self.call(ir.FlatSymbolRefAttr(operation.attributes["decomposition"]).value, node, operands)

    def constant(self, operation: Any) -> Array:
        """A NumPy array; one value everywhere is broadcast from a scalar, however large the type says it is."""
        if operation not in self._constants:
            self._constants[operation] = value_of(operation, self.name)
        value = self._constants[operation]
        shape = tuple(operation.results[0].type.shape)
        return lax.broadcast(value, shape) if value.ndim == 0 and shape else value


class Composite(Node):
    """A composite as the operation that it stands for."""

    def attribute(self, name: str) -> Any:
        given = self.operation.attributes["composite_attributes"]
        return given[name] if name in given else None


def is_known_composite(operation: Any) -> bool:
    name = ir.StringAttr(operation.attributes["name"]).value
    return name.startswith("chlo.") and name in TABLE


def functions(module: Any) -> Iterator[Any]:
    return (f for f in operations(module.body) if f.name == "func.func")


# --- before anything runs ---------------------------------------------------------------------------------------


def check(importer: Importer, main: Any) -> None:
    """Raise one error for everything reachable that has no meaning here."""
    missing: dict[str, int] = {}
    seen: set[str] = set()
    waiting = [main]

    def found(text: str) -> None:
        missing[text] = missing.get(text, 0) + 1

    while waiting:
        function = waiting.pop()
        blocks = [b for region in function.regions for b in region.blocks]
        if len(function.regions[0].blocks) != 1:
            raise Unsupported(f"{importer.name}: functions of one block required, got {len(function.regions[0].blocks)}")
        while blocks:
            block = blocks.pop()
            for value in block.arguments:
                if (wrong := problem(value.type)) is not None:
                    found(wrong)
            for operation in operations(block):
                blocks += [b for region in operation.regions for b in region.blocks]
                _check(operation, found)
                for callee in callees(operation):
                    if callee not in seen and callee in importer.functions:
                        seen.add(callee)
                        waiting.append(importer.functions[callee])
    if missing:
        listed = "; ".join(f"{text} ({n} times)" if n > 1 else text for text, n in missing.items())
        raise Unsupported(f"{importer.name}: operations and types of the tables required, got {listed}")


def _check(operation: Any, found: Callable[[str], None]) -> None:
    name = operation.name
    if name == "stablehlo.custom_call":
        target = calls.target_of(operation)
        if calls.find(target) is None:
            found(f"custom_call @{target}, which only its own runtime can run")
    elif name not in TABLE and name not in (*RETURNS, "func.call", "stablehlo.constant", "stablehlo.composite"):
        found(f"{name}, which has no row")
    for value in operation.results:
        if not isinstance(value.type, ir.TupleType) and (wrong := problem(value.type)) is not None:
            found(wrong)


def callees(operation: Any) -> list[str]:
    if operation.name == "func.call":
        return [ir.FlatSymbolRefAttr(operation.attributes["callee"]).value]
    if operation.name == "stablehlo.composite" and not is_known_composite(operation):
        return [ir.FlatSymbolRefAttr(operation.attributes["decomposition"]).value]
    return []


# --- lines ------------------------------------------------------------------------------------------------------


def source_of(location: Any) -> Source | None:
    """The innermost line of a location. The file's name is only shown: no file that a module names is ever opened."""
    function = "module"
    for _ in range(DEEPEST):
        if isinstance(location, ir.CallSiteLoc):
            location = location.callee
        elif isinstance(location, ir.NameLoc):
            function, location = location.name_str, location.child_loc
        elif isinstance(location, ir.FusedLoc) and location.locations:
            location = location.locations[0]
        else:
            break
    if not isinstance(location, ir.FileLineColLoc):
        return None
    file = str(location.filename).strip('"').replace("\\", "/").rsplit("/", 1)[-1].strip("<>")
    return Source(f"<{file}>", location.start_line, function.rsplit("/", 1)[-1])
