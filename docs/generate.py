"""Writes what is generated in these pages: reference tables, the output below each example, pictures.

python docs/generate.py             the pages in reference/, from the product's own tables
python docs/generate.py --outputs   also run every example and the demo of README.md, and refresh the text that they print
python docs/generate.py --demo      also record what each rule does in the demo, for `eqsat rules show`
python docs/generate.py --pictures  also take the pictures again (needs Chromium)
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import inspect
import io
import itertools
import math
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
NOTE = "<!-- Written by docs/generate.py from the tables of the product; change those. -->\n"
MINUS_INFINITY = "-\N{INFINITY}"


# --- reference ---------------------------------------------------------------------------------------------------


def table(headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(str(cell).replace('|', '&#124;') for cell in line)} |" for line in lines)


def code(text: Any) -> str:
    return f"`{text}`" if str(text) else ""


def operations() -> str:
    from eqsat.scalars import DTYPES, REDUCTIONS, SCALARS

    return f"""# Operations, reductions, dtypes
{NOTE}
A row of `eqsat/scalars.py` is all that `eqsat` knows of an operation: the e-graph, the evaluation, the cost model and the
printers read it from there.

## Scalar operations

`{{0}}`, `{{1}}`, ... stand for the operands. *Unit* is the pipe that runs an operation, *weight* its instructions
there.

{table(["operation", "JAX", "Triton", "unit", "weight", "operands", "laws"], map(_scalar, SCALARS.values()))}

## Reductions

{table(["reduction", "combines with", "operands", "identity in float32"], map(_reduction, REDUCTIONS.values()))}

## Dtypes

An operation on a narrow float is computed in *computes in* and rounded once.

{table(["dtype", "bytes", "kind", "computes in"], ([code(d.name), d.nbytes, d.kind, code(d.compute)] for d in DTYPES.values()))}
"""


def _scalar(op: Any) -> list[Any]:
    laws = [word for word in ("commutative", "associative") if getattr(op, word)]
    if op.increasing:
        laws.append("monotone" if op.arity == 1 else f"monotone in {', '.join(map(str, op.increasing))}")
    return [code(op.name), code(op.jax), code(op.triton), op.unit, f"{op.weight:g}", ", ".join(op.kinds), ", ".join(laws)]


def _reduction(r: Any) -> list[Any]:
    dtype = "float32" if "float" in r.kinds else "int32"
    value = str(r.identity(dtype)).replace("-inf", MINUS_INFINITY).replace("inf", "\N{INFINITY}")
    return [code(r.name), code(r.combine), ", ".join(r.kinds), value if dtype == "float32" else f"{value} (int32)"]


def primitives() -> str:
    import eqsat.primitives as package

    rows = [
        [code(name), "view" if row.view else "computes", code(inspect.getmodule(row.read).__name__.rsplit(".", 1)[-1])]  # type: ignore[union-attr]
        for name, row in sorted(package.TABLE.items())
    ]
    return f"""# Primitives
{NOTE}
The primitives of JAX that have a reading in index notation. A *view* becomes an index expression and costs nothing. Every other
primitive runs as a call of JAX, and the report counts it; so does one of these where its parameters have no reading.

