"""How long the search takes: TENSAT's models, depth, training; by stage, in processes of their own. Nothing is run."""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.report import table

RESULTS = Path("benchmarks/results/search.json")
# Seconds of search and per cent of speed-up that TENSAT's authors give (MLSys 2021, one T4).
TENSAT = {
    "NasRNN": (0.5, 68.9),
    "BERT, TENSAT": (1.4, 9.2),
    "ResNeXt-50": (0.7, 8.8),
    "NasNet-A": (10.6, 7.3),
    "SqueezeNet": (0.3, 24.5),
    "VGG-19": (0.4, 8.9),
    "Inception-v3": (5.1, 10.0),
}
STAGES = {  # what takes the seconds; one that runs inside of another counts for itself alone
    "e-graph": ("eqsat.egraph", "Engine.saturate"),
    "kernels": ("eqsat.kernels", "Pool.candidates"),
    "climbing": ("eqsat.kernels", "Pool.around"),
    "prices": ("eqsat.kernels", "price"),
    "choice": ("eqsat.extract", "_selection"),
    "bound": ("eqsat.extract", "relaxed"),
    "integers": ("eqsat.extract", "solved"),
}


def gpt2(layers: int) -> tuple[Callable, tuple, tuple]:
    """GPT-2 small of so many layers: function, arguments, those that are constant."""
    import jax

    from examples import gpt2 as model

    config = model.SMALL._replace(layers=layers)
    params = jax.eval_shape(lambda key: model.init(config, key), jax.random.key(0))
    return model.forward, (params, jax.ShapeDtypeStruct((1, config.sequence), "int32")), (0,)


def llama(layers: int) -> tuple[Callable, tuple, tuple]:
    """So many layers of Llama-3-8B, one after the other."""
    from benchmarks.workloads import workloads

    layer = next(w for w in workloads() if w.name == "Llama-3-8B layer").full
    weights, x = layer.args

    def stack(layers, x):
        for one in layers:
            x = layer.fn(one, x)
        return x

    return stack, ((weights,) * layers, x), (0,)


def training(layers: int, adam: bool) -> tuple[Callable, tuple, tuple]:
    """The gradient of GPT-2's loss; with the step of Adam that it makes, if asked for."""
    import jax

    from benchmarks.workloads.gradients import adam as step_of
    from examples import gpt2 as model

    _, (params, tokens), _ = gpt2(layers)
    gradient = jax.grad(model.loss)
    if not adam:
        return gradient, (params, tokens), ()

    def step(number, params, mean, square, tokens):
        update = lambda w, g, m, s: step_of(number, w, g, m, s)  # noqa: E731
        return jax.tree.map(update, params, gradient(params, tokens), mean, square)

    return step, (jax.ShapeDtypeStruct((), "float32"), params, params, params, tokens), ()


def model(name: str) -> tuple[Callable, tuple, tuple]:
    from benchmarks.workloads import workloads

    found = next(w for w in workloads() if w.name == name)
    return found.full.fn, found.full.args, found.constants


SUBJECTS: dict[str, tuple[Callable, tuple]] = {
    **{name: (model, (name,)) for name in TENSAT},
    **{f"GPT-2, {n} layer{'s' * (n > 1)}": (gpt2, (n,)) for n in (1, 12, 48)},
    "Llama, 24 layers": (llama, (24,)),
    "GPT-2, 12 layers, gradient": (training, (12, False)),
    "GPT-2, 12 layers, gradient and a step of Adam": (training, (12, True)),
}


def searched(name: str) -> dict[str, Any]:
    """One search without a cache, in CPU seconds: of all, of each stage without those inside of it; imports are left out."""
    make, options = SUBJECTS[name]
    fn, args, constants = make(*options)
    owners: list[Any] = [import_module(module) for module, _ in STAGES.values()]
    optimize = import_module("eqsat.optimizer").optimize
    spent: Counter[str] = Counter()
    running: list[str] = []
    clock = time.process_time()

    def switch() -> None:
        nonlocal clock
        now = time.process_time()
        spent[running[-1] if running else "other"] += now - clock
        clock = now

    def timed(stage: str, function: Callable) -> Callable:
        def run(*args: Any, **options: Any) -> Any:
            switch()
            running.append(stage)
            try:
                return function(*args, **options)
            finally:
                switch()
                running.pop()

        return run

    for owner, (stage, (_, path)) in zip(owners, STAGES.items(), strict=True):
        *classes, last = path.split(".")
        for part in classes:
            owner = getattr(owner, part)
        setattr(owner, last, timed(stage, getattr(owner, last)))
    program = optimize(fn, *args, constants=constants, cache=False)
    switch()
    return {
        "seconds": sum(spent.values()),
        "stages": dict(spent),
        "memory_nbytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "gap": program.notes["gap"],
        "launches": program.cost.launches,
        "predicted_seconds": program.cost.seconds,
        "unoptimised_seconds": program.baseline.seconds,
    }


def markdown(records: dict[str, Any]) -> str:
    """Two tables: TENSAT's models, and what grows with depth; each with the shares of the stages."""
    columns = ["s", *STAGES, "other", "gap", "peak MB"]
    ours = {name: _row(r) for name, r in records.items()}
    theirs = [
        [name, *ours[name], str(seconds), f"{records[name]['unoptimised_seconds'] / records[name]['predicted_seconds'] - 1:.0%}"]
        + [f"{gain / 100:.1%}"]
        for name, (seconds, gain) in TENSAT.items()
        if name in records
    ]
    deep = [[name, *ours[name]] for name in records if name not in TENSAT]
    heading = ["model", *columns, "TENSAT, s", "predicted gain", "TENSAT's"]
    return f"{table(heading, theirs)}\n\n{table(['program', *columns], deep)}"


def _row(record: dict[str, Any]) -> list[str]:
    shares = [record["stages"].get(stage, 0) / record["seconds"] for stage in (*STAGES, "other")]
    ends = [f"{record['gap']:.1%}", f"{record['memory_nbytes'] / 1e6:.0f}"]
    return [f"{record['seconds']:.1f}", *(f"{share:.0%}" for share in shares), *ends]


def main(arguments: Sequence[str] | None = None) -> int:
    top = argparse.ArgumentParser(prog="benchmarks.search", description=__doc__)
    top.add_argument(
        "--only", nargs="+", choices=list(SUBJECTS), metavar="PROGRAM", help="of: %(choices)s; others stay as recorded"
    )
    top.add_argument("-o", "--output", type=Path, default=RESULTS, metavar="FILE", help="JSON; default: %(default)s")
    options = top.parse_args(arguments)
    records = json.loads(options.output.read_text()) if options.output.exists() and options.only else {}
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
        for name in options.only or SUBJECTS:
            records[name] = pool.submit(searched, name).result()
            print(f"{name}: {records[name]['seconds']:.1f} s", file=sys.stderr, flush=True)
            records = {name: records[name] for name in SUBJECTS if name in records}
            options.output.write_text(json.dumps(records, indent=1) + "\n")
    print(markdown(records))
    return 0


if __name__ == "__main__":
    sys.exit(main())
