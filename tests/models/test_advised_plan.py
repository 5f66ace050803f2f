"""The plan that an audit advises is that of one stack's own shape, and the command line takes it."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.calls import answer
from tests.models.small import small_model
from torch import nn
from transformers import BartConfig, BartModel, CLIPConfig, CLIPModel

from rankfall.models.audit import audit
from rankfall.models.heads.ranks import probe_heads
from rankfall.models.heads.record import HeadRecord
from rankfall.models.recording.blocks import BlockStack, find_stacks
from rankfall.models.verdict.advised_plan import AdvisedPlan, advised_plan, key_value_heads
from rankfall.models.verdict.verdict import lower_rank

SHAPES: dict[str, tuple[str, dict[str, Any], str]] = {
    "gated": ("llama", {}, "--context 64 --heads 4 --hidden 48"),
    "shared": ("llama", {"num_key_value_heads": 2}, "--context 64 --heads 4 --kv-heads 2 --hidden 48"),
    "sized": ("llama", {"head_dim": 16}, "--context 64 --heads 4 --head-size 16 --hidden 48"),
    "fused": ("phi3", {}, "--context 64 --heads 4 --hidden 48"),
    "plain": ("bert", {}, "--context 64 --heads 4 --feed-forward plain --hidden 48"),
    "ambiguous": ("bert", {"intermediate_size": 32}, "--context 64 --heads 4"),
    "positions by another name": ("gpt2", {"n_inner": 80}, "--context 64 --heads 4 --feed-forward plain --hidden 80"),
    "units that are not named": ("gpt2", {}, "--context 64 --heads 4 --feed-forward plain --hidden 128"),
    "one block for all layers": ("albert", {}, "--context 64 --heads 4 --feed-forward plain --hidden 48"),
    "experts": ("mixtral", {"num_local_experts": 4, "num_key_value_heads": 4}, "--context 64 --heads 4"),
    "latent": (
        "deepseek_v3",
        {
            "q_lora_rank": 12,
            "kv_lora_rank": 10,
            "qk_rope_head_dim": 4,
            "qk_nope_head_dim": 8,
            "v_head_dim": 6,
            "num_key_value_heads": 4,
            "first_k_dense_replace": 3,
        },
        "--context 64 --heads 4 --head-size 12 --value-rank 6 --kv-latent 10 --rope-dims 4 --q-latent 12 --hidden 48",
    ),
}
SHAPE = ("heads", "rank", "value_rank", "kv_heads", "structural_rank")


def shape_of(heads: list[HeadRecord]) -> tuple[int, ...]:
    first = heads[0]
    return first.heads, first.head_dim, first.value_dim, key_value_heads(heads), first.structural_rank


def only_stack(network: nn.Module) -> BlockStack:
    (stack,) = find_stacks(network)
    return stack


@pytest.mark.parametrize("name", SHAPES)
def test_a_plan_has_the_shape_of_the_model(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    kind, changes, rest = SHAPES[name]
    network = small_model(kind, **changes)
    heads = probe_heads(network).records
    plan = advised_plan(network, heads, only_stack(network), layers=3, tokens=20)
    assert plan is not None
    assert plan.told == f"`rankfall plan --width 32 --layers 3 {rest} --no-time`"
    usual = answer(capsys, *shlex.split(plan.command)[1:])["candidates"][0]
    assert tuple(usual[key] for key in SHAPE) == shape_of(list(heads))


def test_without_a_configuration_the_tokens_that_were_read_are_the_context() -> None:
    network = small_model("llama")
    heads, stack = probe_heads(network).records, only_stack(network)
    plan = advised_plan(nn.Linear(2, 2), heads, replace(stack, name=""), layers=3, tokens=20)
    assert plan is not None
    assert plan.command == "rankfall plan --width 32 --layers 3 --context 20 --heads 4 --hidden 48 --no-time"
    assert advised_plan(network, (), stack, layers=3, tokens=20) is None


def test_heads_that_no_plan_is_made_of_have_none() -> None:
    network = small_model("llama", head_dim=48)
    heads = probe_heads(network).records
    assert advised_plan(network, heads, only_stack(network), layers=3, tokens=20) is None


class TwoTexts:
    """A configuration with two parts that read text."""

    max_position_embeddings = 40

    def get_text_config(self) -> object:
        raise ValueError("several")


def test_of_two_texts_the_whole_configuration_is_asked() -> None:
    network = small_model("llama")
    heads, stack = probe_heads(network).records, only_stack(network)
    network.config = TwoTexts()  # type: ignore[assignment]
    plan = advised_plan(network, heads, stack, layers=3, tokens=20)
    assert plan is not None
    assert plan.command == "rankfall plan --width 32 --layers 3 --context 40 --heads 4 --hidden 48 --no-time"


@pytest.mark.parametrize(("caches", "shared"), [(True, 2), (True, 4), (False, 2)])
def test_what_is_said_of_lower_ranks_is_what_the_plan_lists(
    caches: bool, shared: int, capsys: pytest.CaptureFixture[str]
) -> None:
    network = small_model("llama", hidden_size=64, num_key_value_heads=shared)
    heads = probe_heads(network).records
    plan = advised_plan(network, heads, only_stack(network), layers=3, tokens=20, caches=caches)
    assert plan is not None
    rows = answer(capsys, *shlex.split(plan.command)[1:])["candidates"]
    lower = [row for row in rows if row["rank"] < rows[0]["rank"]]
    assert bool(lower) == plan.lower
    assert all(row["heads"] > rows[0]["heads"] for row in lower)
    assert {row["kv_cache_bytes"] < rows[0]["kv_cache_bytes"] for row in lower} == {shared == 2}
    assert plan.wider == any(row["rank"] > rows[0]["rank"] for row in rows)
    assert lower_rank(plan).endswith(", with a smaller cache" if shared == 2 and caches else "at equal cost")


def test_the_smallest_rank_has_no_lower_one(capsys: pytest.CaptureFixture[str]) -> None:
    network = small_model("bert", num_attention_heads=32)
    plan = advised_plan(network, probe_heads(network).records, only_stack(network), layers=3, tokens=20)
    assert plan is not None
    rows = answer(capsys, *shlex.split(plan.command)[1:])["candidates"]
    assert plan.lower == any(row["rank"] < 1 for row in rows) is False


def bart() -> nn.Module:
    """Two layers of four narrow heads encode, three of two wide heads decode, each with units of its own."""
    torch.manual_seed(0)
    config = BartConfig(
        vocab_size=120, d_model=64, encoder_ffn_dim=96, decoder_ffn_dim=160, max_position_embeddings=50,
        encoder_layers=2, encoder_attention_heads=4, decoder_layers=3, decoder_attention_heads=2,
    )  # fmt: skip
    return BartModel(config).eval()


def plans_of(network: nn.Module, inputs: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, AdvisedPlan]:
    """The plans that an audit makes, by the name of their stack."""
    made: dict[str, AdvisedPlan] = {}

    def kept(*args: Any, **options: Any) -> AdvisedPlan | None:
        plan = advised_plan(*args, **options)
        assert plan is not None
        made[plan.stack.name] = plan
        return plan

    monkeypatch.setattr("rankfall.models.stacks.advised_plan", kept)
    audit(network, inputs=inputs, controls=False, ablation=False)
    return made


def test_each_half_of_an_encoder_decoder_has_a_plan_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plans = plans_of(bart(), torch.randint(4, 60, (2, 20)), monkeypatch)
    assert {name: plan.told for name, plan in plans.items()} == {
        "encoder.layers": "`rankfall plan --width 64 --layers 2 --context 50 --heads 4 --feed-forward plain"
        " --hidden 96 --no-time` (the shape of encoder)",
        "decoder.layers": "`rankfall plan --width 64 --layers 3 --context 50 --heads 2 --feed-forward plain"
        " --hidden 160 --no-time` (the shape of decoder)",
    }
    for plan, rank in ((plans["encoder.layers"], 16), (plans["decoder.layers"], 32)):
        assert answer(capsys, *shlex.split(plan.command)[1:])["candidates"][0]["rank"] == rank


def test_a_tower_of_images_has_its_own_context_and_units(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 4}
    config = CLIPConfig(
        text_config={"hidden_size": 32, "intermediate_size": 48, "vocab_size": 99, "eos_token_id": 98, **sizes},
        vision_config={"hidden_size": 64, "intermediate_size": 80, "image_size": 40, "patch_size": 8, **sizes},
        projection_dim=16,
    )
    inputs = {"input_ids": torch.randint(4, 60, (2, 20)), "pixel_values": torch.randn(2, 3, 40, 40)}
    plans = plans_of(CLIPModel(config).eval(), inputs, monkeypatch)
    sizes_told = {name.split(".")[0]: plan.command.removeprefix("rankfall plan ") for name, plan in plans.items()}
    rest = "--heads 4 --feed-forward plain --hidden"
    assert sizes_told == {
        "text_model": f"--width 32 --layers 2 --context 77 {rest} 48 --no-time",
        "vision_model": f"--width 64 --layers 2 --context 26 {rest} 80 --no-time",
    }


@pytest.mark.parametrize("narrow", ["encoder", "decoder"])
def test_the_advice_of_a_half_is_about_its_own_heads(narrow: str) -> None:
    """One layer whose heads compare a single direction: only its own half is told, with its own plan."""
    network: Any = bart()
    query = getattr(network, narrow).layers[0].self_attn.q_proj
    with torch.no_grad():
        query.weight[:] = query.weight[:, :1] * torch.randn(1, 64)
    result = audit(network, inputs=torch.randint(4, 60, (2, 20)), controls=False, ablation=False)
    verdicts = {result.stack_label: result.verdict, **{one.label: one.verdict for one in result.other_stacks}}
    told = {label: verdict.advised or "" for label, verdict in verdicts.items()}
    other = "decoder" if narrow == "encoder" else "encoder"
    assert f"(the shape of {narrow}) lists more heads of lower rank" in told[narrow]
    assert "layers.0.self_attn" in told[narrow] or "(layer 1)" in told[narrow]
    assert "rankfall plan" not in told[other]
