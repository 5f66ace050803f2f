"""Names from outside: control characters do not reach the terminal, markup and mathematics in them are plain text."""

from __future__ import annotations

import io
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from rankfall.cli import output
from rankfall.drawing.audit import PANELS, draw_comparison
from rankfall.drawing.canvas import canvas, heading, save
from rankfall.drawing.from_matplotlib import plot_of
from rankfall.errors import RequestError, printable

NASTY = [
    ("C0", "a\x1b[2Jb\x07c", "a[2Jbc"),
    ("C1", "a\x9b31mb\x90c", "a31mbc"),
    ("delete", "a\x7fb", "ab"),
    ("direction", "exe\u202egnp\u2066.x\u2069\u200f", "exegnp.x"),
    ("lines", "a\r\nb\u2028c\x85d\te", "a b c d e"),
    ("lone surrogate", "a\ud800b", "a?b"),
]


@pytest.mark.parametrize(("kind", "given", "shown"), NASTY, ids=[one[0] for one in NASTY])
def test_what_controls_a_terminal_is_taken_out(kind: str, given: str, shown: str) -> None:
    assert printable(given) == shown


def test_ordinary_text_stays() -> None:
    text = "Größe μ, 漢字, 🙂, naïve [b] $x$ \\n"
    assert printable(text) == text


def test_refusals_hold_no_control_characters() -> None:
    error = RequestError(required="a\x1b]0;title\x07", got="\x9b2J\u202e", remedy="x\ny")
    assert str(error) == "required a]0;title; got 2J; x y"


def test_tables_and_lines_print_names_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    output.table("title [/b] \x1b[31m", [{"na[/b]me": "[red]x[/b]\x9b2J", "n": 1}])
    output.paper.print("line [/b] \x1b]8;;http://x\x07 end", markup=False)
    said = capsys.readouterr().out
    assert "title [/b] [31m" in said
    assert "[red]x[/b]2J" in said
    assert "line [/b] ]8;;http://x end" in said
    assert "\x1b" not in said
    assert "\x9b" not in said


def test_progress_takes_any_title(monkeypatch: pytest.MonkeyPatch) -> None:
    page = io.StringIO()
    monkeypatch.setattr(output, "notes", Console(file=page, force_terminal=True, width=200))
    with output.shown("model [/b] \x1b[2J") as progress:
        progress("opening [/i]", 0.5)
    assert "opening [/i]" in page.getvalue()
    assert "\x1b[2J" not in page.getvalue()


@pytest.mark.parametrize("name", ["$$", "$", r"a$\frac{$", "x_$^$", "\x1b$1$"])
def test_dollar_signs_in_names_are_drawn(tmp_path: Path, name: str) -> None:
    figure, axes = canvas()
    heading(figure, f"Token rank by depth, {name}")
    axes[0, 0].plot([0, 1], [0, 1])
    assert save(figure, tmp_path / "picture.png").exists()
    measures = {measure: 0.5 for measure, _ in PANELS}
    table = pd.DataFrame([{"model": one, "depth": depth, **measures} for one in (name, "b") for depth in (0, 1)])
    figure = draw_comparison(table)
    save(figure, tmp_path / "comparison.png")
    drawn = plot_of(figure, "comparison", "")
    assert printable(name) in {one.get("name") for panel in drawn["panels"] for one in panel["series"]}
