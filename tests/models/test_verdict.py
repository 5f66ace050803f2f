"""The verdict follows the stated thresholds and explains itself."""

from __future__ import annotations

import itertools
import statistics
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.models.small import measure_one, small_model

from rankfall.models.audit import audit
from rankfall.models.depth.capture import Place
from rankfall.models.depth.rows import DepthRow, gather
from rankfall.models.heads.probe import HeadMaps
from rankfall.models.heads.ranks import HeadRecord, head_records
from rankfall.models.verdict import (
    depth_reason,
    heads_reason,
    judge,
    layer_rate,
    parts_reason,
    sink_reason,
    variant_ends,
)


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


@pytest.mark.parametrize(("share", "misleads"), [(0.69, True), (0.7, False)])
def test_raw_numbers_mislead_below_their_share_of_the_unit_ones(share: float, misleads: bool) -> None:
    tokens = noise()
    tokens[0] *= 300
    (row,) = depth(tokens)
    changed = {view: {**row.values[view], "energy_rank": rank} for view, rank in (("raw", share), ("unit", 1.0))}
    reason = sink_reason([replace(row, values={**row.values, **changed})])
    assert reason is not None
    assert ("raw numbers mislead" in reason.text) == misleads


def test_the_measured_rate_is_the_slope() -> None:
    mean = noise(1, 40, seed=3) * 100
    rows = depth(*(mean + 0.5**layer * noise() for layer in range(6)))
    assert layer_rate(rows) == pytest.approx(0.5, rel=1e-3)


def head(**changes: Any) -> HeadRecord:
    maps = HeadMaps(0, "attention", "made here", *(torch.eye(8, dtype=torch.float64)[None],) * 4)
    (record,) = head_records(maps)
    return replace(record, **changes)


def test_heads_of_full_rank_are_no_bottleneck() -> None:
    full, low = heads_reason([head()]), heads_reason([head(width=64, heads=8)])
    assert full is not None
    assert low is not None
    assert full.numbers["mse_lower_bound"] == 0
    assert "need not be the bottleneck" in full.text
    assert 0 < low.numbers["mse_lower_bound"] < low.numbers["mse_without_heads"]
    assert "is the bottleneck" in low.text
    assert heads_reason([]) is None


def test_heads_use_their_rank_from_half_of_it_on() -> None:
    half, above = heads_reason([head(qk_energy_rank=4.0)]), heads_reason([head(qk_energy_rank=4.1)])
    assert half is not None
    assert above is not None
    assert "have rank to spare" in half.text
    assert "use the rank they have" in above.text


@pytest.mark.parametrize(
    ("residual", "both", "said"),
    [
        (0.4, 0.5, "the residual is enough"),
        (0.01, 0.5, "the residual is enough"),
        (0.0099, 0.5, "only norm and residual together"),
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
        assert words in depth_reason(rows).text


def ranks(*counts: int) -> list[DepthRow]:
    """Rows whose tokens are so many orthonormal ones, so that every energy rank is that number."""
    basis = torch.eye(max(counts), dtype=torch.float64)
    return gather([measure_one(Place(layer), 0, basis[:count], []) for layer, count in enumerate(counts)])


def test_the_steepest_loss_is_the_largest_factor_lost() -> None:
    # Layer 1 loses most directions, layer 3 the largest share; layer 4 gains.
    reason = depth_reason(ranks(40, 28, 20, 8, 16))
    assert reason.text.endswith("the lowest is 8.0 at layer 3; the steepest single loss is 60% in layer 3")
    assert reason.numbers["steepest_layer"] == 3
    assert reason.numbers["steepest_loss"] == pytest.approx(0.6)
    rising = depth_reason(ranks(4, 5, 6))
    assert "steepest" not in rising.text
    assert "steepest_layer" not in rising.numbers


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, "kept"),
        ({"relative_mu": 0.5}, "kept"),
        ({"relative_mu": 0.499}, "reduced"),
        ({"relative_mu": 0.1}, "reduced"),
        ({"relative_mu": 0.099}, "collapsed"),
        ({"energy_rank": 1.99}, "collapsed"),
        ({"energy_rank": 2.0}, "reduced"),
        ({"energy_rank": 9.99}, "reduced"),
        ({"energy_rank": 10.0}, "kept"),
        ({"mean_abs_cosine": 0.5}, "kept"),
        ({"mean_abs_cosine": 0.501}, "reduced"),
    ],
)
def test_every_threshold_decides_at_its_number(changes: dict[str, float], status: str) -> None:
    plain = {"energy_rank": 40.0, "relative_mu": 0.9, "mean_abs_cosine": 0.1}
    rows = [
        replace(row, values={**row.values, "unit": {**row.values["unit"], **plain, **changed}})
        for row, changed in zip(ranks(40, 40), ({}, changes), strict=True)
    ]
    assert judge("m", rows).status == status


