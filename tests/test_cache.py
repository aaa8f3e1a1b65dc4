"""The cache: the same text with and without it, damage repaired, processes that do not disturb each other."""

import json
import os
import pickle
import subprocess
import sys
from importlib import import_module

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqsat
from eqsat import outline, plan_codec
from eqsat.cache import Cache, cache_of, key_of
from eqsat.cli import main
from eqsat.graph import Graph
from eqsat.identity import Unknown, identity, plain

pipeline = import_module("eqsat.optimizer")


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A cache of the test's own as the user's."""
    monkeypatch.setenv("EQSAT_CACHE_DIR", str(tmp_path / "cache"))
    return cache_of(True)


def attention(q, k, v):
    return jax.nn.softmax(q @ k.T, -1) @ v


def specs(n=32):
    return [jax.ShapeDtypeStruct((n, 16), jnp.float32)] * 3


def text(program):
    return program.report() + "".join(k.source(b) for k in program.kernels for b in ("triton", "jax"))


@pytest.fixture
def searched(monkeypatch):
    """The regions that were searched rather than recalled."""
    regions, search = [], pipeline.search_region

    def counted(engine, region, *rest):
        regions.append(region)
        return search(engine, region, *rest)

    monkeypatch.setattr(pipeline, "search_region", counted)
    return regions


def test_a_second_run_searches_nothing_and_says_the_same(own, searched):  # P2-16, P4-10
    without = eqsat.optimize(attention, *specs(), cache=False)
    assert own.statistics().entries == 0
    first = eqsat.optimize(attention, *specs())
    count = len(searched)
    second = eqsat.optimize(attention, *specs())
    assert count == 2 and len(searched) == count
    assert text(without) == text(first) == text(second)
    assert own.statistics().entries == 2 and own.statistics().hits == 2  # what the program is cut into, and the plan of that
    args = [jax.random.normal(jax.random.key(n), s.shape) for n, s in enumerate(specs())]
    assert jnp.allclose(second(*args), attention(*args), rtol=1e-4, atol=1e-5)


@pytest.fixture
def readings(monkeypatch):
    """The graphs that were read rather than recalled."""
    graphs, read = [], outline.read
    monkeypatch.setattr(outline, "read", lambda graph, exact: graphs.append(graph) or read(graph, exact))
    return graphs


def test_a_second_run_reads_nothing_until_a_plan_is_missing(own, readings, searched):
    def stepped(x, w):
        return jax.lax.fori_loop(0, 3, lambda _, x: jnp.tanh(x @ w), jnp.sort(x)) @ w  # a loop, and a call of JAX

    args = [jax.ShapeDtypeStruct((16, 16), jnp.float32)] * 2
    first = eqsat.optimize(stepped, *args)
    count = len(readings)
    second = eqsat.optimize(stepped, *args)
    assert len(readings) == count == 2, "the function, and the body of its loop"
    assert text(first) == text(second) and first.explain(0).rules == second.explain(0).rules
    assert [c.reason for c in first.calls] == [c.reason for c in second.calls]
    values = [jax.random.normal(jax.random.key(n), s.shape) / 4 for n, s in enumerate(args)]
    assert jnp.allclose(second(*values), stepped(*values), rtol=1e-4, atol=1e-5)
    readings.clear()
    again = eqsat.optimize(stepped, *args, objective="traffic")
    assert text(again) == text(eqsat.optimize(stepped, *args, objective="traffic", cache=False))
    assert readings


def constant_of(value):
    return lambda x: x * jnp.asarray(value, jnp.float32) + value


X = jax.ShapeDtypeStruct((8, 12), jnp.float32)
NEAR = {  # programs that differ in one thing that reading looks at
    "a number": (lambda x: x * 2.0, lambda x: x * 2.5),
    "a number's sign": (lambda x: x + 0.0, lambda x: x + -0.0),
    "a truth for a number": (lambda x: jnp.where(x > 0, 1, 0), lambda x: jnp.where(x > 0, True, False)),
    "a closed-over number": (constant_of(np.float32(2)), constant_of(np.float32(3))),
    "a parameter": (lambda x: jnp.sum(x, 0), lambda x: jnp.sum(x, 1)),
    "the way round": (lambda x: jnp.cumsum(x, 1), lambda x: jax.lax.cumsum(x, 1, reverse=True)),
    "the place": (lambda x: x[1:5], lambda x: x[2:6]),
    "the step": (lambda x: x[:, 0:12:3], lambda x: x[:, 0:8:2]),
    "an operation": (jnp.sin, jnp.cos),
    "the order of operands": (lambda x: x[0] - x[1], lambda x: x[1] - x[0]),
    "which operand": (lambda x: x[0] + x[0], lambda x: x[0] + x[1]),
    "a dtype inside": (lambda x: x.astype("bfloat16").astype("float32"), lambda x: x.astype("float16").astype("float32")),
    "a shape inside": (lambda x: jnp.ones((3, 1)) * x[0], lambda x: jnp.ones((4, 1)) * x[0]),
    "which output": (lambda x: (jnp.sin(x), jnp.cos(x)), lambda x: (jnp.cos(x), jnp.sin(x))),
    "what is added at places": (lambda x: x.at[jnp.array([1, 1])].add(2.0), lambda x: x.at[jnp.array([1, 1])].max(2.0)),
    "how a loop's body differs": (
        lambda x: jax.lax.fori_loop(0, 3, lambda _, y: jnp.sin(y) @ x.T @ x, x),
        lambda x: jax.lax.fori_loop(0, 3, lambda _, y: jnp.cos(y) @ x.T @ x, x),
    ),
    "which branch": (
        lambda x: jax.lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x),
        lambda x: jax.lax.cond(x[0, 0] > 0, jnp.cos, jnp.sin, x),
    ),
}


ALIKE = {  # those that read alike, and differ in what JAX runs
    "how often a loop runs": (
        lambda x: jax.lax.fori_loop(0, 3, lambda _, y: jnp.sin(y), x),
        lambda x: jax.lax.fori_loop(0, 4, lambda _, y: jnp.sin(y), x),
    ),
    "what is no part of a slice": (lambda x: x[:, 0:12:3], lambda x: x[:, 0:10:3]),
    "how a call sorts": (lambda x: jnp.sort(x, 0), lambda x: jnp.sort(x, 1)),
}


@pytest.mark.parametrize("change", NEAR)
def test_near_equal_programs_have_identities_of_their_own(change):
    one, other = (repr(identity(Graph.from_jax(fn, X))) for fn in NEAR[change])
    assert one != other and one == repr(identity(Graph.from_jax(NEAR[change][0], X)))


@pytest.mark.parametrize("value", [lambda x: x, object(), np.array([None]), {"f": len}], ids=lambda v: type(v).__name__)
def test_what_may_be_anything_has_no_identity(value):
    with pytest.raises(Unknown):
        plain(value)


def test_equal_values_of_other_types_have_other_identities():
    values = [0, 0.0, -0.0, False, None, "0", np.float32(0), np.int32(0), np.zeros(1), (0,), [0], np.dtype("int32"), "int32"]
    values += [jax.lax.Precision.HIGH, "HIGH", {}, (), "", {"a": 0}, ("a", 0), float("nan"), "nan", 1 << 60]
    assert len({repr(plain(v)) for v in values}) == len(values)


@pytest.mark.parametrize("change", [*(pytest.param(c, marks=pytest.mark.nightly) for c in NEAR), *ALIKE])
def test_what_was_read_serves_no_other_program(own, change):
    for fn in (NEAR | ALIKE)[change]:
        x = jax.random.normal(jax.random.key(0), X.shape)
        for given, wanted in zip(jax.tree.leaves(eqsat.optimize(fn, X)(x)), jax.tree.leaves(fn(x)), strict=True):
            assert given.dtype == wanted.dtype
            assert jnp.array_equal(jnp.signbit(given), jnp.signbit(wanted)) and jnp.allclose(given, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layers", [20, pytest.param(60, marks=pytest.mark.nightly)])
def test_equal_layers_are_searched_once(own, searched, layers):  # P2-16
    def model(x, w):
        for _ in range(layers):
            x = x + jnp.tanh(x @ w) @ w.T
        return x

    args = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((16, 64), (64, 128))]
    eqsat.optimize(model, *args)
    count = len(searched)
    assert count <= 3, "the first and the last may differ from the others"
    eqsat.optimize(model, *args)
    assert len(searched) == count


def test_another_program_of_equal_structure_keeps_its_own_names(own, searched):
    def same(part1, y, z):
        return jax.nn.softmax(part1 @ y.T, -1) @ z

    eqsat.optimize(attention, *specs())
    assert text(eqsat.optimize(same, *specs())) == text(eqsat.optimize(same, *specs(), cache=False))
    assert len(searched) == 2


@pytest.mark.parametrize(
    "options",
    [{"target": "a100"}, {"objective": "traffic"}, {"numerics": "exact"}, {"rules": ()}, {"n": 48}],
    ids=lambda o: next(iter(o)),
)
def test_what_a_plan_depends_on_is_part_of_the_key(own, searched, options):  # P4-10
    eqsat.optimize(attention, *specs())
    eqsat.optimize(attention, *specs(options.pop("n", 32)), **options)
    assert len(searched) == 2


def test_versions_are_part_of_the_key(own, monkeypatch):  # P4-10
    before = key_of("x")
    monkeypatch.setattr("eqsat.cache._versions", lambda: ("another",))
    assert key_of("x") != before


@pytest.mark.parametrize("damage", [lambda b: b[:-7], lambda b: b"", lambda b: b[:50] + b"\0" + b[51:], lambda b: b[:32]])
def test_damage_is_found_and_repaired(own, searched, damage):
    wanted = text(eqsat.optimize(attention, *specs()))
    whole = {path: path.read_bytes() for path in own.folder.glob("*.plan")}
    for path, data in whole.items():
        path.write_bytes(damage(data))
    assert text(eqsat.optimize(attention, *specs())) == wanted
    assert len(searched) == 2 and {path: path.read_bytes() for path in own.folder.glob("*.plan")} == whole


def test_only_the_classes_of_a_plan_are_unpickled(own, searched):
    """An entry with a right checksum that would run a command is refused."""

    class Command:
        def __reduce__(self):
            return os.system, ("exit 3",)

    eqsat.optimize(attention, *specs())
    data = pickle.dumps((0, [Command()], {}))
    with pytest.raises(ValueError, match="system"):
        plan_codec.decode(searched[0], data)
    for path in own.folder.glob("*.plan"):
        own.put(path.stem, data)
    eqsat.optimize(attention, *specs())
    assert len(searched) == 2


def test_a_search_that_the_clock_ended_is_not_kept(own):
    eqsat.optimize(attention, *specs(), time_limit=0.0)
    assert own.statistics().entries == 1, "what the program is cut into"


def test_the_least_recently_used_go_first(tmp_path):
    cache = Cache(tmp_path, limit_nbytes=400)
    for n in range(3):
        cache.put(f"k{n}", bytes(100))
        os.utime(tmp_path / f"k{n}.plan", (n, n))
    assert cache.get("k0") == bytes(100)  # now the latest
    cache.put("k3", bytes(100))
    assert [n for n in range(4) if cache.get(f"k{n}")] == [0, 2, 3]
    assert cache.statistics().nbytes <= 400


def test_a_folder_that_cannot_be_written_is_no_error_but_one_warning(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    for _ in range(2):
        program = eqsat.optimize(attention, *specs(), cache=tmp_path / "file" / "cache")
    assert len(program.launches) == 1
    assert (tmp_path / "file").read_text() == ""
    (said,) = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert said.startswith("cache: a folder that can be written required, got ") and "(Not a directory)" in said


WRITER = """
import sys
from eqsat.cache import Cache
cache = Cache(__import__("pathlib").Path(sys.argv[1]), limit_nbytes=20_000)
for n in range(80):
    key = f"k{n % 7}"
    content = cache.get(key)
    assert content is None or content == key.encode() * 500, "half an entry was read"
    cache.put(key, key.encode() * 500)
