"""Modules in plain PyTorch are measured whole: heads against their weights, masks, parts, depth against hooks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.models.plain import (
    GPT,
    HEADS,
    VOCABULARY,
    WIDTH,
    Columns,
    GPTBlock,
    Llama,
    WholeBlock,
    encoder_layer,
    scrambled,
    some_ids,
)
from tests.models.small import small_model
from torch import Tensor, nn

import rankfall
from rankfall.errors import RequestError
from rankfall.measures.base import measure
from rankfall.models.audit import audit
from rankfall.models.controls.reset import fresh_weights

RANK = WIDTH // HEADS
QUICK: dict[str, Any] = {"heads": False, "controls": False, "ablation": False}
MEASURED = ("effective_rank", "relative_mu", "mean_abs_cosine")


def encoder(batch_first: bool, norm_first: bool) -> nn.Module:
    # A norm at the end: without it nothing after the last pre-norm block shows what that gave.
    final = nn.LayerNorm(WIDTH) if norm_first else None
    return nn.TransformerEncoder(
        encoder_layer(batch_first, norm_first), 2, norm=final, enable_nested_tensor=batch_first and not norm_first
    )


def vectors(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, WIDTH, generator=torch.Generator().manual_seed(seed))


class Case:
    """A module, its inputs, its blocks, and the maps of each attention as (d, ...) matrices of one head each."""

    def __init__(
        self, model: nn.Module, inputs: Any, blocks: list[nn.Module], maps: Callable[[nn.Module], Any], mask: str
    ) -> None:
        self.model, self.inputs, self.blocks, self.maps, self.mask = scrambled(model), inputs, blocks, maps, mask


def packed(weight: Tensor, out: Tensor) -> tuple[Tensor, ...]:
    query, key, value = (one.unflatten(0, (HEADS, RANK)).mT.double() for one in weight.detach().chunk(3))
    return query, key, value, out.detach().T.unflatten(0, (HEADS, RANK)).double()


def of_gpt(block: Any) -> tuple[Tensor, ...]:
    return packed(block.attn.c_attn.weight, block.attn.c_proj.weight)


def of_llama(block: Any) -> tuple[Tensor, ...]:
    attention = block.attention
    query = attention.wq.weight.detach().unflatten(0, (HEADS, RANK)).mT.double()
    key, value = (
        one.weight.detach().unflatten(0, (HEADS // 2, RANK)).mT.double().repeat_interleave(2, dim=0)
        for one in (attention.wk, attention.wv)
    )
    return query, key, value, attention.wo.weight.detach().T.unflatten(0, (HEADS, RANK)).double()


def of_whole(block: Any) -> tuple[Tensor, ...]:
    return packed(block.qkv.weight, block.out.weight)


def of_torch(block: Any) -> tuple[Tensor, ...]:
    return packed(block.self_attn.in_proj_weight, block.self_attn.out_proj.weight)


def cases() -> dict[str, Case]:
    gpt, llama, experts = GPT(), Llama(), Llama(experts=True)
    whole = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), *(WholeBlock() for _ in range(2)))
    found = {
        "gpt": Case(gpt, some_ids(2, 9), [*gpt.transformer["h"]], of_gpt, "causal"),
        "llama": Case(llama, some_ids(2, 9), [*llama.layers.values()], of_llama, "causal"),
        "experts": Case(experts, some_ids(2, 9), [*experts.layers.values()], of_llama, "causal"),
        "whole block": Case(whole, some_ids(2, 9), [*whole[1:]], of_whole, "complete"),
    }
    for batch_first in (True, False):
        for norm_first in (True, False):
            model = encoder(batch_first, norm_first)
            shape = (2, 9) if batch_first else (9, 2)
            name = f"encoder, {'batch' if batch_first else 'sequence'} first, {'pre' if norm_first else 'post'}"
            found[name] = Case(model, vectors(*shape), [*model.layers], of_torch, "complete")
    for layout, shape in (("columns", (9, 2)), ("rows", (2, 9))):
        model = Columns(layout)
        found[f"ids in {layout}"] = Case(model, some_ids(*shape), [*model.blocks], of_torch, "complete")
    return found


CASES = cases()
SEQUENCE_FIRST = [name for name in CASES if "sequence" in name or "ids in" in name]


@pytest.fixture(scope="module", params=CASES)
def audited(request: pytest.FixtureRequest) -> tuple[str, Case, rankfall.AuditResult]:
    case = CASES[request.param]
    return request.param, case, rankfall.audit(case.model, inputs=case.inputs)


def test_nothing_is_missing(audited: tuple[str, Case, Any]) -> None:
    _, case, result = audited
    assert result.missing == {}
    assert result.model.layers == len(case.blocks)
    assert result.model.width == WIDTH
    assert result.text.texts == 2
    assert result.coverage.complete
    assert [str(one.mask) for one in result.masks] == [case.mask] * len(case.blocks)


def test_heads_are_those_of_the_weights(audited: tuple[str, Case, Any]) -> None:
    _, case, result = audited
    assert len(result.heads) == HEADS * len(case.blocks)
    for record in result.heads:
        query, key, value, out = (one[record.head] for one in case.maps(case.blocks[record.layer - 1]))
        for form, rank, effective, norm in (
            (query @ key.mT, record.qk_rank, record.qk_effective_rank, record.qk_norm),
            (value @ out, record.ov_rank, record.ov_effective_rank, record.ov_norm),
        ):
            values = torch.linalg.svdvals(form)
            shares = values / values.sum()
            assert rank == int((values > 1e-6 * values[0]).sum()) == RANK
            assert effective == pytest.approx(float(torch.special.entr(shares).sum().exp()), rel=1e-6)
            assert norm == pytest.approx(float(values.square().sum().sqrt()), rel=1e-6)
        assert max(record.self_check.values()) < 1e-5
        assert not record.normed_queries_and_keys
        assert record.rotary == (case.maps is of_llama)


def test_depth_is_what_hooks_see(audited: tuple[str, Case, Any]) -> None:
    name, case, result = audited
    taken: list[Tensor] = []
    with torch.no_grad():
        handles = [block.register_forward_hook(lambda _, args, out: taken.append(out)) for block in case.blocks]
        # The shortcut for whole layers is off only while we look.
        torch.backends.mha.set_fastpath_enabled(False)
        case.model(case.inputs)
        torch.backends.mha.set_fastpath_enabled(True)
    for handle in handles:
        handle.remove()
    final = {row.layer: row for row in result.depth if row.part == "before_final_norm"}
    rows = {row.layer: final.get(row.layer, row) for row in result.boundaries}
    for layer, tokens in enumerate(taken, 1):
        tokens = tokens.transpose(0, 1) if name in SEQUENCE_FIRST else tokens
        for text in range(2):
            found = rows[layer].per_text[text].values["raw"]
            for measured, value in measure(tokens[text], MEASURED).items():
                assert found[measured] == pytest.approx(float(value), rel=1e-4), (layer, text, measured)


def test_parts_are_replayed_and_end_where_the_model_does(audited: tuple[str, Case, Any]) -> None:
    _, _, result = audited
    variants = {row.variant for row in result.ablation}
    assert variants == {
        "attention",
        "attention + norm",
        "attention + residual",
        "attention + norm + residual",
        "full model",
    }
    final = {row.layer: row for row in result.depth if row.part == "before_final_norm"}
    depth = {row.layer: final.get(row.layer, row) for row in result.boundaries}
    for row in result.ablation:
        if row.variant == "full model" and row.layer > 0:
            expected = depth[row.layer].per_text[row.text].values["raw"]["relative_mu"]
            assert row.relative_mu == pytest.approx(expected, rel=1e-4)


def test_controls_are_measured(audited: tuple[str, Case, Any]) -> None:
    _, case, result = audited
    kind = "inputs" if case.inputs.is_floating_point() else "tokens"
    names = ["random_weights", f"shuffled_{kind}", f"random_{kind}"]
    assert [(one.name, one.draw) for one in result.controls] == [(name, draw) for draw in range(3) for name in names]
    own = {(row.layer, row.part): row.values for row in result.depth}
    for control in result.controls:
        assert control.reason is None
        same = [row.values == own[row.layer, row.part] for row in control.rows]
        assert not all(same)
        assert len(same) == len(own) or control.draw > 0


def test_final_norms_are_found() -> None:
    model = CASES["gpt"].model
    ends: list[Tensor] = []
    handle = model.transformer["ln_f"].register_forward_hook(lambda _, args, out: ends.append(out))  # type: ignore[index, union-attr]
    result = audit(model, inputs=CASES["gpt"].inputs, **QUICK)
    handle.remove()
    expected = [float(measure(one, ("effective_rank",))["effective_rank"]) for one in ends[-1]]
    found = [one.values["raw"]["effective_rank"] for one in result.boundaries[-1].per_text]
    assert found == pytest.approx(expected, rel=1e-6)


# What is written out by hand


def test_attention_written_out_says_what_cannot_be_had() -> None:
    result = audit(scrambled(GPT(manual=True)), inputs=some_ids(2, 9), controls=False)
    assert [str(one.mask) for one in result.masks] == ["causal"] * 3
    assert result.heads == ()
    assert "only at their softmax" in result.missing["attention"]
    assert "scaled_dot_product_attention" in result.missing["heads"]


class Unseen(nn.Module):
    """Attention that no function of torch's shows."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        scores = (x @ self.mix(x).mT).exp()
        return x + scores / scores.sum(-1, keepdim=True) @ x


