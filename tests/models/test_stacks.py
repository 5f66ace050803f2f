"""Models of two halves: both are measured, compared, taken apart and judged, each under its own name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BartConfig, BartModel

from rankfall.api.audit import AuditResult
from rankfall.api.audit import audit as public_audit
from rankfall.errors import RequestError
from rankfall.models.ablation import ablation as ablation_room
from rankfall.models.ablation.ablation import FULL, WITH_BOTH, WITH_CROSS, ablate
from rankfall.models.architectures.small import candidate_inputs, small_models
from rankfall.models.attention.masks import CROSS, ObservedMask
from rankfall.models.audit import audit
from rankfall.models.condition import parse_condition
from rankfall.models.heads.key_values import KeyValueRecord, KeyValues
from rankfall.models.heads.maps import HeadMaps
from rankfall.models.recording.blocks import choose_stack
from rankfall.models.stacks import labels
from rankfall.models.verdict.key_value_reason import key_value_reason
from rankfall.models.verdict.parts_reason import parts_reason
from rankfall.models.verdict.reasons import Reason
from rankfall.models.verdict.verdict import NO_CHANGE, Verdict

FAMILIES = ("t5", "bart", "marian", "whisper")


def small(kind: str) -> Any:
    torch.manual_seed(0)
    return next(small_models(kind)).eval()


def inputs_of(kind: str, model: Any) -> Any:
    if kind == "whisper":
        (given,) = [one for one in candidate_inputs(model) if "decoder_input_ids" in one][:1]
        return {**given, "decoder_input_ids": torch.randint(4, 60, (2, 20))}
    return torch.randint(4, 60, (2, 20))


@pytest.fixture(scope="module", params=FAMILIES)
def audited(request: pytest.FixtureRequest) -> AuditResult:
    torch.manual_seed(1)
    model = small(request.param)
    given = inputs_of(request.param, model)
    return public_audit(model, inputs=given, heads=False)


def test_both_halves_have_every_part(audited: AuditResult) -> None:
    (decoder,) = audited.other_stacks
    assert (audited.stack_label, decoder.label) == ("encoder", "decoder")
    assert audited.missing == {}
    for controls in (audited.controls, decoder.controls):
        assert {one.draw for one in controls} == {0, 1, 2}
        assert all(one.rows and one.reason is None for one in controls)
    assert {row.module.split(".")[0] for one in decoder.controls for row in one.rows if row.module} == {"decoder"}
    assert decoder.ablation_check is not None
    assert decoder.ablation_check.error < 1e-5
    assert {row.layer for row in decoder.ablation} == {row.layer for row in decoder.boundaries}


def test_the_headline_names_both(audited: AuditResult) -> None:
    (decoder,) = audited.other_stacks
    headline = audited.verdict.headline
    assert headline.startswith(f"{audited.model.name}: encoder: ")
    assert headline.endswith(f". {decoder.verdict.headline}")
    assert decoder.verdict.headline.startswith("decoder: ")
    for question, line in zip(decoder.verdict.findings, repr(audited).splitlines()[2:5], strict=True):
        assert line.endswith(f", decoder: {question.status}")


def test_masks_and_blocks_stand_with_their_half(audited: AuditResult) -> None:
    (decoder,) = audited.other_stacks
    first, second = ({one.topic: one for one in verdict.reasons} for verdict in (audited.verdict, decoder.verdict))
    assert first["mask"].numbers["masks"] == {"complete": [1, 2]}
    assert second["mask"].numbers["masks"] == {"causal": [1, 2]}
    assert set(second["what holds it up"].numbers) - set(first["what holds it up"].numbers) == {WITH_CROSS.name}
    assert second["token rank"].numbers["energy_rank"] != first["token rank"].numbers["energy_rank"]


def test_the_record_and_the_tables_carry_them(audited: AuditResult) -> None:
    record = audited.record()
    (decoder,) = record["other_stacks"]
    assert (record["stack_label"], decoder["label"]) == ("encoder", "decoder")
    own = ("depth", "inside", "measured_rate", "controls", "ablation", "ablation_check", "verdict")
    assert all(decoder[name].keys() == record[name].keys() for name in own if isinstance(record[name], dict))
    assert all(type(decoder[name]) is type(record[name]) for name in own)
    tables = audited.tables()
    for ours, theirs in (
        ("depth", "other_stacks"),
        ("controls", "other_stacks_controls"),
        ("questions", "other_stacks_questions"),
        ("ablation", "other_stacks_ablation"),
    ):
        assert {"stack", *tables[ours].columns} == set(tables[theirs].columns)
        assert set(tables[theirs]["stack"]) == {audited.other_stacks[0].name}


def test_the_report_shows_both(audited: AuditResult, tmp_path: Path) -> None:
    document = audited._document("")
    questions = [one.question for one in document.answers]
    assert "encoder: Do tokens become aligned?" in questions
    assert "decoder: What holds the rank up?" in questions
    assert {"other_stack_1_token_rank", "other_stack_1_parts"} <= {one.name for one in document.pictures()}
    if audited.model.kind == "t5":
        page = audited.save(tmp_path / "report").read_text(encoding="utf-8")
        assert "The same in decoder" in page
        assert "other_stacks_controls" in page


def test_the_text_shows_both(audited: AuditResult, capsys: pytest.CaptureFixture[str]) -> None:
    from rankfall.cli.audit import _show

    (decoder,) = audited.other_stacks
    failed = [{"condition": "rank > 0", "layers": audited.failures("rank > 0 at last")}]
    _show(audited.record() | {"failed": failed, "unchecked_reasons": {}, "open": [], "report": None})
    shown = " ".join(capsys.readouterr().out.split())
    headings = (f" encoder ({audited.stack}) ", f" decoder ({decoder.name}) ", " the whole model attention sinks: ")
    first, second, whole = (shown.index(one) for one in headings)
    assert first < second < whole
    assert shown.count("what holds it up:") == 2
    assert "cross-attention stands" in shown[second:whole] or "cross-attention collapses" in shown[second:whole]
    assert f"layer 2 of {decoder.name} (" in shown[whole:]


def test_conditions_are_asked_of_both(audited: AuditResult) -> None:
    (decoder,) = audited.other_stacks
    value = decoder.boundaries[-1].values["unit"]["energy_rank"]
    first = audited.boundaries[-1].values["unit"]["energy_rank"]
    held = audited.failures(f"energy_rank < {max(value, first) + 1} at last")
    assert [one.get("stack") for one in held] == [None, decoder.name]
    assert [one["value"] for one in held] == [first, value]
    finding = decoder.verdict.findings[0]
    asked = replace(parse_condition("alignment depends"), status=finding.status)
    said = asked.held_in({"verdict": {"findings": []}, "other_stacks": [decoder.record()]})
    assert {one["stack"] for one in said} == {decoder.name}
    assert len(said) == sum(one.status == finding.status for one in finding.places)
    # The first stack has layer 2 and an audit that measured no more; another may lack it without an error.
    record = audited.record()
    shorter = {**record["other_stacks"][0], "depth": record["other_stacks"][0]["depth"][:1]}
    only = parse_condition("energy_rank >= 0 at 2").held_in({**record, "other_stacks": [shorter]})
    assert [one.get("stack") for one in only] == [None]


def test_one_stack_is_told_as_before() -> None:
    result = audit(small("llama"), inputs=torch.randint(4, 60, (2, 20)), heads=False, controls=False)
    assert result.record()["other_stacks"] == []
    assert result.verdict.headline.startswith(f"{result.model.name}: ")
    assert f"{result.stack_label}: " not in result.verdict.headline
    assert not any(name.startswith("other_stacks") for name in result.tables())
    assert WITH_CROSS.name not in {row.variant for row in result.ablation}


def test_cross_attention_is_replayed_as_it_was() -> None:
    """Without feed-forward layers the variant that keeps everything else is the model itself."""
    model = small("bart")
    for layer in model.decoder.layers:
        # x + 0, normalised again: LayerNorm of what is normalised already changes nothing.
        torch.nn.init.zeros_(layer.fc2.weight)
        torch.nn.init.zeros_(layer.fc2.bias)
        torch.nn.init.normal_(layer.encoder_attn.out_proj.weight)
        torch.nn.init.normal_(layer.encoder_attn.v_proj.weight)
    ids = torch.randint(4, 60, (2, 12))
    stack = choose_stack(model, "decoder")
    given = {"input_ids": ids, "decoder_input_ids": ids.flip(1)}
    found = ablate(model, given, scalings=("raw",), stack=stack)
    at_end = {
        (row.variant, row.text): row.mu
        for row in found.rows
        if row.layer == 2 and row.variant in (WITH_CROSS.name, FULL)
    }
    for text in range(2):
        assert at_end[WITH_CROSS.name, text] == pytest.approx(at_end[FULL, text], rel=1e-4)
    both = [row.mu for row in found.rows if row.variant == WITH_BOTH.name and row.layer == 2]
    assert both[0] != pytest.approx(at_end[FULL, 0], rel=1e-2)


@pytest.mark.parametrize("place", ["assembly", "verification"])
def test_cross_attention_that_cannot_be_replayed_leaves_the_rest(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise RequestError(required="a replay", got="none", remedy="leave it")

    if place == "assembly":
        around = ablation_room.block_around
        monkeypatch.setattr(
            ablation_room, "block_around", lambda site: refuse() if site.context_name else around(site)
        )
    else:
        monkeypatch.setattr(ablation_room, "_verified_cross", lambda cross: _refused(refuse))
    result = audit(small("bart"), inputs=torch.randint(4, 60, (2, 20)), heads=False, controls=False, attention=False)
    assert result.missing == {
        "in decoder.layers, cross-attention in the ablation": "required a replay; got none; leave it"
    }
    variants = {row.variant for row in result.other_stacks[0].ablation}
    assert WITH_BOTH.name in variants
    assert WITH_CROSS.name not in variants


def _refused(refuse: Any) -> Any:
    try:
        refuse()
    except RequestError as error:
        raise ablation_room._CrossAttentionError.like(error) from error


def test_what_fails_in_one_half_is_named_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from rankfall.models import stacks

    def fail(*args: Any, stack: Any = None, **options: Any) -> Any:
        if stack is not None and stack.name.startswith("decoder"):
            raise ValueError("no decoder today")
        return ablate(*args, stack=stack, **options)

    monkeypatch.setattr(stacks, "ablate", fail)
    result = audit(small("bart"), inputs=torch.randint(4, 60, (2, 20)), heads=False, controls=False)
    assert result.missing == {"in decoder.layers, ablation": "ValueError: no decoder today"}
    assert result.ablation
    assert result.other_stacks[0].ablation == ()
    assert len(result.other_stacks[0].verdict.findings) == 3


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (("encoder.block", "decoder.block"), ["encoder", "decoder"]),
        (("model.encoder.layers", "model.decoder.layers"), ["encoder", "decoder"]),
        (("language_model.layers", "vision_tower.encoder.layers"), ["language_model", "vision_tower"]),
        (("layers", "layers.extra"), ["layers", "layers.extra"]),
        (("h",), ["h"]),
        (("",), [""]),
    ],
)
def test_labels_tell_stacks_apart(names: tuple[str, ...], told: list[str]) -> None:
    assert labels(names) == told


def _row(variant: str, mu: float) -> dict[str, Any]:
    scaling = "raw" if variant == FULL else "matched"
    return {"variant": variant, "scaling": scaling, "layer": 2, "unit_relative_mu": mu, "unit_energy_rank": 9.0}


@pytest.mark.parametrize(
    ("cross", "said"),
    [
        ([0.9, 0.9], "together with what cross-attention takes from the other half they do"),
        ([1e-3, 1e-3], "whatever is kept beside attention, also cross-attention, it collapses"),
        ([0.9, 1e-3], "whether they do with cross-attention depends on the passage"),
    ],
)
def test_what_cross_attention_holds_up_is_said(cross: list[float], said: str) -> None:
    kept = ("attention", "attention + norm", "attention + residual", "attention + norm + residual")
    rows = [_row(name, 1e-3) for name in kept for _ in range(2)]
    rows += [_row(WITH_CROSS.name, mu) for mu in cross] + [_row(FULL, 0.9)] * 2
    found = parts_reason(rows)
    assert found is not None
    assert said in found.text


def test_ranks_of_all_texts_together_name_their_half(audited: AuditResult) -> None:
    assert {one["stack"] for one in audited.record()["pooled"]} == {audited.stack}
    told = [line for line in repr(audited).splitlines() if "of all inputs together" in line]
    assert len(told) == len(audited.pooled) > 0
    assert all(f" of {audited.stack}: RankMe" in line for line in told)


def test_ranks_of_a_single_stack_need_no_name() -> None:
    ids = torch.randint(4, 60, (2, 20))
    alone = audit(small("t5"), inputs=ids, stack="encoder.block", heads=False, controls=False, ablation=False)
    assert {one.stack for one in alone.pooled} == {""}


def test_what_the_half_multiplies_is_named(audited: AuditResult) -> None:
    for verdict in (audited.verdict, audited.other_stacks[0].verdict):
        said = next(one.text for one in verdict.reasons if one.topic == "mask")
        assert "; whole blocks multiply differences between tokens by " in said


@pytest.fixture(scope="module")
def uneven() -> AuditResult:
    """Two layers of four heads encode, three of two heads decode."""
    torch.manual_seed(0)
    config = BartConfig(
        vocab_size=120, d_model=64, encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=64,
        encoder_layers=2, encoder_attention_heads=4, decoder_layers=3, decoder_attention_heads=2,
    )  # fmt: skip
    ids = torch.randint(4, 60, (2, 20), generator=torch.Generator().manual_seed(0))
    return public_audit(BartModel(config).eval(), inputs=ids, controls=False, ablate=False)


def test_the_layers_of_every_half_are_counted(uneven: AuditResult) -> None:
    told = "3 layers of decoder.layers, 2 of encoder.layers"
    assert repr(uneven).splitlines()[0].endswith(f"BartModel, {told}, width 64")
    assert uneven._document("").summary.startswith(f"bart, {told}, ")


def test_the_advice_of_every_half_is_shown(uneven: AuditResult) -> None:
    def with_advice(verdict: Verdict, text: str) -> Verdict:
        return replace(verdict, reasons=(Reason("what to change", text),))

    def shown(first: str, second: str) -> str:
        (encoder,) = uneven.other_stacks
        other = replace(encoder, verdict=with_advice(encoder.verdict, second))
        found = replace(uneven, verdict=with_advice(uneven.verdict, first), other_stacks=(other,))
        (line,) = [line for line in repr(found).splitlines() if "what to change" in line]
        return line.strip()

    assert shown(NO_CHANGE, "try this") == "what to change: encoder: try this"
    assert shown("try that", NO_CHANGE) == "what to change: decoder: try that"
    assert shown("try that", "try this") == "what to change: decoder: try that; encoder: try this"
    assert shown(NO_CHANGE, NO_CHANGE) == f"what to change: {NO_CHANGE}"
    alone = replace(uneven, verdict=with_advice(uneven.verdict, "try that"), other_stacks=())
    assert "what to change: try that" in repr(alone)


def said_of(found: AuditResult) -> dict[str, Reason]:
    return {one.topic: one for one in found.verdict.reasons}


def test_attention_modules_are_not_counted_as_layers(uneven: AuditResult) -> None:
    said = said_of(uneven)["head rank"]
    assert said.text.startswith(
        "6 of 8 attention modules have 2 heads of rank 32 in width 64 (H r / d = 1), 2 have 4 of rank 16; the median"
    )
    assert "; lowest attention modules by their median head: layer 1 (encoder.layers.0.self_attn)" in said.text
    assert (said.numbers["head_dim"], said.numbers["structural_rank"], said.numbers["heads"]) == (32, 32, 2)


def test_the_bound_is_about_the_shape_that_most_modules_have(uneven: AuditResult) -> None:
    said = said_of(uneven)["head bound"]
    assert "of 2 heads of rank 32 in width 64, the shape of 6 of 8 attention modules, that finds" in said.text
    assert (said.numbers["head_dim"], said.numbers["structural_rank"], said.numbers["heads"]) == (32, 32, 2)
    most = next(one for one in uneven.heads if one.module == "decoder.layers.0.self_attn")
    assert said.numbers["mse_lower_bound"] == most.mse_lower_bound != uneven.heads[0].mse_lower_bound


def test_only_the_half_that_decodes_caches(uneven: AuditResult) -> None:
    said = said_of(uneven)["keys and values"]
    assert said.text.startswith(
        "a layer of decoder.layers caches 128 numbers a token (2 key/value heads of 32 + 32) and, for its"
        " cross-attention, 128 for each token of the other stack; a layer of encoder.layers has keys and values of"
        " 128 numbers a token (4 key/value heads of 16 + 16) and caches nothing; keys and values together"
    )
    assert "numbers in the median attention module" in said.text
    assert "the latent of the attention module before" in said.text


def test_the_cache_is_that_of_the_half_that_decodes() -> None:
    """The usual size of the half's own tokens, whatever the sizes of the other half."""

    def record(module: str, heads: int) -> KeyValueRecord:
        return replace(uneven_record, module=module, kv_heads=heads, cached=heads * 16)

    def mask(module: str, kind: str | None) -> ObservedMask:
        return ObservedMask(1, module, 8, None, False, described=kind)

    joint = KeyValues()
    joint.take(HeadMaps(0, "attention", "made here", *(torch.eye(8, dtype=torch.float64)[None],) * 4), None)
    (uneven_record,) = joint.records()
    records = [record("encoder.0.attn", 9), record("encoder.1.attn", 9), record("decoder.0.attn", 2)]
    masks = [mask("encoder.0.attn", "complete"), mask("decoder.0.attn", "causal")]
    said = key_value_reason(records, masks)
    assert said is not None
    assert said.text.startswith("a layer of decoder caches 32 numbers a token (2 key/value heads of 8 + 8); a layer")
    assert said.numbers["cached"] == 32
    alone = key_value_reason(records[2:], masks)
    assert alone is not None
    assert alone.text.startswith("a layer caches 32 numbers a token (2 key/value heads of 8 + 8); keys and values")
    unknown = key_value_reason(records)
    assert unknown is not None
    assert unknown.text.startswith("a layer has keys and values of 144 numbers a token (9 key/value heads of 8 + 8)")


def test_a_decoder_of_another_length_keeps_its_masks_beside_padded_texts() -> None:
    """Queries of cross-attention are none of the texts' tokens: which of these are real says nothing of them."""
    ids = torch.randint(4, 60, (2, 12), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[0, 9:] = 0
    inputs = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": ids[:, :7]}
    result = audit(small("bart"), inputs=inputs, heads=False, controls=False, ablation=False)
    assert "mask" not in result.missing
    seen = {(one.module.split(".")[0], one.name): one.tokens for one in result.masks if one.name != CROSS}
    assert seen == {("encoder", "complete"): 9, ("decoder", "causal"): 7}
