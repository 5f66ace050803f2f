"""The masks that models really use are recognised, per layer, with padding seen and rates as theory has them."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from tests.models.small import small_model

from rankfall.masks import Explicit, Mask, parse_mask, recognise
from rankfall.models.architectures.small import KEYS_SEEN, small_models
from rankfall.models.attention.masks import MaskObserver, ObservedMask, observe_masks, uniform_rate, without_diagonal
from rankfall.models.attention.observer import AttentionObserver
from rankfall.models.attention.positions import PositionMass
from rankfall.models.inputs.texts import from_ids
from rankfall.models.recording.events import Call
from rankfall.models.recording.recorder import recorded
from rankfall.models.verdict.reasons import mask_reason
from rankfall.theory.first_token import RotaryDecay, first_token_mass
from rankfall.theory.sub_stochastic import sink_rate

BART = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32,
}  # fmt: skip


@pytest.mark.parametrize(
    "name", ["complete", "causal", "window:3", "causal-window:4", "prefix:5", "block-diagonal:4", "causal-window:1"]
)
def test_named_masks_are_recognised(name: str) -> None:
    mask = parse_mask(name)
    assert recognise(mask.dense(16)) == mask


def test_anything_else_is_kept_as_it_is() -> None:
    drawn = torch.rand(16, 16, generator=torch.Generator().manual_seed(0)) < 0.3
    allowed = drawn | torch.eye(16, dtype=torch.bool)
    found = recognise(allowed)
    assert isinstance(found, Explicit)
    assert torch.equal(found.allowed, allowed)


def masks_of(kind: str, lengths: tuple[int, ...], **changes: object) -> tuple[list[str], list[bool], str]:
    model = small_model(kind, **changes)
    batch = from_ids([torch.randint(4, 60, (length,)).tolist() for length in lengths])
    found, coverage = observe_masks(model, batch.inputs(model), batch.kept())
    return [str(one.mask) for one in found], [one.padding for one in found], coverage.state


def test_encoders_see_everything_and_decoders_the_past() -> None:
    assert masks_of("bert", (12,)) == (["complete"] * 3, [False] * 3, "complete")
    assert masks_of("llama", (12,)) == (["causal"] * 3, [False] * 3, "complete")


def test_padding_is_seen_and_left_out() -> None:
    assert masks_of("bert", (7, 12)) == (["complete"] * 3, [True] * 3, "complete")
    assert masks_of("gpt2", (7, 12)) == (["causal"] * 3, [True] * 3, "complete")


def test_layers_with_windows_differ_from_layers_without() -> None:
    types = ["sliding_attention", "full_attention", "sliding_attention"]
    sizes = {"sliding_window": 4, "layer_types": types, "head_dim": 8, "num_key_value_heads": 2}
    names, _, state = masks_of("gemma2", (12,), **sizes)
    assert state == "complete"
    assert names == ["causal-window:3", "causal", "causal-window:3"]
    names, _, _ = masks_of("modernbert", (12,), local_attention=4, global_attn_every_n_layers=2)
    assert set(names) == {"complete", "window:2"}


@pytest.mark.parametrize("lengths", [(12,), (7, 12)])
@pytest.mark.parametrize(
    "kind", ["bert", "llama", "gpt2", "t5", "modernbert", "mistral", "gemma2", "gpt_oss", "albert", "bloom", "falcon"]
)
def test_the_models_own_attention_shows_the_same_masks_as_eager(kind: str, lengths: tuple[int, ...]) -> None:
    changes = {
        "mistral": {"sliding_window": 4, "num_key_value_heads": 2},
        "gemma2": {"sliding_window": 4, "head_dim": 8, "num_key_value_heads": 2},
        "gpt_oss": {"sliding_window": 4, "head_dim": 8, "num_key_value_heads": 2, "num_local_experts": 4},
        "bloom": {"n_layer": 3, "n_head": 4},
    }.get(kind, {})
    model = small_model(kind, **changes)
    batch = from_ids([torch.randint(4, 60, (length,)).tolist() for length in lengths])
    inputs = batch.inputs(model)
    with torch.inference_mode():
        plain = model(**inputs)[0]
    observer = MaskObserver(batch.kept())
    with torch.inference_mode(), recorded(model, observer.see, own=True) as recorder:
        assert torch.equal(model(**inputs)[0], plain)
        # A second pass, of other texts, is not read.
        model(**inputs)
    eager, coverage = observe_masks(model, inputs, batch.kept())
    assert [one.record() for one in observer.masks()] == [one.record() for one in eager]
    assert recorder.coverage().state == coverage.state


def test_keys_of_other_tokens_have_no_mask() -> None:
    model = small_model("t5")
    ids = torch.randint(4, 60, (1, 9))
    inputs = {"input_ids": ids, "decoder_input_ids": ids[:, :5], "use_cache": False}
    found, _ = observe_masks(model, inputs, [None])
    crossing = [one for one in found if "EncDec" in one.module]
    assert [(one.mask, one.name, one.reason) for one in crossing] == [
        (None, "cross-attention", "5 queries look at 9 keys, which are not their own tokens")
    ] * 3


@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_a_decoder_that_reads_the_same_text_still_looks_elsewhere(kind: str) -> None:
    """As many keys as queries make no self-attention, and the decoder's products begin with its own first layer."""
    model = small_model(kind, **({} if kind == "t5" else BART))
    ids = torch.randint(4, 60, (1, 9))
    inputs = {"input_ids": ids, "decoder_input_ids": ids, "use_cache": False}
    attention = AttentionObserver([None])
    found, _ = observe_masks(model, inputs, [None], attention)
    crossing = [one for one in found if "EncDec" in one.module or "encoder_attn" in one.module]
    assert len(crossing) == len([one for one in found if one.module.startswith("decoder")]) / 2 > 0
    assert {(one.mask, one.name) for one in crossing} == {(None, "cross-attention")}
    assert {one.kind for one in attention.heads() if one.layer in {each.layer for each in crossing}} == {"cross"}
    first = next(one for one in found if one.module.startswith("decoder"))
    assert str(first.mask) == "causal"
    harmonic = sum(1 / (i + 1) for i in range(9)) / 9
    assert first.by_positions is not None
    assert first.by_positions.first_token_carried == pytest.approx(harmonic)


