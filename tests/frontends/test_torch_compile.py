"""The backend "eqsat" of torch.compile: forward, backward, sizes, memory, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import eqsat  # noqa: E402
from eqsat import torch_backend  # noqa: E402

QUICK = {"time_limit": 2.0}


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


def compiled(function: Any, dynamic: bool | None = None) -> Any:
    return torch.compile(function, backend=torch_backend.eqsat, options=QUICK, dynamic=dynamic)


def test_the_backend_is_found_by_name():
    from importlib.metadata import entry_points

    if not entry_points(group="torch_dynamo_backends", name="eqsat"):
        pytest.skip("needs an installed eqsat: pip install -e .")
    assert "eqsat" in torch._dynamo.list_backends()
    module = torch.nn.Linear(4, 2)
    x = torch.randn(3, 4)
    torch.testing.assert_close(torch.compile(module, backend="eqsat", options=QUICK)(x), module(x))


def test_the_short_form_gives_the_same():
    x = torch.randn(3, 4)
    torch.testing.assert_close(eqsat.torch_compile(torch.sin, numerics="exact", **QUICK)(x), torch.sin(x))


def test_forward_and_gradients_agree_with_eager():
    module = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.GELU(), torch.nn.Linear(6, 2))
    x = torch.randn(3, 4, requires_grad=True)
    fast = compiled(module)(x)
    torch.testing.assert_close(fast, module(x))
    got = torch.autograd.grad(fast.square().sum(), [x, *module.parameters()])
    wanted = torch.autograd.grad(module(x).square().sum(), [x, *module.parameters()])
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dynamic", [None, True])
def test_new_sizes_and_numbers_get_programs_of_their_own(dynamic):
    def scaled(x: Any, n: int) -> Any:
        return x * n + x.shape[0], x.shape[0] * 2

    fast = compiled(scaled, dynamic)
    for rows, n in ((2, 3), (4, 3), (0, 3), (5, 7), (4, 8)):
        x = torch.randn(rows, 3)
        got, wanted = fast(x, n), scaled(x, n)
        torch.testing.assert_close(got[0], wanted[0])
        assert got[1] == wanted[1]


def test_writes_take_effect_and_results_are_memory_of_their_own():
    def copies(x: Any, y: Any) -> Any:
        y.add_(1)
        a = x.clone()
        return a, a.clone(), x[:2]

    x, y = torch.randn(4, 3), torch.zeros(3)
    a, b, part = compiled(copies)(x, y)
    assert torch.equal(y, torch.ones(3)) and part.data_ptr() == x.data_ptr()
    before = x.clone()
    a.zero_()
    assert torch.equal(x, before) and torch.equal(b, before)


def test_a_copy_keeps_what_its_source_was():  # P2-02
    def step(to: Any, source: Any) -> Any:
        to[:] = source
        source.add_(1)
        return to, source

    to, source = torch.zeros(2), torch.tensor([1.0, 2.0])
    torch.testing.assert_close(compiled(step)(to, source), (torch.tensor([1.0, 2.0]), torch.tensor([2.0, 3.0])))
    torch.testing.assert_close((to, source), (torch.tensor([1.0, 2.0]), torch.tensor([2.0, 3.0])))


def test_an_input_that_is_written_to_may_be_another_input_in_the_next_call():  # P2-04
    def step(a: Any, b: Any) -> Any:
        a.add_(1)
        return a + b

    fast = compiled(step)
    a, b, t = torch.zeros(3), torch.ones(3), torch.ones(3)
    torch.testing.assert_close((fast(a, b), a, b), (torch.full((3,), 2.0), torch.ones(3), torch.ones(3)))
    torch.testing.assert_close((fast(t, t), t), (torch.full((3,), 4.0), torch.full((3,), 2.0)))
    torch.testing.assert_close((fast(t, b), t, b), (torch.full((3,), 4.0), torch.full((3,), 3.0), torch.ones(3)))


def test_overlapping_parts_of_one_tensor_are_written_and_read_as_in_eager():
    def step(a: Any, b: Any) -> Any:
        a.mul_(2)
        return a + b

    fast = compiled(step)
    for first, second in ((slice(0, 4), slice(4, 8)), (slice(0, 4), slice(2, 6)), (slice(2, 6), slice(2, 6))):
        ours, theirs = torch.arange(8.0), torch.arange(8.0)
        torch.testing.assert_close((fast(ours[first], ours[second]), ours), (step(theirs[first], theirs[second]), theirs))


def test_integers_and_strided_inputs_keep_their_values():
    def look(x: Any, places: Any) -> Any:
        return x.T[places], places + (1 << 40), x.T.sum(0)

    x, places = torch.randn(4, 3).T[::2], torch.tensor([0, 2])
    for got, wanted in zip(compiled(look)(x, places), look(x, places), strict=True):
        torch.testing.assert_close(got, wanted)


def test_operators_without_a_row_are_run_by_torch_and_named():
    def solved(x: Any) -> Any:
        return torch.linalg.matrix_exp(x @ x).sin().sum() + torch.linalg.svdvals(x)[0]

    x = torch.randn(3, 3, requires_grad=True)
    with pytest.warns(UserWarning, match=r"without a row are run by torch: _linalg_svd.default \(1\), linalg_matrix_exp"):
        got = compiled(solved)(x)
    torch.testing.assert_close(got, solved(x))
    torch.testing.assert_close(torch.autograd.grad(got, x), torch.autograd.grad(solved(x), x), rtol=1e-4, atol=1e-5)


def test_an_operator_that_a_row_refuses_is_run_by_torch():
    def put(x: Any, mask: Any, values: Any) -> Any:
        return (2 * x).index_put((mask,), values + 1).cos()

    x, values = torch.arange(4.0) - 1, torch.tensor([5.0, 6.0])
    with pytest.warns(UserWarning, match="run by torch.*got a mask, whose result has as many rows"):
        got = compiled(put)(x, x > 0, values)
    torch.testing.assert_close(got, put(x, x > 0, values))


def test_what_lies_in_memory_otherwise_than_a_program_leaves_it_is_refused():
    with pytest.raises(Exception, match=r"contiguous tensor required, .* call .contiguous\(\) first"):
        compiled(lambda x: x.T.as_strided((2, 2), (1, 2)) + x.sum())(torch.randn(4, 5))


def test_branches_whose_operators_lack_a_row_are_run_by_torch():
    def chosen(x: Any) -> Any:
        return torch.cond(x.sum() > 0, torch.linalg.matrix_exp, torch.cos, (x,)) + 1

    for x in (torch.ones(2, 2), -torch.ones(2, 2)):
        torch.testing.assert_close(compiled(chosen)(x), chosen(x))


def test_random_numbers_are_those_that_torch_draws_in_its_order():
    def noisy(x: Any) -> Any:
        kept = torch.nn.functional.dropout(x, 0.3) + torch.rand_like(x)
        drawn = torch.bernoulli(kept.sigmoid()) + torch.randn(4)
        return (
            drawn,
            torch.multinomial(x.softmax(-1), 2),
            torch.empty(3).exponential_(),
            torch.randperm(5),
            torch.randint(9, (2,)),
        )

    fast, x = compiled(noisy), torch.randn(3, 4)
    for seed in range(2):
        torch.manual_seed(seed)
        got = fast(x)
        torch.manual_seed(seed)
        torch.testing.assert_close(got, noisy(x))


def test_training_with_dropout_takes_the_steps_of_eager():
    def losses(run: Any, module: Any) -> list[float]:
        torch.manual_seed(3)
        optimizer, found = torch.optim.SGD(module.parameters(), 0.5), []
        for _ in range(3):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(run(x), target, ignore_index=1, label_smoothing=0.1)
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    def model() -> Any:
        torch.manual_seed(1)
        return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Dropout(0.4), torch.nn.Linear(8, 3))

    x, target = torch.randn(16, 4), torch.randint(0, 3, (16,))
    plain, fast = model(), model()
    wanted, got = losses(plain, plain), losses(compiled(fast), fast)
    assert wanted[2] < wanted[0] and got == pytest.approx(wanted, rel=1e-4)
    torch.testing.assert_close(fast.state_dict(), plain.state_dict(), rtol=1e-4, atol=1e-5)


def test_a_decomposition_that_writes_in_place_is_not_taken():
    def traces(x: Any) -> Any:
        return torch.einsum("bii->b", x).square().sum()

    x = torch.randn(2, 3, 3, requires_grad=True)
    (got,), (wanted,) = (torch.autograd.grad(f(x), x) for f in (compiled(traces), traces))
    torch.testing.assert_close(got, wanted)


@pytest.mark.slow
@pytest.mark.parametrize("convolves", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_a_training_step_with_batch_norm_agrees_with_eager(convolves):
    def model() -> Any:
        torch.manual_seed(1)
        nn = torch.nn
        if not convolves:
            return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3))
        convolution = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)
        return nn.Sequential(*convolution, nn.Flatten(), nn.Linear(16, 3))

    def step(module: Any, run: Any) -> Any:
        optimizer = torch.optim.SGD(module.parameters(), 0.1)
        loss = torch.nn.functional.cross_entropy(run(x), target)
        loss.backward()
        optimizer.step()
        return loss

    x, target = torch.randn(5, 2, 4, 4), torch.randint(0, 3, (5,))
    plain, fast = model(), model()
    torch.testing.assert_close(step(fast, compiled(fast)), step(plain, plain), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(fast.state_dict(), plain.state_dict(), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_the_gradient_of_attention_agrees_with_eager():
    attention, given = torch.nn.functional.scaled_dot_product_attention, torch.randn(3, 2, 2, 4, 8, requires_grad=True)
    got, wanted = (torch.autograd.grad(fn(*given).square().sum(), given) for fn in (compiled(attention), attention))
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.nightly
def test_attention_trains_as_in_eager():
    module = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    x = torch.randn(2, 4, 8)
    got = torch.autograd.grad(compiled(module)(x).square().sum(), list(module.parameters()))
    wanted = torch.autograd.grad(module(x).square().sum(), list(module.parameters()))
    torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("mask", [None, pytest.param("src_mask", marks=pytest.mark.nightly), "src_key_padding_mask"])
def test_the_operator_for_encoder_layers_in_inference(mask):
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, activation="gelu", norm_first=mask is None).eval()
    x, padding = torch.randn(2, 6, 16), torch.zeros(2, 6, dtype=torch.bool)
    padding[1, 4:] = True
    masks = {"src_mask": torch.triu(torch.ones(6, 6, dtype=torch.bool), 1), "src_key_padding_mask": padding}
    given = {mask: masks[mask]} if mask else {}
    with torch.no_grad():
        want, got = layer(x, **given), eqsat.torch_compile(layer)(x, **given)
    hidden = padding if mask == "src_key_padding_mask" else torch.zeros_like(padding)
    torch.testing.assert_close(got[~hidden], want[~hidden], rtol=1e-5, atol=1e-5)