{table(["primitive", "is a", "file in eqsat/primitives"], rows)}
"""


def rules() -> str:
    from eqsat.rule import TIERS
    from eqsat.rules import PACKS

    parts = [
        f"# Rules\n{NOTE}\nFusion is no rule: it is an equality of the language (see [How it works](../how-it-works.md)). "
        "These are the laws beside it. A law written `a = b` is used in both directions, `a -> b` in one. The tier says what it "
        f"keeps; `--numerics` admits the tiers up to the one it names, in the order {', '.join(map(code, TIERS))}."
    ]
    for name, pack in PACKS.items():
        ordered = sorted(pack, key=lambda r: TIERS.index(r.tier))
        families = itertools.groupby(ordered, lambda r: (r.tier, r.gives_up, r.doc))
        parts += [f"## {name}", *(_rules(list(family)) for _, family in families)]
    return "\n\n".join([*parts, _demo()]) + "\n"


def _demo() -> str:
    """What each rule did in the demo, as last recorded."""
    import json

    from eqsat.demo_rules import TABLE

    demo = json.loads(TABLE.read_text())
    rows = [
        (code(name), did["matches"], did["rows"], f"{did['seconds'] * 1e6:.1f}", _mb(did["nbytes"]))
        for name, did in sorted(demo["fired"].items(), key=lambda item: (-item[1]["seconds"], -item[1]["rows"], item[0]))
    ]
    headings = ("rule", "matches", "e-nodes", "us more without it", "MB more without it")
    return f"## What they do in GPT-2 small\n\nThe {demo['program']}; no other rule fires there.\n\n{table(headings, rows)}"


def _rules(family: Sequence[Any]) -> str:
    """Rules of one docstring, tier and loss."""
    first = family[0]
    loss = f", gives up {first.gives_up}" if first.gives_up else ""
    names, laws = ", ".join(f"**`{r.name}`**" for r in family), "\n".join(r.law for r in family)
    return f"{names}\n\n*{first.tier}{loss}.* {' '.join(first.doc.split())}\n\n```text\n{laws}\n```"


def command_line() -> str:
    """The help of every command, as typer writes it without colours."""
    from typer.main import get_command

    from eqsat.cli import EXIT_CODES, app

    parts = [
        f"# Command line\n{NOTE}\nResults go to standard output, progress to standard error. {EXIT_CODES} A mistake is one "
        "line on standard error. `eqsat --install-completion` installs completion for the shell."
    ]
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        parts += _commands(f"eqsat {name}", command)
    return "\n\n".join(parts) + "\n"


def _commands(name: str, command: Any) -> list[str]:
    """A command, or all of a group."""
    if hasattr(command, "commands"):
        return [part for word, inner in command.commands.items() for part in _commands(f"{name} {word}", inner)]
    rows = [_option(p) for p in command.params if p.name != "help"]
    parts = [f"## {name}\n\n{command.help}", *([table(["", "meaning", "default"], rows)] if rows else [])]
    return parts + ([f"```\n{command.epilog.removeprefix('Example: ')}\n```"] if command.epilog else [])


def _option(p: Any) -> list[Any]:
    names = ", ".join(map(code, p.opts)) if p.param_type_name == "option" else code(p.metavar or p.name)
    default = code(p.default) if isinstance(p.default, int | float | str) and not isinstance(p.default, bool) else ""
    return [names, p.help or "", default]


def devices() -> str:
    from eqsat.devices import DEVICES

    dtypes = list(dict.fromkeys(d for card in DEVICES.values() for d in card.tensor_flops))
    facts = [
        ("compute capability, or architecture", lambda c: c.gfx or f"{c.compute_capability // 10}.{c.compute_capability % 10}"),
        ("multiprocessors", lambda c: c.multiprocessors),
        ("memory, TB/s", lambda c: f"{c.dram_bytes_per_second / 1e12:g}"),
        ("L2, TB/s", lambda c: f"{c.l2_bytes_per_second / 1e12:g}"),
        ("L2, MB", lambda c: c.l2_nbytes >> 20),
        ("shared memory of a program, kB", lambda c: c.shared_nbytes >> 10),
        ("float32, Tflop/s", lambda c: f"{c.vector_flops / 1e12:g}"),
        ("float64, Tflop/s", lambda c: f"{c.float64_flops / 1e12:g}"),
        ("special functions, T/s", lambda c: f"{c.special_ops_per_second / 1e12:g}"),
        ("launch, \N{MICRO SIGN}s", lambda c: f"{c.launch_seconds * 1e6:g}"),
    ]
    rows: list[list[Any]] = [[name, *(fact(card) for card in DEVICES.values())] for name, fact in facts]
    for d in dtypes:
        rows.append([f"{d} products, Tflop/s", *(_rate(c.tensor_flops.get(d)) for c in DEVICES.values())])
    sources = "\n".join(f"- `{name}`: {card.source}" for name, card in DEVICES.items())
    return f"""# Devices
{NOTE}
Peak rates, dense; `eqsat/devices.py` is the table, and [Add a device](../tutorials/add-a-device.md) says how to extend it.

