"""Counts of a plan against the library's own modules: weights, FLOPs and caches, built without memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from rankfall.planning.costs import FEED_FORWARD, StackShape
from rankfall.theory.head_bounds import HeadClass, mse_floor, structural_rank

N, WINDOW = 16, 5
SIZES = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 6, "num_attention_heads": 4}
SIZES |= {"intermediate_size": 48, "max_position_embeddings": 64}
PLAIN = StackShape(32, 6, N, 4, 8, 4, 8, 48, gated=True)
EXPERTS = {"n_routed_experts": 2, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 1, "first_k_dense_replace": 6}
MLA = {"num_key_value_heads": 4, "kv_lora_rank": 12, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 6}
TURNS = ["sliding_attention", "full_attention"] * 3
SPARSE = {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 50, "activation_sparsity_pattern": None}
LATENT = replace(PLAIN, rank=12, value_rank=6, kv_latent=12, rope_dims=4)
CASES: dict[str, tuple[str, dict[str, Any], StackShape]] = {
    "every head its own keys": ("llama", {}, PLAIN),
    "grouped keys": (
        "llama",
        {"num_key_value_heads": 2, "head_dim": 12},
        replace(PLAIN, rank=12, value_rank=12, kv_heads=2),
    ),
    "one key for all": ("llama", {"num_key_value_heads": 1}, replace(PLAIN, kv_heads=1)),
    "latent": ("deepseek_v3", {**MLA, **EXPERTS, "q_lora_rank": 10}, replace(LATENT, q_latent=10)),
    "latent of keys alone": ("deepseek_v2", {**MLA, **EXPERTS, "q_lora_rank": None}, LATENT),
    "window": (
        "gemma3_text",
        {"num_key_value_heads": 1, "head_dim": 8, "sliding_window": WINDOW},
        replace(PLAIN, kv_heads=1, window=WINDOW, windowed=5),
    ),
    "keys of earlier layers": (
        "gemma3n_text",
        {
            "num_key_value_heads": 2,
            "head_dim": 8,
            "sliding_window": WINDOW,
            "num_kv_shared_layers": 2,
            "layer_types": TURNS,
        }
        | SPARSE,
        replace(PLAIN, kv_heads=2, window=WINDOW, windowed=3, shared=2, shared_windowed=1),
    ),
}


@dataclass(frozen=True)
class Counted:
    """What the modules of one model hold and do on N tokens: attention and feed-forward apart."""

    attention_weights: int
    feed_forward_weights: int
    attention_flops: int
    feed_forward_flops: int
    cached: list[tuple[int, int]]
    """Tokens and numbers per token of each layer's cache."""


def counted(model_type: str, settings: dict[str, Any]) -> Counted:
    from transformers import AutoConfig, AutoModel, DynamicCache

    config = AutoConfig.for_model(model_type, **{**SIZES, **settings})
    with torch.device("meta"):
        model = AutoModel.from_config(config, attn_implementation="eager").eval()
        cache = DynamicCache(config=model.config)
        with torch.no_grad(), FlopCounterMode(display=False, depth=6) as counter:
            model(input_ids=torch.zeros(1, N, dtype=torch.long), past_key_values=cache, use_cache=True)
    flops = {name: sum(kinds.values()) for name, kinds in counter.get_flop_counts().items()}

    def weights(part: str) -> int:
        return sum(one.numel() for name, one in model.named_parameters() if f".{part}." in name and one.ndim == 2)

    def operations(part: str) -> int:
        return sum(count for name, count in flops.items() if name.endswith(f".{part}") and ".layers." in name)

    kept = [(one.keys, one.values) for one in cache.layers if getattr(one, "keys", None) is not None]
    return Counted(
        weights("self_attn"),
        weights("mlp"),
        operations("self_attn"),
        operations("mlp"),
        [(keys.shape[2], (keys[:, :, 0].numel() + values[:, :, 0].numel())) for keys, values in kept],
    )


@pytest.mark.parametrize("case", CASES)
def test_counts_are_those_of_the_library_modules(case: str) -> None:
    model_type, settings, shape = CASES[case]
    found = counted(model_type, settings)
    assert shape.attention_parameters == found.attention_weights
    assert shape.parameters - shape.attention_parameters == found.feed_forward_weights
    # Eager attention forms the scores of all tokens, windows or not.
    whole = replace(shape, window=0, windowed=0, shared_windowed=0)
    assert whole.forward_flops * N == found.attention_flops + found.feed_forward_flops
    # The library lets go of the oldest token of a full window at the end of a step; while it attends it has it.
    held = [min(N, WINDOW) if tokens == WINDOW - 1 else tokens for tokens, _ in found.cached]
    assert shape.tokens_cached == sum(held)
    assert {numbers for _, numbers in found.cached} == {shape.cached_per_token}
    assert shape.kv_cache_bytes(2) == 2 * sum(held) * shape.cached_per_token


