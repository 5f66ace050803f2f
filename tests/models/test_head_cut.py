"""A model with cut heads: the same as a model with cut weights, verified with nothing cut, told from its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.models.plain import GPT
from tests.models.small import small_model
from tests.models.test_head_needs import IDS, sharp
from tests.models.test_loss import expected_loss, whole_model
from torch import Tensor, nn

from rankfall.errors import RequestError
from rankfall.models.audit import audit
from rankfall.models.heads.cut_curve import CutCurve, CutPoint, cut_curve, cut_ranks
from rankfall.models.heads.needed import HeadNeed, HeadNeeds, head_needs
from rankfall.models.heads.truncation import Truncation
from rankfall.models.inputs.texts import from_ids
from rankfall.models.load.folder import LoadedModel
from rankfall.models.recording.blocks import BlockStack, choose_stack
from rankfall.models.result import AuditFindings
from rankfall.models.verdict.advised_plan import AdvisedPlan
from rankfall.models.verdict.head_reasons import cut_reason, needs_reason
from rankfall.models.verdict.reasons import Reason
from rankfall.models.verdict.verdict import advice
from rankfall.report.audit import audit_document
from rankfall.report.document import Grid, Picture

BATCH = from_ids(IDS.tolist())


def loaded(network: nn.Module, whole: nn.Module | None = None) -> LoadedModel:
    return LoadedModel(network, None, "made here", "a module in memory", whole=whole)


def measured(model: nn.Module, whole: nn.Module | None = None, skip: bool = True) -> tuple[HeadNeeds, CutCurve]:
    given: list[Mapping[str, Any]] = [{"idx" if isinstance(model, GPT) else "input_ids": IDS}]
    needs = head_needs(model, given)
    stack = choose_stack(model, None) if skip else None
    return needs, cut_curve(
        loaded(model, whole), given, needs.truncations, needs.ranks, batch=BATCH, real=BATCH.kept(), stack=stack
    )


def with_cut_weights(layer: Any, cut: Truncation, ranks: Tensor | int) -> None:
    """q' = M^T q of every head, in the map that makes the queries: weight (h r, d) as in `nn.Linear`."""
    forms = torch.block_diag(*cut.forms(ranks)).float()
    with torch.no_grad():
        layer.weight.copy_(forms.T @ layer.weight)
        layer.bias.copy_(forms.T @ layer.bias)


def changed(model: nn.Module, own: Tensor) -> float:
    with torch.inference_mode():
        output = model(input_ids=IDS).last_hidden_state
    return float(((output - own).norm(dim=-1) / own.norm(dim=-1)).square().mean().sqrt())


def test_an_encoder_with_cut_weights_is_the_one_with_cut_heads() -> None:
    model = sharp(small_model("bert"))
    needs, curve = measured(model)
    assert curve.loss is None
    assert "no language-model head" in str(curve.loss_reason)
    with torch.inference_mode():
        own = model(input_ids=IDS).last_hidden_state
    weights = {name: one.clone() for name, one in model.state_dict().items()}
    layers = list(needs.truncations)

    def cut(chosen: dict[int, Any]) -> float:
        model.load_state_dict(weights)
        for number, ranks in chosen.items():
            query = model.get_submodule(layers[number][0]).query
            with_cut_weights(query, needs.truncations[layers[number]], ranks)
        return changed(model, own)

    for point in curve.together:
        assert point.output_change == pytest.approx(cut(dict.fromkeys(range(3), point.rank)), rel=2e-3, abs=1e-5)
        assert point.loss is None
    for point in curve.alone:
        assert point.layer is not None
        assert point.output_change == pytest.approx(cut({point.layer: point.rank}), rel=2e-3, abs=1e-5)
    each = cut({number: needs.ranks[place] for number, place in enumerate(layers)})
    assert curve.at_needs.output_change == pytest.approx(each, rel=2e-3)
    assert curve.at_needs.rank == round(sum(one.needed_rank for one in needs.records) / len(needs.records))
    model.load_state_dict(weights)
    assert [point.rank for point in curve.together] == [1, 2, 4, 8]
    assert [(point.layer, point.rank) for point in curve.alone] == [(at, k) for at in range(3) for k in (1, 4)]
    assert curve.together[0].output_change > 0.1


