"""Every kernel of a few dozen plans, compiled for three cards: nothing spills, matrix instructions multiply, wide loads load."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import eqsat
from benchmarks.workloads import workloads
from eqsat.demand import demand
from eqsat.index import Axis, flatten
from eqsat.lower import lower
from eqsat.scalars import DTYPES
from eqsat.schedule import SMALLEST_DOT
from eqsat.tile import Dot, Load, TileProgram
from eqsat.work import Work

sys.path.insert(0, str(Path(__file__).parents[1]))
from test_golden import PROGRAMS  # noqa: E402

triton = pytest.importorskip("eqsat.backends.triton")

CARDS = {"a100": 80, "h100": 90, "b200": 100}
FEW_SPILLS = 8  # where multiply-adds are unrolled, ptxas trades so many for one more program on a multiprocessor
ACCESS = 16  # bytes of the widest load of a thread
WORKLOADS = (
    "attention, causal, f32 softmax", "cross entropy 4096x4096x32000", "cumsum 1024x8192 f32", "A@B + A@C",
    "swiglu 4096x2048x5504", "transformer block B4 S1024 E1024", "GPT-2 layer", "NasRNN", "SqueezeNet", "BERT, TENSAT",
)  # fmt: skip
SHORT = {("softmax", "a100"), ("residual_rms_norm", "b200"), ("attention", "h100")}


def plans():
    for name in [*PROGRAMS, *WORKLOADS]:
        for card in CARDS:
            yield pytest.param(name, card, marks=[] if (name, card) in SHORT else pytest.mark.nightly)


def planned(name, card):
    if name in PROGRAMS:
        fn, args = PROGRAMS[name]
        return eqsat.optimize(fn, *args, target=card)
    found = next(w for w in workloads() if w.name == name)
    return eqsat.optimize(found.full.fn, *found.full.args, target=card, constants=found.constants)


def is_wide(load: Load, tiles: TileProgram) -> bool:
    """True if neighbouring elements lie in rows that start on whole accesses, enough of them for one access a thread."""
    size = DTYPES[load.tensor.dtype].nbytes
    offset = flatten(load.index, load.tensor.shape)
    steps = {atom: c for atom, c in offset.terms}
    near = [a for a, c in steps.items() if isinstance(a, Axis) and c == 1 and a in load.out.axes]
    apart = (c for a, c in [*steps.items(), (None, offset.constant)] if a not in near)
    if len(near) != 1 or load.operands or any(c * size % ACCESS for c in apart) or load.guards:
        return False
    lanes = 1
    for axis in load.out.axes:
        lanes *= tiles.tile_of(axis).tile
    return tiles.tile_of(near[0]).tile * size >= ACCESS and lanes * size >= ACCESS * 32 * tiles.num_warps


@pytest.mark.parametrize(("name", "card"), list(plans()))
def test_compiled_kernels_are_as_meant(name, card):
    seen = set()
    for p in planned(name, card).kernels:
        if p.schedule is None or (source := p.source("triton")) in seen:
            continue
        seen.add(source)
        tiles = lower(p.kernel, p.schedule)
        report = triton.compile_report(source, tiles, CARDS[card])
        said = f"{name}: {p.name} for {card}, {p.schedule}: {report}"
        products = demand(Work(p.kernel)).products
        unrolled = any(DTYPES[c.dtype].nbytes >= 4 for c in products)
        assert report.spills <= (FEW_SPILLS if unrolled else 0), said
        dots = [s for s in tiles.statements() if isinstance(s, Dot)]
        narrow = any(DTYPES[s.a.dtype].nbytes < 4 or DTYPES[s.b.dtype].nbytes < 4 for s in dots)
        assert bool(report.matrix_instructions) == narrow, said
        if any(min(axis.extent for axis in (c.k, *sides)) >= SMALLEST_DOT for c, sides in contractions(p)):
            assert dots, said
        if any(is_wide(s, tiles) for s in tiles.statements() if isinstance(s, Load)):
            assert report.widest_load_bits in (0, 8 * ACCESS, 16 * ACCESS), said  # 0: bulk copies


def contractions(p):
    """Those of narrow numbers, with the longest axis of either side."""
    for c in Work(p.kernel).contractions:
        if DTYPES[c.dtype].nbytes < 4:
            yield c, [max(side, key=lambda a: a.extent) for side in (c.rows, c.columns)]
