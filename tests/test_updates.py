"""Updates in place: of a donated array only the window is written, right wherever it lies; a plan counts no more than that."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqsat
from benchmarks.workloads.transformers import decode_step, llama_decode_step
from eqsat.lower import lower
from eqsat.schedule import schedules
from eqsat.work import Work

pytest.importorskip("triton")

from interpreters import INTERPRETERS  # noqa: E402

from eqsat.backends.triton import launch  # noqa: E402

CACHE = np.arange(2 * 3 * 20 * 8, dtype=np.float32).reshape(2, 3, 20, 8)
ROW = -np.arange(1, 49, dtype=np.float32).reshape(2, 3, 1, 8)


def flat(program, way, *arrays):
    """The results, each kernel run by an interpreter."""

    def run(planned, given):
        return [*map(jnp.asarray, INTERPRETERS[way](lower(planned.kernel, planned.schedule), [np.asarray(a) for a in given]))]

    return program.inline(*map(jnp.asarray, arrays), launch=run)


def slice_of(cache, row, i):
    return jax.lax.dynamic_update_slice(cache, row * 2, (0, 0, i, 0))


def rows_of(cache, row, i):
    return jax.lax.dynamic_update_slice(cache, jnp.concatenate([row, row + 1, row * 3], 2), (0, 0, i, 0))


def dropped(cache, row, i):
    return cache.at[:, :, i].set(row[:, :, 0])


def added(cache, row, i):
    return cache.at[:, :, i].add(row[:, :, 0])


def by_mask(cache, row, i):
    return jnp.where(jnp.arange(20)[:, None] == i, row, cache)


def by_range(cache, row, i):
    at = jnp.arange(20)[:, None] - i
    return jnp.where((at >= -1) & (at < 2) & (row > -40), row * at, cache)


def each_its_own(cache, row, i):
    return jnp.where(jnp.arange(20)[None, None, :, None] == (i + jnp.arange(2))[:, None, None, None] * 3, row, cache)


def fixed(cache, row, i):
    return cache.at[:, 1, 4:7].set(row[:, 0] + i)


UPDATES = {  # function, elements written at most
    "a slice": (slice_of, 48),
    "three rows": (rows_of, 3 * 48),
    "a row that may be dropped": (dropped, 48),
    "a sum": (added, 48),
    "a mask": (by_mask, 48),
    "a place for each batch": (each_its_own, 48),
    "a mask of each element": (by_range, 3 * 48),
    "a fixed place": (fixed, 2 * 3 * 8),
}


OFTEN = ("three rows", "a row that may be dropped", "a place for each batch", "a mask of each element")


@pytest.mark.parametrize("way", ["triton", *(pytest.param(w, marks=pytest.mark.nightly) for w in ("tiles", "pallas"))])
@pytest.mark.parametrize("name", [n if n in OFTEN else pytest.param(n, marks=pytest.mark.nightly) for n in UPDATES])
def test_only_the_window_is_written(name, way):
    fn, written = UPDATES[name]
    program = eqsat.optimize(fn, CACHE, ROW, np.int32(0), donate=(0,))
    (planned,) = program.kernels
    assert planned.kernel.donated == {t for t in planned.kernel.inputs if t.name == "cache"}
    assert planned.cost.nbytes <= 4 * (2 * written + 50)
    for i in (-30, 0, 7, 19, 20):
        (got,) = flat(program, way, CACHE, ROW, np.int32(i))
        np.testing.assert_array_equal(got, fn(jnp.asarray(CACHE), jnp.asarray(ROW), jnp.int32(i)), err_msg=f"{name} at {i}")


def test_what_reads_the_old_array_runs_first_or_nothing_is_overwritten():
    def before(cache, row, i):
        return slice_of(cache, row, i), cache.sum((0, 2))

    def beside(cache, row, i):  # every element of the window comes from one that another program may have overwritten
        return jax.lax.dynamic_update_slice(cache, cache[:, :, 3:4, ::-1], (0, 0, i, 0))

    def behind(cache, row, i):
        new = slice_of(cache, row, i)
        return new, cache @ new[0, 0].T

    for fn in (before, beside, behind):
        program = eqsat.optimize(fn, CACHE, ROW, np.int32(0), donate=(0,))
        overwritten: set = set()
        for step in program.launches:
            assert not overwritten & set(step.inputs), fn.__name__
            overwritten |= {t for t, own in zip(step.inputs, step.kernel.inputs, strict=True) if own in step.kernel.donated}
        assert bool(overwritten) == (fn is before), fn.__name__
        wanted = jax.tree.leaves(fn(jnp.asarray(CACHE), jnp.asarray(ROW), jnp.int32(4)))
        for got, want in zip(flat(program, "tiles", CACHE, ROW, np.int32(4)), wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-6)


def test_arguments_that_are_kept_are_copied_and_the_copy_is_counted():
    program = eqsat.optimize(slice_of, CACHE, ROW, np.int32(0))
    assert not program.kernels[0].kernel.donated and program.cost.nbytes >= 2 * CACHE.nbytes


def test_a_call_uses_up_what_is_donated():
    for call in (eqsat.optimize(slice_of, CACHE, ROW, np.int32(0), donate=(0,)), eqsat.jit(slice_of, donate_argnames="cache")):
        cache, row = jnp.array(CACHE), jnp.array(ROW)
        np.testing.assert_array_equal(call(cache, row, jnp.int32(5)), slice_of(jnp.array(CACHE), row, jnp.int32(5)))
        assert cache.is_deleted() and not row.is_deleted()
    with pytest.raises(ValueError, match="donate: positions of the 3 positional arguments required, got 3"):
        eqsat.optimize(slice_of, CACHE, ROW, np.int32(0), donate=(3,))


def nbytes(arrays):
    return sum(a.size * a.dtype.itemsize for a in jax.tree.leaves(arrays))


def check_decode_step(args):
    """Launches and bytes within a tenth of weights, cache and activations; returns the program."""
    program = eqsat.optimize(llama_decode_step, *args, donate=(2, 3))
    activations = 4 * nbytes(args[1])
    assert len(program.launches) <= 8
    assert program.cost.nbytes <= 1.1 * (nbytes(args) + activations)
    assert sum(len(p.kernel.donated) for p in program.launches) == 2
    return program


@pytest.mark.nightly
def test_a_decode_step_moves_its_weights_and_its_cache_once():
    check_decode_step(decode_step(8, 4096, 4096, 128, 8, 14336))


def test_a_decode_step_is_right_at_every_position():
    args = decode_step(2, 24, 64, 16, 2, 96, "float32")
    program = check_decode_step(args)
    rng = np.random.default_rng(0)
    layer, x, keys, values = jax.tree.map(lambda a: (0.2 * rng.standard_normal(a.shape)).astype(a.dtype), args[:4])
    for position in (0, 23):
        given = (layer, x, keys, values, np.int32(position))
        results = flat(program, "tiles", *jax.tree.leaves(given))
        with jax.disable_jit():
            wanted = llama_decode_step(*jax.tree.map(jnp.asarray, given))
        for got, want in zip(results, wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_a_kernel_in_place_may_be_tried_under_several_schedules():  # P4-16
    """As a tuner does: each try starts from the array as it was, and adds once."""
    (planned,) = eqsat.optimize(added, CACHE, ROW, np.int32(0), donate=(0,)).kernels
    wanted = CACHE.copy()
    wanted[:, :, 4] += ROW[:, :, 0]
    given = {"cache": CACHE.copy(), "row": ROW, "i": np.int32(4)}
    tries = schedules(Work(planned.kernel))
    assert len(tries) > 2
    for schedule in tries[:4]:
        tiles = lower(planned.kernel, schedule)
        for run in INTERPRETERS.values():
            (got,) = run(tiles, [np.asarray(given[t.name]) for t in tiles.inputs])
            np.testing.assert_array_equal(np.asarray(got).reshape(CACHE.shape), wanted)
    np.testing.assert_array_equal(given["cache"], CACHE)


def test_xla_is_told_of_the_buffer():
    (planned,) = eqsat.optimize(slice_of, CACHE, ROW, np.int32(0), donate=(0,)).kernels
    tiles = lower(planned.kernel, planned.schedule)
    given = [jax.ShapeDtypeStruct(t.shape, t.dtype) for t in tiles.inputs]
    traced = jax.jit(lambda *a: launch.call(planned.source("triton"), tiles, *a)).trace(*given)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert "output_operand_alias" in text and f"operand_index = {tiles.in_place[0]}" in text


def test_places_beyond_32_bits_are_computed_in_64():
    cache, row = jax.ShapeDtypeStruct((1 << 17, 1 << 15), "int8"), jax.ShapeDtypeStruct((1, 1 << 15), "int8")
    program = eqsat.optimize(lambda c, r, i: jax.lax.dynamic_update_slice(c, r, (i, 0)), cache, row, np.int32(0), donate=(0,))
    (planned,) = program.kernels
    assert planned.cost.nbytes <= 1 << 17
    assert "place.to(tl.int64) * 32768" in planned.source("triton")