def test_a_module_without_known_attention_is_measured_all_the_same() -> None:
    model = scrambled(
        nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), nn.Sequential(Unseen()), nn.Sequential(Unseen()))
    )
    result = audit(model, inputs=some_ids(2, 9))
    assert result.model.layers == 2
    assert len(result.controls[0].rows) == 3
    assert {"attention", "heads", "ablation"} <= set(result.missing)
    assert all(" " in reason for reason in result.missing.values())


def test_without_blocks_there_is_one_line_and_a_remedy() -> None:
    with pytest.raises(RequestError, match=r"0 blocks found; put its layers into an nn\.ModuleList"):
        audit(nn.Linear(WIDTH, WIDTH), inputs=vectors(2, 9))


def test_a_forward_pass_that_fails_is_one_line() -> None:
    with pytest.raises(RequestError, match=r"inputs on which GPT runs; got idx \(1, 17\): AssertionError: too many"):
        audit(GPT(), inputs=some_ids(1, 17))


class Counted(nn.Module):
    """Learned positions from `first` on, whose table nobody asks for its length."""

    def __init__(self, first: int = 0) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(12, WIDTH)
        self.blocks = nn.ModuleList(Unseen() for _ in range(2))
        self.first = first

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]) + self.first)
        for block in self.blocks:
            x = block(x)
        return x