def test_every_sentence_states_the_numbers_of_the_record() -> None:
    ids = torch.randint(4, 60, (2, 16), generator=torch.Generator().manual_seed(0))
    record = audit(small_model("llama", num_key_value_heads=2), inputs=ids).record()
    said = {one["topic"]: one["text"] for one in record["verdict"]["reasons"]}
    unit = [row["unit"] for row in record["depth"]]
    kept = [one["energy_rank"] for one in unit]
    low = kept.index(min(kept))
    losses = [1 - after / before for before, after in itertools.pairwise(kept)]
    share = kept[-1] / max(kept)
    assert f"keeps {share:.0%} of the highest energy rank" in said["status"]
    assert record["verdict"]["headline"].endswith(said["status"])
    assert (
        f"span {kept[0]:.1f} effective directions at the embeddings and {kept[-1]:.1f} after layer 3"
        in (said["token rank"])
    )
    assert f"the lowest is {kept[low]:.1f} at layer {low}" in said["token rank"]
    if max(losses) > 0:
        words = f"the steepest single loss is {max(losses):.0%} in layer {losses.index(max(losses)) + 1}"
        assert said["token rank"].endswith(words)
    assert f"by {unit[-1]['relative_mu']:.0%} of their length" in said["alikeness"]
    assert said["alikeness"].endswith(f"mean |cosine| of {unit[-1]['mean_abs_cosine']:.2f}")
    drawn: dict[str, list[float]] = {}
    for one in record["controls"]:
        drawn.setdefault(one["name"], []).append(one["depth"][-1]["unit"]["energy_rank"])
    assert said["controls"] == f"at the last layer the energy rank is {kept[-1]:.1f}; controls: " + ", ".join(
        f"{name.replace('_', ' ')} {sorted(some)[1]:.1f} ({min(some):.1f} to {max(some):.1f} in 3 draws)"
        for name, some in drawn.items()
    )
    used = statistics.median(one["qk_energy_rank"] for one in record["heads"])
    rank, heads = record["heads"][0]["head_dim"], record["heads"][0]["heads"]
    assert f"{heads} heads of rank {rank} in width 32 (H r / d = 1)" in said["head rank"]
    assert f"over {used:.1f} of {rank} directions" in said["head rank"]
    assert f"below {record['heads'][0]['mse_lower_bound']:.4f}, whatever its weights" in said["head rank"]
    assert said["mask"].startswith("attention saw causal (3 layers)")
    assert said["mask"].endswith(f"the whole model multiplies them by {record['measured_rate']:.3f} a layer")
    for variant in ("attention", "full model"):
        scaling = "raw" if variant == "full model" else "matched"
        at_end = [
            row["relative_mu"]
            for row in record["ablation"]
            if row["variant"] == variant and row["layer"] == 3 and row["scaling"] == scaling and row["mask"] is None
        ]
        assert f"{variant} {statistics.fmean(at_end):.2g}" in said["what holds it up"]
