"""Every operator of torch's own database of samples (OpInfo): what is imported agrees with eager, or is refused by name.

`pytest -m nightly -s tests/frontends/test_torch_ops.py` runs all of it and prints how many samples pass.
"""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")  # the database needs it

from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402

from eqsat.frontends.torch import TorchError, Unsupported  # noqa: E402
from eqsat.frontends.torch.export import decompositions  # noqa: E402
from eqsat.frontends.torch.interpreter import Interpreter, missing  # noqa: E402
from eqsat.frontends.torch.tensors import array_of  # noqa: E402

SAMPLED = (
    "add div fmod remainder floor_divide pow clamp where sum mean var std amax argmax cumsum sort topk gather scatter "
    "scatter_add index_select index_put cat repeat roll diagonal tril nn.functional.conv2d nn.functional.conv_transpose2d "
    "nn.functional.max_pool2d nn.functional.avg_pool2d nn.functional.adaptive_avg_pool2d nn.functional.group_norm "
    "nn.functional.layer_norm nn.functional.gelu nn.functional.interpolate nn.functional.pad nn.functional.embedding softmax"
).split()
DIFFERENT = dict.fromkeys(
    ("empty", "empty_like", "new_empty", "new_empty_strided", "empty_strided"), "torch leaves memory as it finds it"
)
TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 2e-3, torch.float32: 5e-5, torch.float64: 1e-7}


def database() -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    found: dict[str, Any] = {}
    for op in op_db:
        found.setdefault(op.name, op)
    return found


def outcome(op: Any, sample: Any) -> str:
    """What became of a sample: passed, unsupported, untraced (torch itself cannot make a graph of it), or what is wrong."""
    arguments = ((sample.input, *sample.args), sample.kwargs)
    leaves, tree = pytree.tree_flatten(arguments)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

    def call(*values: Any) -> Any:
        flow = iter(values)
        args, kwargs = pytree.tree_unflatten([next(flow) if isinstance(v, torch.Tensor) else v for v in leaves], tree)
        return op(*args, **kwargs)

    try:
        wanted = pytree.tree_leaves(call(*(t.clone() for t in tensors)))
        functional = torch.func.functionalize(call, remove="mutations_and_views")
        graph = make_fx(functional, decomposition_table=decompositions(), tracing_mode="fake")(*tensors)
    except Exception:
        return "untraced"
    try:
        missing(graph, op.name)
        with jax.enable_x64(True):
            got = jax.jit(lambda *a: pytree.tree_leaves(Interpreter(graph, op.name).run(a)))(*map(array_of, tensors))
    except Unsupported:
        return "unsupported"
    except TorchError as error:
        return f"wrong: {error}"
    return difference(got, wanted) or "passed"


def difference(got: list[Any], wanted: list[Any]) -> str:
    for x, y in zip(got, wanted, strict=True):
        if not isinstance(y, torch.Tensor):
            continue
        if str(x.dtype) != str(y.dtype).removeprefix("torch.") or x.shape != tuple(y.shape):
            return f"wrong: {y.dtype}{list(y.shape)} required, got {x.dtype}{list(x.shape)}"
        limit = TOLERANCE.get(y.dtype, 1e-5)
        x, y = np.asarray(jnp.asarray(x, "float64" if x.dtype == jnp.bfloat16 else x.dtype)), y.detach().cpu()
        y = (y.double() if y.dtype == torch.bfloat16 else y).numpy()
        if not np.allclose(x.astype(y.dtype), y, rtol=limit, atol=limit, equal_nan=True):
            return f"wrong: results differ by up to {np.nanmax(np.abs(x.astype(np.complex128) - y)):.1e}"
    return ""


def samples(op: Any, dtype: Any, most: int | None = None) -> list[Any]:
    if dtype not in op.dtypes:
        return []
    torch.manual_seed(0)
    found = list(op.sample_inputs("cpu", dtype, requires_grad=False))
    return found if most is None else found[:: max(1, len(found) // most)][:most]


@pytest.mark.parametrize("name", SAMPLED)
def test_operators_agree_with_eager(name):
    op = database()[name]
    found = [outcome(op, sample) for sample in samples(op, torch.float32, 1)]
    assert found and set(found) == {"passed"}


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16, torch.float64], ids=str)
def test_no_operator_of_the_database_is_wrong(dtype):
    counts: Counter[str] = Counter()
    wrong, complete = [], 0
    for name, op in database().items():
        try:
            found = [outcome(op, sample) for sample in samples(op, dtype, 20)]
        except Exception:  # the database has no samples for this build
            continue
        counts.update(text.split(":")[0] for text in found)
        complete += bool(found) and set(found) == {"passed"}
        wrong += [f"{name}: {text}" for text in dict.fromkeys(found) if text.startswith("wrong") and name not in DIFFERENT]
    print(f"\n{dtype}: {dict(counts)}; {complete} operators pass whole")
    assert not wrong, "\n".join(wrong)
