"""Rules by name: packs, single rules, and files of rules."""

from __future__ import annotations

import difflib
import importlib.util
import traceback
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path

from eqsat.rule import Rule, pack, unique


def packs() -> Mapping[str, tuple[Rule, ...]]:
    """All packs: built in, and offered by installed packages."""
    return import_module("eqsat.rules").PACKS


def default_rules() -> tuple[Rule, ...]:
    """The rules that are used where none are named."""
    return import_module("eqsat.rules").RULES


def rules_in(path: str | Path) -> tuple[Rule, ...]:
    """The rules of a Python file. Raises ValueError for a file that has none or that Python cannot run."""
    path = Path(path)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ValueError(f"{path}: a Python file of rules required, found none")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise ValueError(
            f"{error.filename}:{error.lineno}: Python required, got {str(error.text).strip()!r}; {error.msg}"
        ) from None
    except (Exception, SystemExit) as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        if isinstance(error, ValueError | TypeError) and Path(last.filename).parent == Path(__file__).parent:
            raise  # of a rule that is none: it says where
        said = f"{type(error).__name__}: {error} at {last.filename}:{last.lineno}"
        raise ValueError(f"{path}: a file that Python can run required, got {said}") from error
    found = pack(vars(module))
    if not found:
        raise ValueError(f"{path}: at least one rule required, found none; a rule is a function under @rule(...)")
    return found


def rules_named(words: Iterable[str]) -> tuple[Rule, ...]:
    """The rules that words name: packs, rules, or files; all rules if there is no word."""
    words, found = list(words), list[Rule]()
    known = packs()
    by_name = {r.name: r for rules in known.values() for r in rules}
    for word in words or known:
        if word in known:
            found += known[word]
        elif word in by_name:
            found.append(by_name[word])
        elif word.endswith(".py"):
            found += rules_in(word)
        else:
            near = difflib.get_close_matches(word, [*known, *by_name], 3)
            hint = f"; did you mean {', '.join(near)}?" if near else f"; packs: {', '.join(known)}"
            raise ValueError(f"rules {word!r}: a pack, a rule or a .py file required, found none of that name{hint}")
    return unique(found)