@pytest.mark.parametrize(
    ("ids", "first", "told"),
    [
        (some_ids(2, 15), 0, "0 to 11 in places, a table of 12 rows in Counted; got index 14; .* at most 12 tokens"),
        ([[1, 2, 3], [4] * 15, [5]], 0, "in places, .* got index 14; .* at most 12 tokens"),
        (some_ids(2, 15), 2, "0 to 11 in places, a table of 12 rows in Counted; got index 16; .* at most 10 tokens"),
        (some_ids(2, 9) + VOCABULARY, 0, f"in words, a table of {VOCABULARY} rows .* give ids that it has"),
        (-1 - some_ids(2, 9), 0, "in words, .* got index -"),
    ],
)
def test_a_table_that_is_too_short_is_named(ids: Any, first: int, told: str) -> None:
    with pytest.raises(RequestError, match=told):
        audit(Counted(first), inputs=ids)


def test_a_lookup_that_fails_for_another_reason_is_told_as_it_is() -> None:
    model = Counted()
    model.words.weight = nn.Parameter(torch.zeros(VOCABULARY * WIDTH))
    with pytest.raises(RequestError, match=r"inputs on which Counted runs; got ids \(1, 9\): RuntimeError"):
        audit(model, inputs=some_ids(2, 9))


class Mixing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.mix(x) @ x.mT, dim=-1) @ x