def test_the_loss_of_a_language_model_with_cut_weights() -> None:
    whole = sharp(whole_model("gpt2"))
    body = whole.transformer
    needs, curve = measured(body, whole)
    assert curve.loss == pytest.approx(expected_loss(whole, IDS), rel=1e-5)
    assert curve.error < 1e-4 < curve.tolerance == 1e-3
    kept = {name: one.clone() for name, one in whole.state_dict().items()}
    for rank in (1, 4):
        whole.load_state_dict(kept)
        for place, cut in needs.truncations.items():
            # One map makes queries, keys and values, with its inputs in rows.
            layer = body.get_submodule(place[0]).c_attn
            forms = torch.block_diag(*cut.forms(rank)).float()
            with torch.no_grad():
                layer.weight[:, :32] = layer.weight[:, :32] @ forms
                layer.bias[:32] = layer.bias[:32] @ forms
        expected = expected_loss(whole, IDS)
        (point,) = (one for one in curve.together if one.rank == rank)
        assert point.loss == pytest.approx(expected, rel=1e-4)
        assert point.loss_change == pytest.approx(expected - curve.loss, abs=1e-3)
    assert abs(curve.together[0].loss_change or 0.0) > 1e-2


@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_blocks_that_are_not_computed_again_change_nothing(kind: str) -> None:
    model = sharp(small_model(kind))
    model = model.encoder if kind == "t5" else model
    runs = {"count": 0}
    model.get_submodule(head_needs(model, [{"input_ids": IDS}]).records[0].module).register_forward_hook(
        lambda *_: runs.update(count=runs["count"] + 1)
    )
    _, short = measured(model)
    first, runs["count"] = runs["count"], 0
    _, long = measured(model, skip=False)
    assert first < runs["count"], "nothing was left out"
    for ours, theirs in zip(short.points, long.points, strict=True):
        assert (ours.layer, ours.rank) == (theirs.layer, theirs.rank)
        assert ours.output_change == pytest.approx(theirs.output_change, rel=1e-5, abs=1e-7)


def test_a_plain_module_is_judged_by_all_tokens_of_its_last_block() -> None:
    model = sharp(GPT(layers=2))
    needs, curve = measured(model)
    seen: list[Tensor] = []
    model.transformer["h"][-1].register_forward_hook(lambda _m, _a, output: seen.append(output))  # type: ignore[index]
    with torch.inference_mode():
        model(idx=IDS)
        layer: Any = model.get_submodule("transformer.h.1.attn").c_attn
        forms = torch.block_diag(*needs.truncations["transformer.h.1.attn", 0].forms(4)).float()
        layer.weight[:32] = forms.T @ layer.weight[:32]
        layer.bias[:32] = forms.T @ layer.bias[:32]
        model(idx=IDS)
    expected = ((seen[1] - seen[0]).norm(dim=-1) / seen[0].norm(dim=-1)).square().mean().sqrt()
    (point,) = (one for one in curve.alone if (one.layer, one.rank) == (1, 4))
    assert point.output_change == pytest.approx(float(expected), rel=1e-3)
    assert point.module == "transformer.h.1.attn"


def test_a_cut_that_is_none_must_change_nothing() -> None:
    model = sharp(small_model("bert"))
    needs = head_needs(model, [{"input_ids": IDS}])
    wrong = {place: replace(one, left=one.left * 0.5) for place, one in needs.truncations.items()}
    with pytest.raises(RequestError, match=r"the same with all directions of all heads kept; got a difference of"):
        cut_curve(loaded(model), [{"input_ids": IDS}], wrong, needs.ranks)


def test_ranks_of_a_curve() -> None:
    assert cut_ranks(8) == [1, 2, 4, 8]
    assert cut_ranks(10) == [1, 2, 4, 8, 10]
    assert cut_ranks(1) == [1]


