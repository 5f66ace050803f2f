"""Formulas become MathML while the site is built: no script, no font and no network are needed to read them.

MathML Core is drawn by all current browsers themselves. A formula that the converter does not understand is a
warning, and so an error under `mkdocs build --strict`; so is a dollar sign that no formula has taken.
"""

from __future__ import annotations

import html
import logging
import re
from typing import Any

from latex2mathml.converter import convert

log = logging.getLogger("mkdocs.hooks.formulas")

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)
OUTSIDE_TEXT = re.compile(r"<(pre|code|math|script)\b.*?</\1>|<[^>]*>", re.DOTALL)

# The converter leaves spacing to the browser's table of operators, which takes these for binary ones.
OPENERS = "&#x00028;|&#x0003D;|&#x02264;|&#x02265;|&#x027E8;|&#x0002C;|&#x0005B;"
SPACING = (
    (re.compile(r"<mo>(&#x0002F;)</mo>"), r'<mo lspace="0" rspace="0">\1</mo>'),
    (
        re.compile(r'<mo(?: stretchy="false")?>(&#x0007C;|&#x02016;)</mo>'),
        r'<mo stretchy="false" lspace="0" rspace="0">\1</mo>',
    ),
    (
        re.compile(rf"(<(?:mrow|mtd)>|<mo[^>]*>(?:{OPENERS})</mo>)<mo>&#x02212;</mo>"),
        r'\1<mo form="prefix" lspace="0" rspace="0">&#x02212;</mo>',
    ),
    (re.compile(r"<mi>&#x0007E;</mi>"), "<mo>&#x0223C;</mo>"),
    (re.compile(r"<m[io]>([a-z]{2,})</m[io]>"), r'<mo lspace="0.17em" rspace="0.17em">\1</mo>'),
)

# MathML Core has no attribute for alphabets other than upright: Unicode's own letters stand for them.
ALPHABETS = {
    "bold": {"A": 0x1D400, "a": 0x1D41A, "0": 0x1D7CE},
    "double-struck": {"A": 0x1D538, "a": 0x1D552, "0": 0x1D7D8},
}
STRUCK_EARLIER = dict(zip("CHNPQRZ", "ℂℍℕℙℚℝℤ", strict=True))
STYLED = re.compile(r'<(m[in]) mathvariant="([a-z-]+)">([A-Za-z0-9])</\1>')


def on_page_content(content: str, page: Any, **_: Any) -> str:
    """Called by mkdocs with the page's HTML."""
    converted = FORMULA.sub(lambda found: _mathml(found, page.file.src_uri), content)
    if "$" in OUTSIDE_TEXT.sub(" ", converted):
        log.warning("%s: a dollar sign without its formula; put blank lines around $$", page.file.src_uri)
    return converted


def _mathml(found: re.Match[str], where: str) -> str:
    latex = html.unescape(found[3])
    try:
        return to_mathml(latex, display=found[2] == "[")
    except ValueError as error:
        log.warning("%s: %s", where, error)
        return found[0]


def to_mathml(latex: str, *, display: bool = False) -> str:
    """A LaTeX formula as MathML; ValueError where a command is not understood."""
    try:
        drawn = convert(latex.strip(), display="block" if display else "inline")
    except Exception as error:
        raise ValueError(f"the formula {latex!r} cannot be converted: {error!r}") from error
    # Commands unknown to the converter come out as text with their backslash.
    left = re.search(r"\\[A-Za-z]+", html.unescape(drawn))
    if left:
        raise ValueError(f"the formula {latex!r} holds {left[0]}, which cannot be converted")
    drawn = STYLED.sub(_letter, drawn)
    left = re.search(r'mathvariant="(?!normal)[^"]*"', drawn)
    if left:
        raise ValueError(f"the formula {latex!r} needs {left[0]}, which browsers do not draw")
    for found, spaced in SPACING:
        drawn = found.sub(spaced, drawn)
    return drawn


def _letter(found: re.Match[str]) -> str:
    kind, variant, letter = found.groups()
    if variant not in ALPHABETS:
        return found[0]
    if variant == "double-struck" and letter in STRUCK_EARLIER:
        return f"<{kind}>{STRUCK_EARLIER[letter]}</{kind}>"
    first = "0" if letter.isdigit() else "A" if letter.isupper() else "a"
    return f"<{kind}>{chr(ALPHABETS[variant][first] + ord(letter) - ord(first))}</{kind}>"