class MixingAttention(Mixing):
    """Named as what it is."""


def test_attention_written_out_is_told_by_its_name_and_the_reason_says_so() -> None:
    said = {}
    for kind in (Mixing, MixingAttention):
        model = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), nn.Sequential(kind()), nn.Sequential(kind()))
        result = audit(scrambled(model), inputs=some_ids(2, 9), controls=False, ablation=False)
        said[kind] = result.missing["attention"]
    assert "told by its class's name alone, in which the word attention must stand" in said[Mixing]
    assert "2 of them only at their softmax" in said[MixingAttention]


# Torch's multi-head attention


def test_a_decoder_looks_elsewhere() -> None:
    layer = nn.TransformerDecoderLayer(WIDTH, HEADS, 48, batch_first=True)
    model = scrambled(nn.TransformerDecoder(layer, 2))
    causal = nn.Transformer.generate_square_subsequent_mask(9)
    # As many tokens there as here: sizes alone would not tell.
    given = {"tgt": vectors(2, 9), "memory": vectors(2, 9, seed=1), "tgt_mask": causal}
    result = audit(model, inputs=given, controls=False)
    assert [one.mask and str(one.mask) for one in result.masks] == ["causal", None] * 2
    assert "cross-attention" in (result.masks[1].reason or "")
    assert result.missing == {}
    assert len(result.heads) == 2 * 2 * HEADS
    for record in result.heads:
        block: Any = model.layers[record.layer - 1]  # type: ignore[index, union-attr]
        attention = block.multihead_attn if "multihead" in record.module else block.self_attn
        query, key, *_ = (one[record.head] for one in packed(attention.in_proj_weight, attention.out_proj.weight))
        assert record.qk_norm == pytest.approx(float((query @ key.mT).norm()), rel=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bias": False},
        {"add_bias_kv": True},
        {"add_zero_attn": True},
        {"kdim": 12, "vdim": 20},
        {"add_bias_kv": True, "add_zero_attn": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("batch_first", [True, False])
def test_multihead_attention_is_computed_by_its_definition(options: dict[str, Any], batch_first: bool) -> None:
    from rankfall.models.recording.events import Call
    from rankfall.models.recording.interface import routed
    from rankfall.models.recording.recorder import recorded

    module = scrambled(nn.MultiheadAttention(WIDTH, HEADS, batch_first=batch_first, **options))
    query, key, value = vectors(2, 5), *(vectors(2, 7)[..., : options.get(one, WIDTH)] for one in ("kdim", "vdim"))
    if not batch_first:
        query, key, value = (one.transpose(0, 1) for one in (query, key, value))
    padding = torch.arange(7).expand(2, 7) >= torch.tensor([[7], [4]])
    biases = torch.randn(2 * HEADS, 5, 7, generator=torch.Generator().manual_seed(0))
    for masks in (
        {},
        {"key_padding_mask": padding},
        {"attn_mask": biases},
        {"attn_mask": biases > 1, "key_padding_mask": padding},
        {"attn_mask": biases[0], "key_padding_mask": padding.float().masked_fill(padding, -torch.inf)},
    ):
        calls: list[Call] = []
        with torch.no_grad():
            plain = module(query, key, value, need_weights=False, **masks)[0]
            with recorded(module, calls.append) as recorder:
                seen = module(query, key, value, need_weights=False, **masks)[0]
            with routed(module, lambda attend, one, *tensors, **given: attend(one, *tensors, **given)):
                again = module(query, key, value, **masks)[0]
        assert torch.equal(seen, plain)
        torch.testing.assert_close(again, plain, rtol=1e-5, atol=1e-6)
        assert recorder.coverage().complete
        (call,) = calls
        assert call.elsewhere
        assert call.query is not None
        assert call.query.shape == (2, HEADS, 5, RANK)


def test_padding_is_seen_and_left_out() -> None:
    model = scrambled(encoder(batch_first=True, norm_first=False))
    padding = torch.arange(9).expand(2, 9) >= torch.tensor([[9], [6]])
    given = {"src": vectors(2, 9), "src_key_padding_mask": padding}
    together = audit(model, inputs=given, **QUICK)
    alone = audit(model, inputs=given["src"][1:, :6], **QUICK)
    assert together.text.padded
    assert all(one.padding for one in together.masks)
    for ours, theirs in zip(together.boundaries, alone.boundaries, strict=True):
        mine, other = ours.per_text[1].values["raw"], theirs.per_text[0].values["raw"]
        assert mine["effective_rank"] == pytest.approx(other["effective_rank"], rel=1e-5)


# Inputs as they come


def boundary_values(result: Any, text: int = 0) -> list[float]:
    return [row.per_text[text].values["unit"]["effective_rank"] for row in result.boundaries]


@pytest.fixture(scope="module")
def two_texts() -> tuple[list[int], list[int]]:
    return some_ids(9).tolist(), some_ids(6, seed=1).tolist()


@pytest.mark.parametrize(
    "model", [GPT(), Columns(), Columns("rows"), Columns("inside"), small_model("llama")], ids=str
)
def test_texts_are_told_in_every_form(model: nn.Module, two_texts: tuple[list[int], list[int]]) -> None:
    if not hasattr(model, "config"):
        scrambled(model)
    long, short = two_texts
    expected = boundary_values(audit(model, inputs=torch.tensor(long), **QUICK))
    one = audit(model, inputs=long, **QUICK)
    assert one.text.tokens == (9,)
    assert boundary_values(one) == pytest.approx(expected, rel=1e-6)
    several = audit(model, inputs=[long, torch.tensor(short), long], **QUICK)
    assert several.text.tokens == (9, 6, 9)
    for text in (0, 2):
        assert boundary_values(several, text) == pytest.approx(expected, rel=1e-4)
    assert boundary_values(several, 1) == pytest.approx(
        boundary_values(audit(model, inputs=[short], **QUICK)), rel=1e-4
    )


@pytest.mark.parametrize("layout", ["columns", "rows", "inside"])
def test_as_many_texts_as_tokens_are_not_mistaken(layout: str) -> None:
    model, ids = scrambled(Columns(layout)), some_ids(5, 5)
    result = audit(model, inputs=ids, **QUICK)
    texts = ids.mT if layout == "columns" else ids
    assert result.text.tokens == (5,) * 5
    for number, text in enumerate(texts):
        alone = audit(model, inputs=text, **QUICK)
        assert boundary_values(result, number) == pytest.approx(boundary_values(alone), rel=1e-4)


def test_ids_are_found_by_their_dtype() -> None:
    class Named(GPT):
        def forward(self, mask: Tensor, words: Tensor) -> Any:  # type: ignore[override]
            return super().forward(words)

    model = scrambled(Named())
    ids = some_ids(2, 9)
    result = audit(model, inputs={"mask": torch.ones(2, 9, dtype=torch.long), "words": ids.int()})
    assert result.text.tokens == (9, 9)
    assert result.missing == {}
    assert len({one.name for one in result.controls}) == 3


def test_embeddings_of_a_library_model() -> None:
    model = small_model("llama")
    ids = some_ids(2, 9)
    with torch.no_grad():
        table = model.get_input_embeddings()(ids)  # type: ignore[operator]
    by_vectors, by_ids = audit(model, inputs=table, **QUICK), audit(model, inputs=ids, **QUICK)
    assert boundary_values(by_vectors) == pytest.approx(boundary_values(by_ids), rel=1e-6)


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        "some words",
        [[]],
        3,
        {},
        ["some words"],
        [[1, "two"]],
        [[[1.0], [1.0, 2.0]]],
        torch.zeros(0, dtype=torch.long),
    ],
)
@pytest.mark.parametrize("model", [GPT, lambda: small_model("llama")])
def test_inputs_that_are_none_are_refused(wrong: Any, model: Any) -> None:
    with pytest.raises(RequestError):
        audit(model(), inputs=wrong)


