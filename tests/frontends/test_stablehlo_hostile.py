"""StableHLO that is damaged or made to do harm: one clear error each, in bounded time, and never the end of the process."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax import export

from eqsat.frontends.stablehlo import StablehloError
from eqsat.graph import Graph


def layer(x, w):
    return jax.nn.softmax(jnp.tanh(x @ w)), jnp.sort(x), jax.lax.fori_loop(0, 3, lambda i, c: c + 1, x)


EXPORTED = export.export(jax.jit(layer))(jnp.ones((4, 8)), jnp.ones((8, 8)))
TEXT, ARTIFACT = EXPORTED.mlir_module(), EXPORTED.mlir_module_serialized


def module(body: str, kind: str = "tensor<2xf32>") -> str:
    return f"func.func @main(%a: {kind}) -> {kind} {{\n{body}\n}}\n"


DEEP = 'func.func @main() { "a.b"() ' + "({" * 100_000
HUGE = "tensor<1000000000x1000000000xf32>"
LOOP = module("%0 = call @main(%a) : (tensor<f32>) -> tensor<f32>\nreturn %0 : tensor<f32>", "tensor<f32>")
BOMB = "".join(
    f"func.func private @f{n}(%a: tensor<f32>) -> tensor<f32> {{ %0 = call @f{n + 1}(%a) : (tensor<f32>) -> tensor<f32>\n"
    f"%1 = call @f{n + 1}(%0) : (tensor<f32>) -> tensor<f32>\nreturn %1 : tensor<f32> }}\n"
    for n in range(70)
)
CASES = {
    "nothing": ("\n", "a function main required|does not parse"),
    "no module": ("not a module at all\n", "does not parse"),
    "cut off": (TEXT[: len(TEXT) // 2], "does not parse"),
    "other bytes": (b"\xff\xfe" * 50, "text or bytecode required"),
    "cut bytecode": (ARTIFACT[:300], "does not parse"),
    "deep": (DEEP, "brackets within each other"),
    "absurd shapes": (module("return %a : " + HUGE, HUGE), "at most 1099511627776 elements"),
    "calls itself": (LOOP, "do they call themselves"),
    "calls without end": (
        BOMB + "func.func private @f70(%a: tensor<f32>) -> tensor<f32> { return %a : tensor<f32> }\n"
        "func.func @main(%a: tensor<f32>) -> tensor<f32> { %0 = call @f0(%a) : (tensor<f32>) -> tensor<f32>\n"
        "return %0 : tensor<f32> }",
        "at most",
    ),
    "wrong types": (module("%0 = stablehlo.add %a, %a : tensor<3xf32>\nreturn %0 : tensor<3xf32>"), "does not parse"),
    "a constant of another size": (
        module("%0 = stablehlo.constant dense<[1.0]> : tensor<2xf32>\nreturn %a : tensor<2xf32>"),
        "does not parse",
    ),
    "open shapes": (module("return %a : tensor<?xf32>", "tensor<?xf32>"), "sizes of all dimensions required"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_one_clear_error(name):
    source, message = CASES[name]
    with pytest.raises(StablehloError, match=message):
        Graph.from_stablehlo(source)


def test_a_constant_that_claims_terabytes_takes_none():
    kind = "tensor<1000000x1000000xf32>"
    text = module(f"%c = stablehlo.constant dense<1.0> : {kind}\n%0 = stablehlo.add %a, %c : {kind}\nreturn %0 : {kind}", kind)
    graph = Graph.from_stablehlo(text)
    assert not graph.constants and [e.name for e in graph.equations] == ["broadcast_in_dim", "add"]


def test_names_that_would_be_code_become_identifiers_and_no_named_file_is_opened(tmp_path):
    secret = tmp_path / "secret.py"
    secret.write_text("stolen = 1\n")
    name = "x); import os  # "
    text = (
        f'func.func @main(%a: tensor<2xf32> loc("{name}")) -> tensor<2xf32> {{\n'
        f'%0 = stablehlo.negate %a : tensor<2xf32> loc("{secret}":1:1)\nreturn %0 : tensor<2xf32>\n}}\n'
    )
    graph = Graph.from_stablehlo(text)
    assert all(n.isidentifier() for n in graph.name_of.values())
    assert "stolen" not in str(graph)


def test_strings_that_are_no_text_do_not_end_the_process():
    text = module('%0 = stablehlo.negate %a : tensor<2xf32> loc("\\FF\\C3\\28")\nreturn %0 : tensor<2xf32>')
    assert len(Graph.from_stablehlo(text).equations) == 1


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(st.data())
def test_changed_text_reads_or_is_refused(data):
    text = list(TEXT)
    for _ in range(data.draw(st.integers(1, 5))):
        text[data.draw(st.integers(0, len(text) - 1))] = chr(data.draw(st.integers(32, 126)))
    cut = data.draw(st.integers(0, len(text)))
    try:
        Graph.from_stablehlo("".join(text[:cut] if data.draw(st.booleans()) else text) + "\n")
    except StablehloError:
        pass


@pytest.mark.slow
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(st.data())
def test_changed_bytecode_reads_or_is_refused(data):
    changed = bytearray(ARTIFACT)
    for _ in range(data.draw(st.integers(1, 5))):
        changed[data.draw(st.integers(20, len(changed) - 1))] = data.draw(st.integers(0, 255))
    try:
        Graph.from_stablehlo(bytes(changed))
    except StablehloError:
        pass
