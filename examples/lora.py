"""A low-rank adapter on a weight: the product with the small factors must not be built as a matrix."""

from eqsat.shapes import shapes
from examples import Table, report


def lora(x, w, a, b):
    """a: [width, rank], b: [rank, width]."""
    return x @ w + 2.0 * (x @ a @ b)


def lora_unmerged(x, w, a, b):
    """The same, written so that a naive run builds a full matrix from the factors."""
    return x @ (w + 2.0 * (a @ b))


PROGRAMS: Table = {
    "lora": (lora, shapes("bfloat16[4096,2048] bfloat16[2048,2048] bfloat16[2048,16] bfloat16[16,2048]")),
    "lora_unmerged": (lora_unmerged, shapes("float32[64,2048] float32[2048,2048] float32[2048,16] float32[16,2048]")),
}

RAGGED: Table = {
    "lora": (lora, shapes("float32[37,50] float32[50,41] float32[50,3] float32[3,41]")),
    "lora_unmerged": (lora_unmerged, shapes("float32[5,50] float32[50,41] float32[50,3] float32[3,41]")),
}


if __name__ == "__main__":
    report(PROGRAMS)
