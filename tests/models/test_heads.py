"""Head ranks by probing agree with weights taken out of the modules by hand, family by family."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file
from tests.models.small import MEASURED, small_model
from torch import Tensor

from rankfall.errors import RequestError
from rankfall.models.architectures.small import candidate_inputs, small_models
from rankfall.models.heads.probe import probe_site
from rankfall.models.heads.ranks import head_ranks, head_ranks_from_file, probe_heads, sample_inputs
from rankfall.models.recording.replay import traced

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
SMALL |= {"vocab_size": 50}
GROUPED = {**SMALL, "num_key_value_heads": 2, "head_dim": 12}
SPECIALS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
TINY_GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 50}
TINY_T5 = {"d_model": 32, "num_layers": 2, "num_heads": 4, "d_kv": 12, "d_ff": 48, "vocab_size": 50}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertConfig", SMALL),
    "llama": ("LlamaConfig", GROUPED),
    "gpt2": ("GPT2Config", TINY_GPT2),
    "qwen3": ("Qwen3Config", GROUPED),
    "gemma2": ("Gemma2Config", {**GROUPED, "sliding_window": 4}),
    "gemma3": ("Gemma3TextConfig", {**GROUPED, "sliding_window": 4}),
    "modernbert": ("ModernBertConfig", {**SMALL, "local_attention": 4, **SPECIALS}),
    "vit": ("ViTConfig", {**SMALL, "image_size": 8, "patch_size": 4}),
    "t5": ("T5Config", TINY_T5),
    "gpt_neox": ("GPTNeoXConfig", SMALL),
    "phi3": ("Phi3Config", {**GROUPED, **SPECIALS}),
    "bloom": ("BloomConfig", {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": 50}),
    "gptj": ("GPTJConfig", {"n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 8, "vocab_size": 50}),
}
PROBED = ("bert", "llama", "gpt2", "qwen3", "gemma2", "gemma3", "modernbert", "vit", "t5")


def build(family: str) -> Any:
    torch.manual_seed(0)
    config, arguments = CONFIGS[family]
    model = transformers.AutoModel.from_config(getattr(transformers, config)(**arguments)).eval()
    with torch.no_grad():
        # Gains and biases of a fresh model are one and zero: make every one of them matter.
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn(parameter.shape) * 0.3)
    return model


def split(weight: Tensor, rank: int) -> Tensor:
    """(heads * rank, d) of a Linear to (heads, d, rank)."""
    return weight.double().reshape(-1, rank, weight.shape[1]).mT


def by_hand(family: str, model: Any, layer: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Query (h, d, r), key, value (g, d, r) and output (h, r, d), straight from the weights."""
    if family == "bert":
        inner = model.encoder.layer[layer].attention
        parts = inner.self.query, inner.self.key, inner.self.value
        query, key, value = (split(part.weight, 8) for part in parts)
        return query, key, value, inner.output.dense.weight.double().T.reshape(4, 8, 32)
    if family == "gpt2":
        inner = model.h[layer].attn
        query, key, value = (split(part.T, 8) for part in inner.c_attn.weight.split(32, dim=1))
        return query, key, value, inner.c_proj.weight.double().reshape(4, 8, 32)
    if family == "modernbert":
        inner = model.layers[layer].attn
        query, key, value = (split(part, 8) for part in inner.Wqkv.weight.chunk(3))
        return query, key, value, inner.Wo.weight.double().T.reshape(4, 8, 32)
    if family == "t5":
        inner = model.encoder.block[layer].layer[0].SelfAttention
        query, key, value = (split(part.weight, 12) for part in (inner.q, inner.k, inner.v))
        return query, key, value, inner.o.weight.double().T.reshape(4, 12, 32)
    if family == "vit":
        inner, rank = model.layers[layer].attention, 8
    else:
        inner, rank = model.layers[layer].self_attn, 12
    query, key, value = (split(part.weight, rank) for part in (inner.q_proj, inner.k_proj, inner.v_proj))
    if hasattr(inner, "q_norm"):
        less_one = 1.0 if family.startswith("gemma") else 0.0
        query = query * (inner.q_norm.weight.double() + less_one)
        key = key * (inner.k_norm.weight.double() + less_one)
    return query, key, value, inner.o_proj.weight.double().T.reshape(4, rank, 32)


