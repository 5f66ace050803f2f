"""Controls are made from their descriptions: every mask and every setting has one."""

from __future__ import annotations

import pytest

pytest.importorskip("marimo", reason="the extra app is not installed")

from rankfall.catalogue import MASKS
from rankfall.explorer.state import HeadState, StoredState, TokenState, controls
from rankfall.explorer.widgets import as_text, facts, mask_numbers, mask_text, widget
from rankfall.masks import parse_mask


@pytest.mark.parametrize("kind", MASKS, ids=lambda kind: kind.name)
def test_every_mask_can_be_chosen(kind) -> None:
    other = "complete" if kind.name == "causal" else "causal"
    assert parse_mask(mask_text(kind.name, mask_numbers(kind.name, other).value)) == kind.examples()[0]
    for mask in kind.examples():
        assert parse_mask(mask_text(kind.name, mask_numbers(kind.name, str(mask)).value)) == mask


def test_a_mask_of_the_same_kind_keeps_its_numbers() -> None:
    assert mask_numbers("window", "window:77").value == {"width": 77}
    assert mask_numbers("random", "random:0.33:5").value == {"probability": 0.33, "seed": 5}
    assert mask_numbers("window", "ring:9").value == {"width": 4}


@pytest.mark.parametrize("kind", [TokenState, HeadState, StoredState])
def test_widgets_are_set_to_the_state(kind) -> None:
    usual = kind()
    for name in controls(kind):
        if name != "mask":
            assert widget(kind, name, getattr(usual, name)).value == getattr(usual, name)


def test_words_from_outside_are_no_markup() -> None:
    shown = as_text("<script>harm()</script> \"'&").text
    assert "<script>" not in shown
    assert "&lt;script&gt;harm()&lt;/script&gt; &quot;&#x27;&amp;" in shown


def test_facts_stand_side_by_side() -> None:
    shown = facts([("a", "1"), ("b", "<2>")])
    assert shown == '<div class="rankfall-facts"><span>a <b>1</b></span><span>b <b>&lt;2&gt;</b></span></div>'
