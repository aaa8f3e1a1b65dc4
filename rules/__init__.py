"""The built-in rule packs."""

if __name__ != "eqsat.rules":
    raise ImportError("this folder is the package eqsat.rules; import that")

from importlib import import_module
from pkgutil import iter_modules

PACKS = {m.name: import_module(f"eqsat.rules.{m.name}").RULES for m in iter_modules(__path__)}
RULES = tuple(rule for rules in PACKS.values() for rule in rules)