def entropy_rank(matrix: Tensor, power: int) -> float:
    share = torch.linalg.svdvals(matrix) ** power
    share = share / share.sum()
    return float(torch.exp(-(share * share.clamp_min(1e-300).log()).sum()))


@pytest.mark.parametrize("family", PROBED)
def test_probed_ranks_agree_with_weights_by_hand(family: str) -> None:
    model = build(family)
    records = [record for record in head_ranks(model) if record.module.split(".")[0] != "decoder"]
    assert len(records) == 2 * 4
    for record in records:
        query, key, value, output = (part.detach() for part in by_hand(family, model, record.layer))
        head, group = record.head, record.kv_head
        scores, values = query[head] @ key[group].T, value[group] @ output[head]
        assert group == head // (4 // key.shape[0])
        assert record.head_dim == query.shape[-1]
        assert record.qk_rank == torch.linalg.matrix_rank(scores, rtol=32 * 2**-23)
        assert record.ov_rank == torch.linalg.matrix_rank(values, rtol=32 * 2**-23)
        assert record.qk_effective_rank == pytest.approx(entropy_rank(scores, 1), rel=1e-6)
        assert record.ov_effective_rank == pytest.approx(entropy_rank(values, 1), rel=1e-6)
        assert record.qk_energy_rank == pytest.approx(entropy_rank(scores, 2), rel=1e-6)
        assert record.ov_energy_rank == pytest.approx(entropy_rank(values, 2), rel=1e-6)
        assert record.qk_norm == pytest.approx(float(torch.linalg.matrix_norm(scores)), rel=1e-6)
        assert record.ov_norm == pytest.approx(float(torch.linalg.matrix_norm(values)), rel=1e-6)
        assert record.normed_queries_and_keys == (family in ("qwen3", "gemma3"))
        assert record.rotary == (family not in ("bert", "gpt2", "vit", "t5"))
        assert record.self_check["linearity"] < 1e-9
        assert record.self_check["same_position_scores"] < 1e-6
        assert record.self_check["replay"] < 1e-5


def rotation(rank: int, position: int, base: float = 10000.0) -> Tensor:
    """The rotary matrix of one position, rows to the left: q -> q R."""
    half = rank // 2
    angle = position * base ** (-torch.arange(half, dtype=torch.float64) * 2 / rank)
    cos, sin = torch.diag(angle.cos()), torch.diag(angle.sin())
    return torch.cat([torch.cat([cos, sin], 1), torch.cat([-sin, cos], 1)])


@pytest.mark.parametrize("offset", [1, 40])
def test_rotary_form_at_an_offset(offset: int) -> None:
    model = build("llama")
    for record in head_ranks(model, offset=offset):
        query, key, _, _ = (part.detach() for part in by_hand("llama", model, record.layer))
        form = query[record.head] @ rotation(12, offset) @ key[record.kv_head].T
        # The library computes angles in float32.
        assert record.qk_effective_rank == pytest.approx(entropy_rank(form, 1), rel=1e-4)
        assert record.qk_energy_rank == pytest.approx(entropy_rank(form, 2), rel=1e-4)
        assert record.qk_rank == 12
        assert record.offset == offset


def test_offset_changes_nothing_without_rotary() -> None:
    model = build("bert")
    assert head_ranks(model, offset=5) == head_ranks(model)


def test_a_head_made_low_rank_is_found() -> None:
    model = build("llama")
    with torch.no_grad():
        weight = model.layers[1].self_attn.q_proj.weight
        weight[12:24] = torch.randn(12, 3) @ torch.randn(3, 32)
    ranks = {(record.layer, record.head): record.qk_rank for record in head_ranks(model)}
    assert ranks.pop((1, 1)) == 3
    assert set(ranks.values()) == {12}


def test_self_check_fails_when_the_module_is_not_linear() -> None:
    model = build("bert")
    model.encoder.layer[0].attention.self.query.register_forward_hook(lambda module, args, out: out.tanh() * 3)
    trace = traced(model, sample_inputs(model))
    maps = probe_site(0, trace.sites[0], trace.sites[0], None, 0)
    assert maps.checks["linearity"] > 1e-3


