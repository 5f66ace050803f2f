"""Latents, norms on them, and gates on the output: against the modules' own weights and tokens, taken by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.models.test_heads import entropy_rank
from torch import Tensor

from rankfall.models.heads.ranks import head_ranks, probe_heads
from rankfall.models.heads.record import HeadRecord
from rankfall.models.heads.seen import tokens_seen
from rankfall.models.verdict.head_reasons import bound_reason, heads_reason
from rankfall.theory.head_bounds import HeadClass, mse_floor

SIZES = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"intermediate_size": 48, "max_position_embeddings": 64, "num_key_value_heads": 4}
HEADS, NOPE, ROPE, VALUE, KV, Q = 4, 10, 6, 8, 12, 14
MLA = {"qk_nope_head_dim": NOPE, "qk_rope_head_dim": ROPE, "v_head_dim": VALUE, "kv_lora_rank": KV}
DENSE = {"first_k_dense_replace": 2, "n_routed_experts": 2, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 1}
IDS = {"input_ids": torch.randint(3, 50, (1, 20), generator=torch.Generator().manual_seed(0))}
NEXT = {
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_experts": 2,
    "num_experts_per_tok": 1,
    "mlp_only_layers": [0, 1],
}
NEXT |= {"layer_types": ["full_attention"] * 2}


def made(kind: str, grow: float = 1.0, **settings: Any) -> Any:
    from transformers import AutoConfig, AutoModel

    torch.manual_seed(0)
    model = AutoModel.from_config(AutoConfig.for_model(kind, **{**SIZES, **settings})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            # Gains of a fresh model are one: make every one of them matter.
            parameter.add_(torch.randn(parameter.shape) * 0.3) if parameter.ndim == 1 else parameter.mul_(grow)
    return model


def gated() -> Any:
    """Fresh weights are so small that all gates are one half: these are larger."""
    return made("qwen3_next", grow=8.0, **NEXT)


def given_to(model: Any, part: str) -> list[Tensor]:
    """What each layer's attention was given, in float64."""
    seen: list[Tensor] = []
    hooks = [
        getattr(layer, part).register_forward_pre_hook(
            lambda _, args, kwargs: seen.append((args[0] if args else kwargs["hidden_states"])[0].double()),
            with_kwargs=True,
        )
        for layer in model.layers
    ]
    with torch.no_grad():
        model(**IDS, use_cache=False)
    for hook in hooks:
        hook.remove()
    return seen


def median_factor(norm: Any, given: Tensor) -> float:
    return float((given.square().mean(dim=-1) + norm.variance_epsilon).rsqrt().median())


def weight(linear: Any) -> Tensor:
    return linear.weight.detach().double().T


def mla_forms(attention: Any, tokens: Tensor, *, scaled: bool = True) -> tuple[Tensor, Tensor]:
    """Query/key (h, d, d) and value/output forms of every head with the norms at their median factor."""
    down = weight(attention.kv_a_proj_with_mqa)
    latent, rope = down.split([KV, ROPE], dim=1)
    norm = attention.kv_a_layernorm
    latent = latent * norm.weight.detach().double()
    if scaled:
        latent = latent * median_factor(norm, tokens @ down[:, :KV])
    up = (latent @ weight(attention.kv_b_proj)).reshape(32, HEADS, NOPE + VALUE)
    keys = torch.cat([up[..., :NOPE], rope[:, None].expand(-1, HEADS, -1)], dim=-1)
    if attention.q_lora_rank is None:
        query = weight(attention.q_proj)
    else:
        query, norm = weight(attention.q_a_proj), attention.q_a_layernorm
        factor = median_factor(norm, tokens @ query) if scaled else 1.0
        query = query * factor * norm.weight.detach().double() @ weight(attention.q_b_proj)
    queries = query.reshape(32, HEADS, NOPE + ROPE)
    out = weight(attention.o_proj).reshape(HEADS, VALUE, 32)
    scores = torch.einsum("dhr,ehr->hde", queries, keys)
    return scores, torch.einsum("dhv,hvo->hdo", up[..., NOPE:], out)


@pytest.mark.parametrize(("kind", "q_latent"), [("deepseek_v3", Q), ("deepseek_v2", None), ("minicpm3", Q)])
def test_ranks_behind_latents_are_those_of_the_models_own_scale(kind: str, q_latent: int | None) -> None:
    more = {"scale_emb": 1.0, "dim_model_base": 32} if kind == "minicpm3" else DENSE
    model = made(kind, **MLA, **more, q_lora_rank=q_latent)
    tokens = given_to(model, "self_attn")
    records = head_ranks(model, inputs=IDS)
    assert len(records) == 2 * HEADS
    apart = []
    for record in records:
        attention, given = model.layers[record.layer].self_attn, tokens[record.layer]
        scores, values = mla_forms(attention, given)
        unscaled, _ = mla_forms(attention, given, scaled=False)
        form = scores[record.head]
        # Factors of tokens come from float32 passes.
        assert record.qk_effective_rank == pytest.approx(entropy_rank(form, 1), rel=1e-5)
        assert record.qk_energy_rank == pytest.approx(entropy_rank(form, 2), rel=1e-5)
        assert record.qk_norm == pytest.approx(float(torch.linalg.matrix_norm(form)), rel=1e-5)
        assert record.ov_norm == pytest.approx(float(torch.linalg.matrix_norm(values[record.head])), rel=1e-5)
        assert (record.q_latent, record.kv_latent, record.rope_dims) == (q_latent or 0, KV, ROPE)
        assert record.structural_rank == min(NOPE + ROPE, q_latent or 99, KV + ROPE)
        assert record.qk_rank == record.structural_rank
        assert any("at the median of their factor over 20 tokens" in note for note in record.notes)
        apart.append(abs(record.qk_effective_rank - entropy_rank(unscaled[record.head], 1)))
    assert max(apart) > 0.5, "the factor must matter here, or nothing is tested"


