"""Which maxima may lose a NaN, and what is one array under two names."""

import pytest

from eqsat.alpha import distinct
from eqsat.index import Axis, Index
from eqsat.maxima import replaceable, source_of_nan
from eqsat.notation import Tensor, const, load, online, reduce, scalar

i, j, r = Axis("i", 4), Axis("j", 8), Axis("r", 8)
X = Tensor("x", (4, 8), "float32")


def x(column):
    return load(X, (Index.of(i), Index.of(column)))


TOP = reduce("max", r, x(r))


def exponential(column):
    return scalar("exp", scalar("sub", x(column), TOP))


SUM = reduce("sum", r, exponential(r))
SEEN = {
    "softmax": (scalar("div", exponential(j), SUM),),
    "sum of exponentials": (SUM,),
    "log of the sum, plus the maximum": (scalar("add", scalar("log", SUM), TOP),),
    "a sum in one pass": (online(r, scalar("sub", x(r), TOP), const(1.0, "float32"), "float32"),),
    "softmax and its sum": (scalar("div", exponential(j), SUM), SUM),
}
HIDDEN = {
    "the maximum itself": (TOP,),
    "exponentials": (exponential(j),),
    "softmax and its maximum": (scalar("div", exponential(j), SUM), TOP),
    "a power of 0": (reduce("sum", r, scalar("pow", exponential(r), const(0.0, "float32"))),),
    "a comparison": (scalar("where", scalar("gt", TOP, const(0.0, "float32")), SUM, x(j)),),
    "a maximum beside a sum in one pass": (online(r, scalar("sub", x(r), TOP), const(1.0, "float32"), "float32"), TOP),
    "a maximum of exponentials": (reduce("max", r, exponential(r)),),
}


@pytest.mark.parametrize("outputs", SEEN.values(), ids=SEEN)
def test_a_maximum_may_lose_a_nan_that_every_output_shows(outputs):
    assert replaceable(outputs) == {TOP}


@pytest.mark.parametrize("outputs", HIDDEN.values(), ids=HIDDEN)
def test_a_maximum_keeps_the_nan_that_an_output_would_not_show(outputs):
    assert TOP not in replaceable(outputs)


def test_terms_under_other_axes_are_one_array():
    terms = [t for t in scalar("div", exponential(j), SUM).walk()]
    kept = distinct(terms)
    assert sum(t.head == "exp" for t in terms) == 2 and sum(t.head == "exp" for t in kept) == 1
    square = [x(j), load(X, (Index.of(j), Index.of(i))), load(X, (Index.of(Axis("k", 4)), Index.of(j)))]
    assert len(distinct(square)) == 2  # transposed is another array


def test_what_is_nan_where_a_term_is():
    two, zero = const(2.0, "float32"), const(0.0, "float32")
    assert source_of_nan(scalar("max", scalar("sub", two, scalar("mul", two, x(r))), zero)) is x(r)
    no_infinity = load(Tensor("w", (8,), "float8_e4m3fn"), (Index.of(r),))
    for kept in (
        scalar("mul", x(r), zero),  # infinity * 0 is NaN
        scalar("add", x(r), const(float("inf"), "float32")),
        scalar("div", two, x(r)),
        scalar("add", x(r), x(j)),
        scalar("log", x(r)),
        scalar("mul", no_infinity, const(2.0, "float8_e4m3fn")),  # overflows to NaN
    ):
        assert source_of_nan(kept) is kept
