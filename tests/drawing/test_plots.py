"""Plots as plain data: what travels to the browser, and the scripts that draw it there."""

from __future__ import annotations

import base64
import html
import json
import math
import re
from importlib import resources

import pytest
import torch

from rankfall.drawing.plots import (
    ALL_SCRIPTS,
    NONE,
    PANEL_SCRIPTS,
    SHARES,
    STYLE,
    element,
    line,
    lines,
    packed_places,
    packed_shares,
    panel,
    scripts,
)
from rankfall.explorer.widgets import script
from tests.explorer.calls import unpacked

HOSTILE = "\"><script>alert(1)</script>'&"


def test_every_script_is_listed_and_sent_once() -> None:
    folder = resources.files("rankfall.drawing").joinpath("scripts")
    assert {path.name for path in folder.iterdir()} == {*ALL_SCRIPTS, STYLE}
    found = re.fullmatch(
        r'<script src="data:text/javascript;charset=utf-8;base64,([A-Za-z0-9+/=]+)"></script>', script()
    )
    assert found is not None
    sent = base64.b64decode(found[1]).decode()
    assert sent == scripts()
    for name in ALL_SCRIPTS:
        text = folder.joinpath(name).read_text()
        assert sent.count(text) == 1
        assert (text in scripts(PANEL_SCRIPTS)) == (name in PANEL_SCRIPTS)
    # Nothing is fetched: the only address is the name of a vocabulary.
    assert set(re.findall(r"https?://[^\"\s]+", sent)) == {"http://www.w3.org/2000/svg"}
    # A report stands inside a script element, which no text of ours may end.
    assert "</script" not in sent.lower()


def test_words_stay_inside_the_attribute() -> None:
    series = [line(HOSTILE, [0, 1], [1.0, math.nan], "red")]
    plot = lines("name", HOSTILE, {"label": HOSTILE}, [panel(HOSTILE, series)])
    text = element(plot)
    assert "<script" not in text
    pattern = r"<rankfall-plot class='plot' data-name='name' data-plot='([^'<>]*)'></rankfall-plot>"
    inside = re.fullmatch(pattern, text)
    assert inside is not None
    assert json.loads(html.unescape(inside[1])) == plot
    assert series[0]["y"] == [1.0, None]


def test_packed_numbers_come_back() -> None:
    generator = torch.Generator().manual_seed(0)
    points = torch.rand(3, 5, 2, generator=generator, dtype=torch.float64) * 2 - 1
    back = unpacked(packed_places(points), torch.int16).reshape(points.shape).double() / 32767
    torch.testing.assert_close(back, points, atol=0.5 / 32767 + 1e-12, rtol=0)
    # Rounding may leave a unit vector a hair too long.
    assert unpacked(packed_places(torch.tensor([1 + 1e-12, -1 - 1e-12])), torch.int16).tolist() == [32767, -32767]


@pytest.mark.parametrize("top", [1.0, 0.03])
def test_packed_shares_mark_what_is_not_there(top) -> None:
    shares = torch.tensor([[0.0, top], [top / 2, 0.0]], dtype=torch.float64)
    allowed = torch.tensor([[True, True], [True, False]])
    sent = unpacked(packed_shares(shares, allowed, top), torch.uint16).to(torch.int64)
    assert sent.tolist() == [0, SHARES, SHARES // 2, NONE]
