"""Closed forms against graph search, for all sizes up to 64 and every parameter."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from rankfall.catalogue import MASKS
from rankfall.errors import RequestError
from rankfall.masks import (
    BlockDiagonal,
    Causal,
    CausalWindow,
    Complete,
    Dilated,
    Explicit,
    GlobalWindow,
    InStar,
    Mask,
    MaskSchedule,
    OutStar,
    Prefix,
    RandomSparse,
    Ring,
    Star,
    Window,
    graph_facts,
    parse_mask,
    parse_schedule,
    spelling,
)

LARGEST = 64


def with_every_parameter(kind: type[Mask], n: int) -> Iterator[Mask]:
    """All parameters that can make a difference at n tokens, and one beyond."""
    if kind in (Complete, Causal, Star, OutStar, InStar):
        yield kind()
    elif kind in (Window, CausalWindow, Prefix, Ring, BlockDiagonal):
        yield from (kind(size) for size in range(1, n + 2))
    elif kind is Dilated:
        yield from (kind(width, step) for width in range(1, n + 1) for step in range(1, n + 2))
    elif kind is GlobalWindow:
        yield from (kind(hubs, width) for hubs in range(1, n + 1) for width in range(1, n + 1))
    else:
        raise AssertionError(f"say which parameters {kind.name} has")


STRUCTURED = [kind for kind in MASKS if kind is not RandomSparse]


@pytest.mark.parametrize("kind", STRUCTURED, ids=lambda kind: kind.name)
def test_closed_form_equals_search(kind: type[Mask]) -> None:
    searched: dict[bytes, object] = {}
    for n in range(1, LARGEST + 1):
        for mask in with_every_parameter(kind, n):
            allowed = mask.dense(n)
            # Many parameters give the same matrix; one search serves them all.
            identity = allowed.numpy().tobytes()
            if identity not in searched:
                searched[identity] = graph_facts(allowed)
            assert mask.closed_form(n) == searched[identity], f"{mask} at {n} tokens"


@pytest.mark.parametrize("kind", MASKS, ids=lambda kind: kind.name)
def test_self_loops(kind: type[Mask]) -> None:
    masks = [RandomSparse(0.1, 3)] if kind is RandomSparse else list(with_every_parameter(kind, 9))
    for mask in masks:
        assert mask.dense(9).diagonal().all()


@pytest.mark.parametrize("kind", STRUCTURED, ids=lambda kind: kind.name)
def test_band_holds_every_allowed_pair(kind: type[Mask]) -> None:
    n = 24
    for mask in with_every_parameter(kind, n):
        band = mask.band(n)
        if band is None:
            continue
        i, j = mask.dense(n).nonzero().T
        gap = j - i
        assert (gap % band.step == 0).all()
        assert (gap >= -band.lower * band.step).all()
        assert (gap <= band.upper * band.step).all()


def test_known_matrices() -> None:
    assert Causal().dense(3).int().tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert CausalWindow(1).dense(3).int().tolist() == [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    assert Prefix(2).dense(3).int().tolist() == [[1, 1, 0], [1, 1, 0], [1, 1, 1]]
    assert OutStar().dense(3).int().tolist() == [[1, 0, 0], [1, 1, 0], [1, 0, 1]]
    assert Ring(1).dense(4).int().tolist() == [[1, 1, 0, 1], [1, 1, 1, 0], [0, 1, 1, 1], [1, 0, 1, 1]]
    assert Dilated(1, 2).dense(4).int().tolist() == [[1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1]]


def test_window_of_all_tokens_is_complete() -> None:
    assert torch.equal(Window(8).dense(8), Complete().dense(8))
    assert torch.equal(Window(100).dense(8), Complete().dense(8))


def test_roots_of_a_chain_run_one_way() -> None:
    facts = CausalWindow(2).facts(10)
    assert (facts.roots, facts.radius, facts.strongly_connected) == ((0,), 5, False)
    assert facts.quasi_strongly_connected


def test_two_sources_have_no_root() -> None:
    facts = InStar().facts(5)
    assert (facts.roots, facts.radius, facts.diameter) == ((), None, None)
    assert not facts.quasi_strongly_connected


def test_large_search_in_row_blocks() -> None:
    n = 700  # more roots than are searched at once
    facts = graph_facts(Window(100).dense(n))
    assert facts == Window(100).closed_form(n)


def test_random_mask_is_repeatable_and_depends_on_its_seed() -> None:
    assert torch.equal(RandomSparse(0.3, 1).dense(20), RandomSparse(0.3, 1).dense(20))
    assert not torch.equal(RandomSparse(0.3, 1).dense(20), RandomSparse(0.3, 2).dense(20))
    assert RandomSparse(0.0, 1).dense(20).sum() == 20
    assert RandomSparse(1.0, 1).dense(20).all()


def test_schedule_counts_the_union() -> None:
    schedule = parse_schedule("dilated:1:2+window:1")
    assert schedule.period == 2
    assert schedule.at(0) == schedule.at(2) == Dilated(1, 2)
    assert not Dilated(1, 2).facts(9).quasi_strongly_connected
    assert schedule.facts(9) == graph_facts(Dilated(1, 2).dense(9) | Window(1).dense(9))
    assert schedule.facts(9).strongly_connected
    assert MaskSchedule((Causal(),)).facts(6) == Causal().facts(6)


@pytest.mark.parametrize("text", ["complete", "window:4", "dilated:2:3", "global-window:1:2", "random:0.25:7"])
def test_argument_reads_back(text: str) -> None:
    assert str(parse_mask(text)) == text


def test_every_mask_can_be_parsed_by_its_spelling() -> None:
    for kind in MASKS:
        example = spelling(kind).replace("PROBABILITY", "0.5")
        for word in ("WIDTH", "STEP", "HUBS", "LENGTH", "SIZE", "SEED"):
            example = example.replace(word, "2")
        assert isinstance(parse_mask(example), kind)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Window(0), "width to be a whole number of at least 1; got 0"),
        (lambda: CausalWindow(-1), "at least 1; got -1"),
        (lambda: Prefix(0), "prefix's length"),
        (lambda: RandomSparse(1.5), "between 0 and 1; got 1.5"),
        (lambda: parse_mask("windw:4"), "a mask among complete, causal, window:WIDTH"),
        (lambda: parse_mask("window"), "written window:WIDTH; got window"),
        (lambda: parse_mask("window:x"), "instead of 'x'"),
        (lambda: parse_mask("causal:3"), "written causal; got causal:3"),
        (lambda: MaskSchedule(()), "at least one mask in a schedule"),
        (lambda: Explicit(torch.zeros(3, 3, dtype=torch.bool)), r"no self-loop at token 0; add the diagonal"),
        (lambda: Explicit(torch.ones(3, 3)), "boolean mask; got dtype torch.float32"),
        (lambda: Explicit(torch.ones(2, 3, dtype=torch.bool)), r"square mask.*got shape \(2, 3\)"),
        (lambda: Explicit(torch.ones(0, 0, dtype=torch.bool)), "at least one token"),
        (lambda: Explicit(torch.eye(3, dtype=torch.bool)).dense(4), "3 tokens, the size of the given mask; got 4"),
        (lambda: Causal().dense(0), "number of tokens to be a whole number of at least 1; got 0"),
    ],
)
def test_refusals(make, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        make()