def test_a_failing_observation_ends_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(call: Call) -> None:
        raise ZeroDivisionError("no pattern")

    monkeypatch.setattr("rankfall.models.attention.masks.allowed_pattern", fail)
    observer = MaskObserver([None])
    model = small_model("bert")
    with recorded(model, observer.see, own=True) as recorder, torch.inference_mode():
        model(torch.randint(4, 60, (1, 9)))
    assert recorder.coverage().complete
    with pytest.raises(ZeroDivisionError, match="no pattern"):
        observer.masks()


def test_a_model_that_bypasses_the_interface_is_still_seen() -> None:
    model = small_model("bloom", n_layer=3, n_head=4)
    batch = from_ids([torch.randint(4, 60, (9,)).tolist()])
    found, coverage = observe_masks(model, batch.inputs(model), batch.kept())
    assert coverage.state == "weights only"
    assert {str(one.mask) for one in found} == {"causal"}


@pytest.mark.parametrize(
    ("name", "rate"), [("complete", 0.0), ("causal", 0.5), ("causal-window:3", 0.5), ("prefix:4", 0.2)]
)
def test_rates_are_those_of_uniform_attention(name: str, rate: float) -> None:
    assert uniform_rate(parse_mask(name), 12) == pytest.approx(rate)


def test_a_window_mixes_slowly() -> None:
    mask: Mask = parse_mask("window:1")
    # Facts about 12 tokens, one neighbour on either side: second eigenvalue 0.9746.
    assert uniform_rate(mask, 12) == pytest.approx(0.9746, abs=5e-5)


def gpt_oss(sinks: list[float] | None) -> torch.nn.Module:
    model = small_model("gpt_oss", sliding_window=4, head_dim=8, num_key_value_heads=2, num_local_experts=4)
    for name, parameter in model.named_parameters():
        if name.endswith("sinks") and sinks is not None:
            parameter.data.copy_(torch.tensor(sinks))
    return model


@pytest.mark.parametrize("own", [True, False])
def test_learned_sinks_are_in_the_predicted_rate(own: bool) -> None:
    """Causal, four heads: sum_h 1 / (2 + e^s_h) over sum_h 1 / (1 + e^s_h), not one half."""
    sinks = [0.0, 2.0, 4.0, -1.0]
    model, batch = gpt_oss(sinks), from_ids([torch.randint(4, 60, (12,)).tolist()])
    if own:
        observer = MaskObserver(batch.kept())
        with recorded(model, observer.see, own=True), torch.inference_mode():
            model(**batch.inputs(model))
        found = observer.masks()
    else:
        found, _ = observe_masks(model, batch.inputs(model), batch.kept())
    expected = sum(1 / (2 + math.exp(s)) for s in sinks) / sum(1 / (1 + math.exp(s)) for s in sinks)
    causal = [one for one in found if str(one.mask) == "causal"]
    assert causal
    for one in causal:
        assert one.sinks == pytest.approx(tuple(sinks), rel=1e-6)
        assert one.rate == pytest.approx(expected, rel=1e-6)
    window = next(one for one in found if str(one.mask) == "causal-window:3")
    assert window.rate == pytest.approx(sink_rate(parse_mask("causal-window:3"), 12, sinks).rate, rel=1e-6)
    record = causal[0].record()
    logits = [record[f"sink_logit_{name}"] for name in ("least", "median", "most")]
    assert logits == pytest.approx([-1.0, 1.0, 4.0], rel=1e-6)


