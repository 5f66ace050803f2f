"""The first tab: its numbers are those of the command and the Python that it shows."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from rankfall.drawing.collapse import tail_line
from rankfall.drawing.plots import element
from rankfall.errors import RequestError
from rankfall.explorer.same_result import token_command, token_python
from rankfall.explorer.state import TokenState
from rankfall.explorer.token_curves import (
    NEAR_ONE,
    SHOWN_STATES,
    attention_at,
    nearest_row,
    reasons,
    summary,
    thinning,
    token_curves,
)
from rankfall.explorer.token_plots import (
    GRAPH_TOKENS,
    draw_attention,
    draw_depth,
    draw_graph,
    draw_motion,
    graph_tokens,
    shown_coordinates,
)
from tests.explorer.calls import printed_by_command, printed_by_python, series_of, unpacked

STATES = [
    TokenState(tokens=12, width=6, depth=9),
    TokenState(mask="window:2", tokens=10, width=5, depth=90, temperature=0.25, value="identity", seed=3),
    TokenState(tokens=8, width=8, depth=6, norm="layer", residual=0.35, heads=2, placement="pre", query_key="xavier"),
    TokenState(mask="random:0.3:5", tokens=9, width=4, depth=5, value="gaussian"),
    TokenState(tokens=2, width=2, depth=7, value="counterexample", norm="unit", query_key="zero"),
    TokenState(tokens=8, width=6, depth=12, sink="1"),
    TokenState(tokens=8, width=6, depth=5, sink="-2", heads=2, norm="rms", placement="pre", residual=0.5),
    TokenState(tokens=8, width=6, depth=5, sink="0", norm="unit"),
]


@pytest.mark.parametrize("state", STATES, ids=lambda state: f"{state.mask}-{state.value}-{state.norm}")
def test_the_shown_command_and_python_give_the_same_numbers(state, capsys) -> None:
    curves = token_curves(state)
    found = printed_by_command(token_command(state), capsys)
    assert [row["layer"] for row in found["layers"]] == list(curves.layers)
    column = "log10_mu" if curves.followed == "mu" else "log10_unit_relative_mu"
    assert [row[column] for row in found["layers"]] == list(curves.log10_mu)
    assert [row["effective_rank"] for row in found["layers"]] == list(curves.effective_rank)
    assert [row["energy_rank"] for row in found["layers"]] == list(curves.energy_rank)
    assert (found["tail_rate"], found["bound_rate"]) == (curves.tail_rate, curves.bound_rate)
    assert found["bound_reason"] == curves.bound_reason
    *lines, last = printed_by_python(token_python(state))
    assert [float(words[1]) for words in lines] == list(curves.log10_mu)
    assert [float(words[2]) for words in lines] == list(curves.effective_rank)
    assert [float(words[3]) for words in lines] == list(curves.energy_rank)
    assert last[-1] == str(curves.bound_reason is None)


def test_the_bound_stands_above_and_the_tail_touches_the_end() -> None:
    curves = token_curves(STATES[0])
    assert curves.bound_log10_mu is not None
    assert all(bound >= mu for bound, mu in zip(curves.bound_log10_mu, curves.log10_mu, strict=True))
    tail = tail_line(curves.tail_rate, curves.layers, curves.log10_mu)
    assert tail is not None
    assert tail[1][1] == curves.log10_mu[-1]
    # The causal tail is 1/2: between the line's ends mu falls by that factor in every layer.
    slope = (tail[1][1] - tail[1][0]) / (tail[0][1] - tail[0][0])
    assert 10**slope == pytest.approx(curves.tail_rate, abs=1e-12)
    plot = draw_depth(curves, 3)
    assert plot["mark"] == 3
    assert [series["name"] for series in series_of(plot)] == [
        "mu, measured",
        "theorem's bound",
        "tail rate, by theory",
        "effective rank",
        "energy rank",
    ]


def test_a_bound_that_rounds_to_one_says_how_far_below_it_is() -> None:
    curves = token_curves(TokenState(mask="window:1", tokens=32, width=4, depth=3))
    assert curves.bound_rate is not None
    assert curves.bound_rate > NEAR_ONE
    words = dict(summary(curves))["theorem's bound"]
    assert words == f"1 - 10^{curves.bound_log10_gap:.1f} a layer"
    assert curves.bound_log10_gap < -16


def test_nothing_is_drawn_where_nothing_is_known() -> None:
    curves = token_curves(STATES[2])
    assert [series["name"] for series in series_of(draw_depth(curves, 0))] == [
        "mu, measured",
        "effective rank",
        "energy rank",
    ]
    assert "does not apply: required: no norm between layers" in " ".join(reasons(curves))
    assert ("theorem's bound", "does not apply") in summary(curves)


def test_what_is_only_shown_does_not_run_again() -> None:
    state = STATES[0]
    assert token_curves(replace(state, layer=5, view="3-D")) is token_curves(state)
    assert token_curves(replace(state, seed=1)) is not token_curves(state)


@pytest.mark.parametrize("depth", [1, 40, 41, 256])
def test_a_screen_of_states_at_any_depth(depth) -> None:
    curves = token_curves(TokenState(tokens=3, width=2, depth=depth))
    assert curves.layers[-1] == depth
    assert len(curves.layers) <= SHOWN_STATES + 2
    assert curves.layers[1] == thinning(depth)


def test_motion_holds_every_recorded_layer() -> None:
    curves = token_curves(STATES[0])
    for view, axes in (("2-D", 2), ("3-D", 3)):
        plot = draw_motion(curves, view, 4)
        assert plot["layers"] == list(curves.layers)
        points, _ = shown_coordinates(curves.tokens, axes)
        sent = unpacked(plot["places"], torch.int16).reshape(points.shape).double() / 32767
        # Half a step of 16 bits.
        torch.testing.assert_close(sent, points, atol=0.5 / 32767 + 1e-12, rtol=0)
        assert plot["row"] == nearest_row(curves, 4) == 4


def test_few_dimensions_are_shown_as_they_are() -> None:
    tokens = token_curves(TokenState(tokens=5, width=3, depth=4)).tokens
    points, share = shown_coordinates(tokens, 3)
    assert share == 1.0
    torch.testing.assert_close(points, tokens / tokens.norm(dim=-1, keepdim=True))
    flat, share = shown_coordinates(tokens, 2)
    # The share is that of the squared lengths that the two directions keep.
    assert share == pytest.approx(float(flat.square().sum() / points.square().sum()), abs=1e-12)
    assert share < 1


def test_attention_is_that_of_the_recorded_layer() -> None:
    # One head with the identity for values: attention itself takes the tokens to the next layer.
    state = replace(STATES[1], depth=20)
    curves = token_curves(state)
    for row in (0, 7):
        attention = attention_at(state, curves, row)
        torch.testing.assert_close(attention.sum(dim=-1), torch.ones(10, dtype=torch.float64))
        torch.testing.assert_close(attention @ curves.tokens[row], curves.tokens[row + 1])
    plot = draw_attention(attention, state.mask, 7)
    (one,) = series_of(plot)
    sent = unpacked(one["packed"], torch.uint16).to(torch.int64).reshape(10, 10)
    forbidden = abs(torch.arange(10)[:, None] - torch.arange(10)) > 2
    assert torch.equal(sent == 65535, forbidden)
    shown = (sent.double() / 65534 * one["top"]).masked_fill(forbidden, 0.0)
    torch.testing.assert_close(shown, attention, atol=0.5 / 65534 + 1e-12, rtol=0)


def test_a_sink_takes_from_the_attention_that_is_drawn() -> None:
    state = replace(STATES[1], depth=20, sink="0")
    curves = token_curves(state)
    attention = attention_at(state, curves, 3)
    assert float(attention.sum(dim=-1).max()) < 0.999
    torch.testing.assert_close(attention @ curves.tokens[3], curves.tokens[4])
    assert draw_depth(curves, 0)["panels"][0]["series"][0]["name"] == "unit relative mu, measured"
    assert ("unit relative mu falls by", summary(curves)[0][1]) == summary(curves)[0]


def test_the_graph_is_drawn_for_few_tokens_with_its_roots() -> None:
    assert graph_tokens("causal", 64) == GRAPH_TOKENS
    assert graph_tokens("causal", 5) == 5
    plot = draw_graph("causal", 5)
    # Token i attends to those before it: information flows from them.
    assert sorted(plot["edges"]) == [[source, target] for source in range(5) for target in range(source + 1, 5)]
    says = [token["says"] for token in plot["tokens"]]
    assert [text for text in says if "root" in text] == ["token 0, a root: reaches everyone"]


def test_a_redraw_is_a_small_message() -> None:
    """What makes a redraw fast: at the page's largest settings all four plots travel in this many letters."""
    state = TokenState(tokens=128, width=64, depth=256, view="3-D")
    curves = token_curves(state)
    attention = attention_at(state, curves, 0)
    plots = [draw_motion(curves, "3-D", 0), draw_depth(curves, 0), draw_attention(attention, state.mask, 0)]
    assert sum(len(element(plot)) for plot in [*plots, draw_graph(state.mask, 128)]) < 120_000


def test_what_cannot_be_simulated_is_refused() -> None:
    with pytest.raises(RequestError, match="width 2 for the counterexample"):
        token_curves(TokenState(value="counterexample"))