def test_an_audit_has_all_of_it_under_the_layers_of_its_tokens() -> None:
    told: list[str] = []
    shares: list[float] = []
    found = audit(
        whole_model("llama", num_key_value_heads=2),
        inputs=IDS,
        ablation=False,
        draws=1,
        head_cut=True,
        progress=lambda what, share: (told.append(what), shares.append(share))[0],
    )
    assert found.missing == {}
    assert [one.layer for one in found.head_needs] == [one.layer for one in found.heads]
    assert [one.layer for one in found.random_head_needs] == [one.layer for one in found.heads]
    assert found.head_needs[0].limit == 0.01
    curve = found.head_cut
    assert curve is not None
    assert curve.loss == pytest.approx(found.text.loss)
    assert {one.layer for one in curve.alone} == {1, 2, 3}
    assert {(one.layer, one.other_layer) for one in found.head_overlaps} == {
        (layer, other) for layer in (1, 2, 3) for other in range(layer, 4)
    }
    assert [len(one.singular_values) for one in found.head_spectra] == [8] * 12
    ours = found.record()
    assert ours["head_needs"][0].keys() >= {"needed_rank", "divergence", "divergence_without", "at_limit", "kv_head"}
    assert len(ours["random_head_needs"]) == 3
    assert ours["head_cut"]["at_needs"]["layer"] is None
    tables = found.tables()
    assert len(tables["head_needs"]) == len(tables["head_needs"]["random_needed_rank"].dropna()) == 12
    assert len(tables["head_cut"]) == len(curve.points)
    assert len(tables["head_spectra"]) == 12 * 8
    _report_shows(found)
    topics = [one.topic for one in found.verdict.reasons]
    assert "head need" in topics
    assert "head cut" in topics
    assert "cutting: layer 3 of 3 cut to 4" in told
    assert shares == sorted(shares)
    assert shares[told.index("cutting: layer 3 of 3 cut to 4")] > 0.8
    assert shares[told.index("what heads need")] < 0.1
    brief: dict[str, Any] = {"inputs": IDS, "ablation": False, "controls": False}
    only = audit(small_model("bert"), **brief, head_needs=True, head_divergence=1e-5)
    assert only.head_cut is None
    assert only.random_head_needs == ()
    assert only.head_needs[0].limit == 1e-5
    plain = audit(small_model("bert"), **brief)
    assert (plain.head_needs, plain.head_cut, plain.head_overlaps, plain.head_spectra) == ((), None, (), ())


def _report_shows(found: AuditFindings) -> None:
    document = audit_document(found, "a command")
    asked = [one.question for one in document.answers]
    assert "Are the heads the bottleneck?" in asked
    assert "What does the model lose when its heads are cut?" in asked
    (section,) = (one for one in document.sections if one.title == "What heads need")
    assert [one.name for one in section.blocks] == [
        "needed_rank",
        "loss_by_rank",
        "head_needs",
        "head_cut",
        "head_overlaps",
        "head_spectra",
    ]
    needs, losses = (one.figure for one in section.blocks if isinstance(one, Picture))
    drawn = needs.axes[0].images[0].get_array()
    assert drawn is not None
    assert drawn.tolist() == [[one.needed_rank for one in found.head_needs if one.head == head] for head in range(4)]
    curve = found.head_cut
    assert curve is not None
    lines = {str(line.get_label()): list(np.asarray(line.get_ydata())) for line in losses.axes[0].lines}
    assert lines["all heads"] == [one.loss for one in curve.together]
    assert lines["layer 2"] == [*(one.loss for one in curve.alone if one.layer == 2), curve.loss]
    for grid in (one for one in section.blocks if isinstance(one, Grid)):
        assert [str(name) for name in grid.table.columns if str(name) not in grid.definitions] == []


def test_what_an_audit_cannot_measure_is_missing_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    manual = audit(GPT(layers=2, manual=True), inputs=IDS, ablation=False, controls=False, head_cut=True)
    assert "of which no queries and keys were seen" in manual.missing["head needs"]
    assert manual.head_cut is None

    def broken(*_: Any, **__: Any) -> None:
        raise RequestError(required="this", got="that", remedy="nothing")

    monkeypatch.setattr("rankfall.models.heads.study.cut_curve", broken)
    monkeypatch.setattr("rankfall.models.heads.study.on_random_twin", broken)
    found = audit(small_model("bert"), inputs=IDS, ablation=False, draws=1, head_cut=True)
    assert (
        found.missing["head cut"] == found.missing["control of what heads need"] == "required this; got that; nothing"
    )
    assert len(found.head_needs) == 12


def need(rank: int, layer: int = 1, head: int = 0, size: int = 16, without: float = 1.0) -> HeadNeed:
    return HeadNeed(layer, head, head, f"blocks.{layer - 1}", size, rank, 0.005, without, 0.01, 100)