"""


def test_processes_do_not_disturb_each_other(tmp_path):
    processes = [subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stderr=subprocess.PIPE) for _ in range(3)]
    for process in processes:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors.decode()
    assert {p.suffix for p in tmp_path.iterdir()} == {".plan", ""}  # nothing half-written is left


def test_the_command_shows_and_clears(own, capsys, monkeypatch):
    own.put("a", b"12345")
    own.get("a")
    (own.folder / "mine.txt").write_text("not ours")
    assert main(["cache", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["entries"], facts["nbytes"], facts["hits"]) == (1, 37, 1)
    assert main(["cache", "--clear"]) == 0
    assert own.statistics().entries == own.statistics().hits == 0
    assert [p.name for p in own.folder.iterdir()] == ["mine.txt"]
    monkeypatch.setenv("EQSAT_CACHE_DIR", "")
    assert main(["cache"]) == 2


def test_the_command_refuses_a_folder_that_cannot_be_and_tells_of_one_that_is_not_yet(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "cache"):
        monkeypatch.setenv("EQSAT_CACHE_DIR", str(place))
        assert main(["cache"]) == main(["cache", "--clear"]) == 2
        said = capsys.readouterr()
        assert said.out == "" and f"cache {place}: a folder that can be written required, got {tmp_path}/file in" in said.err
    monkeypatch.setenv("EQSAT_CACHE_DIR", str(tmp_path / "later" / "cache"))
    assert main(["cache"]) == 0
    assert not (tmp_path / "later").exists()


def test_the_switch(monkeypatch, tmp_path):
    monkeypatch.delenv("EQSAT_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_of(True).folder.name == "eqsat"
    assert cache_of(False) is None
    assert cache_of(tmp_path).folder == tmp_path