def test_arrays_are_read_as_tensors_are() -> None:
    model, ids = scrambled(GPT(layers=2)), some_ids(1, 9)
    by_tensor = boundary_values(audit(model, inputs=ids, **QUICK))
    assert boundary_values(audit(model, inputs=ids.numpy(), **QUICK)) == by_tensor
    assert boundary_values(audit(model, inputs={"idx": ids.numpy()}, **QUICK)) == by_tensor


def test_compiled_modules_are_looked_into() -> None:
    model = scrambled(GPT(layers=2))
    wrapped = nn.DataParallel(model)
    assert boundary_values(audit(wrapped, inputs=some_ids(1, 9), **QUICK)) == boundary_values(
        audit(model, inputs=some_ids(1, 9), **QUICK)
    )


# A random twin


def test_fresh_weights_and_what_nobody_resets() -> None:
    model = scrambled(GPT(layers=2))
    before = {name: one.clone() for name, one in model.state_dict().items()}
    state = torch.random.get_rng_state()
    shared = model.lm_head.weight
    with fresh_weights(model) as left:
        assert torch.equal(state, torch.random.get_rng_state())
        twin = {name: one.clone() for name, one in model.state_dict().items()}
        assert model.lm_head.weight is model.transformer["wte"].weight  # type: ignore[index, union-attr]
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())
    assert model.lm_head.weight is shared
    gains = {name for name in before if name.endswith(("ln_1.weight", "ln_2.weight", "ln_f.weight"))}
    assert set(left) == gains
    for name, one in twin.items():
        assert torch.equal(one, before[name]) == (name in gains)
    with fresh_weights(model):
        assert all(torch.equal(one, twin[name]) for name, one in model.state_dict().items())
    with fresh_weights(model, seed=1):
        assert not torch.equal(model.lm_head.weight, twin["lm_head.weight"])
    (control, *_) = audit(model, inputs=some_ids(1, 9), heads=False, ablation=False).controls
    assert "5 parameters without an initialisation of their own" in control.meaning


