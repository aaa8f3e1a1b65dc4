"""Options of `optimize` that are none: each is an error that says what is required."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import eqsat
from eqsat.optimizer import positions

X = jax.ShapeDtypeStruct((4,), "float32")


@pytest.mark.parametrize(
    "options, message",
    [
        ({"time_limit": "soon"}, "time_limit: seconds, at least 0, required, got 'soon'"),
        ({"time_limit": None}, "time_limit: seconds, at least 0, required, got None"),
        ({"constants": (0.5,)}, r"constants: positions of arguments, such as \(0, 2\), required, got \(0.5,\)"),
        ({"donate": "x"}, r"donate: positions of arguments, such as \(0, 2\), required, got 'x'"),
        ({"rules": "sums"}, "rules: rules required, got 's'; a function becomes one by @rule"),
        ({"rules": [jnp.tanh]}, "rules: rules required, got .*; a function becomes one by @rule"),
    ],
)
def test_an_option_of_another_type_is_an_error_that_says_what_is_required(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        eqsat.optimize(jnp.tanh, X, **options)


def test_one_position_stands_for_a_tuple_of_one() -> None:
    assert positions("constants", 0) == positions("constants", [0]) == (0,)


def test_what_jax_can_not_read_is_named_without_an_address() -> None:
    with pytest.raises(TypeError, match="bind other arguments") as caught:
        eqsat.optimize(jnp.tanh, "float32[4]")
    assert " at 0x" not in str(caught.value)
