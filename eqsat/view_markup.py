"""HTML and SVG as escaped text: what is not `Markup` is escaped, so names from a program cannot become tags."""

from __future__ import annotations

import html
import io
import keyword
import re
import tokenize
from typing import Any

VOID = {"br", "meta", "line", "rect", "circle", "path"}  # elements without content
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")  # not allowed in XML


class Markup(str):
    """Text that is HTML already."""


def escaped(value: Any) -> Markup:
    """Text made safe between tags and within quotes."""
    return value if isinstance(value, Markup) else Markup(html.escape(_CONTROL.sub("\N{REPLACEMENT CHARACTER}", str(value))))


def joined(*parts: Any, by: str = "") -> Markup:
    return Markup(escaped(by).join(map(escaped, parts)))


def el(name: str, *children: Any, **attributes: Any) -> Markup:
    """An element. In attribute names underscores become hyphens, a last one goes; None leaves one out, True writes it bare."""
    words = [name]
    for key, value in attributes.items():
        key = key.rstrip("_").replace("_", "-")
        if value is True:
            words.append(f'{key}=""')
        elif value is not None and value is not False:
            words.append(f'{key}="{escaped(_number(value))}"')
    if name in VOID and not children:
        return Markup(f"<{' '.join(words)}/>")
    return Markup(f"<{' '.join(words)}>{joined(*children)}</{name}>")


def _number(value: Any) -> Any:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else value


def table(headings: list[Any], rows: list[list[Any]], class_: str = "") -> Markup:
    """A table whose cells may be Markup; it scrolls sideways where the page is too narrow for it."""
    head = el("tr", *(el("th", h, scope="col") for h in headings))
    body = [el("tr", *(el("td", cell) for cell in row)) for row in rows]
    return el("div", el("table", el("thead", head), el("tbody", *body), class_=class_ or None), class_="scroll")


# --- source text -------------------------------------------------------------------------------------------------


def highlighted(source: str) -> Markup:
    """Python with comments, strings, keywords and numbers marked; text that is not Python comes back as it is."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    except (tokenize.TokenError, SyntaxError):
        return escaped(source)
    lines = source.splitlines(keepends=True)
    parts: list[Markup] = []
    row, column = 1, 0
    for token in tokens:
        if (kind := _kind(token)) is None:
            continue
        parts += [escaped(_between(lines, (row, column), token.start)), el("span", token.string, class_=kind)]
        row, column = token.end
    parts.append(escaped(_between(lines, (row, column), (len(lines) + 1, 0))))
    return joined(*parts)


def _kind(token: tokenize.TokenInfo) -> str | None:
    if token.type == tokenize.NAME:
        return "kw" if keyword.iskeyword(token.string) else None
    return {tokenize.COMMENT: "cm", tokenize.STRING: "st", tokenize.NUMBER: "nu"}.get(token.type)


def _between(lines: list[str], start: tuple[int, int], end: tuple[int, int]) -> str:
    """The text from one (row, column) to another; rows count from 1."""
    rows = lines[start[0] - 1 : end[0]]
    if not rows:
        return ""
    if end[0] <= len(lines):
        rows = [*rows[:-1], rows[-1][: end[1]]]
    return "".join([rows[0][start[1] :], *rows[1:]])
