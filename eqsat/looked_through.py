"""Operations that XLA rewrites as if numbers were real, or fuses so that a rounding is left out; evaluation keeps them apart."""

from __future__ import annotations

from eqsat.index import Index
from eqsat.notation import Term, const_value
from eqsat.scalars import is_float

EXPONENTIALS = ("exp", "exp2")
# Pairs of operations that XLA simplifies as if numbers were real; the logistic function is a quotient to it.
LOOKED_THROUGH = {("log1p", "expm1"), ("sqrt", "mul"), *(("log", f) for f in ("exp", "exp2", "sqrt", "rsqrt", "pow"))}
LOOKED_THROUGH |= {("pow", base) for base in ("exp", "exp2", "pow", "abs")}  # an exponential to a power, also below abs
LOOKED_THROUGH |= {("div", f) for f in ("div", "mul", "logistic")}
LOOKED_THROUGH |= {(user, f) for user in ("add", "sub") for f in EXPONENTIALS}  # which end with a product on a CPU
SUMS = ("add", "sub")
DIVISORS = ("exp", "exp2", "sqrt", "rsqrt", "pow")  # x/exp(y) is x*exp(-y) to it


def is_looked_through(arg: Term, user: Term) -> bool:
    """True where XLA would compute `user` from what `arg` is computed from: exp(a)*exp(b) as exp(a + b)."""
    literals = all(any(a.head == "const" for a in t.args) for t in (arg, user))
    if user.head in SUMS and arg.head in SUMS:  # (a + 1) - 1 and (a + b) - b
        return literals or any(a in arg.args for a in user.args)
    if user.head == "mul":
        return (arg.head == "mul" and literals) or all(a.head in EXPONENTIALS for a in user.args)
    return (user.head, arg.head) in LOOKED_THROUGH or (user.head == "div" and arg is user.args[1] and arg.head in DIVISORS)


def adds_zero(arg: Term, user: Term) -> bool:
    """True for a known 0 that is added or subtracted: to XLA that is nothing, but -0 + 0 and -0 - (-0) are 0."""
    while arg.head == "cast":
        arg = arg.args[0]
    zero = const_value(arg) == 0 if arg.head == "const" else arg.head == "pos" and arg.data == Index()
    return user.head in SUMS and is_float(user.dtype) and zero


def product_rounds(term: Term) -> bool:
    """True for a product whose rounding a fused multiply-add would leave out."""
    return term.head == "mul" and term.dtype in ("float32", "float64")
