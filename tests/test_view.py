"""The page of a program: escaped, self-contained, well-formed, and free of errors in a browser."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import jax.numpy as jnp
import numpy as np
import pytest
from planned import program_of

from eqsat import view_roofline
from eqsat.cost import Cost
from eqsat.report import nbytes
from eqsat.view import roofline_figure, view
from eqsat.view_layout import Node, lay_out
from eqsat.view_markup import el, escaped, highlighted
from eqsat.view_model import Picture
from eqsat.view_numbers import Disc, places
from eqsat.view_roofline import drawable

HOSTILE = '<script>alert("x")</script>&\'\x00'
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
VOID = {"meta", "link", "br"}


def layer(x, w):
    y = jnp.tanh(x @ w)
    return jnp.sort(y, axis=-1) @ w + x.T, y * 2


@pytest.fixture(scope="module")
def program():
    return program_of(layer, np.ones((8, 8), np.float32), np.ones((8, 8), np.float32))


@pytest.fixture(scope="module")
def page(program):
    return view(program)


class Balance(HTMLParser):
    """Fails at a tag that closes another than the last one opened."""

    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attributes):
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> at {self.getpos()}"


def test_every_tag_is_closed(page):
    parser = Balance()
    parser.feed(page)
    assert not parser.open


def test_drawings_are_valid_xml_with_finite_numbers(page):
    drawings = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(drawings) == 2
    for drawing in drawings:
        ElementTree.fromstring(drawing)
        assert "nan" not in drawing and "inf" not in re.sub(r"<title>.*?</title>", "", drawing, flags=re.DOTALL)


def test_the_page_names_no_other_place(page):
    links = re.findall(r"""(?:src|href|url|action)\s*[=(]\s*["']?([^"')\s>]+)""", page)
    assert {link for link in links if not link.startswith(("#", "data:"))} == set()
    assert set(re.findall(r"https?://[^\"' ]+", page)) == {"http://www.w3.org/2000/svg"}
    assert "default-src 'none'" in page


def test_the_page_shows_kernels_calls_sources_and_equations(program, page):
    assert all(f'id="kernel-{n}"' in page for n in range(1, len(program.kernels) + 1))
    assert "@triton.jit" in page.replace('<span class="cm">', "") and "pallas_call" in page
    assert "call of JAX: sort has no reading" in page
    assert "y = jnp.tanh(x @ w)" in page and "test_view.py:" in page


def test_every_kernel_fragment_links_to_details(page):
    assert set(re.findall(r'href="#(kernel-\d+)"', page)) == set(re.findall(r'<details[^>]* id="(kernel-\d+)"', page))


def test_names_from_a_program_are_escaped(program):
    class Named:
        """The program under a name that no function has."""

        def __getattr__(self, key):
            return getattr(program, key)

        name = HOSTILE
        notes = {**program.notes, "rules": (HOSTILE,), "tiers": {HOSTILE: HOSTILE}}

    text = view(Named())
    assert "<script>alert" not in text and "\x00" not in text
    assert "&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt;" in text


def test_markup_escapes_all_but_markup():
    assert el("p", "<b>", el("i", '"'), title="'&") == '<p title="&#x27;&amp;">&lt;b&gt;<i>&quot;</i></p>'
    assert escaped(escaped("<")) == "&lt;"
    assert el("rect", x=1.0, aria_label=None, open=True) == '<rect x="1" open=""/>'


@pytest.mark.parametrize("source", ["x = 1  # one\n", 'def f(a):\n\n    return \'é\' + """b\nc"""\n', "for x in (", "", "<&>"])
def test_highlighting_keeps_the_text(source):
    text = re.sub(r"</?span[^>]*>", "", highlighted(source))
    assert text == escaped(source)


def test_equal_kernels_share_a_box_that_feeds_itself():
    def repeated(x):
        for _ in range(3):
            x = jnp.sort(x)
        return x

    program = program_of(repeated, np.ones((4, 4), np.float32))
    assert [b.kind for b in Picture(program).boxes] == ["call"] * 3 + ["input", "output"]
    step = program_of(lambda x: jnp.tanh(x), np.ones((4, 4), np.float32)).launches[0]
    t = [type(program.inputs[0])(f"t{n}", (4, 4), "float32") for n in range(4)]
    from dataclasses import replace

    from eqsat.program import Program

    steps = [replace(step, inputs=(a,), outputs=(b,)) for a, b in zip(t, t[1:], strict=False)]
    cost = Cost(1e-6, 3, 1, 1)
    chain = Program(program.graph, (t[0],), {}, steps, (t[3],), "h100", "exact", cost, cost)
    picture = Picture(chain)
    (box,) = [b for b in picture.boxes if b.kind == "kernel"]
    assert box.count == 3 and [a.back for a in picture.arrows if a.source is box] == [True, False]
    assert "\N{MULTIPLICATION SIGN}3" in view(chain)


def test_a_program_without_kernels_has_a_page():
    assert "No kernels" in view(program_of(lambda x: x, np.ones(3, np.float32)))


def test_boxes_do_not_overlap_and_arrows_go_down():
    nodes = [Node(100.0 + n, 40.0) for n in range(9)]
    edges = [(0, 1), (0, 2), (1, 3), (2, 3), (0, 3), (3, 4), (1, 4), (5, 2), (6, 2), (7, 4), (4, 8)]
    routes, width, height = lay_out(nodes, edges, [0, 5, 6, 7])
    for route in routes:
        assert all(b.y > a.y for a, b in zip(route, route[1:], strict=False))
    for a in nodes:
        assert 0 <= a.x - a.width / 2 and a.x + a.width / 2 <= width + 1e-6 and a.y + a.height / 2 <= height + 1e-6
        for b in nodes:
            assert a is b or a.layer != b.layer or abs(a.x - b.x) >= (a.width + b.width) / 2


def test_the_page_is_written_and_framed(program, page, tmp_path):
    assert view(program, tmp_path / "page.html") == page == (tmp_path / "page.html").read_text(encoding="utf-8")
    assert program.view() == page
    frame = program._repr_html_()
    assert frame.startswith("<iframe") and frame.count("<iframe") == 1 and "<script" not in frame


def test_numbers_of_dots_that_hide_each_other_stand_apart():
    dots = [Disc(50, 50, 9), Disc(55, 52, 8), Disc(53, 49, 5), Disc(150, 50, 10), Disc(52, 50, 8)]
    others = [Disc(50, 30, 6)]
    found = places(dots, others, (0, 0, 200, 100), 7)
    assert found[3] == Disc(150, 50, 7)  # nothing is near: inside
    assert all(found) and all(not a.near(b) for a, b in itertools.combinations(found, 2))
    for room in (found[n] for n in (0, 1, 2, 4)):
        assert not any(room.near(d) for d in (*dots, *others))
        assert 7 <= room.x <= 193 and 7 <= room.y <= 93
    assert places([Disc(5, 5, 4)], [], (0, 0, 10, 10), 7) == [None]


def test_every_dot_of_the_roofline_has_its_number(program, page):
    picture = Picture(program)
    numbers = re.findall(r'class="number (?:inside|beside)">(\d+)<', page)
    assert sorted(map(int, numbers)) == [n for n, p in enumerate(picture.after, 1) if p in drawable(picture.after)]


def test_roofline_figure_draws_before_and_after(program):
    pytest.importorskip("matplotlib")
    (axes,) = roofline_figure(program).axes
    assert axes.get_xscale() == axes.get_yscale() == "log" and len(axes.collections) == 2


def browse(page, folder, *flags):
    """What Chromium prints when it shows the page with its second kernel chosen; it fails at an error in the console."""
    (folder / "page.html").write_text(page, encoding="utf-8")
    always = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
    ]
    always += ["--disable-component-update", "--disable-sync", f"--user-data-dir={folder / 'user'}", "--enable-logging=stderr"]
    address = (folder / "page.html").as_uri() + "#kernel-2"
    result = subprocess.run([CHROMIUM, *always, *flags, address], capture_output=True, text=True, timeout=90)
    assert "CONSOLE" not in result.stderr, result.stderr
    return result.stdout


browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium found: apt-get install chromium")


@pytest.mark.slow
@browser
@pytest.mark.parametrize(("width", "scheme"), [(1360, 1), (390, 0)])
def test_a_browser_shows_the_page_without_errors(page, tmp_path, width, scheme):
    shot = tmp_path / "page.png"
    browse(
        page, tmp_path, f"--window-size={width},1600", f"--blink-settings=preferredColorScheme={scheme}", f"--screenshot={shot}"
    )
    assert shot.stat().st_size > 20_000


@pytest.mark.slow
@browser
def test_choosing_a_kernel_opens_it_and_a_tab_shows_its_source(page, tmp_path):
    choose = """document.querySelector('#kernel-2 button[data-show="pallas"]').click()"""
    document = browse(page.replace("</body>", f"<script>{choose}</script></body>"), tmp_path, "--dump-dom")
    kernels = dict(re.findall(r'<details class="kernel[^"]*" id="(kernel-\d)"( open="")?>', document))
    assert kernels["kernel-1"] == "" and kernels["kernel-2"] == ' open=""'
    second = document[document.index('id="kernel-2"') :]
    shown = re.findall(r'<div class="source" data-name="(\w+)"( hidden="")?>', second)[:3]
    assert shown == [("triton", ' hidden=""'), ("pallas", ""), ("jax", ' hidden=""')]


def test_a_number_stands_on_no_letter_of_the_slope(program):
    picture = Picture(program)
    (x_low, x_high), (y_low, y_high) = view_roofline._limits(picture)
    x = view_roofline.Axis(x_low, x_high, view_roofline.LEFT, view_roofline.WIDTH - view_roofline.RIGHT)
    y = view_roofline.Axis(y_low, y_high, view_roofline.HEIGHT - view_roofline.BOTTOM, view_roofline.TOP)
    letters, speed = view_roofline._letters(picture, x, y), picture.card.dram_bytes_per_second
    slope = letters[-len(f"device memory, {nbytes(speed)}/s") :]
    assert all(a.x < b.x and a.y > b.y for a, b in itertools.pairwise(slope))  # they climb with it
    for letter in slope:
        dot = Disc(letter.x, letter.y + 18, 4)  # whose number would stand above it
        (room,) = view_roofline._rooms([dot], [], letters)
        assert room is not None and not any(room.near(other) for other in letters)
        assert any(place.near(letter) for place in view_roofline.places([dot], [], (0, 0, 1000, 1000), view_roofline.NUMBER))