def test_structural_rank_is_in_bound_and_text() -> None:
    model = made("deepseek_v3", **MLA, **DENSE, q_lora_rank=6)
    records = head_ranks(model, inputs=IDS)
    assert {(one.head_dim, one.structural_rank, one.qk_rank) for one in records} == {(16, 6, 6)}
    assert records[0].mse_lower_bound == mse_floor(HeadClass(32, 6, skip=True), HEADS).mse
    bound, heads = bound_reason(records), heads_reason(records)
    assert bound is not None
    assert heads is not None
    assert bound.numbers["mse_lower_bound"] == records[0].mse_lower_bound
    assert bound.numbers["structural_rank"] == 6
    assert "4 heads of rank 6 in width 32" in bound.text
    assert "of 6 directions" in heads.text
    assert "size 16 can have rank 6 at most: queries come from a latent of 6" in heads.text


def test_without_inputs_the_factor_is_that_of_one_token_and_said_so() -> None:
    records = head_ranks(made("deepseek_v3", **MLA, **DENSE, q_lora_rank=Q))
    assert all("over one token" in one.notes[0] for one in records)


def gated_value_output(attention: Any, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Value/output forms (h, d, d) of a Qwen3-Next layer at the median gate, and that gate (h, r)."""
    gates = (tokens @ weight(attention.q_proj)).reshape(-1, 4, 2, 8)[:, :, 1].sigmoid()
    gate = gates.median(dim=0).values
    value = weight(attention.v_proj).reshape(32, 2, 8).repeat_interleave(2, dim=1)
    out = weight(attention.o_proj).reshape(4, 8, 32)
    return torch.einsum("dhv,hv,hvo->hdo", value, gate, out), gate


def test_a_gate_stands_at_its_median_in_the_value_output_form() -> None:
    model = gated()
    tokens = given_to(model, "self_attn")
    for record in head_ranks(model, inputs=IDS):
        forms, gate = gated_value_output(model.layers[record.layer].self_attn, tokens[record.layer])
        form = forms[record.head]
        assert record.ov_rank == 8
        assert record.ov_effective_rank == pytest.approx(entropy_rank(form, 1), rel=1e-5)
        assert record.ov_norm == pytest.approx(float(torch.linalg.matrix_norm(form)), rel=1e-5)
        assert record.output_gate == pytest.approx(float(gate[record.head].median()), rel=1e-5)
        assert "a gate multiplies attention's output before W_O" in record.notes[-1]
        assert "its median over 20 tokens" in record.notes[-1]
    told = heads_reason(head_ranks(model, inputs=IDS))
    assert told is not None
    assert "value/output ranks are those at the median of the gate" in told.text


def test_a_gate_that_shuts_a_coordinate_takes_its_rank() -> None:
    model = gated()
    with torch.no_grad():
        rows = model.layers[0].self_attn.q_proj.weight.reshape(4, 2, 8, 32)
        norm = model.layers[0].input_layernorm
        norm.weight[0] = 2.0
        rows[1, 1, :3] = 0.0
        # The first coordinate of every token is made one sign, which shuts three of head 1's gates.
        model.embed_tokens.weight[:, 0] = 5.0
        rows[1, 1, :3, 0] = -200.0
    found = {(one.layer, one.head): one.ov_rank for one in head_ranks(model, inputs=IDS)}
    assert found[0, 1] == 5
    assert found[0, 0] == found[0, 2] == 8


def test_what_is_no_gate_is_still_refused() -> None:
    model = gated()
    attention = model.layers[0].self_attn
    attention.o_proj.register_forward_pre_hook(lambda _, args: (args[0].tanh(),))
    found: dict[int, HeadRecord] = {one.layer: one for one in probe_heads(model, inputs=IDS).records}
    assert found[0].ov_rank is None
    assert "something stands between attention and the next linear map" in found[0].notes[-1]


def test_seen_tokens_leave_padding_out_and_keep_passages() -> None:
    model = made("llama")
    ids = torch.randint(3, 50, (2, 6), generator=torch.Generator().manual_seed(1))
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]])
    calls = [{"input_ids": ids, "attention_mask": mask}, {"input_ids": ids[:1]}]
    found = tokens_seen(model, calls, [None, mask[1], None])
    assert [one.name for one in found.values()] == ["layers.0.self_attn", "layers.1.self_attn"]
    first = found[id(model.layers[0].self_attn)]
    assert first.passages.tolist() == [0] * 6 + [1] * 3 + [2] * 6
    normed = model.layers[0].input_layernorm(model.embed_tokens(ids))
    assert torch.allclose(first.tokens[:6], normed[0], atol=1e-6)
    assert torch.allclose(first.keys[6:9], normed[1, :3], atol=1e-6)
    assert first.keys is first.tokens, "kept once"


def test_keys_of_cross_attention_are_the_other_tokens() -> None:
    model = made("t5")
    ids = torch.randint(3, 50, (1, 6), generator=torch.Generator().manual_seed(1))
    found = tokens_seen(model, [{"input_ids": ids, "decoder_input_ids": ids[:, :4]}])
    across = [one for one in found.values() if "EncDecAttention" in one.name]
    assert across
    assert {(len(one.tokens), len(one.keys)) for one in across} == {(4, 6)}
