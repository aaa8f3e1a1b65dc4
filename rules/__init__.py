"""The built-in rule packs."""

if __name__ != "eqsat.rules":
    raise ImportError("this folder is the package eqsat.rules; import that")
