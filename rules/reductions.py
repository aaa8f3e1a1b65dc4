"""Reductions other than sums: maxima and minima with what is monotone, and reductions of what does not vary.

A reduction over an axis of extent 1 is gone when a program has been read.
"""

from eqsat.rule import Axis, Float, Number, Term, absent, at_least, const, max_of, min_of, op, pack, reduce_, rewrite, rule

_ZEROS = "the sign of a zero"
_INFINITIES = "which of NaN and infinity, where infinities meet"
_OTHER = {"max": "min", "min": "max"}
_OF = {"max": max_of, "min": min_of}


def _unvarying(name: str):  # type: ignore[no-untyped-def]
    @rule("exact", phase="normalise", name=f"{name}_of_what_does_not_vary", reduction=name)
    def of_what_does_not_vary(a: Term, k: Axis, reduction):  # type: ignore[no-untyped-def]
        """The greatest of equal values is that value."""
        return rewrite(reduce_(reduction, k, a), a, absent(k, a))

    return of_what_does_not_vary


def _of_both(name: str):  # type: ignore[no-untyped-def]
    @rule("reassociate", gives_up=_ZEROS, name=f"{name}_of_both", extreme=name)
    def of_both(a: Float, b: Float, k: Axis, extreme):  # type: ignore[no-untyped-def]
        """The maximum of max(a, b) is the greater of both maxima."""
        both = _OF[extreme](a, b)
        return rewrite(reduce_(extreme, k, both), _OF[extreme](reduce_(extreme, k, a), reduce_(extreme, k, b)))

    return of_both


def _shifted(name: str):  # type: ignore[no-untyped-def]
    @rule("reassociate", gives_up=_INFINITIES, name=f"{name}_of_sum", extreme=name)
    def of_sum(a: Float, c: Float, k: Axis, extreme):  # type: ignore[no-untyped-def]
        """max(a + c) = max(a) + c, if c does not mention k: rounding is monotone."""
        return rewrite(reduce_(extreme, k, a + c), reduce_(extreme, k, a) + c, absent(k, c))

    return of_sum


def _lowered(name: str):  # type: ignore[no-untyped-def]
    @rule("reassociate", gives_up=_INFINITIES, name=f"{name}_of_difference", extreme=name)
    def of_difference(a: Float, c: Float, k: Axis, extreme):  # type: ignore[no-untyped-def]
        """max(a - c) = max(a) - c, if c does not mention k."""
        return rewrite(reduce_(extreme, k, a - c), reduce_(extreme, k, a) - c, absent(k, c))

    return of_difference


def _scaled(name: str):  # type: ignore[no-untyped-def]
    @rule("reassociate", gives_up=_ZEROS, name=f"{name}_of_scaled", extreme=name)
    def of_scaled(a: Float, c: Number, k: Axis, extreme):  # type: ignore[no-untyped-def]
        """max(c*a) = c*max(a) for a literal c > 0: a negative one would turn the order round."""
        return rewrite(reduce_(extreme, k, a * const(c)), reduce_(extreme, k, a) * const(c, a), at_least(1e-4, c))

    return of_scaled


def _negated(name: str):  # type: ignore[no-untyped-def]
    @rule("reassociate", gives_up=_ZEROS, name=f"{name}_of_negation", extreme=name)
    def of_negation(a: Float, k: Axis, extreme):  # type: ignore[no-untyped-def]
        """max(-a) = -min(a)."""
        return rewrite(reduce_(extreme, k, -a), -reduce_(_OTHER[extreme], k, a))

    return of_negation


def _of_increasing(name: str, operation: str):  # type: ignore[no-untyped-def]
    @rule("reassociate", gives_up="one rounding", name=f"{name}_of_{operation}", pair=(name, operation))
    def of_increasing(a: Float, k: Axis, pair):  # type: ignore[no-untyped-def]
        """max(f(a)) = f(max(a)) for an increasing f that is defined everywhere: one evaluation instead of many."""
        return rewrite(reduce_(pair[0], k, op(pair[1], a)), op(pair[1], reduce_(pair[0], k, a)))

    return of_increasing


def _swapped(name: str):  # type: ignore[no-untyped-def]
    @rule("reassociate", gives_up=_ZEROS, name=f"swap_{name}", extreme=name)
    def swap(a: Float, k: Axis, l: Axis, extreme):  # type: ignore[no-untyped-def]  # noqa: E741
        """Nested maxima may be swapped."""
        return rewrite(reduce_(extreme, k, reduce_(extreme, l, a)), reduce_(extreme, l, reduce_(extreme, k, a)))

    return swap


_EXTREMES = ("max", "min")
unvarying = [_unvarying(name) for name in (*_EXTREMES, "and", "or")]
of_both = [_of_both(name) for name in _EXTREMES]
shifted = [f(name) for name in _EXTREMES for f in (_shifted, _lowered, _scaled, _negated, _swapped)]
increasing = [_of_increasing(name, f) for name in _EXTREMES for f in ("exp", "tanh", "logistic", "floor", "ceil")]

RULES = pack(globals())