{table(["", *DEVICES], rows)}

Sources:

{sources}
"""


def _rate(value: float | None) -> str:
    return f"{value / 1e12:g}" if value else "\N{EM DASH}"


def peers() -> str:
    """What other compilers would launch and move, from a file of results, and where eqsat moves more."""
    from benchmarks import report
    from benchmarks.runner import read

    header, records = read(RESULTS)
    others = {name: _others(record) for name, record in records.items() if record.get("plan")}
    ratios = {name: _bytes(records[name]["plan"], found) for name, found in others.items()}
    versions = ", ".join(f"{k} {v}" for k, v in header["machine"]["versions"].items() if k in ("eqsat", "jax", "triton"))
    summary = [[who, *_standing([r[who] for r in ratios.values() if who in r])] for who in ("XLA:GPU", "Inductor")]
    worse = sorted(((max(r.values()), name) for name, r in ratios.items() if r and max(r.values()) > CLOSE), reverse=True)
    losses = [_loss(records[name], ratio, others[name]) for ratio, name in worse]
    return f"""# Beside other compilers
{NOTE}
What `eqsat`, XLA:GPU and PyTorch's Inductor would launch on an {header["options"]["target"].upper()}, and how many bytes of
global memory these kernels read and write: each kernel's distinct inputs and outputs, the same rule for all. No GPU took part, so
nothing here is a time. XLA is asked twice, with its own kernels for matrix products and with the library's, and the plan that
moves less counts. Inductor gets the program equation by equation, as it stands in the workload, so its hand-written attention
kernel applies nowhere; `scaled_dot_product_attention` would.

The numbers are those of `benchmarks/results/{RESULTS.name}` ({versions}), which one command makes, as
`benchmarks/README.md` says: `python -m benchmarks --predict --peers FOLDER`. Our plans are newer than the others'
answers, which were kept from a run with the same versions.

## In short

Bytes that the other plan moves for each byte of ours, over the workloads for which the other has a plan, of {len(others)};
within {CLOSE - 1:.0%} counts as equal.

{table(["against", "geometric mean", "eqsat moves less", "equal", "eqsat moves more"], summary)}

## Where eqsat moves more

*Times ours* is against the plan that moves the least. The cells are launches / megabytes.

{table(["workload", "times ours", "eqsat", "of which parts", "eqsat, for traffic", "XLA:GPU", "Inductor"], losses)}

{_why([records[name] for _, name in worse])}

{_fewest(records)}

## Everything

{report.peers(records)}
"""


def _loss(record: Any, ratio: float, others: dict[str, Any]) -> list[Any]:
    """A row of the table of what moves more."""
    plan, peers = record["plan"], [_plan(others.get(who)) for who in ("XLA:GPU", "Inductor")]
    return [record["name"], f"{ratio:.2f}", _plan(plan["after"]), _mb(plan["parts_nbytes"]), _plan(record["traffic"]), *peers]


def _why(losers: Sequence[Any]) -> str:
    """Why those workloads move more, and what they move where that is what counts."""
    if not losers:
        return "None does."
    slower = [r["traffic"]["seconds"] / r["plan"]["after"]["seconds"] for r in losers]
    still = [r["name"] for r in losers if r["traffic"]["nbytes"] > CLOSE * min(p["nbytes"] for p in _others(r).values())]
    rest = f"moves less than both or as much, but in {'; '.join(still)}" if still else "moves less than both, or as much"
    return f"""These plans are made for time. A product of few rows, or a convolution of a small picture, has too few programs for
the card, so its sum is cut into parts, which are stored, loaded and counted. The libraries that the others call do the same in
scratch memory, which their counts leave out. With `objective="traffic"` nothing is cut, and each {rest};
the model then predicts {min(slower):.1f} to {max(slower):.1f} times the time."""


def _fewest(records: Any) -> str:
    """What a plan of each product as a launch moves at least, and what one with fewer bytes takes."""
    from examples.blocks import PROGRAMS

    x, up, _, down, _ = PROGRAMS[MLP][1]
    hidden = x.shape[0] * up.shape[1] * x.dtype.itemsize
    around = [2 * x.size * x.dtype.itemsize, *(w.size * w.dtype.itemsize for w in (up, down))]
    terms, total = " + ".join([*map(_mb, around), f"2 * {_mb(hidden)}"]), _mb(sum(around) + 2 * hidden)
    return f"""Two rows could move less, if not as fast. `{MLP}` stores its hidden layer: two products as two launches
