"""Online reductions: what depends on another reduction over the same axis shares its pass, and is corrected as that changes.

g(x, r) = exp(x - r) satisfies g(x, r) = exp(r' - r) * g(x, r'), so a running maximum can be corrected for
(Milakov and Gimelshein, 2018; FlashAttention, 2022). The place of a maximum is found again where there is a greater one, and
squared deviations are moved to another mean (Welford, 1962). `eqsat.online` has a row for each.
"""

from eqsat.rule import (
    Axis,
    Bool,
    DType,
    Float,
    Integer,
    Number,
    absent,
    at_least,
    cast,
    const,
    exp,
    extent,
    has_dtype,
    max_,
    online,
    online_,
    op,
    pack,
    reduce_,
    rewrite,
    rule,
    sum_,
    values_at_most,
    where,
)

_LOSS = "the order of the sum and one rounding per rescaling"


@rule("reassociate", gives_up=_LOSS)
def weighted_softmax_sum(s: Float, v: Float, k: Axis, d: DType):
    """The sum of exp(s - max s)*v in one pass."""
    return rewrite(sum_(k, exp(s - max_(k, s)) * v), online(k, s, v, d), has_dtype(s, d))


@rule("reassociate", gives_up=_LOSS)
def softmax_sum(s: Float, k: Axis, d: DType):
    """The sum of exp(s - max s) in one pass."""
    return rewrite(sum_(k, exp(s - max_(k, s))), online(k, s, const(1.0, s), d), has_dtype(s, d))


@rule("reassociate", gives_up=_LOSS)
def log_sum_exp_sum(s: Float, k: Axis, d: DType):
    """The sum of exp(s - max s) in one pass, where the maximum is guarded as in `jax.nn.logsumexp`: 0 unless it is finite.

    Then the sum is that of exp(s): 0 for a maximum of -inf, infinite for inf, and NaN for NaN.
    """
    largest = max_(k, s)
    finite = op("is_finite", largest)
    guarded = sum_(k, exp(s - where(finite, largest, const(0.0, s))))
    return rewrite(guarded, where(finite, online(k, s, const(1.0, s), d), exp(largest)), has_dtype(s, d))


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


def _place(extreme: str, sort):  # type: ignore[no-untyped-def]
    name = f"arg{extreme}"

    @rule("exact", name=f"{name}_in_one_pass_{sort.name.lower()}")
    def place_in_one_pass(s: sort, v: Integer, c: Number, d: DType, k: Axis):  # type: ignore[no-untyped-def,valid-type]
        """The first place that holds the extreme is found together with it; a NaN is the extreme of all."""
        found = op("eq", s, reduce_(extreme, k, s))
        if sort is Float:
            found = op("or", found, op("ne", s, s))
        first = reduce_("min", k, where(found, v, const(c)))
        return rewrite(first, online_(name, k, s, v, d), values_at_most(v, c), has_dtype(s, d))

    return place_in_one_pass


@rule("reassociate", gives_up="the order of the sums and the rounding of a mean for each tile")
def deviations_in_one_pass(s: Float, n: Number, k: Axis, d: DType):
    """The sum of (s - mean)^2, with a running mean (Welford): a variance in one pass that loses no digits."""
    deviation = s - sum_(k, s) / const(n)
    whole = (at_least(0, n - extent(k)), at_least(0, extent(k) - n))
    return rewrite(sum_(k, deviation * deviation), online_("deviations", k, s, const(1.0, s), d), has_dtype(s, d), *whole)


places = [_place(extreme, sort) for extreme in ("max", "min") for sort in (Float, Integer, Bool)]
narrow_sums = [_narrow(dtype) for dtype in ("bfloat16", "float16")]
divide_after = [_divide_after(dtype) for dtype in ("bfloat16", "float16")]

RULES = pack(globals())
