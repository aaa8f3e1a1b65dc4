"""Products whose order or sharing matters."""

from eqsat.shapes import shapes
from examples import Table, report


def chain(a, b, v):
    """(A B) v costs a matrix product, A (B v) two matrix-vector products."""
    return a @ b @ v


def chain_of_four(a, b, c, d):
    return a @ b @ c @ d


def common_factor(a, b, c):
    """A B + A C = A (B + C): one product instead of two."""
    return a @ b + a @ c


PROGRAMS: Table = {
    "chain": (chain, shapes("float32[4096,4096] float32[4096,4096] float32[4096]")),
    "chain_of_four": (chain_of_four, shapes("float32[2048,64] float32[64,2048] float32[2048,64] float32[64,2048]")),
    "common_factor": (common_factor, shapes("float32[2048,2048] float32[2048,2048] float32[2048,2048]")),
}

RAGGED: Table = {
    "chain": (chain, shapes("float32[37,29] float32[29,41] float32[41]")),
    "chain_of_four": (chain_of_four, shapes("float32[37,3] float32[3,29] float32[29,5] float32[5,41]")),
    "common_factor": (common_factor, shapes("float32[37,29] float32[29,41] float32[29,41]")),
}


if __name__ == "__main__":
    report(PROGRAMS)
