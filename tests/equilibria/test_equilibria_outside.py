"""What lies outside B-thm2's hemisphere: metastable antipodes, stable twisted states, and the usual collapse."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tests.sampling import normal

from rankfall.equilibria.known import twisted
from rankfall.equilibria.known import twisted_multipliers as closed_form
from rankfall.equilibria.layer import NormalisedLayer
from rankfall.equilibria.stability import multipliers, stability
from rankfall.errors import RequestError
from rankfall.masks import Causal, Complete, Mask, Window
from rankfall.measures.base import measure
from rankfall.theory.norm_collapse import hemisphere

SIGNS = torch.tensor([1.0, -1.0, 1.0, 1.0, -1.0], dtype=torch.float64)


def mu(tokens: torch.Tensor) -> float:
    return float(measure(tokens, ["mu"])["mu"])


def antipodal(signs: torch.Tensor, width: int, sharpness: float, mask: Mask) -> tuple[NormalisedLayer, torch.Tensor]:
    """Tokens s_i e_1 under scores `sharpness` * <x_i, x_j> on that mask: fixed where none flips or vanishes."""
    eye = torch.eye(width, dtype=torch.float64)
    layer = NormalisedLayer(eye, mask.dense(len(signs)), form=sharpness * eye)
    return layer, signs[:, None] * eye[:1]


def antipodal_multipliers(layer: NormalisedLayer, tokens: torch.Tensor) -> torch.Tensor:
    """Eigenvalues of diag(1/c) A, each met width - 1 times by the Jacobian."""
    weights = layer.attention(tokens)
    lengths = torch.linalg.vector_norm(weights @ tokens, dim=-1)
    return torch.linalg.eigvals(weights / lengths[:, None])


@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize("mask", [Complete(), Window(1)], ids=str)
def test_antipodes_have_the_predicted_multipliers(mask: Mask, width: int) -> None:
    layer, tokens = antipodal(SIGNS, width, 3.0, mask)
    assert layer.residual(tokens) < 1e-15
    predicted = np.sort(np.abs(np.repeat(antipodal_multipliers(layer, tokens).numpy(), width - 1)))
    found = np.sort(np.abs(np.concatenate([values for values, _, _ in multipliers(layer, tokens)])))
    assert found == pytest.approx(predicted, abs=1e-7)
    assert stability(layer, tokens).verdict == "unstable"


def test_two_antipodes_leave_by_the_factor_one_over_tanh() -> None:
    layer, tokens = antipodal(torch.tensor([1.0, -1.0], dtype=torch.float64), 3, 3.0, Complete())
    radius = stability(layer, tokens).spectral_radius
    assert radius == pytest.approx(1 / math.tanh(3.0), abs=1e-12)
    assert radius == pytest.approx(1.005, abs=1e-4)


def test_antipodes_are_metastable() -> None:
    layer, tokens = antipodal(torch.tensor([1.0, -1.0], dtype=torch.float64), 3, 3.0, Complete())
    noise = normal(0, 2, 3)
    tokens = layer.project(tokens + 1e-6 * noise)
    for _ in range(200):
        tokens = layer.step(tokens)
    assert mu(tokens) == pytest.approx(math.sqrt(2), abs=1e-3)
    for _ in range(3800):
        tokens = layer.step(tokens)
    assert mu(tokens) < 1e-9


def test_balanced_uniform_attention_has_no_antipodes() -> None:
    layer, tokens = antipodal(torch.tensor([1.0, -1.0], dtype=torch.float64), 2, 0.0, Complete())
    assert float(layer.mixed(tokens).abs().max()) < 1e-15


@pytest.mark.parametrize(
    ("turns", "width", "reach"),
    [(turns, width, 1) for turns in (1, 2, 5, 7, 9) for width in (2, 3)] + [(turns, 2, 2) for turns in (1, 2, 5)],
)
def test_twisted_states_have_the_predicted_multipliers(turns: int, width: int, reach: int) -> None:
    built = twisted(32, turns, width, reach)
    assert built.layer.residual(built.tokens) < 1e-14
    inside, outside = closed_form(32, turns, reach)
    predicted = np.sort(np.abs(torch.cat([inside] + [outside] * (width - 2)).numpy()))
    found = np.sort(np.abs(np.concatenate([values for values, _, _ in multipliers(built.layer, built.tokens)])))
    assert found == pytest.approx(predicted, abs=1e-10)


def test_twisted_states_are_stable_in_the_plane_below_a_quarter_turn_and_nowhere_else() -> None:
    inside, outside = closed_form(32, 1)
    assert float(inside[1:].abs().max()) == pytest.approx(0.98727, abs=1e-5)
    assert float(outside.abs().max()) == pytest.approx(1.01298, abs=1e-5)
    for turns in range(1, 11):
        seen = stability(*_parts(turns, 2))
        assert (seen.verdict == "marginal") == (turns <= 8), turns
        if turns < 8:
            assert seen.neutral == 1, "only the rigid rotation"
        assert stability(*_parts(turns, 3)).verdict == "unstable"


def _parts(turns: int, width: int) -> tuple[NormalisedLayer, torch.Tensor]:
    built = twisted(32, turns, width)
    return built.layer, built.tokens


def test_random_starts_on_a_ring_in_the_plane_end_twisted_or_collapsed() -> None:
    layer = twisted(16, 0).layer
    start = normal(0, 50, 16, 2)
    tokens = layer.project(start)
    for _ in range(1500):
        tokens = layer.step(tokens)
    assert layer.residual(tokens) < 1e-9
    angles = torch.atan2(tokens[..., 1], tokens[..., 0])
    gaps = (angles.roll(-1, dims=-1) - angles + math.pi) % (2 * math.pi) - math.pi
    turns = (gaps.sum(dim=-1) / (2 * math.pi)).round().abs()
    assert (turns == 0).sum() > 5
    assert ((turns > 0) & (turns < 4)).sum() > 5
    assert turns.max() < 4


@pytest.mark.parametrize("sharpness", [0.0, 1.0])
@pytest.mark.parametrize("mask", [Complete(), Causal(), Window(2)], ids=str)
def test_weak_attention_collapses_starts_outside_every_hemisphere(mask: Mask, sharpness: float) -> None:
    """No theorem covers these; every run so far collapsed."""
    generator = torch.Generator().manual_seed(0)
    eye = torch.eye(3, dtype=torch.float64)
    layer = NormalisedLayer(eye, mask.dense(10), form=sharpness * eye)
    starts = layer.project(torch.randn(12, 10, 3, generator=generator, dtype=torch.float64))
    outside = torch.stack([start for start in starts if not hemisphere(start).exists])
    assert len(outside) > 3
    for _ in range(1500):
        outside = layer.step(outside)
    assert measure(outside, ["mu"])["mu"].max() < 1e-6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((6, 2), "do not outweigh"),
        ((2, 1), "tokens to be a whole number of at least 3"),
        ((5, 0, 2, 3), "a ring longer"),
    ],
)
def test_impossible_twists_are_refused(arguments: tuple[int, ...], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        twisted(*arguments)
