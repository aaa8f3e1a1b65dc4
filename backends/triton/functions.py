"""Functions that stand beside a kernel: combinations of two values, and a product in full precision.

The product is of a float32 and a bfloat16 block, by matrix instructions. A float32 number is the sum of three bfloat16 ones,
each of them its next 8 bits, and products of bfloat16 numbers are exact in float32, so three matrix products lose nothing but the
order of the sum.
"""

from eqsat.scalars import REDUCTIONS, SCALARS

from .source import COMBINE, DOT
from .text import bare, operation

_SOFTSUM = '''@triton.jit
def {name}(m, a, n, b):
    """Sums of exponentials a and b, relative to the maxima m and n, as one relative to the greater."""
    weight = tl.exp(tl.where(m == n, 0.0, -tl.abs(m - n)))
    return {maximum}, tl.where(m < n, a * weight + b, a + b * weight)'''

_TEXT = '''@triton.jit
def {name}(a, b, acc):
    """acc + a b, in full precision: float32 {wide} is the sum of three bfloat16 numbers, each of them the next 8 bits."""
    high = ({wide}.to(tl.uint32, bitcast=True) & 0xFFFF0000).to(tl.float32, bitcast=True)
    rest = {wide} - high
    middle = (rest.to(tl.uint32, bitcast=True) & 0xFFFF0000).to(tl.float32, bitcast=True)
    low = (rest - middle).to(tl.bfloat16)
    middle = middle.to(tl.bfloat16)
    high = high.to(tl.bfloat16)
    small = tl.dot({middle}, tl.dot({low}))
    total = tl.dot({high}, acc)
    return total + tl.where(tl.abs(small) < float("inf"), small, 0.0)  # beside an infinity the small parts are NaN'''


def combination(op: str) -> tuple[str, str]:
    """Name and text of the function for a reduction that Triton has no name for."""
    name = COMBINE + REDUCTIONS[op].combine
    expression = bare(SCALARS[REDUCTIONS[op].combine].triton.format("a", "b"))
    return name, f"@triton.jit\ndef {name}(a, b):\n    return {expression}"


def softsum() -> tuple[str, str]:
    """Name and text of the function for pairs of a maximum and a sum of exponentials relative to it."""
    name = f"{COMBINE}softsum"
    return name, _SOFTSUM.format(name=name, maximum=bare(operation("max", "float32").format("m", "n")))


def product_of_parts(wide: str) -> tuple[str, str]:
    """Name and text of the function for the wide operand `a` or `b`."""
    name = f"{DOT}with_parts_of_{wide}"
    products = {part: f"{part}, b" if wide == "a" else f"a, {part}" for part in ("high", "middle", "low")}
    return name, _TEXT.format(name=name, wide=wide, **products)
