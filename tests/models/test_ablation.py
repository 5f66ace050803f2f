"""Blocks are told apart by verification, replays equal the model, and ablations show what the papers prove."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import transformers
from tests.sampling import normal
from torch import Tensor

from rankfall.masks import Causal, Complete, Window
from rankfall.measures.base import measure
from rankfall.models.ablation import ablation as ablation_room
from rankfall.models.ablation import block as ablated_block
from rankfall.models.ablation import rows as ablation_rows
from rankfall.models.ablation.ablation import (
    ALL_VARIANTS,
    ATTENTION,
    FULL,
    WITH_BOTH,
    WITH_NORM,
    Ablation,
    ablate,
    whole_under,
)
from rankfall.models.ablation.block import AblatedBlock, block_around, changed
from rankfall.models.ablation.rows import QUICK
from rankfall.models.depth.capture import capture
from rankfall.models.heads.seen import SeenWatch, tokens_seen
from rankfall.models.inputs.single_texts import equal_texts, single_texts
from rankfall.models.recording.assembly import _scale
from rankfall.models.recording.blocks import choose_stack
from rankfall.models.recording.replay import traced
from rankfall.models.recording.torch_calls import KeepFloat64

SMALL = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
SMALL |= {"vocab_size": 50}
GROUPED = {**SMALL, "num_key_value_heads": 2, "head_dim": 8}
SPECIALS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
TINY_T5 = {"d_model": 32, "num_layers": 2, "num_heads": 4, "d_kv": 8, "d_ff": 48, "vocab_size": 50}

KINDS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "BertConfig": (SMALL, ("post",) * 3),
    "AlbertConfig": ({**SMALL, "embedding_size": 16}, ("post",) * 3),
    "LlamaConfig": (GROUPED, ("pre",) * 3),
    "GPT2Config": ({"n_embd": 32, "n_layer": 3, "n_head": 4, "vocab_size": 50}, ("pre",) * 3),
    "ViTConfig": ({**SMALL, "image_size": 16, "patch_size": 4}, ("pre",) * 3),
    "GraniteConfig": ({**GROUPED, "residual_multiplier": 0.22, **SPECIALS}, ("pre",) * 3),
    "Gemma2Config": (GROUPED, ("sandwich",) * 3),
    "Gemma3TextConfig": (GROUPED, ("sandwich",) * 3),
    "Olmo2Config": ({**GROUPED, **SPECIALS}, ("inner",) * 3),
    "GPTNeoXConfig": (SMALL, ("parallel",) * 3),
    "CohereConfig": ({**GROUPED, **SPECIALS}, ("parallel",) * 3),
    # The first layer of ModernBERT has no norm of its own.
    "ModernBertConfig": ({**SMALL, **SPECIALS}, ("bare", "pre", "pre")),
}


def build(config: str, arguments: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(getattr(transformers, config)(**arguments)).eval()
    with torch.no_grad():
        # Fresh weights are so small that attention hardly shows in the stream.
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4)
    return model


def inputs_of(model: Any, batch: int = 1) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    if model.main_input_name == "pixel_values":
        return {"pixel_values": torch.randn(batch, 3, 16, 16, generator=generator)}
    return {"input_ids": torch.randint(3, 50, (batch, 12), generator=generator)}


def ended(ablation: Ablation, **wanted: Any) -> float:
    deepest = max(row.layer for row in ablation.rows)
    found = [
        row
        for row in ablation.rows
        if row.layer == deepest and all(getattr(row, key) == wanted[key] for key in wanted)
    ]
    assert len(found) == 1
    value: float = found[0].relative_mu
    return value


@pytest.mark.parametrize("config", KINDS)
def test_blocks_are_recognised_and_their_replay_verified(config: str) -> None:
    arguments, kinds = KINDS[config]
    model = build(config, arguments)
    ablation = ablate(model, inputs_of(model))
    assert ablation.refusal is None
    assert ablation.blocks == kinds
    assert ablation.verified is not None
    assert ablation.verified < 1e-5
    assert len(ablation.rows) == (4 * 2 + 1) * 4
    assert not any(math.isnan(row.relative_mu) for row in ablation.rows)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("config", ["LlamaConfig", "GPT2Config", "BertConfig", "GraniteConfig", "GPTNeoXConfig"])
def test_models_in_half_precision_are_taken_apart_like_their_float32_twins(config: str, dtype: torch.dtype) -> None:
    arguments, kinds = KINDS[config]
    wide, narrow = (
        ablate(build(config, arguments).to(one), inputs_of_kind(config)) for one in (torch.float32, dtype)
    )
    assert narrow.refusal is None
    assert narrow.blocks == kinds
    check = narrow.check
    assert check is not None
    rounding = torch.finfo(dtype).eps
    assert (check.dtype, check.own_tolerance) == (str(dtype).removeprefix("torch."), rounding)
    assert check.tolerance == 4 * rounding
    # In its own arithmetic a block is replayed to the bit, or to one rounding where its scale was measured.
    assert check.own_error is not None
    assert check.own_error <= (rounding if config == "GraniteConfig" else 0.0)
    assert rounding / 100 < check.error < 2 * rounding
    for one, other in zip(wide.rows, narrow.rows, strict=True):
        assert (one.variant, one.scaling, one.layer) == (other.variant, other.scaling, other.layer)
        assert other.relative_mu == pytest.approx(one.relative_mu, abs=rounding / 2)


def inputs_of_kind(config: str) -> dict[str, Tensor]:
    return inputs_of(build(config, KINDS[config][0]))


def test_a_wrong_replay_in_half_precision_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("LlamaConfig", GROUPED).bfloat16()
    copied = ablated_block.float64_copy

    def wrong(module: torch.nn.Module) -> torch.nn.Module:
        made = copied(module)
        if type(module).__name__ == "LlamaRMSNorm":
            made.weight.data.mul_(1.2)
        return made

    monkeypatch.setattr(ablated_block, "float64_copy", wrong)
    assert "as a pre-norm block in float64" in (ablate(model, inputs_of(model)).refusal or "")
    monkeypatch.undo()
    own = ablated_block.alone
    monkeypatch.setattr(ablated_block, "alone", lambda module: wrong(module).bfloat16())
    assert own is not ablated_block.alone
    assert "as a pre-norm block in bfloat16" in (ablate(model, inputs_of(model)).refusal or "")


def test_a_sum_in_half_precision_is_told_from_a_sum_with_something_more() -> None:
    generator = torch.Generator().manual_seed(0)
    stream, branch, other = (torch.randn(1, 9, 64, generator=generator).bfloat16() for _ in range(3))
    # One token outweighs all others: beside it, what the others lack is small.
    stream[0, 0] *= 1000
    total = (stream.double() + 0.22 * branch.double()).bfloat16()
    assert _scale(total, stream, branch) == pytest.approx(0.22, rel=1e-2)
    assert _scale((total + 0.1 * other), stream, branch) is None


def test_many_tokens_attend_in_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    for config in ("LlamaConfig", "BertConfig"):
        model = build(config, KINDS[config][0])
        together = ablate(model, inputs_of(model, 2), masks=(None, Window(2)))
        monkeypatch.setattr(ablated_block, "SCORES_AT_ONCE", 2 * 4 * 12 * 5)
        in_rows = ablate(model, inputs_of(model, 2), masks=(None, Window(2)))
        monkeypatch.undo()
        for one, other in zip(together.rows, in_rows.rows, strict=True):
            assert other.relative_mu == pytest.approx(one.relative_mu, rel=1e-9, abs=1e-13)


def test_texts_of_one_length_run_together_as_far_as_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("LlamaConfig", GROUPED)
    texts = [{"input_ids": torch.zeros(1, n, dtype=torch.long)} for n in (5, 7, 5, 5)]
    assert [numbers for numbers, _ in equal_texts(texts, 2)] == [[0, 2], [3], [1]]
    assert [group["input_ids"].shape for _, group in equal_texts(texts, 9)] == [(3, 5), (1, 7)]
    together = ablate(model, inputs_of(model, 3))
    monkeypatch.setattr(ablation_room, "STATE_NUMBERS", 1)
    alone = ablate(model, inputs_of(model, 3))
    assert [row.text for row in together.rows] == [row.text for row in alone.rows]
    assert [row.mu for row in together.rows] == pytest.approx([row.mu for row in alone.rows], rel=1e-9)


def test_only_what_is_asked_for_is_measured_large_spectra_at_a_few_layers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = build("LlamaConfig", {**GROUPED, "num_hidden_layers": 8})
    quick = ablate(model, inputs_of(model), measures=QUICK)
    assert all(row.rank is None and row.min_singular_value is None for row in quick.rows)
    assert all("rank" not in row.record() and "energy_rank" in row.record() for row in quick.rows)
    assert all(row.energy_rank is not None for row in quick.rows)
    monkeypatch.setattr(ablation_rows, "EVERY_LAYER_BELOW", 8)
    large = ablate(model, inputs_of(model), measures=QUICK)
    assert {row.layer for row in large.rows if row.energy_rank is not None} == {0, 4, 8}
    assert all(row.relative_mu is not None and row.mean_abs_cosine is not None for row in large.rows)


def test_nothing_of_the_pass_but_tokens_and_arguments_waits_for_its_turn() -> None:
    model = build("LlamaConfig", GROUPED)
    steps, _ = ablation_room._steps(model, inputs_of(model), choose_stack(model))
    assert [step.block.kind for step in steps] == ["pre"] * 3
    for step in steps:
        assert step.site.before == step.site.after == ()
        assert step.site.call.weights is None
        assert step.site.call.query is None
        assert step.site.projection is not None
        assert step.site.projection.output.numel() == 0


def test_full_model_is_what_the_model_says() -> None:
    model = build("LlamaConfig", GROUPED)
    inputs = inputs_of(model)
    rows = [row for row in ablate(model, inputs).rows if row.variant == FULL]
    with torch.no_grad():
        states = model(**inputs, output_hidden_states=True).hidden_states
    for row, state in zip(rows[:3], states[:3], strict=True):
        centred = state[0].double() - state[0].double().mean(0)
        assert row.mu == pytest.approx(float(torch.linalg.matrix_norm(centred)), rel=1e-6)


@pytest.mark.parametrize(("config", "arguments"), [("BertConfig", SMALL), ("LlamaConfig", GROUPED)])
def test_replay_goes_below_float32(config: str, arguments: dict[str, Any]) -> None:
    model = build(config, {**arguments, "num_hidden_layers": 12})
    ablation = ablate(model, inputs_of(model), variants=(ATTENTION,), masks=(Complete(),))
    # Llama's own code casts to float32 inside, which would leave a floor near 1e-7.
    assert ended(ablation, variant="attention", scaling="matched") < 1e-12


def test_casts_to_float32_are_kept_at_float64() -> None:
    model = build("LlamaConfig", GROUPED)
    norm = model.norm.double()
    tokens = normal(0, 5, 32)
    exact = tokens / (tokens.square().mean(-1, keepdim=True) + norm.variance_epsilon).sqrt()
    with torch.no_grad():
        assert float((norm(tokens) - exact).abs().max()) > 1e-9
        with KeepFloat64():
            torch.testing.assert_close(norm(tokens), exact, rtol=1e-14, atol=1e-14)


def test_residual_and_norm_hold_the_rank_up() -> None:
    model = build("BertConfig", SMALL)
    ablation = ablate(model, inputs_of(model))
    assert ended(ablation, variant="attention", scaling="raw") < 1e-9
    assert ended(ablation, variant="attention + norm + residual", scaling="raw") > 0.1


@pytest.mark.parametrize("config", ["LlamaConfig", "BertConfig"])
def test_matched_tokens_are_as_large_as_what_the_real_layer_got(config: str) -> None:
    model = build(config, GROUPED if config == "LlamaConfig" else SMALL)
    site = traced(model, inputs_of(model)).sites[1]
    step = AblatedBlock(site, block_around(site))
    tokens = normal(0, 1, 12, 32)
    with torch.no_grad():
        states = model(**inputs_of(model), output_hidden_states=True).hidden_states
        entering = states[1].double()
        normed = model.layers[1].input_layernorm(states[1]).double() if config == "LlamaConfig" else entering
    for variant in ALL_VARIANTS:
        # With its norm in place the block takes the stream; without it, attention takes what the norm would give.
        real = entering if variant.norm else normed
        scaled = step.scaled(tokens, norm=variant.norm)
        assert float(scaled.norm()) == pytest.approx(float(real.norm()), rel=1e-6)
        torch.testing.assert_close(scaled / scaled.norm(), tokens / tokens.norm())
    assert (float(normed.norm()) == pytest.approx(float(entering.norm()), rel=1e-2)) == (config == "BertConfig")


def test_rows_are_typed_and_their_records_flat() -> None:
    model = build("BertConfig", SMALL)
    row = ablate(model, inputs_of(model), variants=(ATTENTION,), scalings=("raw",)).rows[0]
    assert (row.variant, row.scaling, row.temperature, row.mask, row.text, row.layer) == (
        "attention",
        "raw",
        1.0,
        None,
        0,
        0,
    )
    assert row.record()["relative_mu"] == row.relative_mu
    with pytest.raises(AttributeError):
        row.layer = 3  # type: ignore[misc]


def test_masks_and_temperatures_change_attention_and_nothing_else() -> None:
    model = build("LlamaConfig", GROUPED)
    inputs = inputs_of(model)
    plain = ablate(model, inputs, variants=(WITH_BOTH,), scalings=("raw",))
    same = ablate(model, inputs, variants=(WITH_BOTH,), scalings=("raw",), masks=(Causal(),))
    # Llama's own mask is the causal one.
    assert ended(same, variant=WITH_BOTH.name) == pytest.approx(ended(plain, variant=WITH_BOTH.name), rel=1e-12)
    several = ablate(
        model,
        inputs,
        variants=(WITH_NORM,),
        scalings=("raw",),
        temperatures=(1 / 64, 1.0, 64.0),
        masks=(Complete(), Window(1)),
    )
    local = ended(several, mask="window:1", temperature=1.0)
    spread = ended(several, mask="complete", temperature=1.0)
    assert local > spread
    assert ended(several, mask="complete", temperature=1 / 64) > ended(several, mask="complete", temperature=64.0)


@pytest.mark.parametrize(
    ("config", "arguments", "own"), [("BertConfig", SMALL, "complete"), ("LlamaConfig", GROUPED, "causal")]
)
def test_the_whole_model_under_its_own_mask_is_itself(config: str, arguments: dict[str, Any], own: str) -> None:
    model = build(config, arguments)
    inputs = {"input_ids": torch.cat([inputs_of(model)["input_ids"], inputs_of(model)["input_ids"].flip(1)])}
    rows = whole_under(model, inputs, (Complete(), Causal()))
    traced_rows = [row for row in ablate(model, inputs, variants=()).rows if row.variant == FULL]
    same, other = ([row for row in rows if (row.mask == own) is mine] for mine in (True, False))
    assert [row.relative_mu for row in same] == pytest.approx([row.relative_mu for row in traced_rows], rel=1e-5)
    assert same[-1].relative_mu != pytest.approx(other[-1].relative_mu, rel=1e-3)
    assert {row.text for row in rows} == {0, 1}


def test_padding_is_cut_off() -> None:
    model = build("BertConfig", SMALL)
    ids = inputs_of(model)["input_ids"]
    padded = torch.cat([ids[:, :8], torch.zeros(1, 4, dtype=torch.long)], dim=1)
    batch = {
        "input_ids": torch.cat([ids, padded]),
        "attention_mask": torch.tensor([[1] * 12, [1] * 8 + [0] * 4]),
    }
    lengths = [text["input_ids"].shape[1] for text in single_texts(batch)]
    assert lengths == [12, 8]
    together = [row.mu for row in ablate(model, batch).rows if row.text == 1]
    alone = [row.mu for row in ablate(model, {"input_ids": ids[:, :8]}).rows]
    assert together == pytest.approx(alone, rel=1e-6)


@pytest.mark.parametrize(
    ("config", "arguments", "reason"),
    [
        (
            "SwinConfig",
            {"embed_dim": 24, "depths": [1], "num_heads": [2], "image_size": 16, "window_size": 2},
            "no sum of tokens",
        ),
        ("MambaConfig", {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 50}, "every attention call"),
    ],
)
def test_what_cannot_be_replayed_is_refused_with_a_reason(
    config: str, arguments: dict[str, Any], reason: str
) -> None:
    model = build(config, arguments)
    ablation = ablate(model, inputs_of(model))
    assert ablation.rows == ()
    assert reason in (ablation.refusal or "")


@pytest.mark.parametrize("half", ["encoder", "decoder"])
def test_one_half_of_an_encoder_decoder_is_taken_apart(half: str) -> None:
    model = build("T5Config", TINY_T5)
    ids = inputs_of(model)["input_ids"]
    inputs = {"input_ids": ids, "decoder_input_ids": ids[:, :7]}
    stack = choose_stack(model, half)
    ablation = ablate(model, inputs, stack=stack)
    assert ablation.refusal is None
    assert ablation.blocks == ("pre", "pre")
    assert ablation.verified is not None
    assert ablation.verified < 1e-5
    streams: list[Tensor] = []
    capture(model, inputs, lambda place, tokens: streams.append(tokens.clone()), stack=stack)
    full = [row.effective_rank for row in ablation.rows if row.variant == FULL]
    expected = [float(measure(one[0], ("effective_rank",))["effective_rank"]) for one in streams[:3]]
    assert full == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("config", "arguments", "kind"),
    [
        ("BloomConfig", {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": 50}, "pre"),
        ("MptConfig", {"d_model": 32, "n_heads": 4, "n_layers": 2, "vocab_size": 50}, "pre"),
        # Adds what attention gave to what the feed-forward gave in place.
        ("FalconConfig", {**SMALL, "num_hidden_layers": 2}, "parallel"),
        # Lays all tokens of a batch in one row before the feed-forward.
        ("OPTConfig", {**SMALL, "num_hidden_layers": 2, "word_embed_proj_dim": 32, "ffn_dim": 48}, "pre"),
    ],
)
def test_models_that_bypass_add_in_place_or_flatten(config: str, arguments: dict[str, Any], kind: str) -> None:
    model = build(config, arguments)
    ablation = ablate(model, inputs_of(model))
    assert ablation.refusal is None
    assert ablation.blocks == (kind, kind)
    assert ablation.verified is not None
    assert ablation.verified < 1e-5


def test_another_mask_needs_the_interface() -> None:
    model = build("BloomConfig", {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": 50})
    ablation = ablate(model, inputs_of(model), masks=(Complete(),))
    assert "an attention call when the module runs alone" in (ablation.refusal or "")


def test_an_encoder_alone_can_be_ablated() -> None:
    model = build("T5Config", TINY_T5)
    ablation = ablate(model.encoder, inputs_of(model))
    assert ablation.blocks == ("pre", "pre")


def test_a_mask_that_holds_position_biases_is_not_replaced() -> None:
    tokens = torch.zeros(1, 1, 3, 2, dtype=torch.float64)
    biases = torch.tensor([[0.0, 0.5, -0.5]] * 3, dtype=torch.float64)[None, None]
    with pytest.raises(ValueError, match="position biases in the model's mask"):
        changed(1.0, Causal())(lambda *given: (tokens, None), torch.nn.Identity(), tokens, tokens, tokens, biases)


def test_a_wrong_replay_is_refused() -> None:
    model = build("BertConfig", SMALL)
    # A hook that changes the result only while the whole model runs: the replay cannot know it.
    model.encoder.layer[1].attention.output.dropout.register_forward_hook(
        lambda module, args, out: out * args[0].sin()
    )
    ablation = ablate(model, inputs_of(model))
    assert "no sum of tokens" in (ablation.refusal or "")


def test_a_trace_leaves_no_hooks() -> None:
    model = build("LlamaConfig", GROUPED)
    traced(model, inputs_of(model))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_an_audit_reads_the_energy_rank_that_decides_and_no_other() -> None:
    model = build("LlamaConfig", GROUPED)
    audited = ablate(model, inputs_of(model), measures=ablation_rows.AUDITED)
    assert all("energy_rank" not in row.record() and row.unit_energy_rank is not None for row in audited.rows)
    whole = ablate(model, inputs_of(model))
    for ours, theirs in zip(audited.rows, whole.rows, strict=True):
        assert ours.unit_energy_rank == theirs.unit_energy_rank
        assert ours.mu == theirs.mu


def test_what_enters_the_first_block_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("LlamaConfig", GROUPED)
    measured: list[int] = []

    own = ablation_rows._values

    def watched(tokens: Tensor, names: Any) -> dict[str, Tensor]:
        measured.append(len(tokens))
        return own(tokens, names)

    monkeypatch.setattr(ablation_rows, "_values", watched)
    rows = ablate(model, inputs_of(model), measures=("mu",)).rows
    # Eight settings at three layers after the first, one before; then the full model at four.
    assert sum(measured) == len({row.text for row in rows}) * (3 * 8 + 1 + 4)
    first = {row.mu for row in rows if row.layer == 0 and row.text == 0}
    assert len(first) == 1


@pytest.mark.parametrize("size", [1.0, 1e-180])
def test_cosines_come_from_the_scaled_tokens(size: float) -> None:
    """To rounding those of the tokens themselves, also of tokens that are too short to be scaled."""
    tokens = size * normal(0, 3, 6, 8)
    found = ablation_rows._values(tokens, ablation_rows.AUDITED)
    for name, value in measure(tokens, ("mu", "relative_mu", "mean_abs_cosine")).items():
        assert torch.allclose(found[name], value, rtol=1e-14, atol=0)


def test_what_is_parked_comes_back_for_as_long_as_the_block_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("LlamaConfig", GROUPED)
    site = traced(model, inputs_of(model)).sites[1]
    step = AblatedBlock(site, block_around(site)).parked()
    parked = step.site, step.block
    back: list[Tensor] = []

    def brought(self: AblatedBlock, tensor: Tensor) -> Tensor:
        back.append(tensor)
        return tensor.clone()

    monkeypatch.setattr(AblatedBlock, "_back", brought)
    with step:
        assert step.block.stream is not parked[1].stream
        once = len(back)
        step.verify()
        step.scaled(step.block.stream.double(), norm=False)
        assert len(back) == once, "nothing is brought twice"
    assert step.site is parked[0]
    assert step.block is parked[1]


@pytest.mark.parametrize(
    ("changes", "seen"),
    [
        ({}, True),
        ({"use_cache": False}, True),
        ({"attention_mask": torch.ones(2, 9, dtype=torch.long)}, True),
        ({"attention_mask": torch.tensor([[1] * 9, [1] * 6 + [0] * 3])}, False),
        ({"logits_to_keep": 0}, False),
    ],
)
def test_others_see_the_pass_where_it_is_that_of_the_inputs(changes: dict[str, Any], seen: bool) -> None:
    model = build("LlamaConfig", GROUPED)
    inputs = {"input_ids": torch.randint(3, 30, (2, 9), generator=torch.Generator().manual_seed(0)), **changes}
    watch = SeenWatch([None, None])
    assert ablate(model, inputs, measures=("mu",), also=watch).refusal is None
    assert watch.passes == int(seen)
    alone = tokens_seen(model, [{"input_ids": inputs["input_ids"]}], [None, None])
    for module, found in watch.found().items():
        assert torch.equal(found.tokens, alone[module].tokens)
    assert len(watch.found()) == (len(alone) if seen else 0)
