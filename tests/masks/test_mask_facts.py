"""What every listed mask declares, checked: facts for sizes up to 64, bands, recognition, arguments."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import fields
from itertools import product

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
    InStar,
    Mask,
    MaskFacts,
    MaskSchedule,
    OutStar,
    Prefix,
    RandomSparse,
    Ring,
    Window,
    graph_facts,
    parse_mask,
    parse_schedule,
    recognise,
)
from rankfall.mechanism.attend import attend

LARGEST = 64
# With two parameters there are n * n masks of n tokens: every size to 32, then a composite, a prime, a power of two.
SIZES_OF_PAIRS = (*range(1, 33), 45, 61, LARGEST)
EXAMPLES = [mask for kind in MASKS for mask in kind.examples()]


def with_every_parameter(kind: type[Mask], n: int) -> Iterator[Mask]:
    """All parameters that can make a difference at n tokens, and one beyond; examples where there are too many."""
    numbers = fields(kind)
    if len(numbers) > 2 or any(one.type not in ("int", int) for one in numbers):
        yield from kind.examples()
        return
    for values in product(range(1, n + 2), repeat=len(numbers)):
        with contextlib.suppress(RequestError):
            yield kind(*values)


def facts_by_powers(allowed: torch.Tensor) -> list[MaskFacts]:
    """Facts of a stack (m, n, n) of masks from the powers of their matrices: slower for one, faster for thousands."""
    n = allowed.shape[-1]
    edges = allowed.float()
    reached = torch.eye(n, dtype=torch.bool).expand_as(allowed)
    distance = torch.where(reached, 0.0, torch.inf)
    for steps in range(1, n):
        further = (edges @ reached.float()) > 0
        distance = torch.where(further & ~reached, float(steps), distance)
        if torch.equal(further, reached):
            break
        reached = further
    found = []
    for farthest in distance.amax(dim=1).tolist():
        roots = tuple(token for token, far in enumerate(farthest) if far < n)
        radius = int(min(farthest)) if roots else None
        found.append(MaskFacts(n, roots, radius, int(max(farthest)) if len(roots) == n else None))
    return found


@pytest.mark.usefixtures("_unchecked_axes")
@pytest.mark.parametrize("kind", MASKS, ids=lambda kind: kind.name)
def test_closed_form_equals_search(kind: type[Mask]) -> None:
    for n in SIZES_OF_PAIRS if len(fields(kind)) == 2 else range(1, LARGEST + 1):
        # Many parameters give the same matrix; one search serves them all.
        told: dict[bytes, tuple[torch.Tensor, list[Mask]]] = {}
        for mask in with_every_parameter(kind, n):
            allowed = mask.dense(n)
            told.setdefault(allowed.numpy().tobytes(), (allowed, []))[1].append(mask)
        searched = facts_by_powers(torch.stack([allowed for allowed, _ in told.values()]))
        for (_, masks), facts in zip(told.values(), searched, strict=True):
            for mask in masks:
                assert mask.closed_form(n) in (None, facts), f"{mask} at {n} tokens"


@pytest.mark.parametrize("n", [1, 2, 3, 7, 16])
def test_search_by_components_equals_search_by_powers(n: int, generator: torch.Generator) -> None:
    drawn = torch.rand(200, n, n, generator=generator) < torch.linspace(0, 0.5, 200)[:, None, None]
    drawn = drawn | torch.eye(n, dtype=torch.bool)
    assert [graph_facts(allowed) for allowed in drawn] == facts_by_powers(drawn)


@pytest.mark.parametrize("mask", EXAMPLES, ids=str)
def test_facts_of_examples_are_those_of_their_graph(mask: Mask) -> None:
    for n in range(1, LARGEST + 1):
        assert mask.facts(n) == graph_facts(mask.dense(n))


@pytest.mark.parametrize("kind", MASKS, ids=lambda kind: kind.name)
def test_self_loops_and_bands_that_hold_every_allowed_pair(kind: type[Mask]) -> None:
    for n in (1, 9, 24):
        for mask in with_every_parameter(kind, n):
            allowed, band = mask.dense(n), mask.band(n)
            assert allowed.diagonal().all()
            if band is not None:
                i, j = allowed.nonzero().T
                assert ((j - i) % band.step == 0).all()
                assert (j - i >= -band.lower * band.step).all()
                assert (j - i <= band.upper * band.step).all()


@pytest.mark.parametrize("mask", EXAMPLES, ids=str)
def test_attention_along_the_band_is_that_of_the_matrix(mask: Mask, generator: torch.Generator) -> None:
    n = 97
    query, key, value = torch.randn(3, 2, n, 4, generator=generator, dtype=torch.float64)
    assert torch.allclose(attend(query, key, value, mask), attend(query, key, value, mask.dense(n)), atol=1e-13)


@pytest.mark.parametrize("mask", EXAMPLES, ids=str)
def test_matrices_are_recognised(mask: Mask) -> None:
    """A kind that gives up on its own matrix must say so by a `from_matrix` of its own."""
    for n in (1, 2, 3, 12, 23):
        allowed = mask.dense(n)
        own, found = type(mask).from_matrix(allowed), recognise(allowed)
        assert torch.equal(found.dense(n), allowed)
        if own is None:
            assert n < 12 or "from_matrix" in vars(type(mask)), f"{mask} at {n} tokens"
        else:
            assert type(own) is type(mask)
            assert torch.equal(own.dense(n), allowed)
            assert not isinstance(found, Explicit)


@pytest.mark.parametrize("mask", [mask for mask in EXAMPLES if not isinstance(mask, RandomSparse)], ids=str)
def test_a_matrix_that_belongs_to_one_mask_gives_it_back(mask: Mask) -> None:
    earlier = [kind for kind in MASKS if kind is not type(mask)]
    earlier = earlier[: MASKS.names.index(mask.name)]
    allowed = mask.dense(23)
    if all(kind.from_matrix(allowed) is None for kind in earlier):
        assert recognise(allowed) == mask


def test_the_first_of_the_catalogue_is_recognised_and_anything_else_is_explicit() -> None:
    assert recognise(Window(7).dense(8)) == Complete()
    assert recognise(CausalWindow(1).dense(2)) == Causal()
    assert recognise(Prefix(1).dense(9)) == Causal()
    assert recognise(Dilated(3, 1).dense(9)) == Window(3)
    assert recognise(torch.eye(5, dtype=torch.bool)) == BlockDiagonal(1)
    drawn = RandomSparse(0.3, 1).dense(20)
    found = recognise(drawn)
    assert isinstance(found, Explicit)
    assert torch.equal(found.allowed, drawn)
    with pytest.raises(RequestError, match="every token to attend to itself"):
        recognise(torch.zeros(3, 3, dtype=torch.bool))


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


@pytest.mark.parametrize("mask", EXAMPLES, ids=str)
def test_argument_reads_back(mask: Mask) -> None:
    assert parse_mask(str(mask)) == mask
    assert parse_schedule(f"causal+{mask}").masks == (Causal(), mask)


def test_examples_are_several_and_all_different() -> None:
    for kind in MASKS:
        assert all(type(mask) is kind for mask in kind.examples())
        assert len(set(kind.examples())) == len(kind.examples()) >= (2 if fields(kind) else 1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Window(0), "width to be a whole number of at least 1; got 0"),
        (lambda: CausalWindow(-1), "at least 1; got -1"),
        (lambda: Prefix(0), "the prefix mask's length to be a whole number of at least 1"),
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


@pytest.mark.parametrize("mask", [one for kind in MASKS for one in kind.examples()], ids=str)
@pytest.mark.parametrize("n", [1, 5, 24])
def test_pairs_are_those_of_the_matrix(mask: Mask, n: int) -> None:
    dense = mask.dense(n)
    rows, columns = mask.pairs(n)
    assert torch.equal(torch.stack([rows, columns], dim=1), dense.nonzero())
    assert MaskSchedule((mask,)).largest_degree(n) == int(dense.sum(dim=-1).max())
