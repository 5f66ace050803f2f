"""The plan that an audit advises is that of the model's own shape, and the command line takes it."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from tests.calls import answer
from tests.models.small import small_model
from torch import nn

from rankfall.models.advised_plan import key_value_heads, plan_command
from rankfall.models.heads.ranks import probe_heads
from rankfall.models.verdict.verdict import lower_rank

SHAPES: dict[str, tuple[str, dict[str, Any], str]] = {
    "gated": ("llama", {}, "--context 64 --heads 4 --hidden 48"),
    "shared": ("llama", {"num_key_value_heads": 2}, "--context 64 --heads 4 --kv-heads 2 --hidden 48"),
    "sized": ("llama", {"head_dim": 16}, "--context 64 --heads 4 --head-size 16 --hidden 48"),
    "fused": ("phi3", {}, "--context 64 --heads 4 --hidden 48"),
    "plain": ("bert", {}, "--context 64 --heads 4 --feed-forward plain --hidden 48"),
    "ambiguous": ("bert", {"intermediate_size": 32}, "--context 64 --heads 4"),
    "positions by another name": ("gpt2", {"n_inner": 80}, "--context 64 --heads 4 --feed-forward plain --hidden 80"),
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


@pytest.mark.parametrize("name", SHAPES)
def test_a_plan_has_the_shape_of_the_model(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    kind, changes, rest = SHAPES[name]
    network = small_model(kind, **changes)
    heads = probe_heads(network).records
    command = plan_command(network, heads, layers=3, tokens=20)
    assert command == f"rankfall plan --width 32 --layers 3 {rest} --no-time"
    usual = answer(capsys, *shlex.split(command)[1:])["candidates"][0]
    shape = (heads[0].heads, heads[0].head_dim, heads[0].value_dim, key_value_heads(heads), heads[0].structural_rank)
    assert tuple(usual[key] for key in ("heads", "rank", "value_rank", "kv_heads", "structural_rank")) == shape


def test_without_a_configuration_the_tokens_that_were_read_are_the_context() -> None:
    heads = probe_heads(small_model("llama")).records
    assert plan_command(nn.Linear(2, 2), heads, 3, 20) == (
        "rankfall plan --width 32 --layers 3 --context 20 --heads 4 --no-time"
    )
    assert plan_command(nn.Linear(2, 2), (), 3, 20) is None


class TwoTexts:
    """A configuration with two parts that read text."""

    max_position_embeddings = 40

    def get_text_config(self) -> object:
        raise ValueError("several")


def test_of_two_texts_the_whole_configuration_is_asked() -> None:
    network = nn.Linear(2, 2)
    network.config = TwoTexts()  # type: ignore[assignment]
    heads = probe_heads(small_model("llama")).records
    assert (
        plan_command(network, heads, 3, 20) == "rankfall plan --width 32 --layers 3 --context 40 --heads 4 --no-time"
    )


@pytest.mark.parametrize("shared", [2, 4])
def test_lower_ranks_save_cache_where_heads_share_keys(shared: int, capsys: pytest.CaptureFixture[str]) -> None:
    """What the advice says of the plan that it names."""
    network = small_model("llama", hidden_size=64, num_key_value_heads=shared)
    command = plan_command(network, probe_heads(network).records, 3, 20)
    assert command is not None
    rows = answer(capsys, *shlex.split(command)[1:])["candidates"]
    lower = [row for row in rows if row["rank"] < rows[0]["rank"]]
    assert lower
    assert all(row["heads"] > rows[0]["heads"] for row in lower)
    assert {row["kv_cache_bytes"] < rows[0]["kv_cache_bytes"] for row in lower} == {shared == 2}
    assert lower_rank(command).endswith(", with a smaller cache" if shared == 2 else "at equal cost")
