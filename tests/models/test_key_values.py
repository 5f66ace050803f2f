"""The joint key/value map: spectra, latents and overlaps against the weights and tokens taken by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.models.small import save_small, some_text
from tests.models.test_latents import DENSE, HEADS, KV, MLA, NOPE, ROPE, VALUE, Q, made, median_factor, weight
from torch import Tensor

import rankfall
from rankfall.models.heads.key_values import KeyValueRecord, KeyValues, latent_sizes
from rankfall.models.heads.ranks import probe_heads
from rankfall.models.heads.seen import tokens_seen
from rankfall.models.verdict.key_value_reason import key_value_reason

IDS = torch.randint(3, 50, (4, 24), generator=torch.Generator().manual_seed(0))
GROUPED = {"num_key_value_heads": 2, "head_dim": 8}


def found_in(model: Any, ids: Tensor = IDS) -> tuple[KeyValueRecord, ...]:
    joint = KeyValues()
    seen = tokens_seen(model, [{"input_ids": ids}], [None] * len(ids))
    probe_heads(model, seen=seen, on_maps=joint.take)
    return joint.records()


def tokens_of(model: Any, modules: list[Any]) -> list[Tensor]:
    """What each attention module is given, all passages one after the other, in float64."""
    given: list[Tensor] = []
    hooks = [
        module.register_forward_pre_hook(
            lambda _, args, kwargs: given.append(
                (args[0] if args else kwargs["hidden_states"]).flatten(0, 1).double()
            ),
            with_kwargs=True,
        )
        for module in modules
    ]
    with torch.no_grad():
        model(input_ids=IDS)
    for hook in hooks:
        hook.remove()
    return given


def side_by_side(keys: Tensor, values: Tensor) -> Tensor:
    return torch.cat([keys / torch.linalg.matrix_norm(keys), values / torch.linalg.matrix_norm(values)], dim=1)


def share_kept(matrix: Tensor, size: int) -> float:
    """By the best approximation of that rank, formed and subtracted."""
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    near = left[:, :size] * values[:size] @ right[:size]
    return 1 - float((matrix - near).square().sum() / matrix.square().sum())


def least(matrix: Tensor, share: float) -> int:
    return next(size for size in range(1, 999) if share_kept(matrix, size) >= share - 1e-9)


def by_hand(kind: str, model: Any) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Keys (d, g r) and values (d, g v) of each layer as maps of its tokens, and these tokens."""
    if kind == "bert":
        inner = [layer.attention.self for layer in model.encoder.layer]
        maps = [(weight(one.key), weight(one.value)) for one in inner]
    elif kind == "llama":
        inner = [layer.self_attn for layer in model.layers]
        maps = [(weight(one.k_proj), weight(one.v_proj)) for one in inner]
    else:
        inner, maps = [layer.self_attn for layer in model.layers], []
        for attention, tokens in zip(inner, tokens_of(model, inner), strict=True):
            down, norm = weight(attention.kv_a_proj_with_mqa)[:, :KV], attention.kv_a_layernorm
            latent = down * norm.weight.detach().double() * median_factor(norm, tokens @ down)
            up = (latent @ weight(attention.kv_b_proj)).reshape(32, HEADS, NOPE + VALUE)
            maps.append((up[..., :NOPE].flatten(1), up[..., NOPE:].flatten(1)))
    return [(*pair, tokens) for pair, tokens in zip(maps, tokens_of(model, inner), strict=True)]


@pytest.fixture(scope="module", params=["llama", "bert", "deepseek_v3"])
def case(request: pytest.FixtureRequest) -> tuple[str, Any, tuple[KeyValueRecord, ...]]:
    settings = {"llama": GROUPED, "bert": {}, "deepseek_v3": {**MLA, **DENSE, "q_lora_rank": Q}}[request.param]
    model = made(request.param, grow=4.0, **settings)
    return request.param, model, found_in(model)


