"""Recording is bit-exact with eager attention, complete or honest about what is missing, and leaves no trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from rankfall.models.recording.events import Call, Ran
from rankfall.models.recording.interface import attention_modules, runs_as_is
from rankfall.models.recording.recorder import recorded

SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": 50,
}
GROUPED = {**SMALL, "num_key_value_heads": 2, "head_dim": 8}
EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}
SPECIALS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
IMAGE = {"image_size": 16, "patch_size": 4}

# family: configuration class, its arguments, attention calls in one pass
FAMILIES: dict[str, tuple[str, dict[str, Any], int]] = {
    "bert": ("BertConfig", SMALL, 3),
    "albert": ("AlbertConfig", {**SMALL, "embedding_size": 16}, 3),
    "llama": ("LlamaConfig", GROUPED, 3),
    "qwen3": ("Qwen3Config", GROUPED, 3),
    "gemma2": ("Gemma2Config", {**GROUPED, "sliding_window": 4}, 3),
    "gemma3": ("Gemma3TextConfig", {**GROUPED, "sliding_window": 4}, 3),
    "gpt2": ("GPT2Config", {"n_embd": 32, "n_layer": 3, "n_head": 4, "vocab_size": 50}, 3),
    "gpt_neox": ("GPTNeoXConfig", SMALL, 3),
    "gpt_oss": (
        "GptOssConfig",
        {**GROUPED, "sliding_window": 4, **EXPERTS},
        3,
    ),
    "modernbert": ("ModernBertConfig", {**SMALL, "local_attention": 4, **SPECIALS}, 3),
    "vit": ("ViTConfig", {**SMALL, **IMAGE}, 3),
    "t5": ("T5Config", {"d_model": 32, "num_layers": 2, "num_heads": 4, "d_kv": 8, "d_ff": 48, "vocab_size": 50}, 6),
    "phi3": ("Phi3Config", {**GROUPED, **SPECIALS}, 3),
    "opt": ("OPTConfig", {**SMALL, "word_embed_proj_dim": 32, "ffn_dim": 48}, 3),
}
BYPASSERS: dict[str, tuple[str, dict[str, Any]]] = {
    "bloom": ("BloomConfig", {"hidden_size": 32, "n_layer": 3, "n_head": 4, "vocab_size": 50}),
    "gptj": ("GPTJConfig", {"n_embd": 32, "n_layer": 3, "n_head": 4, "rotary_dim": 8, "vocab_size": 50}),
    "mpt": ("MptConfig", {"d_model": 32, "n_heads": 4, "n_layers": 3, "vocab_size": 50}),
}


def build(config: str, arguments: dict[str, Any], attention: str | None = None) -> Any:
    torch.manual_seed(0)
    made = getattr(transformers, config)(**arguments)
    return transformers.AutoModel.from_config(made, attn_implementation=attention).eval()


def inputs_of(model: Any) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    if model.main_input_name == "pixel_values":
        return {"pixel_values": torch.randn(2, 3, 16, 16, generator=generator)}
    given = {"input_ids": torch.randint(3, 50, (2, 9), generator=generator)}
    if model.config.is_encoder_decoder:
        given["decoder_input_ids"] = given["input_ids"][:, :5]
    return given


def run(model: nn.Module, inputs: dict[str, Tensor], on_call: Callable[[Call], None]) -> tuple[Any, Any]:
    with torch.no_grad(), recorded(model, on_call) as recording:
        out = model(**inputs)
    return out[0], recording.coverage()


@pytest.mark.parametrize("family", FAMILIES)
def test_bit_exact_with_eager_and_complete(family: str) -> None:
    config, arguments, expected = FAMILIES[family]
    inputs = inputs_of(build(config, arguments))
    with torch.no_grad():
        plain = build(config, arguments, "eager")(**inputs)[0]
    model = build(config, arguments)
    shapes: list[tuple[Any, ...]] = []
    out, coverage = run(model, inputs, lambda call: shapes.append((call.index, call.missing, call.query.shape[1])))
    assert torch.equal(out, plain)
    assert coverage.complete, coverage.reason
    assert coverage.calls == {"interface": expected}
    assert shapes == [(index, (), 4) for index in range(expected)]
    with torch.no_grad():
        again = model(**inputs)[0]
    torch.testing.assert_close(again, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", BYPASSERS)
def test_bypassers_give_weights_and_say_what_is_missing(family: str) -> None:
    model = build(*BYPASSERS[family])
    inputs = inputs_of(model)
    with torch.no_grad():
        plain = model(**inputs)[0]
    calls: list[Call] = []
    out, coverage = run(model, inputs, calls.append)
    assert torch.equal(out, plain)
    assert coverage.state == "weights only"
    assert not coverage.complete
    assert "queries, keys and values are not" in coverage.reason
    assert len(calls) == 3
    for call in calls:
        assert call.missing == ("query", "key", "value")
        torch.testing.assert_close(call.weights.sum(-1), torch.ones(call.weights.shape[:-1]))


def test_fused_attention_of_a_bypasser_shows_queries_and_keys() -> None:
    arguments = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 50}
    model = build("FalconConfig", arguments, "sdpa")
    calls: list[Call] = []
    _, coverage = run(model, inputs_of(model), calls.append)
    assert coverage.complete
    assert [call.missing for call in calls] == [("weights",)] * 2
    assert calls[0].query.shape == (2, 4, 9, 8)


@pytest.mark.parametrize("family", FAMILIES)
def test_watched_as_it_is_a_model_computes_what_it_computes_alone(family: str) -> None:
    config, arguments, expected = FAMILIES[family]
    model = build(config, arguments)
    inputs = inputs_of(model)
    with torch.no_grad():
        plain = model(**inputs)[0]
    calls: list[Call] = []
    with torch.no_grad(), recorded(model, calls.append, own=True) as recorder:
        out = model(**inputs)[0]
    assert torch.equal(out, plain)
    assert recorder.coverage().calls == {"interface": expected}
    fused = model.config._attn_implementation == "sdpa"
    assert {call.missing for call in calls} == {("weights",) if fused else ()}
    assert [call.given[1].get("hidden_states", *call.given[0][:1]).shape[0] for call in calls] == [2] * expected
    assert runs_as_is(model)


def test_another_model_is_not_seen() -> None:
    model, other = (build(*FAMILIES["llama"][:2]) for _ in range(2))
    calls: list[Call] = []
    with torch.no_grad(), recorded(model, calls.append, own=True):
        other(**inputs_of(other))
    assert calls == []


def test_recordings_share_a_pass() -> None:
    model = build(*FAMILIES["llama"][:2])
    calls: list[Call] = []
    leaves: list[Ran] = []
    entered: list[tuple[int, ...]] = []
    blocks = list(model.layers)
    with (
        torch.no_grad(),
        recorded(model, calls.append, own=True),
        recorded(model, on_leaf=leaves.append),
        recorded(model, blocks=blocks, on_enter=lambda block, tokens: entered.append(tuple(tokens.shape))),
    ):
        model(**inputs_of(model))
    assert len(calls) == 3
    assert entered == [(2, 9, 32)] * 3
    projections = [ran for ran in leaves if ran.name.endswith("o_proj")]
    assert [ran.within for ran in projections] == [(call.module,) for call in calls]
    assert {ran.kind for ran in leaves} == {"linear", "norm"}


class SilentAttention(nn.Module):
    """Attention that neither the interface nor the softmax watch can see."""

    def forward(self, tokens: Tensor) -> Tensor:
        score = (tokens @ tokens.mT).exp()
        return score / score.sum(-1, keepdim=True) @ tokens


def test_unseen_attention_is_never_silent() -> None:
    model = nn.Sequential(SilentAttention(), nn.Linear(4, 4))
    _, coverage = run_plain(model, torch.randn(1, 3, 4, generator=torch.Generator().manual_seed(0)))
    assert coverage.state == "none"
    assert coverage.missed[0].kind == "SilentAttention"
    assert "1 runs, 0 calls" in coverage.reason


def run_plain(model: nn.Module, tokens: Tensor) -> tuple[list[Call], Any]:
    calls: list[Call] = []
    with torch.no_grad(), recorded(model, calls.append) as recording:
        model(tokens)
    return calls, recording.coverage()


def test_modules_that_did_not_run_are_named() -> None:
    model = build(*FAMILIES["t5"][:2])
    with torch.no_grad(), recorded(model, lambda call: None) as recording:
        model.encoder(input_ids=torch.tensor([[3, 4, 5]]))
    coverage = recording.coverage()
    assert (coverage.expected, coverage.ran, len(coverage.not_run)) == (6, 2, 4)
    assert coverage.not_run[0].startswith("decoder.block.0")


def test_recorded_parts_give_the_recorded_output() -> None:
    model = build(*FAMILIES["llama"][:2])
    errors: list[float] = []

    def check(call: Call) -> None:
        keys, values = (part.repeat_interleave(2, dim=1) for part in (call.key, call.value))
        score = call.query @ keys.mT * call.scaling + call.mask
        mine = torch.softmax(score, dim=-1) @ values
        errors.append(float((mine.transpose(1, 2) - call.output).abs().max()))

    run(model, inputs_of(model), check)
    assert len(errors) == 3
    assert max(errors) < 1e-6


def test_everything_is_restored_even_after_a_failure() -> None:
    model = build(*FAMILIES["bert"][:2])
    before = (
        model.config._attn_implementation,
        AttentionInterface.get_interface,
        set(AttentionInterface._global_mapping),
        set(AttentionMaskInterface._global_mapping),
    )

    def fail(call: Call) -> None:
        raise RuntimeError("the callback failed")

    with pytest.raises(RuntimeError, match="the callback failed"):
        run(model, inputs_of(model), fail)
    after = (
        model.config._attn_implementation,
        AttentionInterface.get_interface,
        set(AttentionInterface._global_mapping),
        set(AttentionMaskInterface._global_mapping),
    )
    assert after == before
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_expected_layers_count_modules_not_names() -> None:
    assert len(attention_modules(build(*FAMILIES["albert"][:2]))) == 1
    assert len(attention_modules(build(*FAMILIES["bert"][:2]))) == 3
    assert list(attention_modules(build(*FAMILIES["gpt2"][:2]))) == [f"h.{layer}.attn" for layer in range(3)]
