"""Models of other frameworks as JAX functions, whose sizes are those of each call: what `eqsat.jit` takes.

A front end's `Graph.from_...` reads a model at one set of sizes. Its function is read anew for each it is traced for, also for
symbolic ones, so ``eqsat.jit(eqsat.function("model.onnx"), buckets={"batch": (1, 8, 64)})`` serves all batches by three programs.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any


def function(source: Any, **options: Any) -> Callable[..., Any]:
    """A model as a JAX function of positional arrays.

    source: an ONNX model (a path ending in ".onnx", or an `onnx.ModelProto`); a `torch.export.ExportedProgram`; or StableHLO
    (text, bytes, another path, a `jax.export.Exported`).
    options: `constants=` of an ONNX model binds inputs by name, as for `Graph.from_onnx`.

    Its attribute `shapes` holds the shapes of the arguments with the names that the model gives to open sizes. StableHLO has no
    names for them, and is read for numbers only. Raises what the front end raises.
    """
    if type(source).__module__.startswith("onnx") or (isinstance(source, str | os.PathLike) and str(source).endswith(".onnx")):
        from eqsat.frontends import look

        look("onnx", source)
        from eqsat.frontends import onnx

        return onnx.function(source, **options)
    if type(source).__module__.startswith("torch"):
        from eqsat.frontends import torch

        return torch.function(source, **options)
    from eqsat.frontends import stablehlo

    return stablehlo.function(source, **options)