move at least {terms} = {total} MB, for x and the result, the two matrices, and that layer, written and read; for less, a
launch must hold the layer on the chip, {_told(records[MLP])}.
`{TRANSFORMER}` takes {_told(records[TRANSFORMER])}."""


def _told(record: Any) -> str:
    """The plan for traffic beside that for time, as a clause."""
    least, usual = (f"{cost['seconds'] * 1e6:,.0f}" for cost in (record["traffic"], record["plan"]["after"]))
    return f"""{_plan(record["traffic"])} with `objective="traffic"`, by the model in {least} us instead of {usual}"""


def _mb(nbytes: float) -> str:
    return f"{nbytes / 1e6:.1f}"


MLP, TRANSFORMER = "mlp 4096x1024x4096", "transformer block B4 S1024 E1024"
RESULTS = DOCS.parent / "benchmarks" / "results" / "plans-h100.json"
CLOSE = 1.02  # ratios of bytes up to it are no difference


def _others(record: Any) -> dict[str, Any]:
    """The plan of each other compiler, by the route that moves the least."""
    plans: dict[str, Any] = {}
    for route, plan in record.get("peers", {}).items():
        who = route.split(",")[0]
        if "nbytes" in plan and plan["nbytes"] < plans.get(who, {"nbytes": float("inf")})["nbytes"]:
            plans[who] = plan
    return plans


def _bytes(ours: Any, others: Any) -> dict[str, float]:
    """Ours for each byte of theirs; nothing where ours has calls of JAX, whose bytes are not known."""
    return {
        who: ours["after"]["nbytes"] / plan["nbytes"] for who, plan in others.items() if plan["nbytes"] and not ours.get("opaque")
    }


def _standing(ratios: Sequence[float]) -> list[Any]:
    mean = math.exp(-sum(map(math.log, ratios)) / len(ratios))
    less, more = sum(r < 1 / CLOSE for r in ratios), sum(r > CLOSE for r in ratios)
    return [f"{mean:.2f}", less, len(ratios) - less - more, more]


def _plan(plan: Any) -> str:
    return f"{plan['launches']} / {plan['nbytes'] / 1e6:,.0f}" if plan else "failed"


def on_a_cpu() -> str:
    """Measured times of the plain JAX that programs are on a CPU, and where they are slower."""
    from benchmarks import report
    from benchmarks.runner import read

    header, records = read(RESULTS.parent / "cpu.json")
    machine = header["machine"]
    versions = ", ".join(f"{k} {v}" for k, v in machine["versions"].items() if v)
    found = {name: e["ratio"] for name, r in records.items() if (e := r.get("run", {}).get("engines", {}).get("eqsat"))}
    slower = [f"{name} ({r['value']:.2f})" for name, r in found.items() if r["high"] < 0.95]
    promised = [
        found[name]["value"] >= r["run"]["promised"] / 2
        for name, r in records.items()
        if r["algebraic"] and r["run"].get("promised")
    ]
    return f"""# On a CPU
{NOTE}
Speed against `jax.jit` at the small sizes, on inputs that are new each time, in pairs whose order is random: the median ratio and
its 95 % interval. {machine["processor"]}, {machine["cores"]} cores that others share; {versions}. On a CPU programs run as plain
JAX, so what fusion saves on a GPU counts for nothing here; only the algebra does.

Slower than 0.95 of `jax.jit` with their whole interval, of {len(found)} workloads: {"; ".join(slower) or "none"}. A maximum of
`jax.jit` drops NaN, for which ours reads once more what it is not taken of along rows.

What is *promised* is the ratio of predicted times: {sum(promised)} of {len(promised)} workloads of algebra reach half of it.
Where products are small, the time of a call takes its part. A timed call follows one of the same engine on other inputs.

