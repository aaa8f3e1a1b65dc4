"""The built-in rule packs, and those that installed packages offer under the entry point group "eqsat.rules"."""

if __name__ != "eqsat.rules":
    raise ImportError("this folder is the package eqsat.rules; import that")

from importlib import import_module
from importlib.metadata import entry_points
from pkgutil import iter_modules

from eqsat.rule import Rule, unique

OPTIONAL = ("expansion",)  # packs that are used only where they are named
BUILT_IN: dict[str, tuple[Rule, ...]] = {m.name: import_module(f"eqsat.rules.{m.name}").RULES for m in iter_modules(__path__)}


def installed() -> dict[str, tuple[Rule, ...]]:
    """Packs of other packages: each entry point names a tuple of rules, such as `my_package.my_rules:RULES`."""
    packs: dict[str, tuple[Rule, ...]] = {}
    for point in entry_points(group="eqsat.rules"):
        try:
            packs[point.name] = tuple(point.load())
        except Exception as error:
            raise ImportError(f"rule pack {point.name} ({point.value}): {error}; fix or uninstall it") from error
    return packs


PACKS = BUILT_IN | installed()
RULES = unique(rule for name, rules in PACKS.items() if name not in OPTIONAL for rule in rules)
