"""The verdict follows the stated thresholds and explains itself."""

from __future__ import annotations

import pytest
import torch

from rankfall.models.depth.capture import Place
from rankfall.models.depth.measure import measure_one
from rankfall.models.depth.rows import DepthRow, gather
from rankfall.models.verdict.judge import judge
from rankfall.models.verdict.reasons import course, heads_reason, measured_rate, parts_reason, variant_ends


def depth(*tokens: torch.Tensor) -> list[DepthRow]:
    return gather([measure_one(Place(layer), 0, one, ["t"] * len(one)) for layer, one in enumerate(tokens)])


def noise(n: int = 30, d: int = 40, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_tokens_that_stay_apart_keep_their_rank() -> None:
    verdict = judge("m", depth(noise(seed=0), noise(seed=1)))
    assert verdict.status == "kept"
    assert verdict.headline.startswith("m keeps its token rank")
    assert "no threshold is crossed" in verdict.headline


def test_tokens_that_meet_have_collapsed() -> None:
    mean = noise(1, 40, seed=5)
    verdict = judge("m", depth(noise(), mean + 0.01 * noise(seed=1)))
    assert verdict.status == "collapsed"
    assert "is below 0.1" in verdict.headline


def test_a_large_loss_is_a_reduction() -> None:
    few = noise(30, 5, seed=1) @ noise(5, 40, seed=2)
    verdict = judge("m", depth(noise(), few))
    assert verdict.status == "reduced"
    assert "below 25%" in verdict.headline
    assert {reason.topic for reason in verdict.reasons} >= {"status", "token rank", "alikeness"}
    assert verdict.record()["thresholds"]["reduced_share"] == 0.25


def test_a_sink_does_not_make_a_collapse() -> None:
    tokens = noise()
    tokens[0] *= 300
    verdict = judge("m", depth(noise(seed=1), tokens))
    assert verdict.status == "kept"
    (reason,) = [one for one in verdict.reasons if one.topic == "sinks"]
    assert "raw numbers mislead" in reason.text
    assert reason.numbers["position"] == 0


def test_the_measured_rate_is_the_slope() -> None:
    mean = noise(1, 40, seed=3) * 100
    rows = depth(*(mean + 0.5**layer * noise() for layer in range(6)))
    assert measured_rate(rows) == pytest.approx(0.5, rel=1e-3)


def test_heads_of_full_rank_are_no_bottleneck() -> None:
    base = {"layer": 0, "head": 0, "heads": 1, "qk_effective_rank": 7.0, "head_dim": 8, "width": 8}
    full, low = heads_reason([base]), heads_reason([{**base, "head_dim": 8, "width": 64, "heads": 8}])
    assert full is not None
    assert low is not None
    assert full.numbers["mse_lower_bound"] == 0
    assert "need not be the bottleneck" in full.text
    assert 0 < low.numbers["mse_lower_bound"] < low.numbers["mse_without_heads"]
    assert "is the bottleneck" in low.text
    assert heads_reason([]) is None


@pytest.mark.parametrize(
    ("residual", "both", "said"),
    [
        (0.4, 0.5, "the residual is enough"),
        (1e-6, 0.5, "only norm and residual together"),
        (1e-6, 1e-6, "only the feed-forward layers"),
    ],
)
def test_parts_name_what_holds_the_rank_up(residual: float, both: float, said: str) -> None:
    ends = {"attention": 1e-9, "attention + norm": 1e-8, "attention + residual": residual}
    ends |= {"attention + norm + residual": both, "full model": 0.7}
    rows = [
        {
            "variant": name,
            "scaling": "raw" if name == "full model" else "matched",
            "layer": layer,
            "relative_mu": value,
        }
        for name, end in ends.items()
        for layer, value in ((0, 0.9), (4, end))
    ]
    reason = parts_reason(rows)
    assert reason is not None
    assert said in reason.text
    assert variant_ends(rows) == ends


def test_a_loss_across_layers_left_out_is_not_put_on_one_of_them() -> None:
    basis = torch.eye(8, dtype=torch.float64)
    wide, narrow = basis, basis[:2]
    for layer, words in ((4, "75% between layers 0 and 4"), (1, "75% in layer 1")):
        rows = gather([measure_one(Place(0), 0, wide, []), measure_one(Place(layer), 0, narrow, [])])
        assert words in course(rows).text