{report.times(records)}

torch.compile gets the graph as one of torch's own operations, ONNX Runtime as our writer exports it, both as it was written. They
take JAX's arrays without a copy. *failed*: not translated, exported or run. ⚠: outside of the tolerance, which follows from
float64. Ratios move by 0.05 and more from run to run.

`python -m benchmarks --engines eqsat jax.jit torch.compile "ONNX Runtime" --seconds 2 -o FILE` makes the numbers anew.
"""


def handwritten() -> str:
    import json

    from benchmarks.handwritten.table import markdown

    records = json.loads((RESULTS.parent / "handwritten.json").read_text())
    return f"""# Kernels written by hand
{NOTE}
Our kernels beside Triton kernels of the same functions that were written by hand (`benchmarks/handwritten/`), compiled ahead of
time for cards that need not be there: under our tiles, and under the best of the writer's own. *Hot loop* counts its
instructions, or all where there is no loop. Times are estimates, made alike from static reports and bytes; nothing was run.

A factor of attention's scores takes log2(e) in, so that one multiply-add makes each exponent of two. Scores without one take a
multiplication more: the difference to the maximum is made before it is scaled to base two, since finite masks as large as float32
has them would overflow the other way round. On Ampere our tiles of attention are smaller than the best.

{markdown(records)}

`python -m benchmarks.handwritten` makes the numbers anew.
"""


def search() -> str:
    import json

    from benchmarks.search import markdown

    records = json.loads((RESULTS.parent / "search.json").read_text())
    return f"""# Seconds of the search
{NOTE}
CPU seconds of one search for an H100 without a cache, imports left out, on one core of a shared machine with two; each in a
process of its own. The shares say what takes them: building and saturating the e-graph, ranking cones and hill climbing
(*kernels*, *climbing*), *prices* of candidate kernels over their schedules, the *choice* by dynamic programming, the *bound* and
the solution in *integers* where that leaves a gap. *Gap* is the largest of any part of the program.

TENSAT's seconds and gains are those its authors give (MLSys 2021): whole operators, whose times were measured before on a T4,
are put together there. Here kernels are made, and most of the time goes into making, pricing and choosing among thousands of
them. The gain is predicted, over every operation as a kernel of its own.

Equal layers are searched once, so depth adds reading alone; a single layer with the head that follows it is one large part.

{markdown(records)}

