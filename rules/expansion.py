"""Laws that expand: off unless asked for (`optimize(rules=...)`), because long sums have too many orders to list.

The default packs bring together only what is computed less often; where all operands have the same axes no order is cheaper.
"""

from eqsat.rule import Float, op, pack, rewrite, rule


def _associates(name: str):  # type: ignore[no-untyped-def]
    @rule("reassociate", phase="explore", gives_up="the order of roundings", name=f"associate_{name}", operation=name)
    def associates(a: Float, b: Float, c: Float, operation):  # type: ignore[no-untyped-def]
        """(a + b) + c = a + (b + c), or with products."""
        return rewrite(op(operation, op(operation, a, b), c), op(operation, a, op(operation, b, c)))

    return associates


associates = [_associates(name) for name in ("add", "mul")]


@rule("reassociate", phase="explore", gives_up="the rounding of the sum, and digits where operands cancel")
def distribute_product(a: Float, b: Float, c: Float):
    """a*(b + c) = a*b + a*c."""
    return rewrite(a * (b + c), a * b + a * c)


RULES = pack(globals())
