"""Many random heads: the bounded-memory solver against a dense one, the prediction against draws."""

from __future__ import annotations

import math
import statistics

import pytest
import torch
from tests.formulas import best_weights
from tests.sampling import normal

from rankfall.catalogue import DESIGNS
from rankfall.errors import RequestError
from rankfall.theory.hardmax import signed_limit
from rankfall.theory.head_bounds import plateau
from rankfall.theory.random_features.best_fit import LowDegrees, error_curve, extreme_eigenvalues, fit
from rankfall.theory.random_features.kernel import TILE, VoteKernel, default_cache_bytes, draw_heads
from rankfall.theory.random_features.learning_curve import predicted_error


@pytest.mark.parametrize("design", DESIGNS.names)
@pytest.mark.parametrize("dim", [8, 48])
def test_same_error_as_a_dense_solve(design: str, dim: int) -> None:
    queries, keys = draw_heads(design, dim, TILE + 100)
    ours, dense = fit(queries, keys), best_weights(queries, keys)
    assert ours.iterations > 0
    assert ours.residual <= 1e-7
    assert dense.error - 1e-11 <= ours.error <= dense.error + ours.excess + 1e-11
    assert ours.excess < 1e-9


def test_curve_shares_tiles_and_agrees_with_separate_fits() -> None:
    queries, keys = draw_heads("independent", 16, 2 * TILE)
    counts = [1, 7, 300, 1500, 2 * TILE]
    curve = error_curve(queries, keys, counts)
    assert [one.heads for one in curve] == counts
    assert [one.error for one in curve] == sorted((one.error for one in curve), reverse=True)
    assert curve[3].error == pytest.approx(fit(queries[:1500], keys[:1500]).error, abs=1e-9)


@pytest.mark.parametrize("tiles_stored", [0, 1, 100])
def test_a_smaller_store_changes_nothing_but_time(tiles_stored: int) -> None:
    queries, keys = draw_heads("tilted", 8, 2 * TILE + 50)
    kernel = VoteKernel(queries, keys, cache_bytes=tiles_stored * 4 * TILE**2)
    x = torch.randn(len(kernel), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    exact = kernel.dense(len(kernel)) @ x
    torch.testing.assert_close(kernel.times(x, exact=True), exact, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(kernel.times(x), exact, rtol=2e-4, atol=2e-4)
    assert sum(tile.nbytes for tile in kernel._tiles.values()) == min(tiles_stored, 3) * 4 * TILE**2


def test_tiles_take_at_most_sixty_percent_of_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    for free, expected in ((1000, 600), (2**50, int(9.5 * 2**30))):
        monkeypatch.setattr("rankfall.theory.random_features.kernel.available_memory", lambda free=free: free)
        assert default_cache_bytes(torch.device("cpu")) == expected


def test_preconditioner_inverts_its_matrix() -> None:
    queries, keys = draw_heads("independent", 6, 80)
    weight = float(best_energy(6))
    matrix = 1 + weight**2 * (queries @ queries.mT) * (keys @ keys.mT)
    matrix += (1 - weight**2) * torch.eye(80, dtype=torch.float64)
    right = normal(1, 80)
    torch.testing.assert_close(LowDegrees(queries, keys).solve(matrix @ right), right, rtol=1e-9, atol=1e-9)


def best_energy(dim: int) -> float:
    return 1 - 2 * plateau(dim, 1)


def test_ritz_values_bracket_inside_the_spectrum() -> None:
    matrix = torch.diag(torch.linspace(1, 50, 200, dtype=torch.float64))
    low, high = extreme_eigenvalues(lambda x: matrix @ x, 200, torch.device("cpu"), steps=60)
    assert 1 - 1e-9 <= low < 1.1
    assert 49 < high <= 50 + 1e-9


@pytest.mark.parametrize("design", ["independent", "aligned", "signed"])
@pytest.mark.parametrize(("dim", "heads"), [(8, 200), (16, 400), (64, 400)])
def test_prediction_is_the_mean_over_draws(design: str, dim: int, heads: int) -> None:
    errors = [fit(*draw_heads(design, dim, heads, seed)).error for seed in range(8)]
    spread = statistics.stdev(errors) / math.sqrt(8)
    expected = predicted_error(design, dim, heads)
    # 1 %: what finite dimensions cost the deterministic equivalent.
    assert abs(statistics.fmean(errors) - expected) <= 4 * spread + 0.01 * expected


def test_predicted_plateaus() -> None:
    assert predicted_error("independent", 64, 10**7) == pytest.approx(plateau(64, 1), rel=2e-3)
    assert predicted_error("independent", 8, 10**7) < 0.8 * plateau(8, 1)
    assert predicted_error("signed", 64, 10**9) == pytest.approx(signed_limit(64), rel=1e-4)
    assert predicted_error("independent", 64, 1) == pytest.approx(0.75, abs=1e-3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: draw_heads("round", 8, 4),
            "a design .* among independent, aligned, signed, tilted; got round",
        ),
        (lambda: draw_heads("signed", 8, 0), "the number of heads H to be a whole number of at least 1; got 0"),
        (lambda: predicted_error("tilted", 8, 4), "a design with a prediction"),
        (lambda: error_curve(*draw_heads("signed", 8, 4), [5]), "the number of heads to be at most 4; got 5"),
        (lambda: fit(2 * draw_heads("signed", 8, 4)[0], draw_heads("signed", 8, 4)[1]), "queries to be unit vectors"),
    ],
)
def test_wrong_requests(call, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        call()