def test_the_networks_own_initialisation_comes_last() -> None:
    class Own(GPT):
        def _init_weights(self, module: nn.Module) -> None:
            if isinstance(module, nn.Linear):
                nn.init.constant_(module.weight, 0.25)

    model = Own(layers=1)
    with fresh_weights(model):
        assert float(model.transformer["h"][0].attn.c_attn.weight.detach().mean()) == 0.25  # type: ignore[index, union-attr]


def test_free_matrices_are_drawn_with_their_own_size() -> None:
    class Free(GPT):
        def __init__(self) -> None:
            super().__init__(layers=1)
            self.positions = nn.Parameter(5 + torch.randn(200, WIDTH, generator=torch.Generator().manual_seed(0)))

    model = Free()
    before = model.positions.detach().clone()
    with fresh_weights(model) as left:
        assert "positions" in left
        assert not torch.equal(before, model.positions)
        assert float(model.positions.detach().mean()) == pytest.approx(5, abs=0.1)
    assert torch.equal(before, model.positions)


def test_weights_come_back_after_a_failure_and_as_the_same_objects() -> None:
    class Replacing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3, 2))
            self.register_buffer("seen", torch.ones(2))

        def reset_parameters(self) -> None:
            self.weight = nn.Parameter(torch.zeros(3, 2))
            self.seen.zero_()

    model = Replacing()
    own = model.weight

    def failing() -> None:
        with fresh_weights(model):
            assert float(model.weight.detach().sum() + model.seen.sum()) == 0
            raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        failing()
    assert model.weight is own
    assert float(model.weight.detach().sum() + model.seen.sum()) == 8


# In a user's process


def test_every_training_flag_comes_back_after_a_failure_too() -> None:
    model = scrambled(GPT())
    model.train()
    model.transformer["h"][1].eval()  # type: ignore[index, union-attr]
    before = [one.training for one in model.modules()]
    audit(model, inputs=some_ids(1, 9))
    assert [one.training for one in model.modules()] == before
    with pytest.raises(RequestError):
        audit(model, inputs=some_ids(1, 40))
    assert [one.training for one in model.modules()] == before
    assert torch.backends.mha.get_fastpath_enabled()
    assert not any(one._forward_hooks or one._forward_pre_hooks for one in model.modules())


