"""The masks that models really use are recognised, per layer, with padding seen and rates as theory has them."""

from __future__ import annotations

import pytest
import torch
from tests.models.small import small_model

from rankfall.masks import Explicit, Mask, parse_mask, recognise
from rankfall.models.masks import MaskObserver, observe_masks, uniform_rate
from rankfall.models.recorder import Call, recorded
from rankfall.models.texts import from_ids


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


def test_a_failing_observation_ends_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(call: Call) -> None:
        raise ZeroDivisionError("no pattern")

    monkeypatch.setattr("rankfall.models.masks.allowed_pattern", fail)
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
