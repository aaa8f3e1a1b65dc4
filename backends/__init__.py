"""Targets: each folder prints a tile program, or runs a program, for one of them."""

if __name__ != "eqsat.backends":
    raise ImportError("this folder is the package eqsat.backends; import that")