@pytest.mark.parametrize("kind", ["plain", "library"])
def test_two_audits_of_one_module_in_two_threads(kind: str) -> None:
    model = scrambled(GPT(layers=2)) if kind == "plain" else small_model("llama")
    model.train()
    inputs = [some_ids(1, 9), some_ids(1, 7, seed=1)]
    options = {"controls": False}
    alone = [audit(model, inputs=one, **options) for one in inputs]
    found: dict[int, Any] = {}

    def run(number: int) -> None:
        found[number] = audit(model, inputs=inputs[number % 2], **options)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert model.training
    for number in range(4):
        mine, expected = found[number], alone[number % 2]
        assert boundary_values(mine) == boundary_values(expected)
        assert mine.heads == expected.heads
        assert mine.ablation == expected.ablation
        assert mine.missing == {}
    if kind == "library":
        assert model.config._attn_implementation == "sdpa"  # type: ignore[union-attr]


def test_shuffled_inputs_stay_within_their_text() -> None:
    model = scrambled(encoder(batch_first=False, norm_first=False))
    given = torch.cat([vectors(9, 1), torch.zeros(9, 1, WIDTH)], dim=1)
    _, shuffled, _ = audit(model, inputs=given, heads=False, ablation=False, draws=1).controls
    first, second = shuffled.rows[0].per_text
    assert second.values["unit"]["rank"] == 0
    assert first.values["unit"]["rank"] == 9


class TwoStacks(nn.Module):
    """Words under a name of their own, and a longer stack of pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, WIDTH)
        self.pictures = nn.ModuleList([GPTBlock(manual=False) for _ in range(3)])
        self.words = nn.ModuleList([GPTBlock(manual=False) for _ in range(2)])

    def forward(self, patches: torch.Tensor, caption: torch.Tensor) -> torch.Tensor:
        for block in self.pictures:
            patches = block(patches)
        words = self.table(caption)
        for block in self.words:
            words = block(words)
        return words


QUICK = {"controls": False, "ablation": False, "heads": False, "attention": False}


def test_the_stack_of_the_words_comes_first_whatever_they_are_called() -> None:
    torch.manual_seed(0)
    given = {"patches": torch.randn(2, 20, WIDTH), "caption": torch.randint(VOCABULARY, (2, 16))}
    found = audit(TwoStacks(), inputs=given, **QUICK)
    assert (found.stack, [one.name for one in found.other_stacks]) == ("words", ["pictures"])
    assert found.text.tokens == (16, 16)


class HandsOn(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)


def test_a_wrapper_that_hands_everything_on_is_called_as_what_is_inside() -> None:
    torch.manual_seed(0)
    model, ids = GPT(), torch.randint(VOCABULARY, (2, 16))
    plain, wrapped = (audit(one, inputs=ids, **QUICK) for one in (model, HandsOn(model)))
    assert wrapped.boundaries[-1].values == plain.boundaries[-1].values


def test_a_number_that_is_none_is_refused_with_its_layer() -> None:
    torch.manual_seed(0)
    model = GPT()
    with torch.no_grad():
        model.get_submodule("transformer.h.1.attn.c_proj").weight.fill_(torch.nan)
    with pytest.raises(RequestError, match=r"nan at layer 2 \(transformer.h.1\), text 1.*NaN in the weights"):
        audit(model, inputs=torch.randint(VOCABULARY, (2, 16)), **QUICK)


def test_one_is_not_said_in_the_plural() -> None:
    from rankfall.api.audit import audit as public_audit

    torch.manual_seed(0)
    said = repr(public_audit(GPT(layers=1), inputs=[7], controls=False, ablate=False))
    assert "1 layer of transformer.h" in said
    assert "one passage of 1 token," in said
    assert "1 token of all inputs together" in said
    assert not {"1 tokens", "1 layers"} & {
        " ".join(pair) for pair in zip(said.split(), said.split()[1:], strict=False)
    }


def test_a_module_without_a_tokenizer_is_told_of_what_it_can_have() -> None:
    with pytest.raises(RequestError) as refused:
        audit(GPT())
    assert "pass tokenizer= or inputs=" in str(refused.value)
    assert "folder" not in str(refused.value)