`python -m benchmarks.search` makes the numbers anew.
"""


PAGES = {
    "reference/search.md": search,
    "reference/handwritten.md": handwritten,
    "reference/cpu.md": on_a_cpu,
    "reference/peers.md": peers,
    "reference/command-line.md": command_line,
    "reference/operations.md": operations,
    "reference/primitives.md": primitives,
    "reference/rules.md": rules,
    "reference/devices.md": devices,
}


# --- examples ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Block:
    """A fenced block of Python: its text, the line of its first statement, and where its output stands, if it shows one."""

    text: str
    line: int
    output: slice | None


BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)


def blocks(page: str) -> Iterator[Block]:
    for found in BLOCK.finditer(page):
        output = slice(found.start(2), found.end(2)) if found.group(2) is not None else None
        yield Block(found.group(1), page.count("\n", 0, found.start(1)) + 1, output)


def run(path: Path) -> list[str]:
    """Run a page's blocks one after the other in one namespace; returns what each printed.

    Lines keep their numbers, so that errors point into the page, and names in reports come from it.
    """
    scope: dict[str, Any] = {"__name__": path.stem}
    printed = []
    for block in blocks(path.read_text()):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile("\n" * (block.line - 1) + block.text, str(path), "exec"), scope)
        printed.append(out.getvalue())
    return printed


OPTIONAL = ("torch", "onnx")  # packages that a page may need; without them it is left as it is


def packages(path: Path) -> list[str]:
    """The optional packages that a page imports."""
    text = path.read_text()
    return [name for name in OPTIONAL if re.search(rf"^import {name}$", text, re.MULTILINE)]


def _can_run(path: Path) -> bool:
    return all(importlib.util.find_spec(name) for name in packages(path))


SIGNATURES = {"architecture.md"}  # pages whose Python is not meant to run


def examples() -> list[Path]:
    """The pages with something to run."""
    return [p for p in sorted(DOCS.rglob("*.md")) if p.name not in SIGNATURES and next(blocks(p.read_text()), None)]


def refresh(path: Path) -> None:
    """Put what each block prints below it, where the page shows it."""
    page = path.read_text()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        printed = run(path)
    for block, text in reversed(list(zip(blocks(page), printed, strict=True))):
        if block.output is not None:
            page = page[: block.output.start] + _trimmed(text) + page[block.output.stop :]
    path.write_text(page)


def _trimmed(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines()) + "\n"


# --- the demo in README.md -----------------------------------------------------------------------------------------

README = DOCS.parent / "README.md"
REPORT = re.compile(r"^forward on h100.*?(?=^\.\.\.$)", re.DOTALL | re.MULTILINE)  # in README.md, which leaves out the kernels


def demo_report() -> str:
    """The report of `make demo` down to its table of kernels, without a line for each search."""
    import eqsat
    from examples import gpt2

    text = eqsat.optimize(gpt2.forward, *gpt2.arguments(), constants=(0,)).report()
    head = text[: text.index("\n\n", text.index("\n  #  kernel"))]
    return "".join(f"{line}\n" for line in head.splitlines() if not line.startswith("search "))


# --- pictures ----------------------------------------------------------------------------------------------------

SHOTS = {  # name: (scheme, width, height, element to show, kernel to open)
    "page-light": ("light", 1360, 1240, "", ""),
    "page-dark": ("dark", 1360, 1180, "kernels", "kernel-3"),
    "roofline": ("light", 1100, 720, "roofline", ""),
    "time-and-bytes": ("light", 1100, 660, "where", ""),
}


def pictures() -> None:
    """Screenshots of the page of a transformer block."""
    import eqsat
    from examples.blocks import PROGRAMS

    function, args = PROGRAMS["transformer block B4 S1024 E1024"]
    page = eqsat.optimize(function, *args).view()
    with tempfile.TemporaryDirectory() as folder:
        for name, (scheme, width, height, section, kernel) in SHOTS.items():
            place = Path(folder) / "page.html"
            shown = f"<style>header, nav, footer, section:not(#{section}) {{ display: none }} h2 {{ margin-top: 20px }}</style>"
            text = page.replace("</head>", f"{shown}</head>") if section else page
            place.write_text(text.replace(f'id="{kernel}"', f'id="{kernel}" open=""') if kernel else text, encoding="utf-8")
            _shoot(place.as_uri(), DOCS / "pictures" / f"{name}.png", scheme, (width, height), folder)


def _shoot(address: str, target: Path, scheme: str, size: tuple[int, int], folder: str) -> None:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        raise SystemExit("pictures: Chromium required, found none; install the package chromium")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={folder}/user"]
    flags += [f"--window-size={size[0]},{size[1]}", f"--blink-settings=preferredColorScheme={int(scheme == 'light')}"]
    flags += ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"]
    subprocess.run([chromium, *flags, f"--screenshot={target}", address], check=True, capture_output=True, timeout=90)


def record_demo() -> None:
    import json

    import eqsat
    from eqsat.cli_subject import graph_of
    from eqsat.demo_rules import TABLE, recorded
    from eqsat.rule_cli import DEMO
    from eqsat.rules import RULES

    program = eqsat.optimize(graph_of(DEMO, "@arguments"), cache=False)
    TABLE.write_text(json.dumps(recorded(program, RULES), indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outputs", action="store_true")
    parser.add_argument("--demo", action="store_true")
    parser.add_argument("--pictures", action="store_true")
    options = parser.parse_args()
    for name, page in PAGES.items():
        (DOCS / name).write_text(page())
    for path in filter(_can_run, examples()) if options.outputs else ():
        refresh(path)
    if options.outputs:
        README.write_text(REPORT.sub(lambda _: demo_report(), README.read_text()))
    if options.demo:
        record_demo()
    if options.pictures:
        pictures()


if __name__ == "__main__":
    main()
