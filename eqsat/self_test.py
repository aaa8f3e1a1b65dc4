"""What a saved Triton kernel's file ends with: the same in JAX, and a test of one against the other when the file is run.

Imported, the file needs Triton alone: JAX is what the reference imports when it is called, and the test when it runs.
"""

from __future__ import annotations

import jax.numpy as jnp

from eqsat.notation import Tensor
from eqsat.program import PlannedKernel
from eqsat.running import backend
from eqsat.scalars import is_float
from eqsat.tile import TileProgram

OWN_NAMES = ("launch", "reference", "check")  # of the file's functions, the kernel's aside
TEXT = '''

{reference}


def check():
    """Compare `launch` with `reference`."""
    import os

    {jax}import jax.numpy as jnp
    import numpy as np
    import torch

    def draw(dtype, shape):
        """Normal numbers; of whole ones, zeros and ones."""
        whole = jnp.issubdtype(dtype, jnp.integer) or dtype == "bool"
        return np.asarray(generator.integers(0, 2, shape) if whole else generator.standard_normal(shape)).astype(jnp.dtype(dtype))

    def tensor(array):
        """An array as a torch tensor where the kernel runs."""
        held = array if array.dtype.kind in "iub" else array.astype(np.float64)  # NumPy's own; torch knows no others
        return torch.from_numpy(held).to(getattr(torch, array.dtype.name)).to("cpu" if interpreted else "cuda")

    interpreted = bool(os.environ.get("TRITON_INTERPRET"))
    if not interpreted and not torch.cuda.is_available():
        raise SystemExit(f"{{__file__}}: a GPU required, got none; set TRITON_INTERPRET=1"){wide}
    generator = np.random.default_rng(0)
    arrays = [draw(dtype, shape) for dtype, shape in {inputs}]
    wanted = [np.asarray(a, np.float64) for a in reference(*arrays)]
    tensors = [tensor(a) for a in arrays]
    outputs = [tensor(np.zeros(shape, jnp.dtype(dtype))) for dtype, shape in {outputs}]
    for output, taken in {in_place}.items():
        outputs[output] = tensors[taken]  # written where it lies
    launch(*tensors, *outputs)
    for got, right in zip(outputs, wanted):
        room = {limit:.1e} * np.max(np.abs(right), initial=0, where=np.isfinite(right))
        np.testing.assert_allclose(got.double().cpu().numpy(), right, rtol={limit:.1e}, atol=room)


if __name__ == "__main__":  # on a GPU, or with TRITON_INTERPRET=1 on any machine, where bfloat16 matrices are multiplied wrongly
    check()
    print(f"{{__doc__.splitlines()[0]}}\\nagrees with JAX")
'''


def self_test(planned: PlannedKernel, program: TileProgram, wide: bool) -> str:
    """The text for a kernel whose name is none of `OWN_NAMES`; `wide` if its program has numbers of 64 bits."""
    jax_backend, kernel = backend("jax"), planned.kernel
    narrow = [float(jnp.finfo(t.dtype).eps) ** 0.5 for t in (*kernel.inputs, *kernel.outputs) if is_float(t.dtype)]

    def types(tensors: tuple[Tensor, ...]) -> str:
        return "[" + ", ".join(f'("{t.dtype}", {t.shape})' for t in tensors) + "]"

    return TEXT.format(
        jax="import jax\n    " if wide else "",
        wide='\n    jax.config.update("jax_enable_x64", True)' if wide else "",
        reference=jax_backend.emit_kernel(kernel, "reference", planned.numerics, alone=True),
        inputs=types(program.inputs),
        outputs=types(program.outputs),
        in_place=program.in_place,
        limit=max(narrow, default=0.0),
    )
