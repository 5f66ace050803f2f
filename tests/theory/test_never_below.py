"""No measurement below a lower bound: random heads, trained heads, exact head sets, one or many points."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.formulas import best_weights
from tests.sampling import STANDARD_ERRORS, draw_problem, mean_and_error
from torch import Tensor

from rankfall.catalogue import DESIGNS
from rankfall.mechanism.generalised import GeneralisedHead, generalised_attention
from rankfall.mechanism.heads import Heads, attention
from rankfall.theory.head_bounds import HeadClass, mse_floor
from rankfall.theory.random_features.kernel import draw_heads


def assert_above(squared: Tensor, floor: float) -> None:
    mean, error = mean_and_error(squared)
    assert mean >= floor - STANDARD_ERRORS * error, f"{mean} +- {error} lies below the bound {floor}"


@given(
    dim=st.integers(2, 8),
    rank=st.integers(1, 8),
    count=st.integers(1, 12),
    points=st.integers(2, 4),
    skip=st.booleans(),
    kind=st.sampled_from(["softmax", "hardmax"]),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=30, deadline=None, derandomize=True)
def test_random_heads_with_fitted_value_matrices(
    dim: int, rank: int, count: int, points: int, skip: bool, kind: str, seed: int
) -> None:
    """Value matrices (and the skip connection's map) are least-squares optimal on one sample, measured on another."""
    rank, points = min(rank, dim), min(points, dim)
    generator = torch.Generator().manual_seed(seed)
    shape = (count, dim, rank)
    query_maps, key_maps = (3 * torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    eye = torch.eye(dim, dtype=torch.float64)[None]

    def features(batch: int, draw: int) -> tuple[Tensor, Tensor]:
        frame, query, nearest = draw_problem(batch, dim, points, draw)
        each = [
            attention(Heads(q[None], k[None], eye), query, frame, kind=kind)[:, 0]  # type: ignore[arg-type]
            for q, k in zip(query_maps, key_maps, strict=True)
        ]
        return torch.cat([*each, query[:, 0]] if skip else each, dim=-1), nearest[:, 0]

    inputs, targets = features(4_000, seed % 1000)
    gram = inputs.mT @ inputs + 1e-6 * torch.eye(inputs.shape[1], dtype=torch.float64)
    solution = torch.linalg.solve(gram, inputs.mT @ targets)
    fresh, wanted = features(6_000, 1000 + seed % 1000)
    assert_above(
        (fresh @ solution - wanted).square().sum(-1), mse_floor(HeadClass(dim, rank, points, skip), count).mse
    )


def trained(weights: list[Tensor], rate: float, steps: int, squared: Callable[[int, int], Tensor]) -> Tensor:
    """Squared errors on fresh data after as many steps of Adam, each on fresh data as well."""
    optimizer = torch.optim.Adam(weights, lr=rate)
    for step in range(steps):
        loss = squared(256, 10 + step).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        return squared(20_000, 2)


@pytest.mark.parametrize(("dim", "rank", "count", "points"), [(4, 1, 2, 2), (8, 1, 8, 2), (6, 3, 1, 2), (6, 2, 3, 4)])
def test_trained_heads(dim: int, rank: int, count: int, points: int) -> None:
    """Query, key and value maps trained by Adam on fresh data, then measured: close to the bound, never below it."""
    generator = torch.Generator().manual_seed(dim + rank)

    def leaf(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()

    query, key, value = leaf(count, dim, rank), leaf(count, dim, rank), leaf(count, dim, dim)

    def squared(batch: int, seed: int) -> Tensor:
        frame, asked, nearest = draw_problem(batch, dim, points, seed)
        return (attention(Heads(query, key, value), asked, frame) - nearest).square().sum((-1, -2))

    start = float(squared(2_000, 1).mean().detach())
    measured = trained([query, key, value], 0.03, 250, squared)
    floor = mse_floor(HeadClass(dim, rank, points), count).mse
    assert_above(measured, floor)
    assert float(measured.mean()) < min(start, 0.8)


def test_a_trained_generalised_head_comes_close_to_its_bound() -> None:
    """d = 3, r = 1, one head: weights from a trained network of K^T X and all of y; 10 percent above at most."""
    generator = torch.Generator().manual_seed(1)

    def leaf(*shape: int) -> Tensor:
        return (torch.randn(*shape, generator=generator, dtype=torch.float64) / shape[0] ** 0.5).requires_grad_()

    key, inward, bias, outward, value = leaf(3, 1), leaf(5, 24), leaf(24), leaf(24, 1), leaf(1)

    def mixing(projected: Tensor, queries: Tensor) -> Tensor:
        seen = torch.cat([projected, projected.flip(-2), queries.expand(-1, 2, -1)], dim=-1)
        return (4 * torch.relu(seen @ inward + bias) @ outward).mT.softmax(-1)

    def squared(batch: int, seed: int) -> Tensor:
        frame, query, nearest = draw_problem(batch, 3, 2, seed)
        head = GeneralisedHead(key, mixing, value * torch.eye(3, dtype=torch.float64))
        return (generalised_attention([head], frame, query) - nearest).square().sum((-1, -2))

    measured = trained([key, inward, bias, outward, value], 0.02, 120, squared)
    floor = mse_floor(HeadClass(3, 1, generalised=True, values="scalar"), 1).mse
    assert_above(measured, floor)
    assert float(measured.mean()) < 1.1 * floor


@pytest.mark.parametrize("design", DESIGNS.names)
@pytest.mark.parametrize("dim", [2, 3, 8, 32])
def test_exact_error_of_rank_one_heads(design: str, dim: int) -> None:
    for heads in (1, 2, dim, 4 * dim, 200):
        error = best_weights(*draw_heads(design, dim, heads, seed=heads)).error
        assert error >= mse_floor(HeadClass(dim, 1), heads).mse - 1e-9


def test_the_bound_is_nearly_reached_by_linear_heads() -> None:
    from rankfall.figures.theory_gap import linear_heads_error

    for dim in (4, 16):
        mean, error = linear_heads_error(dim, 20_000)
        floor = mse_floor(HeadClass(dim, 1), dim).mse
        assert floor - 4 * error <= mean <= 1.12 * floor + 4 * error
