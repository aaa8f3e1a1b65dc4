"""The pages: every example runs as written, and generated parts are up to date."""

from __future__ import annotations

import importlib.util
import re
import shlex
import sys
from pathlib import Path

import pytest

from eqsat.devices import DEVICES

ROOT = Path(__file__).resolve().parent.parent
SPEC = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
generate = importlib.util.module_from_spec(SPEC)

sys.modules["docs_generate"] = generate  # dataclasses look their module up
SPEC.loader.exec_module(generate)


@pytest.fixture
def devices():
    """The table of devices, as it was before a page added to it."""
    rows = dict(DEVICES)
    yield
    DEVICES.clear()
    DEVICES.update(rows)


@pytest.mark.slow
@pytest.mark.usefixtures("devices")
@pytest.mark.parametrize("path", generate.examples(), ids=lambda p: p.stem)
def test_examples_run_as_written(path, tmp_path, monkeypatch):
    for package in generate.packages(path):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    for block, printed in zip(generate.blocks(path.read_text()), generate.run(path), strict=True):
        assert bool(printed) or block.output is None, f"{path.name}:{block.line}: an output is shown, but nothing printed"


@pytest.mark.parametrize("page", generate.PAGES)
def test_generated_pages_are_up_to_date(page):
    assert (ROOT / "docs" / page).read_text() == generate.PAGES[page](), "run: python docs/generate.py"


@pytest.mark.slow
def test_the_readme_shows_what_the_demo_prints():
    assert generate.REPORT.search(generate.README.read_text()).group() == generate.demo_report(), (
        "run: python docs/generate.py --outputs"
    )


@pytest.mark.slow
def test_the_readme_s_attention_is_the_kernel_that_it_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    readme = generate.README.read_text()
    (tmp_path / "readme.md").write_text(f"```python\n{next(generate.blocks(readme)).text}```\n")
    (report,) = generate.run(tmp_path / "readme.md")
    shown = re.search(r"^```\n(t1\[.*?)^```", readme, re.DOTALL | re.MULTILINE).group(1)
    assert "".join(shown.split()) in "".join(report.split())
    moved = re.search(r"as one kernel.*?: (\d+) MB of traffic", readme, re.DOTALL).group(1)
    assert re.search(rf"\nlaunches +\d+ +1 .*\nmemory traffic +\S+ GB +{moved}\.\d MB ", report)


def test_commands_on_functions_name_them_with_their_arguments(capsys):
    from eqsat.cli import main

    lines = [line for page in (ROOT / "README.md", *ROOT.glob("docs/**/*.md")) for line in page.read_text().splitlines()]
    said = [shlex.split(line) for line in lines if re.match(r"eqsat \w+ (jax|examples)\.", line)]
    assert len(said) >= 6
    for _, _, subject, *options in said:
        shapes = options[options.index("--args") + 1] if "--args" in options else ""
        assert main(["inspect", subject, "--args", shapes, "--quiet"]) == 0, capsys.readouterr().err


def test_links_between_pages_lead_somewhere():
    wrong = []
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for link in re.findall(r"\]\(([\w./-]+\.(?:md|png|html))(?:#[\w-]*)?\)", page.read_text()):
            if not (page.parent / link).exists():
                wrong.append(f"{page.relative_to(ROOT)}: {link}")
    assert not wrong, "\n".join(wrong)


def test_every_page_is_in_the_navigation():
    text = (ROOT / "mkdocs.yml").read_text()
    pages = {str(p.relative_to(ROOT / "docs")) for p in (ROOT / "docs").rglob("*.md")}
    assert {p for p in pages if p not in text} == set()
