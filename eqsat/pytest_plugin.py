"""A pytest plugin for authors of rules: every rule of a collected file becomes a test.

Run ``pytest -p eqsat.pytest_plugin my_rules.py``; the option `eqsat_rules` lists the patterns of file names (``*_rules.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from eqsat.check import SAMPLES, check_rule
from eqsat.packs import rules_in
from eqsat.rule import Rule


class RuleFailed(AssertionError):
    """A rule that the checker rejects; the message is the counterexample."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("eqsat_rules", "names of files whose rules are checked", type="args", default=["*_rules.py"])
    group = parser.getgroup("eqsat")
    group.addoption("--rule-samples", type=int, default=SAMPLES, help="random instances of each rule")
    group.addoption("--rule-seed", type=int, default=0, help="seed of the instances")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    if any(fnmatch(file_path.name, pattern) for pattern in parent.config.getini("eqsat_rules")):
        return RuleFile.from_parent(parent, path=file_path)
    return None


class RuleFile(pytest.File):
    """A file of rules."""

    def collect(self) -> Iterator[pytest.Item]:
        try:
            rules = rules_in(self.path)
        except (TypeError, ValueError) as error:
            raise self.CollectError(str(error)) from error
        for rule in rules:
            yield RuleItem.from_parent(self, name=rule.name, rule=rule)


class RuleItem(pytest.Item):
    """The check of one rule."""

    def __init__(self, *, rule: Rule, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rule = rule

    def runtest(self) -> None:
        options = self.config.option
        verdict = check_rule(self.rule, seed=options.rule_seed, samples=options.rule_samples)
        if not verdict.passed:
            raise RuleFailed(verdict.problem)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, RuleFailed):
            return f"{self.rule.name}: wrong in tier {self.rule.tier}\n{excinfo.value}"
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, int(self.rule.source.rpartition(":")[2]) - 1, self.rule.name
