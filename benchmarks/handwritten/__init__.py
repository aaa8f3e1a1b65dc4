"""Kernels as a person writes them in Triton, for static comparison with ours: `python -m benchmarks.handwritten`."""
