"""The report of a program: what changed, then each kernel, as text of fixed width."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from eqsat import control
from eqsat.devices import device
from eqsat.extract import PROVED, gap_of
from eqsat.forms import has_no_order
from eqsat.formula import type_of, wrapped
from eqsat.program import PlannedKernel
from eqsat.read import Call
from eqsat.roofline import BOUNDS, point

if TYPE_CHECKING:
    from eqsat.program import Program

WIDTH = 110
MIN_GAIN = 1.05  # below this a ratio is called "the same"


def report(program: Program, seconds: bool = False) -> str:
    """The whole report, with the seconds of the search if asked for."""
    parts = [_heading(program), _summary(program), _changes(program, seconds), _table(program)]
    parts += [_kernel(program, k) for k in program.kernels]
    return "\n\n".join(p for p in parts if p) + "\n"


def _heading(program: Program) -> str:
    title = f"{program.name} on {program.target}, numerics {program.numerics}"
    return f"{title}\n{'=' * len(title)}"


def _summary(program: Program) -> str:
    before, after = program.baseline, program.cost
    peak = program.notes.get("peak_nbytes_before", 0)
    rows = [
        ("launches", str(before.launches), str(after.launches), _ratio(before.launches, after.launches, "fewer", "more")),
        ("memory traffic", nbytes(before.nbytes), nbytes(after.nbytes), _ratio(before.nbytes, after.nbytes, "less", "more")),
        ("operations", operations(before.flops), operations(after.flops), _ratio(before.flops, after.flops, "fewer", "more")),
        ("peak memory", nbytes(peak), nbytes(program.peak_nbytes), _ratio(peak, program.peak_nbytes, "less", "more")),
        ("predicted time", time(before.seconds), time(after.seconds), _ratio(before.seconds, after.seconds, "faster", "slower")),
    ]
    lines = [f"{'':<16}{'before':>12}{'after':>12}"]
    return "\n".join(lines + [f"{a:<16}{b:>12}{c:>12}   {d}".rstrip() for a, b, c, d in rows])


def _ratio(before: float, after: float, better: str, worse: str) -> str:
    if not before or not after:
        return ""
    if max(before, after) / min(before, after) < MIN_GAIN:
        return "the same"
    return f"{before / after:.1f}x {better}" if before > after else f"{after / before:.1f}x {worse}"


def _changes(program: Program, seconds: bool) -> str:
    notes = program.notes
    rows: list[tuple[str, str]] = []
    if "equations" in notes:
        equations, views, opaque = notes["equations"], notes.get("views", 0), notes.get("opaque", 0)
        loops = notes.get("loops", 0)
        computed = equations - views - opaque - loops
        text = f"{equations} equations: {views} are views and vanish, {computed} compute"
        text += f", {loops} loop{'s' * (loops > 1)} or branch{'es' * (loops > 1)} with programs of their own" if loops else ""
        share = f"{program.opaque_share:.0%} of the time, if each moves its arrays once"
        text += f", {opaque} stay calls of JAX ({share})" if opaque else ""
        rows.append(("read", text))
    if "buckets" in notes:
        rows.append(("buckets", notes["buckets"]))
    if notes.get("regions", 0) > 1 and "distinct_regions" in notes:
        rows.append(("regions", f"{notes['regions']}, of which {notes['distinct_regions']} differ and were optimised"))
    rows += [("search", line) for line in _at_most(notes.get("search", ()), 6)]
    if "bound" in notes:
        rows.append(("optimality", _optimality(program)))
    if seconds and "search_seconds" in notes:
        rows.append(("searched for", f"{notes['search_seconds']:.2f} s"))
    tiers = notes.get("tiers", {})
    rules = [f"{r} ({tiers[r]})" if r in tiers else str(r) for r in notes.get("rules", ())]
    rows.append(("rules used", ", ".join(rules) or "none"))
    rows += [(text.split()[0], text.partition(" ")[2]) for part in program.parts for text in map(loop_text, part.loops)]
    for (name, reason), count in Counter((c.name, c.reason) for c in program.calls).items():
        rows.append(("call of JAX", f"{name}{f' x{count}' if count > 1 else ''}: {reason}"))
    if unordered := [k.name for k in program.kernels if has_no_order(k.kernel)]:
        rows.append(
            ("no fixed order", f"floats are added as they come, so last bits may differ from run to run: {', '.join(unordered)}")
        )
    constant = sum(isinstance(s, PlannedKernel) and s.constant for s in program.steps)
    if constant:
        rows.append(("computed once", f"{constant} step{'s' * (constant > 1)} that depend on no argument that changes"))
    return "\n".join(line for label, text in rows for line in _labelled(label, text))


def _optimality(program: Program) -> str:
    """What the objective minimises, and its bound, in its unit; split kernels are surcharged there."""
    price, bound, worst = (program.notes.get(name, 0.0) for name in ("price", "bound", "gap"))
    timed = program.request is None or program.request.objective == "time"
    paid, least = (time(value) if timed else f"{value:.4g}" for value in (price, bound))
    proved = "no choice among the kernels met costs less"
    return f"price {paid}, bound {least}: {proved if worst < PROVED else f'a gap of {gap_of(price, bound):.1%}'}"


def loop_text(loop: Call) -> str:
    """What a loop or branch runs and how often: "scan of step, 10 iterations: body of 3 launches"."""
    words = control.parts(loop.name, len(loop.programs))
    runs = ", ".join(f"{word} of {_launches(p.cost.launches)}" for word, p in zip(words, loop.programs, strict=True))
    trips = loop.eqn.trips
    if control.CONTROL[loop.name].chooses:
        often = "one of its branches runs"
    elif trips is None:
        often = "counted for one iteration, since values decide how many there are"
    else:
        often = f"{trips} iteration{'s' * (trips != 1)}" if control.CONTROL[loop.name].trips else "on every device"
    return f"{loop.name} {loop.programs[-1].name}, {often}: {runs}"


def _launches(count: int) -> str:
    return f"{count} launch{'es' * (count != 1)}"


def _at_most(lines: Iterable[Any], count: int) -> list[str]:
    texts = [str(line) for line in lines]
    return texts if len(texts) <= count else [*texts[: count - 1], f"and {len(texts) - count + 1} more regions"]


def _labelled(label: str, text: str) -> list[str]:
    first, *rest = wrapped(text, WIDTH - 16) if text else [""]
    return [f"{label:<16}{first}".rstrip(), *(f"{'':<16}{line.strip()}" for line in rest)]


def _table(program: Program) -> str:
    if not program.kernels:
        return "no kernels: nothing is left to compute on the device"
    uses = {kernel: str(n) for kernel, n in program.uses.items()}
    total, card = program.cost.seconds or 1.0, device(program.target)
    width = max(6, *(len(k.name) for k in program.kernels))
    room = max(4, *map(len, uses.values()))
    lines = [f"  #  {'kernel':<{width}}  {'x':>{room}}        time   share   roofline   bound    writes"]
    for number, k in enumerate(program.kernels, 1):
        seconds = k.cost.seconds * program.uses[k.kernel].count
        writes = ", ".join(type_of(o) for o in k.kernel.outputs)
        lines.append(
            f"{number:>3}  {k.name:<{width}}  {uses[k.kernel]:>{room}}  {time(k.cost.seconds):>10}  {seconds / total:>5.0%}"
            f"   {point(k, card).share_of_roofline(card):>7.0%}    {k.cost.bound or '-':<7}  {writes}"
        )
    return "\n".join(lines)


def _kernel(program: Program, planned: PlannedKernel) -> str:
    kernel, cost = planned.kernel, planned.cost
    lines = [f"{kernel.name}", "-" * len(kernel.name)]
    for line in planned.formula.split("\n"):
        lines += wrapped(line, WIDTH)
    lines.append("")
    lines += _labelled("  reads", ", ".join(map(str, kernel.inputs)) or "nothing")
    lines += _labelled("  writes", ", ".join(map(str, kernel.outputs)))
    predicted = (
        time(cost.seconds),
        nbytes(cost.nbytes),
        operations(cost.flops),
        f"bound by {BOUNDS.get(cost.bound, cost.bound)}",
    )
    lines += _labelled("  predicted", ", ".join(predicted))
    if planned.schedule is not None:
        lines += _labelled("  schedule", schedule_text(planned))
    return "\n".join(lines)


def schedule_text(planned: PlannedKernel) -> str:
    """Tiles by role, warps and stages, or who runs the kernel."""
    assert planned.schedule is not None
    if planned.schedule.by_xla:
        return planned.schedule.launch_text
    axes = [f"{t.axis.name}:{t.axis.extent} {t.role} {t.tile}" for t in planned.schedule.axes if t.axis.extent > 1]
    return f"{', '.join(axes) or 'one program'}; {planned.schedule.launch_text}"


def nbytes(value: float) -> str:
    return _scaled(value, ("B", "kB", "MB", "GB", "TB"))


def operations(value: float) -> str:
    return _scaled(value, ("flop", "kflop", "Mflop", "Gflop", "Tflop"))


def time(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-2 else f"{seconds * 1e3:.1f} ms"


def _scaled(value: float, units: tuple[str, ...]) -> str:
    for unit in units:
        if value < 1000 or unit == units[-1]:
            return f"{value:.0f} {unit}" if unit == units[0] else f"{value:.1f} {unit}"
        value /= 1000
    raise AssertionError
