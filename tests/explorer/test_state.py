"""A state is its link: there and back, whatever the link says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankfall.explorer.state import (
    Choice,
    HeadState,
    Knob,
    PageState,
    StoredState,
    TokenState,
    controls,
    from_query,
    keys,
    link_of,
    query_of,
    to_query,
)

MASKS = ("complete", "window:4", "dilated:3:2", "random:0.35:7", "global-window:1:4")


def drawn(kind: type) -> st.SearchStrategy:
    """Any state that the page's own widgets can reach."""
    given_by = {}
    for name, control in controls(kind).items():
        if isinstance(control, Knob):
            given_by[name] = st.sampled_from(control.steps)
        elif isinstance(control, Choice):
            given_by[name] = st.sampled_from(control.names)
        else:
            given_by[name] = st.sampled_from(MASKS)
    return st.fixed_dictionaries(given_by)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(drawn(TokenState), drawn(HeadState), drawn(StoredState), drawn(PageState))
def test_a_link_restores_the_state(token, head, stored, page) -> None:
    state = PageState(token=TokenState(**token), head=HeadState(**head), stored=StoredState(**stored), **page)
    restored, notes = from_query(query_of("http://127.0.0.1:1234/?access_token=x&" + link_of(state)))
    assert restored == state
    assert notes == []


def test_defaults_stay_out_of_the_link() -> None:
    assert to_query(PageState()) == {}
    assert to_query(PageState(token=replace(TokenState(), tokens=64))) == {"tokens": "64"}


def test_keys_are_told_apart() -> None:
    assert len(set(keys())) == len(keys())


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("tokens", "9000"),
        ("tokens", "1e9"),
        ("tokens", ""),
        ("temperature", "nan"),
        ("temperature", "-1"),
        ("mask", "window:nothing"),
        ("mask", "<script>"),
        ("norm", "batch"),
        ("tab", "Nowhere"),
        ("d", "0"),
    ],
)
def test_what_cannot_be_is_left_at_its_default_and_said(key, text) -> None:
    state, notes = from_query({key: text})
    assert state == PageState()
    assert len(notes) == 1
    assert notes[0].startswith(f"{key}={text}: not possible here")


def test_a_number_between_the_steps_becomes_a_step() -> None:
    state, notes = from_query({"temperature": "0.3"})
    assert notes == []
    control = controls(TokenState)["temperature"]
    assert isinstance(control, Knob)
    assert 0.3 in control.stops(state.token.temperature)
    assert control.stops(1.0) == list(control.steps)


def test_links_are_read_whole_or_in_part() -> None:
    wanted = {"mask": "window:4", "tokens": "64"}
    for text in (
        "mask=window%3A4&tokens=64",
        "?mask=window:4&tokens=64",
        "http://localhost:1/?mask=window:4&tokens=64",
    ):
        assert query_of(text) == wanted
    assert query_of("access_token=secret&file=/etc/passwd") == {}