def test_decoding_from_a_latent_compares_in_the_latent() -> None:
    """One layer written out with queries brought into the latent gives the expanded layer's output, at our FLOPs."""
    shape = replace(CASES["latent"][2], layers=1, hidden=0, gated=False)
    d, h, r, v, c, p = 32, 4, 12, 6, 12, 4
    generator = torch.Generator().manual_seed(0)
    weights = {
        name: torch.randn(size, generator=generator, dtype=torch.float64) * size[0] ** -0.5
        for name, size in shape.maps.items()
    }
    past = torch.randn(N, d, generator=generator, dtype=torch.float64)
    latent, rope = (past @ weights["latent"]).split([c, p], dim=-1)
    up_k, up_v = weights["k"].reshape(c, h, r - p), weights["v"].reshape(c, h, v)
    token = past[-1:]
    with FlopCounterMode(display=False) as counter:
        query = (token @ weights["q_latent"] @ weights["q"]).reshape(h, 1, r)
        _ = token @ weights["latent"]
        own, turned = query.split([r - p, p], dim=-1)
        inside = own @ up_k.permute(1, 2, 0)
        scores = torch.cat([inside, turned], dim=-1) @ torch.cat([latent, rope], dim=-1).mT.expand(h, -1, -1)
        mixed = scores.softmax(dim=-1) @ latent.expand(h, -1, -1)
        out = (mixed @ up_v.permute(1, 0, 2)).reshape(1, h * v) @ weights["o"]
    assert counter.get_total_flops() == shape.decoding_flops
    keys = torch.cat([(latent @ weights["k"]).reshape(N, h, r - p), rope[:, None].expand(-1, h, -1)], dim=-1)
    attention = torch.einsum("hr,nhr->hn", query[:, 0], keys).softmax(dim=-1)
    expanded = torch.einsum("hn,nhv->hv", attention, (latent @ weights["v"]).reshape(N, h, v)).reshape(1, -1)
    assert torch.allclose(out, expanded @ weights["o"], atol=1e-12)


def test_decoding_flops_of_a_latent_do_not_depend_on_rank_per_key() -> None:
    """Only the weights grow with the rank: what is compared for each cached token is the latent."""
    one = CASES["latent"][2]
    more = replace(one, rank=24)
    assert more.decoding_flops - one.decoding_flops == 2 * (more.parameters - one.parameters)
    assert more.kv_cache_bytes() == one.kv_cache_bytes()


@pytest.mark.parametrize(
    ("head_size", "latents", "rank"),
    [
        (192, {"kv_latent": 512, "rope_dims": 64, "q_latent": 1536}, 192),
        (192, {"kv_latent": 96, "rope_dims": 64}, 160),
        (192, {"kv_latent": 96}, 96),
        (192, {"q_latent": 48, "kv_latent": 512, "rope_dims": 64}, 48),
        (192, {}, 192),
        (8192, {}, 4096),
    ],
)
def test_structural_rank(head_size: int, latents: dict[str, int], rank: int) -> None:
    assert structural_rank(head_size, 4096, **latents) == rank
    # It is reached: random maps through such latents have this rank, at a scale of one in sixteen.
    small = {name: size // 16 for name, size in latents.items()}
    width, size, p = 256, head_size // 16, small.get("rope_dims", 0)

    def through(latent: int, columns: int) -> torch.Tensor:
        inner = torch.randn(width, latent or columns, dtype=torch.float64)
        return inner @ torch.randn(latent, columns, dtype=torch.float64) if latent else inner

    torch.manual_seed(0)
    query = through(small.get("q_latent", 0), size)
    key = torch.cat([through(small.get("kv_latent", 0), size - p), through(0, p)], dim=1)
    assert torch.linalg.matrix_rank(query @ key.T) == rank // 16


def test_the_bound_of_a_plan_is_that_of_the_structural_rank(capsys: pytest.CaptureFixture[str]) -> None:
    import rankfall

    found = rankfall.plan(64, heads=4, kv_latent=6, rope_dims=2, time=False)
    usual = found.candidates[0]
    assert (usual["rank"], usual["structural_rank"]) == (16, 8)
    assert usual["mse_lower_bound"] == mse_floor(HeadClass(64, 8), 4).mse
    assert found.directions == 8
    assert "keys and values from a latent of 6 and 2 rotary dimensions beside it" in found.keys_and_values
    assert found.record()["keys_and_values"] == found.keys_and_values


def test_shared_layers_have_the_window_in_proportion() -> None:
    import rankfall

    asked = {"layers": 35, "heads": 8, "head_size": 16, "window": 32, "windowed": 28, "shared": 15, "time": False}
    found = rankfall.plan(64, **asked)
    assert "15 layers use keys and values of an earlier layer, 12 of them with the window" in found.keys_and_values
    assert found.candidates[0]["kv_cache_bytes"] == (4 * 1024 + 16 * 32) * 8 * 32 * 2
    assert set(FEED_FORWARD) <= set(PLAIN.maps)