# Every layout is compared in test_layouts.py; here it is read from files, several of them for one model.
@pytest.mark.parametrize(("family", "shards"), [("gpt2", 1), ("qwen3", 1), ("bert", 2)])
def test_weights_in_files_agree_with_probing(family: str, shards: int, tmp_path: Path) -> None:
    model = build(family)
    model.save_pretrained(tmp_path, max_shard_size="20KB" if shards > 1 else "1GB")
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == (shards > 1)
    (tmp_path / "config.json").write_text(json.dumps(model.config.to_dict(), default=str))
    read = head_ranks_from_file(tmp_path)
    probed = head_ranks(model)
    assert len(read) == len(probed) == 8
    for mine, theirs in zip(read, probed, strict=True):
        for column in ("layer", "head", "kv_head", "head_dim", "qk_rank", "ov_rank"):
            assert getattr(mine, column) == getattr(theirs, column)
        for column in MEASURED:
            assert getattr(mine, column) == pytest.approx(getattr(theirs, column), rel=1e-6)
        assert "names of" in mine.source


@pytest.mark.parametrize("family", ["bloom", "gptj"])
def test_bypassers_fall_back_to_weight_names(family: str) -> None:
    model = build(family)
    records = head_ranks(model)
    assert len(records) == 8
    assert {record.source for record in records} == {f"names of {family}"}
    if family == "bloom":
        fused = model.h[0].self_attention.query_key_value.weight.detach().double().reshape(4, 3, 8, 32)
        form = fused[2, 0].T @ fused[2, 1]
        assert records[2].qk_energy_rank == pytest.approx(entropy_rank(form, 2), rel=1e-6)


def test_weights_only_refuses_what_it_cannot_read(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"required weights with config\.json beside them"):
        head_ranks_from_file(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "strange", "num_attention_heads": 2}')
    with pytest.raises(RequestError, match=r"weights as model\.safetensors .* got 0 safetensors files"):
        head_ranks_from_file(tmp_path)
    with pytest.raises(RequestError, match=r"a \.safetensors file for --weights-only; got .*gone, which is neither"):
        head_ranks_from_file(tmp_path / "gone")
    save_file({"strange.weight": torch.zeros(2, 2)}, tmp_path / "model.safetensors")
    for path in (tmp_path, tmp_path / "model.safetensors"):
        with pytest.raises(RequestError, match=r"names of a known layout; got 1 tensors .* known are llama, bart"):
            head_ranks_from_file(path)
    (tmp_path / "config.json").write_text('{"auto_map": {}}')
    with pytest.raises(RequestError, match="auto_map"):
        head_ranks_from_file(tmp_path)


def test_a_norm_after_attention_is_none_of_queries_and_keys() -> None:
    assert not any(one.normed_queries_and_keys for one in head_ranks(small_model("albert")))


def test_a_scale_inside_the_module_is_no_part_of_the_form() -> None:
    model = small_model("opt", word_embed_proj_dim=32, ffn_dim=48)
    weights = {name: one.detach().double() for name, one in model.named_parameters()}
    stem = "decoder.layers.0.self_attn."
    query, key = (weights[f"{stem}{one}_proj.weight"][:8] for one in "qk")
    first = head_ranks(model)[0]
    assert first.qk_norm == pytest.approx(float(torch.linalg.matrix_norm(query.T @ key)), rel=1e-6)


def test_heads_that_fail_their_self_check_are_named_and_not_given() -> None:
    model = build("bert")
    model.encoder.layer[0].attention.self.query.register_forward_hook(lambda module, args, out: out.tanh() * 3)
    found = probe_heads(model)
    assert list(found.missing) == ["encoder.layer.0.attention.self"]
    assert "self-check (linearity) that fails by" in found.missing["encoder.layer.0.attention.self"]
    assert {one.module for one in found.records} == {"encoder.layer.1.attention.self"}


def test_modules_that_only_other_inputs_reach_are_probed_with_those() -> None:
    model, inputs = next(
        (model, inputs) for model in small_models("clip") for inputs in candidate_inputs(model) if len(inputs) == 2
    )
    one = {name: value[:1] for name, value in inputs.items()}
    towers = {record.module.split(".")[0] for record in probe_heads(model, inputs=one).records}
    assert towers == {"text_model", "vision_model"}
