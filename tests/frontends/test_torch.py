"""The PyTorch importer: names, structure, dtypes, sizes, writes into tensors, and modules that are refused."""

from __future__ import annotations

import subprocess
import sys
from collections import OrderedDict
from typing import Any

import jax
import numpy as np
import pytest

torch = pytest.importorskip("torch")

import eqsat  # noqa: E402
from eqsat.frontends.torch import TABLE, TorchError, Unsupported  # noqa: E402
from eqsat.graph import Graph  # noqa: E402


class Norm(torch.nn.Module):
    """A module of the user's own, whose lines the equations should carry."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = torch.nn.Linear(4, 3)
        self.register_buffer("offset", torch.ones(3))

    def forward(self, x: Any, *, flag: bool = False) -> Any:
        scaled = self.proj(x) + self.offset
        return {"b": scaled, "a": [scaled.sum(), x]} if flag else scaled


def same(got: Any, wanted: Any, tolerance: float = 1e-6) -> None:
    assert str(got.dtype) == str(wanted.dtype).removeprefix("torch.")
    np.testing.assert_allclose(np.asarray(got, np.float64), wanted.detach().double().numpy(), rtol=tolerance, atol=tolerance)


# --- names and structure ----------------------------------------------------------------------------------------


def test_parameters_buffers_and_inputs_keep_their_names():
    graph = Graph.from_torch(Norm(), (torch.ones(2, 4),))
    assert graph.name == "Norm" and [graph.name_of[v] for v in graph.inputs] == ["x"]
    assert {graph.name_of[v] for v in graph.constants} == {"proj_weight", "proj_bias", "offset"}


def test_equations_carry_the_lines_of_the_module():
    graph = Graph.from_torch(Norm(), (torch.ones(2, 4),))
    assert {(str(e.source).split(":")[0], e.source.function) for e in graph.equations} == {("test_torch.py", "forward")}
    assert graph.name_of[graph.outputs[0]] == "scaled"


def test_nested_results_keep_their_structure_and_keys():
    module, x = Norm(), torch.randn(2, 4)
    graph = Graph.from_torch(module, (x,), {"flag": True})
    result = graph(x.numpy())
    assert list(result) == ["a", "b"] and isinstance(result["a"], list)
    same(result["b"], module(x))
    same(result["a"][1], x)


def test_nested_arguments_are_passed_as_they_are():
    class Mixed(torch.nn.Module):
        def forward(self, pair: Any, *, named: Any) -> Any:
            return pair[0] - pair[1] + named["z"] - 2 * named["a"]

    pair, named = (torch.tensor([1.0]), torch.tensor([2.0])), {"z": torch.tensor([4.0]), "a": torch.tensor([8.0])}
    graph = Graph.from_torch(Mixed(), (pair,), {"named": named})
    given = jax.tree_util.tree_map(lambda t: t.numpy(), (pair, named))
    assert float(graph(given[0], named=given[1])[0]) == -13


def test_tied_parameters_are_one_constant():
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = torch.nn.Linear(3, 3, bias=False), torch.nn.Linear(3, 3, bias=False)
            self.b.weight = self.a.weight

        def forward(self, x: Any) -> Any:
            return self.b(self.a(x))

    assert len(Graph.from_torch(Tied(), (torch.ones(2, 3),)).constants) == 1


def test_a_graph_keeps_its_weights_when_the_module_is_trained_on():
    module, x = torch.nn.Linear(2, 2), torch.ones(1, 2)
    before, graph = module(x).detach().clone(), Graph.from_torch(module, (x,))
    with torch.no_grad():
        module.weight.zero_()
    same(graph(x.numpy()), before)


# --- dtypes and sizes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_floats_keep_their_dtype(dtype):
    module = torch.nn.Linear(4, 3).to(getattr(torch, dtype))
    x = torch.randn(2, 4).to(getattr(torch, dtype))
    graph = Graph.from_torch(module, (x,))
    assert graph.outputs[0].dtype == dtype and graph.wide == (dtype == "float64")
    same(graph(np.asarray(x.float().numpy(), graph.inputs[0].dtype)), module(x), 1e-2 if "16" in dtype else 1e-6)


def test_int64_is_exact_in_the_optimised_program():
    class Count(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x * 3 + 1, x.sum(0), x.argmax(0)

    x = torch.arange(24).reshape(6, 4) * (1 << 40)
    program = eqsat.optimize(Graph.from_torch(Count(), (x,)))
    for got, wanted in zip(program(x.numpy()), Count()(x), strict=True):
        assert str(got.dtype) == "int64" and np.array_equal(np.asarray(got), wanted.numpy())
    program.validate()


def test_a_saved_program_keeps_its_64_bits(tmp_path):
    class Order(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x.sort(0).values * 0.1, x.argsort(0)

    eqsat.optimize(Graph.from_torch(Order(), (torch.ones(5).double(),))).save(tmp_path / "saved")
    entry = tmp_path / "saved" / "program.py"
    result = subprocess.run([sys.executable, str(entry)], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["float64", "(5,)", "int64", "(5,)"]


@pytest.mark.parametrize(
    ("x", "y"), [(3, 2.5), (torch.tensor(3, dtype=torch.int32), 2), (torch.tensor([2.0]), torch.tensor(3.0).double())]
)
def test_operands_are_promoted_as_torch_does(x, y):
    class Ops(torch.nn.Module):
        def forward(self, a: Any) -> Any:
            left = a if isinstance(x, int) else x
            return left * y, left / y, left > y, left // y, torch.remainder(left, y)

    a = torch.arange(1, 4)
    for got, wanted in zip(Graph.from_torch(Ops(), (a,))(a.numpy()), Ops()(a), strict=True):
        same(got, wanted)


@pytest.mark.parametrize("product", [torch.addmm, torch.baddbmm])
def test_what_a_factor_of_zero_leaves_out_is_not_read(product):
    """P2-03: beta=0 leaves the first operand out, NaN or not."""

    class Product(torch.nn.Module):
        def forward(self, c: Any, a: Any, b: Any) -> Any:
            return product(c, a, b, beta=0)

    operands = [torch.full((1, 1), torch.nan), torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0], [4.0]])]
    if product is torch.baddbmm:
        operands = [x[None] for x in operands]
    (got,) = Graph.from_torch(Product(), tuple(operands)).evaluate(*[x.numpy() for x in operands])
    assert np.asarray(got).item() == 11


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("product", [torch.addmm, torch.addmv, torch.addbmm])
def test_matrices_that_blas_does_not_read_are_left_out(product, dtype):

    class Product(torch.nn.Module):
        def forward(self, c: Any, a: Any, b: Any) -> Any:
            return product(c, a, b, alpha=0)

    ranks = {torch.addmm: (2, 2, 2), torch.addmv: (1, 2, 1), torch.addbmm: (2, 3, 3)}[product]
    operands = [torch.full((2,) * n, value, dtype=dtype) for n, value in zip(ranks, (1.0, torch.nan, 3.0), strict=True)]
    got = Graph.from_torch(Product(), tuple(operands))(*[x.numpy() for x in operands])
    np.testing.assert_array_equal(np.asarray(got), product(*operands, alpha=0).numpy())


def test_dynamic_sizes_are_those_of_the_example():
    module = Norm()
    program = torch.export.export(module, (torch.ones(2, 4),), dynamic_shapes={"x": {0: torch.export.Dim("batch")}})
    x = torch.randn(5, 4)
    same(Graph.from_torch(program, (x,))(x.numpy()), module(x))
    assert Graph.from_torch(program, (jax.ShapeDtypeStruct((7, 4), "float32"),)).outputs[0].shape == (7, 3)
    assert Graph.from_torch(program).outputs[0].shape == (2, 3)


def test_a_batch_that_equals_a_fixed_size_when_it_is_traced_stays_open():  # P2-09
    module = torch.nn.Linear(8, 8)
    program = torch.export.export(module, (torch.ones(8, 8),), dynamic_shapes={"input": {0: torch.export.Dim("batch")}})
    for batch in (5, 8, 1):
        x = torch.randn(batch, 8)
        same(Graph.from_torch(program, (x,))(x.numpy()), module(x), 1e-5)
    with pytest.raises(TypeError, match="'8'] required, got"):
        Graph.from_torch(program, (torch.randn(5, 7),))


class Squeeze(torch.nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Any) -> Any:
        return x.squeeze(self.dim)


def test_squeeze_leaves_other_extents_than_one():  # P6-08
    for dim, shape in ((0, (2, 3)), (-1, (1, 100, 17))):
        x = torch.randn(2, 3) if dim == 0 else torch.randn(1, 100, 17, 1)
        graph = Graph.from_torch(Squeeze(dim), (x,))
        assert graph.outputs[0].shape == shape == Squeeze(dim)(x).shape


# --- writes -----------------------------------------------------------------------------------------------------


def test_writes_into_buffers_are_refused_or_returned():
    module, x = torch.nn.BatchNorm1d(3), torch.randn(8, 3)
    with pytest.raises(Unsupported, match=r"running_mean.*module.eval\(\) first, or pass mutations=True"):
        Graph.from_torch(module, (x,))
    result, written = Graph.from_torch(module, (x,), mutations=True)(x.numpy())
    same(result, module(x), 1e-5)
    same(written["running_mean"], module.running_mean, 1e-5)
    same(written["running_var"], module.running_var, 1e-5)


def test_writes_into_a_copy_are_only_part_of_the_computation():
    class Fill(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            y = x.clone()
            y[1:, ::2] = 0
            y[0] += 1
            return y

    x = torch.randn(3, 5)
    same(Graph.from_torch(Fill(), (x,))(x.numpy()), Fill()(x))


# --- operators whose samples in torch's database show too little ---------------------------------------------------


def agrees(function: Any, *inputs: Any) -> None:
    """Run as torch traces it, below autograd."""
    from torch.fx.experimental.proxy_tensor import make_fx

    from eqsat.frontends.torch.export import decompositions
    from eqsat.frontends.torch.interpreter import Interpreter
    from eqsat.frontends.torch.tensors import array_of

    graph = make_fx(torch.func.functionalize(function), decompositions(), tracing_mode="fake")(*inputs)
    with jax.enable_x64(True):
        got = Interpreter(graph, "test").run([array_of(x) for x in inputs])
        got = [torch.from_dlpack(jax.numpy.asarray(x)) for x in got]
    torch.testing.assert_close(got, torch.utils._pytree.tree_leaves(function(*inputs)), equal_nan=True, rtol=1e-5, atol=1e-5)


def test_the_place_of_a_running_extreme_is_the_last_of_equals_and_of_nan():
    x = torch.tensor([[1.0, torch.nan, 3.0], [3.0, 1.0, 1.0], [3.0, torch.nan, 1.0]])
    agrees(lambda x: (*x.cummax(0), *x.cummin(1)), x)


def test_complex_numbers_are_conjugated_taken_apart_and_transformed():
    z, x = torch.randn(2, 3, dtype=torch.complex64), torch.randn(3, 4)
    agrees(lambda z: (torch.conj_physical(z), z.conj() + 1, torch.view_as_real(z * z), z.abs()), z)
    agrees(lambda x: torch.view_as_real(torch.view_as_complex(x.reshape(3, 2, 2)) * torch.polar(x.abs()[:, :2], x[:, 2:])), x)
    agrees(lambda x: (torch.fft.rfftn(x, norm="ortho"), torch.fft.irfft(torch.fft.rfft(x), n=5), torch.fft.ifft2(x)), x)
    agrees(lambda x: (torch.fft.fft(x, norm="forward"), torch.fft.hfft(x), torch.fft.irfftn(torch.fft.rfftn(x), s=(3, 4))), x)


@pytest.mark.parametrize("pool", ["max", "avg", "adaptive_avg"])
def test_gradients_of_pools_over_volumes(pool):
    functional = torch.nn.functional
    run = {
        "max": lambda x: functional.max_pool3d(x, 2, stride=1, padding=1),
        "avg": lambda x: functional.avg_pool3d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
        "adaptive_avg": lambda x: functional.adaptive_avg_pool3d(x, (3, 2, 2)),
    }[pool]
    agrees(torch.func.grad(lambda x: run(x).square().sum()), torch.randn(2, 2, 5, 4, 3))


def test_constants_are_gathered_from_and_integers_are_divided_towards_zero():
    agrees(lambda i: (torch.arange(1.0, 6).gather(0, i), torch.arange(5).scatter(0, i, 7)), torch.tensor([1, 3]))
    a, b = torch.arange(-4, 4), torch.tensor([3, -3] * 4)
    agrees(lambda a, b: (torch.lcm(a, b), torch.gcd(a, b), a << 2, a >> 1, a.signbit(), a // b, a % b), a, b)


# --- what is refused --------------------------------------------------------------------------------------------


def test_all_missing_operators_are_named_at_once():
    class Odd(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.linalg.svdvals(x) + torch.linalg.eigvalsh(x) + torch.linalg.eigvalsh(x + 1)

    with pytest.raises(Unsupported, match=r"got 2 without a row: _linalg_eigh.default \(2\), _linalg_svd.default \(1\)"):
        Graph.from_torch(Odd(), (torch.ones(3, 3),))


def test_dropout_in_training_is_refused_with_a_remedy():
    with pytest.raises(Unsupported, match=r"bernoulli.p \(1\).*module.eval\(\) turns dropout off"):
        Graph.from_torch(torch.nn.Dropout(0.5), (torch.ones(3),))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.nn.ReLU(), (3,)), "tensors required as arguments, got 3"),
        ((lambda x: x, (torch.ones(2),)), "a torch.nn.Module or torch.export.ExportedProgram required, got function"),
        ((Norm(), (torch.ones(2, 5),)), "a module that torch.export takes required"),
    ],
)
def test_mistakes_are_one_clear_error(arguments, message):
    with pytest.raises((TypeError, TorchError), match=message) as caught:
        Graph.from_torch(*arguments)
    assert "\n" not in str(caught.value)


def test_other_sizes_than_exported_are_refused():
    program = torch.export.export(Norm(), (torch.ones(2, 4),))
    with pytest.raises(TypeError, match=r"input x: torch.float32\['2', '4'\] required, got torch.float32\[3, 4\]"):
        Graph.from_torch(program, (torch.ones(3, 4),))


def test_data_dependent_sizes_are_refused():
    class Masked(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x[x > 0]

    with pytest.raises(TorchError, match="mask|nonzero"):
        Graph.from_torch(Masked(), (torch.ones(3),))


# --- the table --------------------------------------------------------------------------------------------------


def test_every_row_is_an_operator_of_torch_with_the_parameters_of_its_schema():
    import inspect

    wrong = []
    ignored = {"layout", "device", "pin_memory", "memory_format", "non_blocking", "dtype", "out"}
    for name, function in TABLE.items():
        space, base, overload = ("aten", *name.split(".")) if name.count(".") == 1 else name.split(".")
        packet = getattr(getattr(torch.ops, space), base, None)
        if packet is None or overload not in packet.overloads():
            wrong.append(f"{name}: no such operator")
            continue
        wanted = [a.name for a in getattr(packet, overload)._schema.arguments if a.name not in ignored]
        parameters = list(inspect.signature(function).parameters.values())[1:]
        takes_any = any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters)
        if not takes_any and len([p for p in parameters if p.name not in ignored]) < len(wanted):
            wrong.append(f"{name}: {[p.name for p in parameters]} for {wanted}")
    assert not wrong, "\n".join(wrong)


def test_results_in_other_mappings_become_dictionaries():
    from eqsat.frontends.torch.export import plain

    class Output(OrderedDict):
        pass

    assert type(plain(Output(a=1))) is dict and type(plain(OrderedDict(a=1))) is OrderedDict
