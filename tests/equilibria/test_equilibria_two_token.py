"""Paper B's two-token example: fixed points, multipliers, basin, and that the published pair is only marginal."""

from __future__ import annotations

import math

import pytest
import torch

from rankfall.equilibria.examine import examine
from rankfall.equilibria.known import TwoTokens
from rankfall.errors import RequestError

EXAMPLES = [
    TwoTokens(2.0),
    TwoTokens(1.2),
    TwoTokens(5.0),
    TwoTokens(2.0, ratio=0.5),
    TwoTokens(2.0, delta=0.3),
    TwoTokens(3.0, ratio=0.7, delta=0.2),
]


def moved(example: TwoTokens, angle: float) -> float:
    point = torch.tensor([[math.cos(angle), math.sin(angle)]], dtype=torch.float64)
    x, y = example.listen(point, 1)[0].tolist()
    return math.atan2(y, x)


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_fixed_points_stay_and_have_the_multipliers_of_the_closed_form(example: TwoTokens) -> None:
    step = 1e-5
    for fixed in example.fixed_points():
        pair = torch.tensor([(0.0, 1.0), fixed.point], dtype=torch.float64)
        assert example.layer.residual(pair) < 1e-15
        assert int(torch.linalg.matrix_rank(pair)) == fixed.rank
        angle = math.atan2(fixed.point[1], fixed.point[0])
        slope = (moved(example, angle + step) - moved(example, angle - step) + math.pi) % (2 * math.pi) - math.pi
        assert slope / (2 * step) == pytest.approx(fixed.multiplier, abs=1e-6)


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_basin_is_the_arc_of_the_closed_form(example: TwoTokens) -> None:
    angles = (torch.arange(10_000, dtype=torch.float64) + 0.37) * (2 * math.pi / 10_000)
    ends = example.listen(torch.stack([angles.cos(), angles.sin()], dim=-1), 200)
    apart = (ends - torch.tensor(example.crossing(-1), dtype=torch.float64)).norm(dim=-1) < 1e-6
    together = (ends - torch.tensor([0.0, 1.0], dtype=torch.float64)).norm(dim=-1) < 1e-6
    assert bool((apart | together).all())
    assert int((apart != example.in_basin(angles)).sum()) == 0
    assert float(apart.double().mean()) == pytest.approx(example.basin_fraction(), abs=2e-4)


@pytest.mark.parametrize(("w", "ratio"), [(2.0, 1.0), (3.0, 0.5)])
def test_fraction_and_determinant_of_the_papers_example(w: float, ratio: float) -> None:
    example = TwoTokens(w, ratio)
    assert example.basin_fraction() == pytest.approx(0.5 - math.asin(ratio / w) / (2 * math.pi), abs=1e-15)
    assert float(torch.linalg.det(example.equilibrium().tokens)) == pytest.approx(ratio / w, abs=1e-15)


def test_the_published_pair_is_marginal_and_delta_makes_it_strictly_stable() -> None:
    published = TwoTokens(2.0).equilibrium()
    seen = examine(published.layer, published.tokens)
    assert (seen.rank, seen.verdict) == (2, "marginal")
    assert seen.spectral_radius == pytest.approx(1.0, abs=1e-12)
    cured = TwoTokens(2.0, delta=0.1)
    seen = examine(cured.layer, cured.equilibrium().tokens)
    assert seen.verdict == "stable"
    listener = abs(1.1 * (1 + cured.crossing(-1)[1]))
    assert seen.spectral_radius == pytest.approx(max(1 / (1 + cured.delta), listener), abs=1e-12)


def test_the_leader_arrives_only_like_one_over_the_layer() -> None:
    layer = TwoTokens(2.0).layer
    tokens = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
    distances = []
    for _ in range(1000):
        tokens = layer.step(tokens)
        distances.append(float(tokens[0, 0].abs()))
    assert distances[999] * 1000 * 2.0 == pytest.approx(1.0, abs=1e-3)
    assert distances[499] * 500 * 2.0 == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"w": 0.5}, "so that rank 2 exists"),
        ({"w": 1.0}, "so that rank 2 exists"),
        ({"ratio": 1.5}, "0 < ratio <= 1"),
        ({"ratio": 0.5, "delta": 2.0}, "delta below ratio"),
    ],
)
def test_examples_that_do_not_exist_are_refused(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        TwoTokens(**arguments)
