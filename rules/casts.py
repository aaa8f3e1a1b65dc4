"""Conversions."""

from eqsat.rule import Term, cast, has_dtype, pack, rewrite, rule
from eqsat.scalars import DTYPES, widens_exactly


def _round_trip(narrow: str, wide: str):  # type: ignore[no-untyped-def]
    @rule("exact", phase="normalise", name=f"cast_{narrow}_to_{wide}_and_back", pair=(narrow, wide))
    def cast_round_trip(a: Term, pair):  # type: ignore[no-untyped-def]
        """A cast that widens exactly, then back, changes nothing."""
        narrow, wide = pair
        return rewrite(cast(narrow, cast(wide, a)), a, has_dtype(a, narrow))

    return cast_round_trip


_FLOATS = [d for d in DTYPES if DTYPES[d].kind == "float" and DTYPES[d].nbytes > 1]
round_trips = [_round_trip(n, w) for n in _FLOATS for w in _FLOATS if n != w and widens_exactly(n, w)]


def _drop_narrowing(narrow: str, wide: str):  # type: ignore[no-untyped-def]
    @rule("fast", name=f"keep_{wide}_over_{narrow}", gives_up=f"rounding to {narrow} between operations", pair=(narrow, wide))
    def keep_excess_precision(a: Term, pair):  # type: ignore[no-untyped-def]
        """Excess precision: a value rounded to a narrow dtype and widened again keeps its digits."""
        narrow, wide = pair
        return rewrite(cast(wide, cast(narrow, a)), a, has_dtype(a, wide))

    return keep_excess_precision


excess_precision = [_drop_narrowing(n, "float32") for n in ("bfloat16", "float16")]

RULES = pack(globals())