def test_the_words_about_needs_follow_the_numbers() -> None:
    assert needs_reason([]) is None
    ours = [need(2, head=0), need(4, head=1), need(9, 2, 0), need(12, 2, 1)]
    spare = needs_reason(ours, [need(0, without=0.003)])
    assert spare is not None
    assert "within 0.01 nats a row with 6.5 of 16 directions" in spare.text
    assert (
        "random weights: 0; their attention is 0.003 nats a row from having no scores at all, the model's 1"
        in spare.text
    )
    assert "0 of 4 heads need all that they have, 2 need at most 25%" in spare.text
    assert "the most: head 1 of layer 2 with 12, head 0 of layer 2 with 9," in spare.text
    assert spare.text.endswith("no head is at its limit, the fullest uses 75% of its rank")
    first = {"layer": 1, "module": "blocks.0", "title": "layer 1", "heads": 2, "at_limit": 0, "head_dim": 16}
    assert spare.numbers["layers"][0] == {**first, "needed_rank": 3.0}
    few = needs_reason([need(16), *(need(3, head=at) for at in range(1, 20))])
    many = needs_reason([need(16), need(16, head=1), need(3, head=2)])
    assert few is not None
    assert many is not None
    assert few.text.endswith("5.0% of the heads are at their limit, the others are not short of rank")
    assert many.text.endswith("67% of the heads are at their limit, and for these the rank is a bottleneck")
    rank = Reason("head rank", "", {"layers": []})
    plan = AdvisedPlan("rankfall plan --width 64", BlockStack("blocks", ("blocks.0", "blocks.1"), ()))
    said = advice([], [rank, many], plan).text
    assert said == "2 of 3 heads need all of their rank: `rankfall plan --width 64` lists wider heads at equal cost"
    assert advice([], [rank, many], replace(plan, wider=False)).text == "nothing here calls for a change"
    assert advice([], [rank, spare], plan).text == (
        "in 1 of 2 layers (layer 1) the median head needs at most 25% of its rank on this text: `rankfall plan"
        " --width 64` lists more heads of lower rank at equal cost"
    )


def test_heads_that_need_no_scores_call_for_nothing() -> None:
    flat = needs_reason([need(0), need(0, 2)])
    assert flat is not None
    assert flat.text.endswith("no head needs its scores on this text: mask and positions alone give its attention")
    plan = AdvisedPlan("rankfall plan --width 64", BlockStack("blocks", ("blocks.0", "blocks.1"), ()))
    assert advice([], [flat], plan).text == "nothing here calls for a change"


def test_what_a_layer_needs_is_compared_with_its_own_rank() -> None:
    """Of two stacks the wider heads would make the narrow ones look as if they had rank to spare."""
    mixed = needs_reason([need(10, 1, size=64), need(10, 2, size=16)])
    assert mixed is not None
    plan = AdvisedPlan("rankfall plan --width 64", BlockStack("blocks", ("blocks.0", "blocks.1"), ()))
    assert advice([], [mixed], plan).text.startswith("in 1 of 2 layers (layer 1) the median head needs at most 25%")


def curve_of(costs: Mapping[int, float], loss: float | None, alone: Mapping[int, float]) -> CutCurve:
    def point(layer: int | None, rank: int, cost: float) -> CutPoint:
        more = (None, None) if loss is None else (loss + cost, cost)
        return CutPoint(layer, None if layer is None else f"blocks.{layer - 1}", rank, *more, abs(cost))

    points = [point(None, rank, cost) for rank, cost in costs.items()]
    points += [point(layer, rank, cost / rank) for layer, cost in alone.items() for rank in (1, 4)]
    return CutCurve(
        16, loss, None if loss is not None else "an encoder", tuple(points), point(None, 3, 0.125), 0.0, 1e-3
    )


def test_the_words_about_cuts_follow_the_numbers() -> None:
    assert cut_reason(None) is None
    language = cut_reason(curve_of({1: 2.0, 4: 0.5, 8: 0.01, 16: 0.0}, 3.0, {1: 0.4, 2: 1.2}))
    assert language is not None
    assert (
        "cut to 1, 4, 8 of 16 directions the loss of 3.000 nats a token changes by +2.000, +0.500, +0.010; 8"
        in language.text
    )
    assert "8 directions keep it within 0.02 nats" in language.text
    assert "each head cut to what it needs alone, 3 in the mean, it changes by +0.125" in language.text
    assert "cut to 4, it costs most in layer 2 (blocks.1) +0.300, layer 1 (blocks.0) +0.100" in language.text
    encoder = cut_reason(curve_of({1: 0.9, 8: 0.3, 16: 0.0}, None, {}))
    assert encoder is not None
    assert (
        "the output changes by 90.0%, 30.0%; no cut keeps it within 5%, so the directions beyond 8 do" in encoder.text
    )
    assert "(no loss: an encoder; the output's change" in encoder.text
    assert encoder.numbers["enough"] == 16
