"""The first token's mass with depth: by hand, against products of whole numbers, and against random rotary scores."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

from rankfall.catalogue import MASKS
from rankfall.errors import RequestError
from rankfall.masks import parse_mask, parse_schedule
from rankfall.theory.first_token import RotaryDecay, first_token_mass, position_attention
from rankfall.theory.sub_stochastic import sink_attention

MASK_EXAMPLES = [mask for kind in MASKS for mask in kind.examples()]


def exact_masses(mask, n: int, layers: int, residual: int, taken: int) -> list[tuple[Fraction, Fraction, Fraction]]:
    """By products of fractions: `taken` is e^s of the sink, 0 for none."""
    allowed = mask.dense(n).tolist()
    attention = [[Fraction(int(sees), sum(row) + taken) for sees in row] for row in allowed]
    step = [[attention[i][j] + residual * (i == j) for j in range(n)] for i in range(n)]
    product = [[Fraction(int(i == j)) for j in range(n)] for i in range(n)]
    found = []
    for _ in range(layers):
        product = [[sum(step[i][k] * product[k][j] for k in range(n)) for j in range(n)] for i in range(n)]
        shares = [row[0] / sum(row) for row in product]
        choosing = [row[0] for row, sees in zip(attention, allowed, strict=True) if sum(sees) > 1]
        choosing = choosing or [row[0] for row in attention]
        found.append((sum(choosing) / len(choosing), sum(shares) / n, shares[-1]))
    return found


@pytest.mark.parametrize("mask", MASK_EXAMPLES, ids=str)
@pytest.mark.parametrize(("residual", "taken"), [(0, 0), (1, 0), (0, 3)])
def test_agrees_with_products_of_fractions(mask, residual, taken) -> None:
    expected = exact_masses(mask, 6, 5, residual, taken)
    sink = math.log(taken) if taken else None
    found = first_token_mass(mask, 6, 5, sinks=sink, residual=residual)
    assert [one.layer for one in found] == [1, 2, 3, 4, 5]
    for ours, (direct, carried, last) in zip(found, expected, strict=True):
        assert (ours.direct, ours.carried, ours.last) == pytest.approx(
            (float(direct), float(carried), float(last)), rel=1e-13, abs=1e-15
        )


@pytest.mark.parametrize("residual", [0, 1])
@pytest.mark.parametrize("sink", [800.0, 2.0**31, [700.0, 900.0]])
def test_a_sink_that_takes_all_but_nothing_leaves_the_shares(sink, residual) -> None:
    """Weights below the smallest of float64 are all alike: shares are those under a sink of e^60."""
    mask = parse_mask("causal")
    found = first_token_mass(mask, 6, 5, sinks=sink, residual=residual)
    expected = first_token_mass(mask, 6, 5, sinks=60.0, residual=residual)
    assert [(one.carried, one.last) for one in found] == [
        pytest.approx((one.carried, one.last), abs=1e-15) for one in expected
    ]


def test_by_hand() -> None:
    """Two causal tokens: the second is 1 - 2^-t of the first. One layer of N tokens: harmonic numbers."""
    for one in first_token_mass(parse_mask("causal"), 2, 6):
        assert one.last == pytest.approx(1 - 2.0**-one.layer, rel=1e-14)
    (first,) = first_token_mass(parse_mask("causal"), 50, 1)
    harmonic = sum(1 / i for i in range(1, 51))
    assert first.carried == pytest.approx(harmonic / 50, rel=1e-13)
    assert first.direct == pytest.approx((harmonic - 1) / 49, rel=1e-13)
    assert all(one.carried == pytest.approx(1 / 9) for one in first_token_mass(parse_mask("complete"), 9, 3))


def test_where_the_mass_ends() -> None:
    """A root that sees only itself takes all; under a symmetric mask mass stays in proportion to the neighbours."""
    for name in ("causal", "causal-window:2", "out-star"):
        assert first_token_mass(parse_mask(name), 8, 400)[-1].carried == pytest.approx(1, abs=1e-9)
    degrees = parse_mask("window:1").dense(8).sum(dim=1).double()
    ends = first_token_mass(parse_mask("window:1"), 8, 900)[-1].carried
    assert ends == pytest.approx(float(degrees[0] / degrees.sum()), rel=1e-9)


def test_a_residual_connection_delays_it_and_a_schedule_alternates() -> None:
    mask = parse_mask("causal")
    bare, kept = (first_token_mass(mask, 16, 10, residual=residual) for residual in (0.0, 1.0))
    assert all(b.carried < a.carried for a, b in zip(bare, kept, strict=True))
    both = first_token_mass(parse_schedule("causal+complete"), 6, 2)
    product = position_attention(parse_mask("complete"), 6) @ position_attention(mask, 6)
    assert both[1].carried == pytest.approx(product[:, 0].mean(), rel=1e-13)
    assert both[0].direct != pytest.approx(both[1].direct)


def test_uniform_attention_with_a_sink_is_the_same_operator() -> None:
    ours = position_attention(parse_mask("causal"), 7, 1.3)
    np.testing.assert_allclose(ours, sink_attention(parse_mask("causal"), 7, 1.3), rtol=1e-13)
    heads = [position_attention(parse_mask("causal"), 7, one, RotaryDecay(rank=4)) for one in (0.5, -1.0)]
    both = position_attention(parse_mask("causal"), 7, (0.5, -1.0), RotaryDecay(rank=4))
    np.testing.assert_allclose(both, sum(heads) / 2, rtol=1e-13)
    scores = RotaryDecay(rank=4).scores(np.arange(7)[::-1])
    expected = np.exp(scores) / (np.exp(scores).sum() + math.exp(0.5))
    np.testing.assert_allclose(heads[0][6], expected, rtol=1e-13)


def test_rotary_scores_are_the_mean_of_random_ones() -> None:
    """Queries and keys drawn as the model says, rotated pair by pair: means within four standard errors."""
    decay, draws = RotaryDecay(base=100.0, rank=8, correlation=0.6), 40_000
    generator = np.random.default_rng(0)
    shared, own_query, own_key = generator.standard_normal((3, draws, 8))
    query, key = (math.sqrt(0.6) * shared + math.sqrt(0.4) * own for own in (own_query, own_key))
    pairs_q, pairs_k = (x[:, 0::2] + 1j * x[:, 1::2] for x in (query, key))
    frequencies = 100.0 ** (-2 * np.arange(4) / 8)
    distances = np.array([0, 1, 2, 5, 20])
    for distance, expected in zip(distances, decay.scores(distances), strict=True):
        scores = (pairs_q * np.conj(pairs_k) * np.exp(1j * distance * frequencies)).real.sum(axis=1) / math.sqrt(8)
        assert abs(scores.mean() - expected) < 4 * scores.std() / math.sqrt(draws)
    assert decay.scores(np.array(0)) == pytest.approx(0.6 * math.sqrt(8))


def test_rotary_decay_lessens_the_first_tokens_mass() -> None:
    mask = parse_mask("causal")
    uniform = first_token_mass(mask, 64, 12)
    rotary = first_token_mass(mask, 64, 12, rotary=RotaryDecay(rank=32))
    none = first_token_mass(mask, 64, 12, rotary=RotaryDecay(rank=32, correlation=0.0))
    assert none == uniform
    assert all(b.carried < a.carried for a, b in zip(uniform, rotary, strict=True))
    assert all(b.carried > a.carried for a, b in pairwise(rotary))


def test_refusals() -> None:
    with pytest.raises(RequestError, match="an even rank"):
        RotaryDecay(rank=7)
    with pytest.raises(RequestError, match="correlation"):
        RotaryDecay(correlation=1.5)
    with pytest.raises(RequestError, match="number of layers"):
        first_token_mass(parse_mask("causal"), 4, 0)
