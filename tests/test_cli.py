"""The command line: results on standard output, progress on standard error, a mistake is one line and exit code 2."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from eqsat.cli import main
from eqsat.cli_subject import numbers
from eqsat.devices import DEVICES

ROOT = Path(__file__).resolve().parent.parent
SOFTMAX = ["examples.softmax:softmax", "--args", "float32[64,32]"]
COMMANDS = ("optimize", "inspect", "explain", "bisect", "reduce", "view", "devices", "cache", "rules", "bench")
RULES = tuple(f"rules {name}" for name in ("list", "show", "check", "new", "try"))
ASKED = [c for c in (*COMMANDS, *RULES) if c not in ("rules", "bench")]


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")


@pytest.mark.parametrize("command", ASKED)
def test_help_shows_an_example(command, capsys):
    assert main([*command.split(), "--help"]) == 0
    text = capsys.readouterr().out
    assert f"Example: eqsat {command} " in text and "--quiet" in text and "--verbose" in text


@pytest.mark.slow
@pytest.mark.parametrize("command", [c for c in ASKED if c not in ("bisect", "reduce", "devices")])  # own files; minutes
def test_the_example_of_the_help_works_in_an_empty_folder(command, tmp_path, monkeypatch, capsys):
    assert main([*command.split(), "--help"]) == 0
    example = capsys.readouterr().out.partition("Example: eqsat ")[2].partition("Exit codes")[0]
    monkeypatch.setenv("EQSAT_CACHE_DIR", str(tmp_path / "plans"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "examples", raising=False)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if Path(p or ".").resolve() not in (ROOT, tmp_path)])
    assert main(shlex.split(example)) == 0, capsys.readouterr().err


def test_every_command_is_listed_with_the_exit_codes(capsys):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f" {command} " in text for command in COMMANDS)
    assert "Exit codes: 0 success, 1 a check failed, 2 a mistake of the caller, 130 interrupted." in text


@pytest.mark.parametrize("command", [c for c in ASKED if c not in ("view", "rules new")])
def test_every_result_can_be_json(command, capsys):
    assert main([*command.split(), "--help"]) == 0
    assert "--json" in capsys.readouterr().out


def test_the_shell_completes_commands_and_values(monkeypatch, capsys):
    def completed(words: str) -> str:
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(len(words.split(" ")) - 1))
        monkeypatch.setenv("_EQSAT_COMPLETE", "complete_bash")
        assert main([]) == 0
        return capsys.readouterr().out

    assert completed("eqsat exp").split() == ["explain"]
    assert completed("eqsat rules sh").split() == ["show"]
    assert "a100" in completed("eqsat optimize f --target a").split()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "No such command 'nothing'"),
        (["optimize"], "Missing argument 'SUBJECT'"),
        (["optimize", *SOFTMAX, "--targt", "h100"], "No such option"),
        (["optimize", *SOFTMAX, "--target", "h1000"], "target 'h1000': a device of the table required; choose one of a100"),
        (["optimize", *SOFTMAX, "--numerics", "loose"], "numerics 'loose': one of exact, reassociate, fast required"),
        (["optimize", *SOFTMAX, "--objective", "fun"], "objective 'fun': one of time, launches, traffic, memory required"),
        (
            ["inspect", "model.onnx", "--args", "batch"],
            "arguments 'batch': sizes of the model's dimensions, such as 'batch=4', got",
        ),
        (["optimize", *SOFTMAX, "--constants", "x"], "constants 'x': numbers of arguments, such as 0,2, got 'x'"),
        (["optimize", *SOFTMAX, "--constants", "3"], "constants: positions of the 1 positional arguments required, got 3"),
        (["optimize", *SOFTMAX, "--time-limit", "soon"], "Invalid value for '--time-limit'"),
        (["inspect", "nowhere.onnx"], "nowhere.onnx: an ONNX file required, got none at 'nowhere.onnx'"),
        (["inspect", "nowhere.py:f"], "file 'nowhere.py': a Python file required, found none there"),
        (
            ["inspect", "examples.softmax:softmax"],
            "examples.softmax:softmax: shapes of its arguments required, got '': missing a",
        ),
        (["optimize", "examples.softmax:softmax", "--args", "float32[4,-4]"], "arguments 'float32[4,-4]': a list such as"),
        (["view", *SOFTMAX, "-o", "nowhere/page.html"], "nowhere/page.html: a file in a folder that can be written required"),
        (["optimize", *SOFTMAX, "-o", "README.md/out"], "save to README.md/out: a folder that can be written required, got"),
        (["rules", "new", "law", "--file", "nowhere/law.py"], "nowhere/law.py: a file in a folder that can be written required"),
        (
            ["inspect", "examples.softmax:softmax", "--args", "@nothing"],
            "examples.softmax:nothing: a name that examples.softmax has required, found no 'nothing'",
        ),
        (["rules", "new", "class"], "name 'class': a Python name required"),
        (["rules", "try", "sums", "foo(a)"], "expression 'foo(a)': functions among "),
        (["optimize", *SOFTMAX, "--time-limit", "-3"], "time_limit: seconds, at least 0, required, got -3.0"),
        (
            ["rules", "try", "sums", "sum(a)", "--args", "zzz"],
            "arguments 'zzz': a list such as 'a=float32[4,8] b=int32[4]' required",
        ),
        (["rules", "show", "sums"], "rule 'sums': the name of one rule required, got that of a pack"),
        (["rules", "discover", "--ops", "add", "--literals", "x"], "literals 'x': numbers, such as '0,1', required"),
        (["inspect", "nothing.pt2"], "nothing.pt2: "),
        (["rules", "improve"], "No such command 'improve'"),
        (["rules", "show"], "Missing argument 'NAME'"),
        (
            ["rules", "show", "softmax_summ"],
            "rules 'softmax_summ': a pack, a rule or a .py file required, found none of that name",
        ),
        (["rules", "list", "--tier", "loose"], "tier 'loose': one of exact, reassociate, fast required"),
        (["reduce", *SOFTMAX, "-o", "README.md"], "README.md: a new file required, this one exists"),
        (["explain", "examples.softmax:softmax", "--args", "float32[0]"], "softmax: "),
        (["view", "softmax"], "subject 'softmax': module:function, file.py:function or a file"),
    ],
)
def test_a_mistake_is_one_line(arguments, message, capsys):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"eqsat: {message}") and captured.err.count("\n") == 1
    assert captured.out == ""


def test_no_command_prints_the_help(capsys):
    assert main([]) == 2
    captured = capsys.readouterr()
    assert "Usage: eqsat" in captured.out and captured.err == ""


def test_optimize_prints_the_report_and_writes_kernels(tmp_path, capsys):
    assert main(["optimize", *SOFTMAX, "--target", "a100", "--validate", "-o", str(tmp_path / "out")]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("softmax on a100, numerics reassociate\n") and captured.err == ""
    assert re.search(r"\nsearched for    \d+\.\d\d s\n", captured.out)
    assert {"program.py", "report.txt", "plan.json"} <= {p.name for p in (tmp_path / "out").iterdir()}


def test_a_memory_limit_is_kept_to_or_refused_with_the_least_that_is_possible(capsys):
    rows = ["examples.softmax:softmax", "--args", "float32[4,1048576]", "--no-cache", "--memory-limit"]  # split over programs
    assert main(["optimize", *rows, "0"]) == 2
    assert capsys.readouterr().err == "eqsat: memory_limit: at least 32 bytes for temporaries required, got 0; raise it\n"
    assert main(["optimize", *rows, "32", "--json"]) == 0


def test_json_says_what_the_report_says(capsys):
    assert main(["optimize", *SOFTMAX, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["name"], facts["target"], facts["after"]["launches"]) == ("softmax", "h100", len(facts["kernels"]))
    assert facts["kernels"][0]["writes"] and "softmax" in facts["kernels"][0]["formula"]
    assert facts["objective"] == "time" and facts["price"] == pytest.approx(facts["after"]["seconds"])
    assert facts["bound"] == facts["price"] and facts["gap"] == 0 and 0 < facts["search_seconds"] < 600


def test_quiet_prints_nothing_and_verbose_names_the_phases(capsys):
    assert main(["optimize", *SOFTMAX, "--quiet"]) == 0
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""
    assert main(["optimize", *SOFTMAX, "--quiet", "--verbose"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "" and "read softmax: " in captured.err and "planned " in captured.err


def test_a_file_names_functions_and_arguments(tmp_path, capsys):
    (tmp_path / "a_program_of_mine.py").write_text(
        "import jax, jax.numpy as jnp\n\n\ndef f(params, x):\n    return jnp.sort(x) @ params['w']\n\n\n"
        "def arguments():\n    one = jax.ShapeDtypeStruct((4, 4), 'float32')\n    return {'w': one}, one\n"
    )
    subject = f"{tmp_path}/a_program_of_mine.py:f"
    assert main(["inspect", subject, "--args", "@arguments"]) == 0
    text = capsys.readouterr().out
    assert "f(params_w: float32[4,4], x: float32[4,4])" in text
    assert "     1  sort: sort has no reading" in text and "2 equations, 0 of them views, 1 calls of JAX" in text
    assert main(["inspect", subject, "--args", "@arguments", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["operations"] == {"sort": 1, "dot_general": 1} and facts["calls"][0]["operation"] == "sort"


def test_an_onnx_model_is_a_subject(tmp_path, capsys):
    onnx = pytest.importorskip("onnx")
    value = onnx.helper.make_tensor_value_info
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    graph = onnx.helper.make_graph([node], "g", [value("x", 1, ["n", 4])], [value("y", 1, ["n", 4])])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]), str(tmp_path / "model.onnx"))
    assert main(["inspect", str(tmp_path / "model.onnx"), "--args", "n=3"]) == 0
    assert "x: float32[3,4]" in capsys.readouterr().out
    assert main(["inspect", str(tmp_path / "nothing.onnx")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_explain_names_rules_with_their_laws(capsys):
    arguments = "float32[512,512] float32[512,512] float32[512]"
    assert main(["explain", "examples.matrix_chain:chain", "--args", arguments]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "rules needed" in text and "associate_contraction +" in text and "if a does not mention k" in text


def test_view_writes_a_page(tmp_path, capsys):
    place = tmp_path / "softmax.html"
    assert main(["view", *SOFTMAX, "-o", str(place)]) == 0
    assert capsys.readouterr().out == f"{place}\n" and "<title>softmax" in place.read_text(encoding="utf-8")


def test_devices_as_json(capsys, no_own_devices):
    assert main(["devices", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == list(DEVICES)


def test_devices_are_whole_in_a_narrow_terminal(no_own_devices):
    from rich.console import Console

    from eqsat.cli import _facts, _tables

    facts = {name: dict(_facts(device)) for name, device in DEVICES.items()}
    for width in (60, 80, 200):
        console = Console(width=width, highlight=False)
        with console.capture() as text:
            for table in _tables(facts, width):
                console.print(table)
        said = text.get()
        assert "\N{HORIZONTAL ELLIPSIS}" not in said and all(said.count(name) == 1 for name in ("rtx4090", "mi300x"))
        assert all(number in said.split() for number in facts["h100"].values())


def test_rules_are_listed_and_explained(capsys):
    assert main(["rules", "list", "contractions"]) == 0
    assert "associate_contraction" in capsys.readouterr().out
    assert main(["rules", "list", "contractions", "--json"]) == 0
    assert "associate_contraction" in [r["name"] for r in json.loads(capsys.readouterr().out)]
    assert main(["rules", "show", "associate_contraction"]) == 0
    text = capsys.readouterr().out
    assert "gives up the rounding of the inner product" in text and "rules/contractions.py:" in text


def test_a_rule_s_worth_in_a_program_is_shown(capsys):
    arguments = "float32[512,512] float32[512,512] float32[512]"
    shown = ["rules", "show", "associate_contraction", "--program", "examples.matrix_chain:chain", "--args", arguments]
    assert main(shown) == 0
    assert "e-nodes; without it " in capsys.readouterr().out


@pytest.mark.slow
def test_a_check_that_fails_is_exit_code_1(tmp_path, capsys):
    (tmp_path / "wrong.py").write_text(
        "from eqsat.rule import Float, op, rewrite, rule\n\n\n@rule('fast', gives_up='the truth')\n"
        "def tanh_is_its_operand(a: Float):\n    'Wrong.'\n    return rewrite(op('tanh', a), a)\n"
    )
    assert main(["rules", "check", str(tmp_path / "wrong.py")]) == 1
    assert "1 rule checked" in capsys.readouterr().out
    (tmp_path / "soft.py").write_text("import jax, jax.numpy as jnp\n\n\ndef soft(x):\n    return jnp.tanh(jnp.exp(x) * 2)\n")
    subject = [f"{tmp_path}/soft.py:soft", "--args", "float32[6,5]", "--numerics", "fast", "--rules", f"{tmp_path}/wrong.py"]
    assert main(["bisect", *subject]) == 1
    assert "rule tanh_is_its_operand is the first" in capsys.readouterr().out
    assert main(["reduce", *subject, "-o", str(tmp_path / "test_reduced.py"), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["rules"] == ["tanh_is_its_operand"] and len(facts["operations"]) <= 3
    assert "def test_soft_is_right():" in (tmp_path / "test_reduced.py").read_text()


def test_verbose_twice_tells_of_each_rule(capsys):
    assert main(["optimize", *SOFTMAX, "-q", "-v"]) == 0
    once = capsys.readouterr().err
    assert main(["optimize", *SOFTMAX, "-q", "-vv"]) == 0
    twice = capsys.readouterr().err
    assert "e-nodes" in once and "  chose " not in once and "  chose " in twice


def test_packs_that_are_off_are_used_only_where_they_are_named():
    from eqsat.cli_options import Search

    def admitted(**options):
        return {r.name for r in Search("examples.softmax:softmax", "float32[8,4]", **options).traced()[1].rules}

    assert "associate_mul" not in admitted() and "associate_mul" in admitted(rules="expansion")


def test_rules_of_a_file_are_used(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(
        "from eqsat.rule import Axis, Float, absent, max_, rewrite, rule\n\n\n"
        "@rule('fast', gives_up='infinities')\ndef pull_term_out_of_max(a: Float, b: Float, k: Axis):\n"
        "    'max(a + b) = a + max b.'\n    return rewrite(max_(k, a + b), a + max_(k, b), absent(k, a))\n"
    )
    (tmp_path / "best.py").write_text("def best(x, y):\n    return (x[:, None] + y[None, :]).max(axis=1)\n")
    subject = [f"{tmp_path}/best.py:best", "--args", "float32[65536] float32[65536]", "--numerics", "fast"]
    assert main(["explain", *subject, "--rules", f"{tmp_path}/mine.py"]) == 0
    assert "pull_term_out_of_max" in capsys.readouterr().out
    assert main(["explain", *subject, "--rules", "nothing.py"]) == 2
    assert capsys.readouterr().err.startswith("eqsat: nothing.py: a Python file of rules required")


def test_bench_needs_a_checkout(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if not (Path(p) / "benchmarks").is_dir()])
    monkeypatch.setattr(sys, "meta_path", [f for f in sys.meta_path if "__editable__" not in str(f)])
    for name in [n for n in sys.modules if n.split(".")[0] == "benchmarks"]:
        monkeypatch.delitem(sys.modules, name)
    assert main(["bench", "--quick"]) == 2
    assert capsys.readouterr().err.startswith("eqsat: bench: the folder benchmarks of a checkout required")


def test_an_interruption_is_no_stack_trace(monkeypatch, capsys):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("eqsat.cli_programs.graph_of", interrupt)
    assert main(["inspect", "examples.softmax:softmax"]) == 130
    assert capsys.readouterr().err == "eqsat: interrupted\n"


def test_numbers_are_read_as_they_are_written():
    assert numbers("0, 2 -1") == (0, 2, -1) and numbers("") == ()


RULE = "from eqsat.rule import Float, rewrite, rule\n\n\n@rule({0})\ndef law(a: Float{1}):\n    'Doc.'\n    return {2}\n"
BROKEN = {
    "syntax": ("def law(:", ":1: Python required, got 'def law(:'"),
    "exit": ("import sys\nsys.exit(3)", ": a file that Python can run required, got SystemExit: 3 at "),
    "fault": ("1 / 0", ": a file that Python can run required, got ZeroDivisionError: division by zero at "),
    "value": ("raise ValueError('mine')", ": a file that Python can run required, got ValueError: mine at "),
    "assertion": ("assert False, 'mine'", ": a file that Python can run required, got AssertionError: mine at "),
    "import": ("import nothing_there", ": a file that Python can run required, got ModuleNotFoundError: "),
    "empty": ("x = 1", ": at least one rule required, found none"),
    "tier": (RULE.format("'loose'", "", "rewrite(a * a, a)"), ":4): tier in ('exact', 'reassociate', 'fast') and phase in "),
    "unbound": (RULE.format("'exact'", ", b: Float", "rewrite(a * a, b)"), ":4): variables of one side must be bound"),
    "no rewrite": (RULE.format("'exact'", "", "a"), ":4): rewrite(...) or birewrite(...) as the result required"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_file_of_rules_that_is_none_is_one_line_that_says_where(fault, tmp_path, capsys):
    text, message = BROKEN[fault]
    (tmp_path / "law.py").write_text(text)
    assert main(["rules", "list", f"{tmp_path}/law.py"]) == 2
    said = capsys.readouterr().err
    assert f"{tmp_path}/law.py{message}" in said and said.count("\n") == 1


def test_a_module_of_the_user_that_ends_or_fails_is_one_line(tmp_path, capsys):
    (tmp_path / "leaves.py").write_text("import sys\nsys.exit(3)\n")
    (tmp_path / "fails.py").write_text("def f(x):\n    return x\n\n\ndef arguments():\n    raise RuntimeError('mine')\n")
    assert (
        main(["inspect", f"{tmp_path}/leaves.py:f"]) == main(["inspect", f"{tmp_path}/fails.py:f", "--args", "@arguments"]) == 2
    )
    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith("leaves.py': one that can be imported required, got SystemExit: 3")
    assert second == "eqsat: arguments '@arguments': a function that makes them required, got RuntimeError: mine"