def test_latents_by_weights_and_on_tokens(case) -> None:
    kind, model, records = case
    assert len(records) == 2
    for record, (keys, values, tokens) in zip(records, by_hand(kind, model), strict=True):
        joint = side_by_side(keys, values)
        centred = tokens - tokens.mean(dim=0)
        on_tokens = side_by_side(centred @ keys, centred @ values)
        for name, share in (("90", 0.9), ("99", 0.99), ("999", 0.999)):
            assert getattr(record, f"weights_{name}") == least(joint, share)
            assert getattr(record, f"tokens_{name}") == least(on_tokens, share)
        assert record.keys_99 == least(centred @ keys, 0.99)
        assert record.values_99 == least(centred @ values, 0.99)
        assert record.rank == torch.linalg.matrix_rank(joint, rtol=32 * 2**-23)
        spectrum = torch.linalg.svdvals(joint)
        shares = spectrum / spectrum.sum()
        wanted = float(torch.exp(-(shares * shares.clamp_min(1e-300).log()).sum()))
        assert record.effective_rank == pytest.approx(wanted, rel=1e-5)
        for line in record.energy:
            assert line["by_weights"] == pytest.approx(share_kept(joint, line["latent"]), abs=1e-6)
            assert line["on_tokens"] == pytest.approx(share_kept(on_tokens, line["latent"]), abs=1e-6)
        assert record.tokens_read == IDS.numel()


def test_sizes_and_own_latents(case) -> None:
    kind, _, records = case
    wanted = {"llama": (2, 8, 8, 32, 0, 0), "bert": (4, 8, 8, 64, 0, 0), "deepseek_v3": (4, 16, 8, 18, KV, ROPE)}[
        kind
    ]
    for one in records:
        found = (one.kv_heads, one.key_dim, one.value_dim, one.cached, one.kv_latent, one.rope_dims)
        assert found == wanted
        assert one.energy[-1]["latent"] == {"llama": 32, "bert": 32, "deepseek_v3": KV}[kind]
        assert one.energy[-1]["by_weights"] == pytest.approx(1.0)
        assert any("before rotary positions" in note for note in one.notes) == (kind != "bert")


def test_other_passages_are_measured_with_latents_chosen_elsewhere(case) -> None:
    kind, model, records = case
    passages = torch.arange(len(IDS)).repeat_interleave(IDS.shape[1])
    for record, (keys, values, tokens) in zip(records, by_hand(kind, model), strict=True):
        sums = {line["latent"]: 0.0 for line in record.energy}
        for parity in (0, 1):
            chosen, measured = passages % 2 == parity, passages % 2 != parity
            middle = tokens[chosen].mean(dim=0)
            parts = [((tokens - middle) @ part) for part in (keys, values)]
            scaled = torch.cat([part / torch.linalg.matrix_norm(part[chosen]) for part in parts], dim=1)
            _, singular, right = torch.linalg.svd(scaled[chosen], full_matrices=False)
            # Directions in which the chosen half has nothing are not its choice.
            right = right[singular > 1e-6 * singular[0]]
            for size in sums:
                inside = scaled[measured] @ right[:size].T @ right[:size]
                sums[size] += float(inside.square().sum() / scaled[measured].square().sum()) / 2
        for line in record.energy:
            assert line["on_others"] == pytest.approx(sums[line["latent"]], abs=1e-6)
            assert line["on_others"] <= line["on_tokens"] + 0.02


def test_overlap_is_the_energy_inside_the_other_layers_space(case) -> None:
    kind, model, records = case
    spaces = []
    for record, (keys, values, _) in zip(records, by_hand(kind, model), strict=True):
        left, singular, _ = torch.linalg.svd(side_by_side(keys, values), full_matrices=False)
        spaces.append((left[:, : record.weights_90], singular[: record.weights_90]))
    for one, (space, singular) in zip(records, spaces, strict=True):
        for other, (elsewhere, _) in enumerate(spaces):
            inside = (elsewhere.T @ (space * singular)).square().sum() / singular.square().sum()
            assert one.overlap[other] == pytest.approx(float(inside), abs=1e-5)
    assert records[0].previous is None
    assert records[1].previous == records[1].overlap[0]
    assert records[1].chance == spaces[0][0].shape[1] / 32


def test_a_layer_with_keys_and_values_of_low_rank_needs_a_small_latent() -> None:
    model = made("llama", **GROUPED)
    with torch.no_grad():
        attention = model.layers[1].self_attn
        shared = torch.randn(3, 32)
        attention.k_proj.weight.copy_(torch.randn(16, 3) @ shared)
        attention.v_proj.weight.copy_(torch.randn(16, 3) @ shared)
    plain, low = found_in(model)
    assert (low.rank, low.weights_999, low.tokens_999, low.others_999) == (3, 3, 3, 3)
    assert plain.rank == 32


