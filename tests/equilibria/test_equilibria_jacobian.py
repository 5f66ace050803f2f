"""The analytic Jacobian against automatic differentiation, and its spectrum by components against the whole."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.sampling import normal
from torch import Tensor

from rankfall.equilibria.families import build_equilibrium
from rankfall.equilibria.known import twisted
from rankfall.equilibria.layer import NormalisedLayer
from rankfall.equilibria.stability import jacobian, multipliers, stability, tangent_bases
from rankfall.errors import RequestError
from rankfall.masks import Causal, Complete, Explicit, Mask, RandomSparse, Ring


def random_layer(mask: Mask, norm: str, seed: int, count: int = 5, width: int = 4) -> tuple[NormalisedLayer, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    layer = NormalisedLayer(draw(width, width), mask.dense(count), norm, draw(width, width), draw(count, count))
    return layer, layer.project(draw(count, width))


def automatic(layer: NormalisedLayer, tokens: Tensor) -> Tensor:
    bases = tangent_bases(layer, tokens)

    def along(moves: Tensor) -> Tensor:
        moved = layer.settled(tokens + torch.einsum("nf,nfd->nd", moves, bases))
        return torch.einsum("nd,nfd->nf", layer.step(moved), bases)

    start = torch.zeros(bases.shape[:2], dtype=torch.float64)
    size = start.numel()
    return torch.autograd.functional.jacobian(along, start).reshape(size, size)


@pytest.mark.parametrize("norm", ["unit", "rms", "layer", "dyt"])
@pytest.mark.parametrize("mask", [Complete(), Causal(), Ring(1)], ids=str)
def test_matches_automatic_differentiation(mask: Mask, norm: str) -> None:
    layer, tokens = random_layer(mask, norm, seed=3)
    assert torch.allclose(jacobian(layer, tokens), automatic(layer, tokens), atol=1e-12)


@pytest.mark.parametrize("norm", ["unit", "layer"])
def test_tangent_bases_are_orthonormal_and_tangent(norm: str) -> None:
    layer, tokens = random_layer(Complete(), norm, seed=1)
    bases = tangent_bases(layer, tokens)
    assert bases.shape == (5, 3 if norm == "unit" else 2, 4)
    assert torch.allclose(bases @ bases.mT, torch.eye(bases.shape[1], dtype=torch.float64).expand(5, -1, -1))
    assert (bases @ tokens[..., None]).abs().max() < 1e-14


@pytest.mark.parametrize("mask", [Causal(), Complete(), RandomSparse(0.2, 4)], ids=str)
def test_components_have_the_spectrum_of_the_whole(mask: Mask) -> None:
    layer, tokens = random_layer(mask, "unit", seed=5)
    whole = np.sort(np.abs(np.linalg.eigvals(jacobian(layer, tokens).numpy())))
    parts = np.sort(np.abs(np.concatenate([values for values, _, _ in multipliers(layer, tokens)])))
    assert np.allclose(whole, parts, atol=1e-8)


def test_own_block_is_the_compressed_value_matrix() -> None:
    built = build_equilibrium(4, 4, 3, family="past")
    for i, (values, _, _) in enumerate(multipliers(built.layer, built.tokens)):
        basis = tangent_bases(built.layer, built.tokens)[i]
        own = built.layer.attention(built.tokens)[i, i]
        length = built.layer.mixed(built.tokens)[i].norm()
        expected = torch.linalg.eigvals(own / length * basis @ built.layer.value @ basis.mT).abs()
        assert np.sort(np.abs(values)) == pytest.approx(np.sort(expected.numpy()), abs=1e-4)


def test_large_blocks_fall_back_on_the_largest_multipliers(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib

    module = importlib.import_module("rankfall.equilibria.stability")
    built = twisted(24, 2, width=3)
    dense = stability(built.layer, built.tokens)
    monkeypatch.setattr(module, "DENSE", 10)
    sparse = stability(built.layer, built.tokens)
    assert sparse.spectral_radius == pytest.approx(dense.spectral_radius, abs=1e-9)
    assert (sparse.neutral, sparse.verdict) == (None, dense.verdict)


def test_jordan_blocks_are_called_marginal_not_stable() -> None:
    """Rounding splits a Jordan block of ones to both sides of the circle: the estimate must cover that."""
    value = torch.eye(6, dtype=torch.float64) + torch.diag(torch.ones(5, dtype=torch.float64), 1)
    layer = NormalisedLayer(value, torch.ones(1, 1, dtype=torch.bool))
    token = torch.zeros(1, 6, dtype=torch.float64)
    token[0, -1] = 1.0
    # Hide the triangle: in a rotated basis the eigenvalues are no longer exact.
    turn = torch.linalg.qr(normal(0, 6, 6))[0]
    layer = NormalisedLayer(turn.mT @ value @ turn, layer.allowed)
    seen = stability(layer, token @ turn)
    assert seen.uncertainty > 1e-6
    assert seen.verdict == "marginal"


def test_a_token_sent_to_zero_is_refused() -> None:
    layer = NormalisedLayer(torch.eye(2, dtype=torch.float64), Complete().dense(2))
    tokens = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
    with pytest.raises(RequestError, match="a zero vector at token"):
        jacobian(layer, tokens)


def test_tokens_of_the_wrong_shape_are_refused() -> None:
    layer = NormalisedLayer(torch.eye(2, dtype=torch.float64), Explicit(torch.eye(3).bool()).allowed)
    with pytest.raises(RequestError, match=r"tokens of shape \(3, 2\)"):
        jacobian(layer, torch.ones(2, 2, dtype=torch.float64))