def test_without_learned_sinks_there_are_none() -> None:
    (one, *_), _ = observe_masks(small_model("llama"), {"input_ids": torch.randint(4, 60, (1, 9))}, [None])
    assert one.sinks is None
    assert one.record()["sink_logit_median"] is None
    assert uniform_rate(parse_mask("complete"), 9, [1.0]) == 0
    assert uniform_rate(parse_mask("window:1"), 3000, [1.0]) is None


def test_first_token_by_mask_and_positions() -> None:
    """Layers of one causal mask: products of uniform attention, with rotary decay where the model has it."""
    ids = {"input_ids": torch.randint(4, 60, (1, 12))}
    found, _ = observe_masks(small_model("gpt2"), ids, [None])
    expected = first_token_mass(parse_mask("causal"), 12, len(found))
    for one, mass in zip(found, expected, strict=True):
        assert one.by_positions == PositionMass(pytest.approx(mass.direct), None, pytest.approx(mass.carried), None)
    model = small_model("llama", rope_parameters={"rope_type": "default", "rope_theta": 500.0})
    found, _ = observe_masks(model, ids, [None])
    rank = model.config.hidden_size // model.config.num_attention_heads
    expected = first_token_mass(parse_mask("causal"), 12, len(found), rotary=RotaryDecay(500.0, rank))
    turned = [one.record() for one in found]
    assert [row["predicted_first_token_rotary"] for row in turned] == pytest.approx([one.direct for one in expected])
    carried = [row["predicted_first_token_carried_rotary"] for row in turned]
    assert carried == pytest.approx([one.carried for one in expected])


def test_many_rates_are_told_as_a_range() -> None:
    masks = [
        ObservedMask(layer, "a", 8, parse_mask("causal"), False, rate=0.6 + layer / 10, sinks=(0.0,))
        for layer in range(4)
    ]
    few = mask_reason([], masks[:2])
    many = mask_reason([], masks)
    assert few is not None
    assert many is not None
    assert "by 0.600 a layer or multiply differences between tokens by 0.700 a layer" in few.text
    assert "by 0.600 to 0.900 a layer, relative to their size, with the learned sinks" in many.text


def test_sinks_take_from_the_first_token() -> None:
    model, ids = gpt_oss([3.0] * 4), {"input_ids": torch.randint(4, 60, (1, 12))}
    found, _ = observe_masks(model, ids, [None])
    bare = first_token_mass(parse_mask("causal"), 12, 1)[0].direct
    for one in found:
        assert one.by_positions.first_token_uniform < bare
    mine = next(one for one in found if str(one.mask) == "causal")
    expected = first_token_mass(parse_mask("causal"), 12, 1, sinks=[3.0] * 4)[0].direct
    assert mine.by_positions.first_token_uniform == pytest.approx(expected, rel=1e-6)


def test_a_mask_without_its_diagonal_has_a_name() -> None:
    off = ~torch.eye(8, dtype=torch.bool)
    assert without_diagonal(parse_mask("complete").dense(8) & off) == "complete without diagonal"
    assert without_diagonal(parse_mask("causal").dense(8) & off) == "causal without diagonal"
    chosen = torch.zeros(8, 8, dtype=torch.bool)
    chosen[:, 0] = chosen[3, 3] = chosen[7, 2] = True
    assert without_diagonal(chosen) == "selected: causal, at most 2 keys each"


def test_sparse_selection_stays_on_while_recording_and_is_named() -> None:
    # Latent attention has a key for every head: the first recipe groups them, and does not run.
    _, model = itertools.islice(small_models("mistral_large4"), 2)
    inputs = {"input_ids": torch.randint(4, 60, (1, 12))}
    model.set_attn_implementation("eager")
    with torch.no_grad():
        plain = model(**inputs).last_hidden_state
    seen: list[Call] = []
    with torch.no_grad(), recorded(model, seen.append):
        assert torch.equal(model(**inputs).last_hidden_state, plain)
    assert all(int((call.weights[0, 0] > 0).sum(dim=-1).max()) == KEYS_SEEN for call in seen)
    found, _ = observe_masks(model, inputs, [None])
    assert {one.name for one in found} == {f"selected: causal, at most {KEYS_SEEN} keys each"}