def test_one_passage_leaves_other_passages_open() -> None:
    (one, _) = found_in(made("llama", **GROUPED), IDS[:1])
    assert one.others_90 is one.others_most is None
    assert all(line["on_others"] is None for line in one.energy)
    said = key_value_reason([one])
    assert said is not None
    assert "by the passage that it was chosen on" in said.text


def test_what_falls_short_on_other_passages_is_not_rounded_up_to_all() -> None:
    first, second = found_in(made("llama", **GROUPED))
    short = replace(first, others_99=None, others_90=12, others_most=0.98999)
    enough = replace(second, others_99=14, others_90=9, others_most=1.0)
    said = key_value_reason([short, enough])
    assert said is not None
    assert (
        "; chosen on half of the passages it keeps 98.9% of the other half at most in 1 of 2 layers, 10 (9 to 12) for"
        " 90%: read more text to tell"
    ) in said.text
    both = key_value_reason([short, replace(enough, others_99=None, others_most=0.5)])
    assert both is not None
    assert "of the other half at most, 10 (9 to 12) for 90%" in both.text


def test_latent_sizes() -> None:
    assert latent_sizes(20) == [1, 2, 3, 4, 6, 8, 12, 16, 20]
    assert latent_sizes(1) == [1]


def test_the_audit_has_records_tables_and_words(tmp_path) -> None:
    folder = save_small(tmp_path / "model", "llama", num_key_value_heads=2)
    texts = [some_text(30, seed) for seed in range(4)]
    result = rankfall.audit(folder, texts, controls=False, ablate=False)
    record = result.record()
    assert [one["layer"] for one in record["key_values"]] == [1, 2, 3]
    assert len(record["key_values"][0]["overlap"]) == 3
    tables = result.tables()
    assert list(tables["key_values"]["cached"]) == [32, 32, 32]
    assert len(tables["key_value_energy"]) == 3 * len(record["key_values"][0]["energy"])
    said = next(one for one in record["verdict"]["reasons"] if one["topic"] == "keys and values")
    assert "a layer caches 32 numbers a token (2 key/value heads of 8 + 8)" in said["text"]
    encoder = rankfall.audit(made("bert"), inputs=IDS, controls=False, ablate=False)
    of_encoder = next(one.text for one in encoder.verdict.reasons if one.topic == "keys and values")
    assert of_encoder.startswith("a layer has keys and values of 64 numbers a token")
    assert said["numbers"]["tokens_read"] == sum(result.text.tokens)
    bare = rankfall.audit(folder, texts, controls=False, ablate=False, heads=False)
    assert bare.record()["key_values"] == []


@pytest.mark.parametrize("lengths", [(30, 30), (30, 12)])
def test_the_pass_that_is_taken_apart_shows_the_tokens(tmp_path, monkeypatch, lengths) -> None:
    """No pass of their own where one of equal texts is made anyway, and the same numbers."""
    folder = save_small(tmp_path / "model", "llama", num_key_value_heads=2)
    texts = [some_text(length, seed) for seed, length in enumerate(lengths)]
    alone = rankfall.audit(folder, texts, controls=False, ablate=False)
    passes: list[int] = []

    def counted(*arguments: Any) -> Any:
        passes.append(1)
        return tokens_seen(*arguments)

    monkeypatch.setattr("rankfall.models.audit.tokens_seen", counted)
    beside = rankfall.audit(folder, texts, controls=False)
    assert len(passes) == (0 if len(set(alone.text.tokens)) == 1 else 1)
    assert beside.record()["key_values"] == alone.record()["key_values"]
    assert [one.record() for one in beside.heads] == [one.record() for one in alone.heads]


def test_weights_alone_give_the_latents_by_weights(tmp_path) -> None:
    from rankfall.api.audit import heads_from_weights

    folder = save_small(tmp_path / "model", "llama", num_key_value_heads=2)
    read = heads_from_weights(str(folder))
    run = rankfall.audit(folder, [some_text(30)], controls=False, ablate=False)
    for mine, theirs in zip(read.key_values, run.key_values, strict=True):
        assert (mine.weights_90, mine.weights_99, mine.rank) == (theirs.weights_90, theirs.weights_99, theirs.rank)
        assert mine.effective_rank == pytest.approx(theirs.effective_rank, rel=1e-6)
        assert (mine.tokens_read, mine.tokens_99) == (0, None)
    assert "a latent that keeps 99% of that energy" in read.headline
    assert len(read.tables()["key_values"]) == 3
