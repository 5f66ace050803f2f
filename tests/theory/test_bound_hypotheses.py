"""Why the bound says what it holds for: layers that break one hypothesis go below it, and H = 0 is not an error."""

from __future__ import annotations

import pytest
import torch
from tests.sampling import STANDARD_ERRORS, draw_problem, mean_and_error
from torch import Tensor

from rankfall.mechanism.heads import Heads, attention
from rankfall.theory.head_bounds import HeadClass, mse_floor

GAIN = 0.02
"""Small, so that softmax is linear in the scores and the heads together compare whole vectors to first order."""


def mirrored_heads(dim: int, rank: int, steepness: float) -> Heads:
    """dim / rank heads, each on coordinates of its own, with values of full rank (multiples of the identity).

    Every other head has its keys turned round and values of the other sign, so that all but a little of x1 + x2
    cancels. To first order in the gain the output is proportional to u + steepness <w, y> w, where u and w are the
    unit vectors along x1 + x2 and x1 - x2.
    """
    count = dim // rank
    query = torch.eye(dim, dtype=torch.float64).view(dim, count, rank).transpose(0, 1)
    sign = 1.0 - 2.0 * (torch.arange(count, dtype=torch.float64) % 2)
    # A head's weight on x1 minus that on x2 is GAIN / sqrt(2 r) times its part of <w, y>.
    left_over = GAIN / ((2 * rank) ** 0.5 * count * steepness)
    value = (sign + left_over)[:, None, None] * torch.eye(dim, dtype=torch.float64)
    return Heads(GAIN * query, sign[:, None, None] * query, value)


def read(outputs: Tensor, targets: Tensor) -> tuple[float, float]:
    """Mean squared error and its standard error when the output is read with the best factor."""
    factor = (outputs * targets).sum() / outputs.square().sum()
    return mean_and_error((factor * outputs - targets).square().sum(-1))


@pytest.mark.parametrize(("dim", "rank", "samples"), [(16, 4, 20_000), (384, 32, 2_000)])
def test_a_norm_after_attention_goes_below_the_bound(dim: int, rank: int, samples: int) -> None:
    """Twelve heads of rank 32 at d = 384 among them; without the norm the same heads stay above."""
    frame, query, nearest = draw_problem(samples, dim, 2, 3)
    floor = mse_floor(HeadClass(dim, rank, skip=True), dim // rank).mse
    below, above = [], []
    for steepness in (1.2, 1.4, 1.6):
        heads = mirrored_heads(dim, rank, steepness * dim**0.5)
        mixed = attention(heads, query, frame)[:, 0]
        below.append(read(mixed / mixed.norm(dim=-1, keepdim=True), nearest[:, 0]))
        above.append(read(mixed, nearest[:, 0]))
    mean, error = min(below)
    assert mean + STANDARD_ERRORS * error < 0.8 * floor
    assert all(one >= floor - STANDARD_ERRORS * two for one, two in above)
    hypotheses = " ".join(HeadClass(dim, rank, skip=True).hypotheses)
    assert "one bare attention layer" in hypotheses
    assert "no norm after attention and no feed-forward block" in hypotheses
    assert "query is not among the keys" in hypotheses


def test_the_bound_at_no_heads_is_not_the_error_of_a_layer_without_heads() -> None:
    """With a skip connection the bound at H = 0 is .18; the best linear map of the query leaves almost 1."""
    dim = 64
    frame, query, nearest = draw_problem(20_000, dim, 2, 5)
    bound = mse_floor(HeadClass(dim, 8, skip=True), 1).baseline
    without, error = read(query[:, 0], nearest[:, 0])
    uniform, _ = mean_and_error((frame.mean(1) - nearest[:, 0]).square().sum(-1))
    assert bound == pytest.approx(0.1792, abs=5e-4)
    assert without - STANDARD_ERRORS * error > 0.98
    assert uniform == pytest.approx(0.5, abs=1e-9)
