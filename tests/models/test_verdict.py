"""Three questions, each decided per passage at its thresholds, beside its controls; and what stands beside them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.models.small import measure_one, small_model
from tests.sampling import normal

from rankfall.models.ablation.ablation import FULL
from rankfall.models.audit import audit
from rankfall.models.controls.controls import Control
from rankfall.models.depth.capture import Part, Place
from rankfall.models.depth.rows import DepthRow, gather, spans
from rankfall.models.heads.maps import HeadMaps
from rankfall.models.heads.random import random_head_ranks
from rankfall.models.heads.ranks import head_ranks
from rankfall.models.heads.record import HeadRecord, head_records
from rankfall.models.recording.blocks import BlockStack
from rankfall.models.verdict.advised_plan import AdvisedPlan
from rankfall.models.verdict.findings import Finding
from rankfall.models.verdict.head_reasons import bound_reason, heads_reason
from rankfall.models.verdict.judgement import decide, middle
from rankfall.models.verdict.parts_reason import BOTH, NORM, PURE, RESIDUAL, parts_reason, variant_ends
from rankfall.models.verdict.reasons import Reason, depth_reason, layer_rate
from rankfall.models.verdict.verdict import Verdict, about_inputs, advice, judge

Tokens = torch.Tensor


def noise(n: int = 64, d: int = 80, seed: int = 0) -> Tokens:
    return normal(seed, n, d)


def narrow(rank: int, n: int = 64, d: int = 80, seed: int = 0) -> Tokens:
    return noise(n, rank, seed) @ noise(rank, d, seed + 100)


def around(spread: float, n: int = 64, d: int = 80, seed: int = 0) -> Tokens:
    """Tokens near one direction; the first direction holds about 1 / (1 + spread^2) of them."""
    return noise(1, d, seed=7) / noise(1, d, seed=7).norm() + spread / math.sqrt(d) * noise(n, d, seed)


def depth(*layers: Sequence[Tokens], final: Sequence[Tokens] | None = None) -> list[DepthRow]:
    """Rows from the tokens of every passage at every layer; `final` is what a final norm makes of the last."""
    last = len(layers) - 1
    places: list[tuple[int, Part, Sequence[Tokens]]] = [
        (layer, "before_final_norm" if final is not None and layer == last else "boundary", passages)
        for layer, passages in enumerate(layers)
    ]
    if final is not None:
        places.append((last, "boundary", final))
    return gather(
        [
            measure_one(Place(layer, part, f"blocks.{layer - 1}" if layer else ""), text, tokens, ["t"] * len(tokens))
            for layer, part, passages in places
            for text, tokens in enumerate(passages)
        ]
    )


def many(make: Any, count: int = 3, **options: Any) -> list[Tokens]:
    return [make(seed=seed, **options) for seed in range(count)]


def status(verdict: Verdict, question: str) -> dict[str, str]:
    (finding,) = (one for one in verdict.findings if one.question == question)
    return {one.place: one.status for one in finding.places}


def test_tokens_that_stay_apart_are_not_aligned_and_keep_their_distinctions() -> None:
    verdict = judge("m", depth(many(noise), many(noise)))
    assert verdict.statuses == {"alignment": "not aligned", "distinctions": "not lost", "domination": "not dominated"}
    assert verdict.headline == (
        "m: tokens are not aligned; distinctions between tokens are not lost (not compared with random weights);"
        " no tokens dominate"
    )
    assert verdict.reasons[-1].text == "nothing here calls for a change"


def test_a_rank_that_rises_is_not_called_lost() -> None:
    drawn = Control("random_weights", "", tuple(depth([narrow(10, seed=s) for s in range(3)], many(noise))))
    verdict = judge("m", depth([narrow(10, seed=s) for s in range(3)], many(noise)), controls=[drawn])
    assert verdict.statuses["distinctions"] == "kept"
    assert "lost" not in verdict.headline


@pytest.mark.parametrize(("spread", "said"), [(2.0, "not aligned"), (0.7, "aligned"), (0.05, "collapsed")])
def test_a_common_direction_aligns_and_at_last_collapses(spread: float, said: str) -> None:
    ends = [around(spread, seed=s) for s in range(3)]
    verdict = judge("m", depth(many(noise), ends))
    assert status(verdict, "alignment") == {"stream": said, "output": said}
    # The distinctions between such tokens are all there.
    assert verdict.statuses["distinctions"] == "not lost"
    assert ("local mask" in verdict.reasons[-1].text) == (said == "collapsed")


def test_the_stream_before_the_final_norm_is_judged_apart_from_what_leaves_it() -> None:
    aligned = [around(0.5, seed=s) for s in range(3)]
    verdict = judge("m", depth(many(noise), aligned, aligned, final=many(noise)))
    assert status(verdict, "alignment") == {"stream": "aligned", "output": "not aligned"}
    assert "tokens are aligned in the stream, tokens are not aligned at the output" in verdict.headline
    (finding,) = (one for one in verdict.findings if one.question == "alignment")
    stream, output = finding.places
    assert (stream.layers, output.part, output.layer) == ((1, 2), "boundary", 2)
    assert f"layer {stream.layer} (blocks.{stream.layer - 1})" in finding.text


def test_the_worst_layer_of_the_stream_decides() -> None:
    middle_layer = [around(0.5, seed=s) for s in range(3)]
    verdict = judge("m", depth(many(noise), middle_layer, many(noise)))
    assert status(verdict, "alignment") == {"stream": "aligned", "output": "not aligned"}


def test_few_directions_after_the_mean_is_taken_off_are_a_loss() -> None:
    verdict = judge("m", depth(many(noise), [narrow(5, seed=s) for s in range(3)]))
    assert verdict.statuses["distinctions"] == "lost"
    (finding,) = (one for one in verdict.findings if one.question == "distinctions")
    assert "64 tokens of each passage" in finding.text
    assert "of at most 63" in finding.text


def test_fewer_distinctions_than_every_random_draw_are_called_reduced() -> None:
    ours = depth([narrow(40, seed=s) for s in range(3)], [narrow(40, seed=s + 9) for s in range(3)])
    full = [
        Control("random_weights", "", tuple(depth(many(noise), [noise(seed=s + k) for s in range(3)])))
        for k in (5, 8)
    ]
    few = Control("random_weights", "", tuple(depth(many(noise), [narrow(9, seed=s) for s in range(3)])))
    alone = judge("m", ours)
    assert alone.statuses["distinctions"] == "not lost"
    (told,) = (one for one in alone.findings if one.question == "distinctions")
    assert all("not compared with random weights" in one for one in told.sentences[1:])
    assert told.sentences[1].startswith("Stream, lowest at")
    other = Control("shuffled_tokens", "", tuple(ours))
    assert judge("m", ours, controls=[other]).statuses["distinctions"] == "not lost"
    verdict = judge("m", ours, controls=full)
    assert verdict.statuses["distinctions"] == "reduced"
    (finding,) = (one for one in verdict.findings if one.question == "distinctions")
    (compared,) = finding.places[0].controls
    assert (compared.control, len(compared.draws), compared.below_all) == ("random_weights", 2, 3)
    assert "not compared with" not in finding.text
    assert "(the same in 2 draws); below 90% of every draw of random weights in 3 of 3 passages" in finding.text
    assert finding.thresholds["reduced_share"] == 0.9
    # One draw below ours is enough for "below all" not to hold.
    assert judge("m", ours, controls=[*full, few]).statuses["distinctions"] == "kept"


def scaled(rows: Sequence[DepthRow], share: float) -> list[DepthRow]:
    """The same rows with so much of their ranks of fewer tokens, in every passage."""
    return [
        replace(
            row,
            per_text=tuple(
                replace(one, rarefied={count: share * rank for count, rank in one.rarefied.items()})
                for one in row.per_text
            ),
        )
        for row in rows
    ]


@pytest.mark.parametrize(
    ("share", "said"), [(1.2, "kept"), (1.0, "kept"), (0.93, "kept"), (0.9, "depends"), (0.87, "reduced")]
)
def test_a_draw_more_or_less_like_the_others_is_not_reduced(share: float, said: str) -> None:
    rows = depth(many(noise), [noise(seed=s + 5) for s in range(3)])
    verdict = judge("m", scaled(rows, share), controls=[Control("random_weights", "", tuple(rows))])
    assert status(verdict, "distinctions") == {"stream": said, "output": said}
    (finding,) = (one for one in verdict.findings if one.question == "distinctions")
    assert ("within a factor of 1.02 of the threshold" in finding.text) == (said == "depends")


@pytest.mark.parametrize("kind", ["llama", "gpt2", "bert", "modernbert"])
def test_untrained_models_keep_what_untrained_models_keep(kind: str) -> None:
    torch.manual_seed(3)
    model = small_model(kind)
    ids = torch.randint(4, 60, (4, 32), generator=torch.Generator().manual_seed(0))
    verdict = audit(model, inputs=ids, heads=False, attention=False, ablation=False).verdict
    assert status(verdict, "distinctions") == {"stream": "kept", "output": "kept"}


def test_a_long_token_dominates_and_aligns_nothing() -> None:
    tokens = many(noise)
    for one in tokens:
        one[0] *= 300
    verdict = judge("m", depth(many(noise), tokens, final=many(noise)))
    assert status(verdict, "domination") == {"stream": "dominated", "output": "not dominated"}
    assert verdict.statuses["alignment"] == "not aligned"
    (finding,) = (one for one in verdict.findings if one.question == "domination")
    assert "token 0 ('t') of passage" in finding.text
    assert ": massive tokens hold a median 99." in finding.text
    assert "tokens of length one" in verdict.reasons[-1].text


def judged_with(question: str, values: Sequence[float]) -> str:
    """The status where the deciding number of each passage is so many times its threshold."""
    rows = depth(many(noise, len(values)), many(noise, len(values)))
    start, end = rows
    share = {"alignment": 0.5, "distinctions": 0.5}[question]
    changed = []
    for one, first, value in zip(end.per_text, start.per_text, values, strict=True):
        unit = {**one.values["unit"], "first_direction_share": share * value}
        given = {"values": {**one.values, "unit": unit}} if question == "alignment" else {}
        if question == "distinctions":
            given = {"rarefied": {64: first.rarefied[64] * share * value}}
        changed.append(replace(one, **given))
    return judge("m", [start, replace(end, per_text=tuple(changed))]).statuses[question]


@pytest.mark.parametrize(
    ("values", "aligned", "lost"),
    [
        ([1.11, 1.12, 1.15], "aligned", "not lost"),
        ([0.89, 0.90, 0.85], "not aligned", "lost"),
        ([1.09, 1.2, 1.2], "depends", "depends"),
        ([0.92, 0.8, 0.8], "depends", "depends"),
        ([1.3, 0.7, 1.3], "depends", "depends"),
        ([1.3, 1.4, 1.5, 1.3, 1.2, 1.4, 0.9, 1.3, 1.5, 1.4, 1.3], "aligned", "not lost"),
    ],
)
def test_a_threshold_decides_where_the_passages_are_clear_of_it(values: list[float], aligned: str, lost: str) -> None:
    assert judged_with("alignment", values) == aligned
    assert judged_with("distinctions", values) == lost


def test_what_an_open_answer_depends_on_is_said() -> None:
    split = decide("aligned", 0.5, [0.5, -0.5, 0.4, -0.3], clear_factor=1.1)
    assert (split.holds, split.held, split.passages) == (None, 2, 4)
    assert split.reason == "the passages disagree: aligned in 2 of 4"
    near = decide("aligned", 0.5, [0.02, 0.03, 0.01], clear_factor=1.1)
    assert near.holds is None
    assert str(near.reason).startswith("aligned in 3 of 3 passages, but the interval over them comes within")
    assert "within a factor of 1.1 of the threshold" in str(near.reason)
    under = decide("aligned", 0.5, [-0.02, -0.03, -0.01], clear_factor=1.1)
    assert str(under.reason).startswith("aligned in none of 3 passages, but")
    assert decide("aligned", 0.5, [0.2, 0.3], clear_factor=1.1).reason is None


def collapsing(ranks: Sequence[float], shares: Sequence[float]) -> Verdict:
    """Of passages whose tokens of length one end with these energy ranks and shares of the first direction."""
    start, end = depth(many(noise, len(ranks)), many(noise, len(ranks)))
    changed = [
        replace(
            one,
            values={
                **one.values,
                "unit": {
                    **one.values["unit"],
                    "energy_rank": rank,
                    "relative_mu": 0.3,
                    "first_direction_share": share,
                },
            },
        )
        for one, rank, share in zip(end.per_text, ranks, shares, strict=True)
    ]
    return judge("m", [start, replace(end, per_text=tuple(changed))])


def test_tokens_that_are_aligned_everywhere_and_collapse_in_some_passages_are_aligned() -> None:
    verdict = collapsing([1.5, 1.9, 2.1, 2.6], [0.89, 0.81, 0.91, 0.85])
    assert verdict.statuses["alignment"] == "aligned"
    assert verdict.headline.startswith("m: tokens are aligned (collapsed in 2 of 4 passages); distinctions")
    finding = verdict.findings[0]
    assert all(one.endswith("; collapsed in 2 of 4 passages.") for one in finding.sentences[1:])
    assert "it holds" not in finding.text
    assert [one.decision.condition for one in finding.places] == ["aligned"] * 2
    said = verdict.reasons[-1].text
    assert "tokens grow alike in 2 of 4 passages: try a local mask" in said
    assert "tokens share a direction" in said
    assert "depends" not in said


@pytest.mark.parametrize(
    ("ranks", "headline", "held"),
    [([1.9, 1.92, 1.95], " (collapsed in 3 of 3 passages)", "3"), ([2.1, 2.11, 2.05], "", "none")],
)
def test_a_collapse_that_is_near_is_said_after_what_holds(ranks: list[float], headline: str, held: str) -> None:
    verdict = collapsing(ranks, [0.8] * 3)
    assert verdict.headline.startswith(f"m: tokens are aligned{headline}; distinctions")
    assert f"; collapsed in {held} of 3 passages, but the interval over them" in verdict.findings[0].text
    assert ("tokens grow alike in 3 of 3" in verdict.reasons[-1].text) == bool(headline)


def test_an_answer_that_depends_names_all_that_is_open_and_calls_for_more_text() -> None:
    verdict = collapsing([1.5, 2.6, 1.5, 2.6], [0.6, 0.4, 0.6, 0.4])
    assert verdict.statuses["alignment"] == "depends"
    assert "; the passages disagree: collapsed in 2 of 4; the passages disagree: aligned in 2 of 4." in str(
        verdict.findings[0].text
    )
    assert "an answer depends on the inputs" in verdict.reasons[-1].text
    assert "tokens grow alike in 2 of 4 passages" in verdict.reasons[-1].text


def test_distinctions_that_are_lost_are_not_also_said_to_be_perhaps_reduced() -> None:
    rows = depth(many(noise), [narrow(5, seed=s) for s in range(3)])
    random = scaled(rows, 1 / 0.9)
    verdict = judge("m", rows, controls=[Control("random_weights", "", tuple(random))])
    place = verdict.findings[1].places[0]
    assert [one.holds for one in place.decisions] == [True, None]
    assert (place.status, place.worse, place.partly) == ("lost", None, "")
    assert "factor of 1.02" not in verdict.findings[1].text


def test_medians_of_logarithms_do_not_care_for_decades() -> None:
    found = middle([1e-9, 1e-8, 1e-7, 0.9])
    assert found.median == pytest.approx(math.sqrt(1e-8 * 1e-7))
    assert found.low <= found.median <= found.high
    assert middle([0.0, 0.0]).median == 0.0


@pytest.mark.parametrize(
    ("lengths", "enough"),
    [((16, 16), True), ((64,), False), ((16, 15), False), ((15, 15, 15), False), ((200, 40, 9), True)],
)
def test_too_little_text_is_a_status_of_its_own(lengths: tuple[int, ...], enough: bool) -> None:
    passages = [noise(n, 40, seed=n) for n in lengths]
    verdict = judge("m", depth(passages, passages))
    assert (verdict.too_little_text is None) == enough
    if not enough:
        assert set(verdict.statuses.values()) == {"too little text"}
        assert verdict.headline.startswith("m: too little text to judge: ")
        assert "give more inputs: at least 2 of at least 16 tokens each" in verdict.reasons[-1].text
        told = judge("m", depth(passages, passages), more_text="read it otherwise")
        assert told.reasons[-1].text.startswith("read it otherwise")


def test_passages_of_different_length_are_compared_by_as_many_tokens() -> None:
    long, short = noise(400, 600, seed=1), noise(70, 600, seed=2)
    (row, _) = depth([long, short], [long, short])
    ranks = [one.rarefied for one in row.per_text]
    assert [set(one) for one in ranks] == [{16, 32, 64}] * 2
    # 64 random tokens are 64 random tokens, however many there are beside them.
    assert ranks[0][64] == pytest.approx(ranks[1][64], rel=0.02)
    assert [one.values["unit"]["effective_rank"] > 100 for one in row.per_text] == [True, False]
    (finding,) = (one for one in judge("m", [row, row]).findings if one.question == "distinctions")
    assert finding.text.startswith("64 tokens of each passage")
    (other, _) = depth([long, noise(31, 600)], [long, noise(31, 600)])
    (finding,) = (one for one in judge("m", [other, other]).findings if one.question == "distinctions")
    assert finding.text.startswith("16 tokens of each passage")


def test_the_rarefied_rank_of_all_tokens_is_their_own() -> None:
    (row, _) = depth(many(noise), many(noise))
    for one, tokens in zip(row.per_text, many(noise), strict=True):
        unit = tokens / tokens.norm(dim=-1, keepdim=True)
        values = torch.linalg.svdvals(unit - unit.mean(dim=0))
        shares = values / values.sum()
        assert one.rarefied[64] == pytest.approx(float(torch.special.entr(shares).sum().exp()), rel=1e-9)


def test_the_measured_rate_is_the_slope() -> None:
    rows = depth(*([noise(1, seed=3) * 100 + 0.5**layer * noise()] for layer in range(6)))
    assert layer_rate(rows) == pytest.approx(0.5, rel=1e-3)


def test_the_lowest_layer_of_the_stream_is_named() -> None:
    reason = depth_reason(depth(many(noise), [narrow(6, seed=s) for s in range(3)], many(noise)))
    assert reason.numbers["lowest_layer"] == 1
    assert "at layer 1 (blocks.0), the lowest of the stream" in reason.text
    assert reason.text.endswith("of at most 64")


def test_layers_in_runs() -> None:
    assert spans([3, 1, 2, 7]) == "1-3, 7"


def head(**changes: Any) -> HeadRecord:
    maps = HeadMaps(0, "attention", "made here", *(torch.eye(8, dtype=torch.float64)[None],) * 4)
    (record,) = head_records(maps)
    return replace(record, **changes)


def test_heads_stand_beside_random_ones_and_the_lowest_are_named() -> None:
    ours = [
        head(layer=layer, head=number, qk_energy_rank=1.0 + layer + number) for layer in (1, 2) for number in (0, 1)
    ]
    fewer = heads_reason(ours, [head(qk_energy_rank=7.0)])
    assert fewer is not None
    assert "over 3.0 of 8 directions (energy rank), fewer than with random weights (7.0, nine heads" in fewer.text
    assert "layer 1 (attention) 2.5 (2.0 to 3.0)" in fewer.text
    assert "lowest heads: head 0 of layer 1 with 2.0" in fewer.text
    alike = heads_reason(ours, [head(qk_energy_rank=3.01)])
    more = heads_reason(ours, [head(qk_energy_rank=2.0)])
    assert alike is not None
    assert "as many as with random" in alike.text
    assert more is not None
    assert "more than with random" in more.text
    assert heads_reason([]) is None


@pytest.mark.parametrize(
    ("usual", "said"), [(12.8, "as many as"), (12.4, "as many as"), (13.5, "more than"), (12.0, "fewer than")]
)
def test_a_head_within_the_spread_of_random_ones_has_as_many_directions_as_they(usual: float, said: str) -> None:
    random = [head(head=number, qk_energy_rank=12.2 + 0.05 * number) for number in range(21)]
    reason = heads_reason([head(qk_energy_rank=usual)], random)
    assert reason is not None
    assert f"{said} with random weights (12.7, nine heads of ten from 12.2 to 13.1" in reason.text


def test_random_heads_are_not_the_model_s_own() -> None:
    model = small_model("llama", num_key_value_heads=2)
    with torch.no_grad():
        for weight in (one for one in model.parameters() if one.ndim == 2):
            weight[:, 1:] = 0
    own, random = head_ranks(model), random_head_ranks(model)
    assert max(head.qk_energy_rank for head in own) < 1.1
    assert min(head.qk_energy_rank for head in random) > 2
    assert [(one.layer, one.head, one.module) for one in own] == [(one.layer, one.head, one.module) for one in random]


def test_the_bound_says_what_it_is_about_and_whether_it_separates() -> None:
    full, low, real = (
        bound_reason([head(**changes)])
        for changes in ({}, {"width": 12, "heads": 8}, {"width": 576, "head_dim": 64, "heads": 9})
    )
    assert full is not None
    assert low is not None
    assert real is not None
    for one in (full, low, real):
        assert "one bare attention layer" in one.text
        assert "output read linearly, with no norm after attention, no feed-forward layer" in one.text
        assert "the query not among the keys" in one.text
        assert "bottleneck" not in one.text
        assert " error" not in one.text
    assert "forbids nothing" in full.text
    assert not full.numbers["separates"]
    assert low.numbers["separates"]
    assert "tells shapes apart" in low.text
    assert not real.numbers["separates"]
    gap = 1 - real.numbers["mse_lower_bound"] / real.numbers["mse_lower_bound_without_heads"]
    assert 0 < gap < 0.01
    assert f"{gap:.2%} apart, less than 1%, so it separates nothing here" in real.text
    assert bound_reason([]) is None


def ablated(ends: dict[str, list[tuple[float, float]]]) -> list[dict[str, Any]]:
    return [
        {
            "variant": name,
            "scaling": "raw" if name == FULL else "matched",
            "layer": layer,
            "unit_relative_mu": mu,
            "unit_energy_rank": rank,
        }
        for name, values in ends.items()
        for end in values
        for layer, (mu, rank) in ((0, (0.9, 20.0)), (4, end))
    ]


FAR, NEAR = (0.6, 9.0), (1e-7, 1.0)


@pytest.mark.parametrize(
    ("norm", "residual", "both", "full", "said"),
    [
        ([FAR], [NEAR], [FAR], [FAR], "the norm is enough"),
        ([NEAR], [FAR], [FAR], [FAR], "the residual is enough"),
        ([NEAR], [NEAR], [FAR], [FAR], "norm and residual prevent it together"),
        ([NEAR], [NEAR], [NEAR], [FAR], "it collapses without the feed-forward layers: they do the work"),
        ([NEAR], [(0.3, 2.1)], [FAR], [FAR], "whether the residual alone does is too near the threshold"),
        ([NEAR], [NEAR, FAR], [FAR], [FAR], "whether the residual alone does depends on the passage"),
        ([NEAR], [NEAR], [(0.3, 1.9)], [FAR], "without the feed-forward layers is too near the threshold to tell"),
        # Held up by relative mu alone, and collapsed by our own definition: energy rank below 2.
        ([NEAR], [NEAR], [(0.3, 1.56)], [FAR], "it collapses without the feed-forward layers: they do the work"),
        ([NEAR], [NEAR], [NEAR, FAR], [FAR], "depends on the passage"),
        ([NEAR], [NEAR], [NEAR], [NEAR], "nothing holds it up"),
    ],
)
def test_parts_name_what_holds_the_rank_up(norm: Any, residual: Any, both: Any, full: Any, said: str) -> None:
    ends = {PURE: [NEAR, NEAR], NORM: norm * 2, RESIDUAL: residual * 2, BOTH: both * 2, FULL: full * 2}
    reason = parts_reason(ablated(ends))
    assert reason is not None
    assert said in reason.text
    assert "scale-matched, tokens of length one" in reason.text
    assert variant_ends(ablated(ends)) == ends


EDGE = (0.3, 1.95)


@pytest.mark.parametrize(
    ("full", "state", "said"),
    [
        (
            [FAR, NEAR, FAR, NEAR],
            "collapses in some passages",
            "collapses in 2 of 4 passages, so nothing holds it up in these",
        ),
        ([EDGE] * 4, "collapses, but not clearly", "collapses in 4 of 4 passages, so nothing holds it up"),
        (
            [(0.3, 2.1)] * 4,
            "stands, but not clearly",
            "so near to collapse that another text may decide otherwise",
        ),
        ([NEAR] + [FAR] * 10, "stands", "collapses in 1 of 11 passages, so nothing holds it up in these"),
    ],
)
def test_nothing_prevents_a_collapse_that_the_full_model_has(full: Any, state: str, said: str) -> None:
    ends = {PURE: [NEAR] * len(full), NORM: [NEAR] * len(full), RESIDUAL: [FAR] * len(full), FULL: full}
    reason = parts_reason(ablated(ends))
    assert reason is not None
    assert f"full model {state} (" in reason.text
    assert said in reason.text
    assert "enough" not in reason.text


def test_one_passage_concludes_nothing_about_what_holds_it_up() -> None:
    ids = torch.randint(4, 60, (1, 20), generator=torch.Generator().manual_seed(0))
    verdict = audit(small_model("llama"), inputs=ids, heads=False, attention=False, controls=False).verdict
    (reason,) = (one for one in verdict.reasons if one.topic == "what holds it up")
    assert reason.text.startswith(f"{verdict.too_little_text}; blocks taken apart")
    assert "collapsed is a relative mu below 0.1 or an energy rank below 2: attention (relative mu" in reason.text
    assert "of 1 passage)" in reason.text
    for firm in ("collapses", "stands", "enough", "median"):
        assert firm not in reason.text
    (rank,) = (one.text for one in verdict.reasons if one.topic == "token rank")
    assert "median" not in rank


def test_one_passage_far_from_the_others_does_not_decide_what_holds_it_up() -> None:
    """A mean over decades would be the largest of them."""
    ends = {PURE: [(1e-7, 1.0), (1e-7, 1.0), (1e-6, 1.0), (1e-8, 1.0), (0.9, 30.0)], FULL: [FAR] * 5}
    assert parts_reason(ablated(ends)).numbers[PURE]["relative_mu"] == pytest.approx(1e-7)  # type: ignore[union-attr]


def planned(label: str = "", **lists: bool) -> AdvisedPlan:
    names = tuple(f"blocks.{place}" for place in range(30))
    return AdvisedPlan("rankfall plan --width 576", BlockStack("blocks", names, ()), label, **lists)


def spread_over(*ranks: float, structural: int = 64) -> Reason:
    layers = [
        {
            "layer": layer,
            "module": f"blocks.{layer - 1}.attention",
            "title": f"layer {layer}",
            "structural_rank": structural,
            "qk_energy_rank": rank,
        }
        for layer, rank in enumerate(ranks, 1)
    ]
    return Reason("head rank", "", {"layers": layers})


def test_advice_says_what_a_plan_of_the_model_lists() -> None:
    reasons = [spread_over(5.0, 40.0, 15.9, 16.0)]
    said = "in 2 of 4 layers (layers 1, 3) the median head spreads over less than 25% of its rank:"
    assert advice([], reasons, planned(saves=True)).text == (
        f"{said} `rankfall plan --width 576` lists more heads of lower rank at equal cost, with a smaller cache"
    )
    assert advice([], reasons, planned("decoder")).text == (
        f"{said} `rankfall plan --width 576` (the shape of decoder) lists more heads of lower rank at equal cost"
    )
    nothing = "nothing here calls for a change"
    assert advice([], reasons, planned(lower=False)).text == nothing
    assert advice([], reasons).text == nothing
    assert advice([], [spread_over(5.0, structural=16)], planned()).text == nothing, "of its own rank"
    elsewhere = replace(planned(), stack=BlockStack("other", ("other.0",), ()))
    assert advice([], reasons, elsewhere).text == nothing


def test_reduced_distinctions_are_not_passed_over() -> None:
    said = advice([Finding("distinctions", "reduced", ())], []).text
    assert said.startswith("distinctions are fewer than random weights leave, but not lost: `rankfall compare`")
    assert "random weights" not in advice([Finding("distinctions", "kept", ())], []).text


def test_what_is_said_of_texts_is_said_of_inputs_where_there_are_no_texts() -> None:
    sentence = (
        "on this text tokens of each passage of 4 passages at layer 1 (text.layers.0): another text may decide."
    )
    assert about_inputs(sentence) == (
        "on these inputs tokens of each input of 4 inputs at layer 1 (text.layers.0): another input may decide."
    )
    ids = torch.randint(4, 60, (2, 20), generator=torch.Generator().manual_seed(0))
    model: Any = small_model("llama")
    embedded = model.get_input_embeddings()(ids).detach()
    for inputs, told in ((ids, True), ({"inputs_embeds": embedded}, False)):
        verdict = audit(model, inputs=inputs, draws=1).verdict
        said = [verdict.headline, *(one.text for one in (*verdict.findings, *verdict.reasons))]
        assert any("passage" in one for one in said) == told


def test_what_depends_on_inputs_is_not_told_to_read_a_text() -> None:
    finding = Finding("alignment", "depends", ())
    assert "`--text`" in advice([finding], [], more_text="read more").text
    said = advice([finding], []).text
    assert said == "an answer depends on the inputs: give those that matter, and more of them"


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    ids = torch.randint(4, 60, (3, 20), generator=torch.Generator().manual_seed(0))
    return audit(small_model("llama", num_key_value_heads=2), inputs=ids).record()


def the(record: dict[str, Any], question: str) -> dict[str, Any]:
    (found,) = (one for one in record["verdict"]["findings"] if one["question"] == question)
    return found


def log_median(values: Sequence[float]) -> float:
    return math.exp(statistics.median(math.log(one) for one in values))


def stream_of(rows: list[dict[str, Any]], inside: list[dict[str, Any]]) -> list[dict[str, Any]]:
    before = [row for row in inside if row["part"] == "before_final_norm"]
    return [*rows[1 : len(rows) - len(before)], *before]


def column(row: dict[str, Any], name: str) -> list[float]:
    return [one[name] if name != "16" else one["rarefied"]["16"] for one in row["passages"]]


@pytest.mark.parametrize(
    ("question", "name", "worst", "form"),
    [("alignment", "first_direction_share", max, ".0%"), ("distinctions", "16", min, ".1f")],
)
def test_answers_state_the_numbers_of_the_record(
    record: dict[str, Any], question: str, name: str, worst: Any, form: str
) -> None:
    finding, rows = the(record, question), record["depth"]
    stream = worst(stream_of(rows, record["inside"]), key=lambda row: log_median(column(row, name)))
    text = finding["text"]
    assert f"{log_median(column(rows[0], name)):{form}} at the embeddings" in text
    for place, row in zip(finding["places"], (stream, rows[-1]), strict=True):
        values = column(row, name)
        assert (place["layer"], place["module"], place["part"]) == (row["layer"], row["module"], row["part"])
        title = f"layer {row['layer']} ({row['module']})"
        number = place["numbers"]["first_direction_share" if question == "alignment" else "centred_effective_rank"]
        assert number["passages"] == values
        assert f"{title}: {log_median(values):{form}} ({number['interval'][0]:{form}} to" in text
        assert "(medians over passages, here and below)." in finding["sentences"][0]
        if question == "alignment":
            held = sum(value > 0.5 for value in values)
            assert f"above 50% in {held} of 3 passages" in text
            assert f"mean |cosine| {log_median(column(row, 'mean_abs_cosine')):.2f}" in text
        else:
            shares = [now / then for now, then in zip(values, column(rows[0], name), strict=True)]
            assert (
                f"{log_median(shares):.0%} of the embeddings', below 50% in {sum(s < 0.5 for s in shares)} of 3"
                in text
            )
        for control in place["controls"]:
            runs = [one["depth"] for one in record["controls"] if one["name"] == control["control"]]
            # Of a stream only the first draw was measured at every layer.
            assert (len(runs), len(control["draws"])) == (3, 3 if place["place"] == "output" else 1)
            if place["place"] == "output":
                assert control["draws"] == pytest.approx([log_median(column(run[-1], name)) for run in runs])
            assert f"{control['control'].replace('_', ' ')} {control['median']:{form}}" in text


def test_domination_states_the_numbers_of_the_record(record: dict[str, Any]) -> None:
    finding = the(record, "domination")
    for place in finding["places"]:
        rows = [*record["depth"], *record["inside"]]
        (row,) = (one for one in rows if (one["layer"], one["part"]) == (place["layer"], place["part"]))
        assert place["numbers"]["sink_energy"]["passages"] == column(row, "sink_energy")
    assert finding["text"].count(": no massive token, nor in any control.") == 2


def test_what_stands_beside_states_the_numbers_of_the_record(record: dict[str, Any]) -> None:
    said = {one["topic"]: one["text"] for one in record["verdict"]["reasons"]}
    rows = record["depth"]
    low = min(stream_of(rows, record["inside"]), key=lambda row: log_median(column(row, "energy_rank")))
    places = (rows[0], low, rows[-1])
    energy, effective = (
        [f"{log_median(column(row, measure)):.1f}" for row in places] for measure in ("energy_rank", "effective_rank")
    )
    assert said["token rank"] == (
        f"in the median passage tokens scaled to length one have an energy rank of {energy[0]} at the embeddings,"
        f" {energy[1]} at layer {low['layer']} ({low['module']}), the lowest of the stream, and {energy[2]} at the"
        f" output; their effective rank is {effective[0]}, {effective[1]} and {effective[2]}, of at most 20"
    )
    used = statistics.median(one["qk_energy_rank"] for one in record["heads"])
    chance = statistics.median(rank for layer in record["random_heads"] for rank in layer["qk_energy_rank"])
    assert f"over {used:.1f} of 8 directions (energy rank)" in said["head rank"]
    assert f"with random weights ({chance:.1f}, nine heads of ten from" in said["head rank"]
    lowest = min(record["heads"], key=lambda one: one["qk_energy_rank"])
    assert f"lowest heads: head {lowest['head']} of layer {lowest['layer']} with" in said["head rank"]
    assert f"it is {record['heads'][0]['mse_lower_bound']:.4f} for this shape" in said["head bound"]
    assert said["mask"].startswith("causal (layers 1-3); in the long run")
    ours = f"whole blocks multiply differences between tokens by {record['measured_rate']:.3f} a layer"
    assert said["mask"].endswith(ours)
    for variant in (PURE, NORM, RESIDUAL, BOTH, FULL):
        scaling = "raw" if variant == FULL else "matched"
        ends = [
            row
            for row in record["ablation"]
            if (row["variant"], row["layer"], row["scaling"]) == (variant, 3, scaling) and row["mask"] is None
        ]
        collapsed = sum(row["unit_relative_mu"] < 0.1 or row["unit_energy_rank"] < 2 for row in ends)
        mu, rank = (log_median([row[f"unit_{name}"] for row in ends]) for name in ("relative_mu", "energy_rank"))
        words = f"(relative mu {mu:.2g}, energy rank {rank:.2g}, collapsed in {collapsed} of 3 passages)"
        assert words in said["what holds it up"]


def test_tokens_heads_and_masks_give_a_layer_one_number_and_module(record: dict[str, Any]) -> None:
    blocks = {row["layer"]: row["module"] for row in record["depth"]}
    assert blocks == {0: "", 1: "layers.0", 2: "layers.1", 3: "layers.2"}
    for one in (*record["heads"], *record["mask"], *record["random_heads"]):
        assert one["module"] == f"{blocks[one['layer']]}.self_attn"


def test_thresholds_are_stated_with_every_answer(record: dict[str, Any]) -> None:
    for finding in record["verdict"]["findings"]:
        for name, value in finding["thresholds"].items():
            assert record["verdict"]["thresholds"][name] == value
        assert finding["thresholds"]["clear_factor"] == 1.1
