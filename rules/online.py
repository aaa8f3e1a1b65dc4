"""Online reductions: a sum that depends on a maximum over the same axis shares its pass, with rescaling.

g(x, r) = exp(x - r) satisfies g(x, r) = exp(r' - r) * g(x, r'), so a running maximum can be corrected for
(Milakov and Gimelshein, 2018; FlashAttention, 2022).
"""

from eqsat.rule import Axis, DType, Float, absent, cast, const, exp, has_dtype, max_, online, pack, rewrite, rule, sum_

_LOSS = "the order of the sum and one rounding per rescaling"


@rule("reassociate", gives_up=_LOSS)
def weighted_softmax_sum(s: Float, v: Float, k: Axis, d: DType):
    """The sum of exp(s - max s)*v in one pass."""
    return rewrite(sum_(k, exp(s - max_(k, s)) * v), online(k, s, v, d), has_dtype(s, d))


@rule("reassociate", gives_up=_LOSS)
def softmax_sum(s: Float, k: Axis, d: DType):
    """The sum of exp(s - max s) in one pass."""
    return rewrite(sum_(k, exp(s - max_(k, s))), online(k, s, const(1.0, s), d), has_dtype(s, d))


def _narrow(dtype: str):  # type: ignore[no-untyped-def]
    @rule("reassociate", name=f"weighted_softmax_sum_{dtype}", gives_up=_LOSS, narrow=dtype)
    def weighted_softmax_sum_narrow(s: Float, v: Float, k: Axis, narrow):  # type: ignore[no-untyped-def]
        """As weighted_softmax_sum, with weights rounded to a narrow dtype before the product."""
        weights = cast("float32", cast(narrow, exp(s - max_(k, s))))
        return rewrite(sum_(k, weights * v), online(k, s, v, narrow))

    return weighted_softmax_sum_narrow


def _divide_after(dtype: str):  # type: ignore[no-untyped-def]
    @rule("reassociate", name=f"divide_softmax_after_product_{dtype}", gives_up="when the weights are rounded", narrow=dtype)
    def divide_softmax_after_product(s: Float, v: Float, d: Float, k: Axis, narrow):  # type: ignore[no-untyped-def]
        """Rounding exp(s - max s), which lies in 0..1, commutes with division by what does not mention k, up to one rounding."""
        weights = exp(s - max_(k, s))
        return rewrite(
            sum_(k, cast("float32", cast(narrow, weights / d)) * v),
            sum_(k, cast("float32", cast(narrow, weights)) * v) / d,
            absent(k, d),
            has_dtype(s, "float32"),
        )

    return divide_softmax_after_product


narrow_sums = [_narrow(dtype) for dtype in ("bfloat16", "float16")]
divide_after = [_divide_after(dtype) for dtype in ("bfloat16", "float16")]

RULES = pack(globals())
