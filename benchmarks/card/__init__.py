"""The card script: in under six minutes, what a GPU says about kernels, estimates and other compilers."""
