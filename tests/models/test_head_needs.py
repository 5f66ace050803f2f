"""The rank that heads need, against attention written out in the test; the truncation and its optimality."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.linalg import sqrtm
from tests.models.plain import GPT
from tests.models.small import small_model
from torch import Tensor, nn

from rankfall.errors import RequestError
from rankfall.models.architectures.small import small_models
from rankfall.models.heads import needed
from rankfall.models.heads.calls import HeldCall, held_calls
from rankfall.models.heads.needed import HeadNeed, head_needs, on_random_twin
from rankfall.models.heads.truncation import ScoreMoments, Truncation, best_truncation, row_divergences
from rankfall.models.recording.events import Call
from rankfall.models.recording.recorder import recorded

IDS = torch.randint(4, 50, (3, 14), generator=torch.Generator().manual_seed(0))
LIMIT = 0.02


def sharp(model: nn.Module, seed: int = 1) -> nn.Module:
    """Weights large enough for attention to have a shape; sinks that hold some of it."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, one in model.named_parameters():
            if name.endswith("sinks"):
                one.copy_(torch.linspace(-1.0, 2.0, one.numel()))
            elif one.ndim == 2 and "emb" not in name and "wte" not in name and "wpe" not in name:
                one.copy_(torch.randn(one.shape, generator=generator) * 1.5 / one.shape[-1] ** 0.5)
            elif one.ndim == 2:
                one.copy_(torch.randn(one.shape, generator=generator))
    return model.eval()


def latent() -> nn.Module:
    sizes = {"q_lora_rank": 12, "kv_lora_rank": 10, "qk_rope_head_dim": 4, "qk_nope_head_dim": 6, "v_head_dim": 8}
    return small_model(
        "deepseek_v3",
        **sizes,
        num_key_value_heads=4,
        n_routed_experts=4,
        n_group=1,
        topk_group=1,
        num_experts_per_tok=2,
    )


FAMILIES: dict[str, Callable[[], nn.Module]] = {
    "latent": latent,
    "grouped": lambda: small_model("llama", num_key_value_heads=2),
    "normed queries and keys": lambda: small_model("qwen3", num_key_value_heads=2, head_dim=8),
    "sinks": lambda: next(small_models("gpt_oss")),
    "windows": lambda: small_model("mistral", num_key_value_heads=2, sliding_window=4),
    "position bias": lambda: small_model("t5"),
    "encoder": lambda: small_model("bert"),
    "plain module": lambda: GPT(layers=2),
}


def arguments(model: nn.Module) -> dict[str, Tensor]:
    if isinstance(model, GPT):
        return {"idx": IDS}
    more = {"decoder_input_ids": IDS[:, :9]} if hasattr(model, "decoder") and hasattr(model, "shared") else {}
    return {"input_ids": IDS, **more}


def calls_of(model: nn.Module) -> list[Call]:
    seen: list[Call] = []
    with recorded(model, seen.append), torch.inference_mode():
        model(**arguments(model))
    return seen


def written_out(call: Call, form: Tensor) -> Tensor:
    """softmax(scaling q M k^T + mask + position bias), with a sink's logit beside the scores: (b, h, n, m)."""
    assert call.query is not None
    assert call.key is not None
    key = call.key.double().repeat_interleave(call.query.shape[1] // call.key.shape[1], dim=1)
    scores = call.query.double() @ form @ key.mT * call.scaling
    if call.mask is not None:
        scores = scores + call.mask if call.mask.is_floating_point() else scores.masked_fill(~call.mask, -torch.inf)
    elif call.options.get("is_causal"):
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:]).tril().bool(), -torch.inf)
    if call.options.get("position_bias") is not None:
        scores = scores + call.options["position_bias"]
    sinks = getattr(call.module, "sinks", None)
    if sinks is None:
        return scores.softmax(dim=-1)
    logits = sinks.detach().double()[None, :, None, None].expand(*scores.shape[:3], 1)
    return torch.cat([scores, logits], dim=-1).softmax(dim=-1)[..., :-1]


def direct_forms(call: Call, weights: Tensor) -> list[list[Tensor]]:
    """M of every head and rank, row by row and by the two-sided formula S^-1/2 (S^1/2 C^1/2)_k C^-1/2."""
    assert call.query is not None
    assert call.key is not None
    texts, heads, rows, rank = call.query.shape
    forms = []
    for head in range(heads):
        second, spread = np.zeros((rank, rank)), np.zeros((rank, rank))
        for text in range(texts):
            keys = call.key[text, head // (heads // call.key.shape[1])].double().numpy()
            for row in range(rows):
                query, share = call.query[text, head, row].double().numpy(), weights[text, head, row].double().numpy()
                second += np.outer(query, query)
                spread += (keys.T * share) @ keys - np.outer(share @ keys, share @ keys)
        root, other = np.real(sqrtm(second)), np.real(sqrtm(spread))
        left, values, right = np.linalg.svd(root @ other)
        truncated = [(left[:, :k] * values[:k]) @ right[:k] for k in range(rank + 1)]
        forms.append([torch.tensor(np.linalg.pinv(root) @ one @ np.linalg.pinv(other)) for one in truncated])
    return forms


def direct_divergences(call: Call) -> Tensor:
    """Mean over rows of KL, by head and rank (h, r + 1), sinks counted as keys."""
    assert call.query is not None
    identity = torch.eye(call.query.shape[-1], dtype=torch.float64)
    own = written_out(call, identity)
    if call.weights is not None:
        torch.testing.assert_close(own.float(), call.weights, rtol=1e-4, atol=1e-5)
    forms = direct_forms(call, own)
    found = torch.zeros(len(forms), len(forms[0]), dtype=torch.float64)
    for rank in range(len(forms[0])):
        cut = written_out(call, torch.stack([one[rank] for one in forms]))
        ours, theirs = (torch.cat([one, 1 - one.sum(-1, keepdim=True)], -1).clamp_min(1e-15) for one in (own, cut))
        found[:, rank] = (ours * (ours / theirs).log()).sum(-1).mean(dim=(0, 2))
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_needs_are_those_of_attention_written_out(family: str) -> None:
    model = sharp(FAMILIES[family]())
    found = head_needs(model, [arguments(model)], limit=LIMIT)
    assert found.missing == {}
    calls = calls_of(model)
    by_call = [[one for one in found.records if one.layer == number] for number in range(len(calls))]
    assert sum(len(one) for one in by_call) == len(found.records)
    interior = 0
    for call, records in zip(calls, by_call, strict=True):
        expected = direct_divergences(call)
        assert [one.head for one in records] == list(range(len(expected)))
        for one, curve in zip(records, expected.tolist(), strict=True):
            assert one.module == call.name
            assert one.head_dim == len(curve) - 1
            assert one.divergence_without == pytest.approx(curve[0], rel=2e-3, abs=1e-4)
            assert one.divergence == pytest.approx(curve[one.needed_rank], rel=5e-3, abs=2e-4)
            assert curve[one.needed_rank] <= LIMIT + 1e-4
            assert one.needed_rank == 0 or curve[one.needed_rank - 1] > LIMIT - 1e-4
            assert one.at_limit == (one.needed_rank == one.head_dim)
            assert one.rows == call.query.shape[0] * call.query.shape[2]  # type: ignore[union-attr]
            interior += 0 < one.needed_rank < one.head_dim
    assert interior > 0, "nothing was tested: every head needs nothing or all"


def test_heads_that_need_nothing_stay_at_zero_beside_others_that_need_more() -> None:
    """The first head of each layer has queries of zero; the others keep the search going."""
    model = sharp(small_model("llama", num_key_value_heads=4))
    with torch.no_grad():
        for name, one in model.named_parameters():
            if name.endswith("q_proj.weight"):
                one[: one.shape[0] // 4] = 0.0
    needs = head_needs(model, [{"input_ids": IDS}], limit=LIMIT).records
    assert {one.needed_rank for one in needs if one.head == 0} == {0}
    assert all(one.needed_rank > 1 for one in needs if one.head > 0)


def test_heads_that_share_keys_are_told() -> None:
    model = sharp(FAMILIES["grouped"]())
    records = head_needs(model, [arguments(model)]).records
    assert [one.kv_head for one in records if one.layer == 0] == [0, 0, 1, 1]


def random_moments(rank: int = 6, heads: int = 2, seed: int = 0) -> ScoreMoments:
    generator = torch.Generator().manual_seed(seed)

    def moment() -> Tensor:
        drawn = torch.randn(heads, rank, 3 * rank, generator=generator, dtype=torch.float64)
        drawn = drawn * torch.logspace(0, -1, rank, dtype=torch.float64)[:, None]
        return drawn @ drawn.mT

    return ScoreMoments(moment(), moment(), 5)


def lost(form: Tensor, moments: ScoreMoments) -> Tensor:
    """tr S (M - 1) C (M - 1)^T over rows, by head."""
    gap = form - torch.eye(form.shape[-1], dtype=torch.float64)
    return torch.einsum("hij,hjk,hkl,hil->h", moments.query, gap, moments.key, gap) / moments.rows**2


def test_no_form_of_the_same_rank_loses_less() -> None:
    moments = random_moments()
    cut = best_truncation(moments)
    generator = torch.Generator().manual_seed(3)
    for rank in (1, 2, 4):
        ours = lost(cut.forms(rank), moments)
        torch.testing.assert_close(ours, cut.values[:, rank:].square().sum(dim=-1), rtol=1e-9, atol=1e-12)
        for _ in range(3):
            right = torch.randn(2, 6, rank, generator=generator, dtype=torch.float64)
            for _ in range(400):
                # Each factor has a best value for the other one.
                weighed = moments.key @ right
                left = weighed @ torch.linalg.inv(right.mT @ weighed)
                weighed = moments.query @ left
                right = weighed @ torch.linalg.inv(left.mT @ weighed)
            theirs = lost(left @ right.mT, moments)
            assert bool((theirs >= ours * (1 - 1e-9)).all())
            torch.testing.assert_close(theirs, ours, rtol=1e-6, atol=0.0)


def test_a_truncation_is_a_projection_and_keeps_everything_at_full_rank() -> None:
    moments = random_moments()
    cut = best_truncation(moments)
    for rank in range(7):
        form = cut.forms(rank)
        torch.testing.assert_close(form @ form, form, rtol=0.0, atol=1e-7)
        assert torch.linalg.matrix_rank(form, atol=1e-6).tolist() == [rank, rank]
    torch.testing.assert_close(cut.forms(6), torch.eye(6, dtype=torch.float64).expand(2, 6, 6), rtol=0, atol=1e-9)
    each = cut.forms(torch.tensor([2, 5]))
    torch.testing.assert_close(each[0], cut.forms(2)[0])
    torch.testing.assert_close(each[1], cut.forms(5)[1])


def test_queries_and_keys_that_span_less_than_the_head_lose_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 1, 2, 3, 8, generator=generator)
    weights = torch.full((1, 2, 3, 3), 1 / 3)
    cut = best_truncation(ScoreMoments.of(query, key, weights))
    torch.testing.assert_close(cut.queries(query, 8), query, rtol=0.0, atol=2e-5)
    assert bool((cut.queries(query, 0) == 0).all())
    # Three keys differ in two directions; what they share is added to whole rows.
    own, two, one = ((cut.queries(query, rank) @ key.mT).softmax(dim=-1) for rank in (8, 2, 1))
    torch.testing.assert_close(two, own, rtol=0.0, atol=1e-5)
    assert float((one - own).abs().max()) > 1e-2


def test_the_second_order_of_the_divergence_is_what_the_values_say() -> None:
    """Where scores are small all rows weigh keys alike, and the mean over rows is exact to second order."""
    generator = torch.Generator().manual_seed(1)
    query, key = torch.randn(2, 1, 1, 400, 6, generator=generator, dtype=torch.float64)
    query = query * 0.02
    own = (query @ key.mT).softmax(dim=-1)
    cut = best_truncation(ScoreMoments.of(query, key, own))
    for rank in (0, 2, 4):
        theirs = (cut.queries(query, rank) @ key.mT).softmax(dim=-1)
        found = row_divergences(own, theirs).mean()
        predicted = cut.values[0, rank:].square().sum() / 2
        assert float(found / predicted) == pytest.approx(1, abs=0.03)


def test_divergences_of_rows_with_and_without_a_sink() -> None:
    ours, theirs = (
        torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.2, 0.1]]),
        torch.tensor([[0.25, 0.75, 0.0], [0.3, 0.1, 0.1]]),
    )
    expected = [0.5 * np.log(2) + 0.5 * np.log(0.5 / 0.75), 0.2 * np.log(2 / 3) + 0.2 * np.log(2)]
    assert row_divergences(ours, theirs).tolist() == pytest.approx(expected, abs=1e-6)
    less = theirs * torch.tensor([[1.0], [0.5]])
    assert float(row_divergences(ours, less)[1]) == pytest.approx(
        0.2 * np.log(0.2 / 0.15) + 0.2 * np.log(0.2 / 0.05) + 0.1 * np.log(2) + 0.5 * np.log(0.5 / 0.75), abs=1e-6
    )
    gone = torch.tensor([[1.0, 0.0, 0.0], [0.2, 0.2, 0.1]])
    assert 30 < float(row_divergences(ours, gone)[0]) < 100
    half = torch.full((1, 3), 1 / 3).bfloat16()
    assert float(row_divergences(half, half)) == 0.0


def shortened(model: nn.Module) -> list[dict[str, Tensor]]:
    mask = torch.ones_like(IDS)
    mask[0, 10:] = 0
    mask[2, 12:] = 0
    return [{"input_ids": IDS, "attention_mask": mask}]


def same(ours: HeadNeed, theirs: HeadNeed) -> bool:
    return (
        (ours.module, ours.head, ours.needed_rank, ours.rows)
        == (theirs.module, theirs.head, theirs.needed_rank, theirs.rows)
        and ours.divergence == pytest.approx(theirs.divergence, rel=1e-3, abs=1e-5)
        and ours.divergence_without == pytest.approx(theirs.divergence_without, rel=1e-4)
    )


def test_padding_is_not_counted_and_several_calls_are_as_one() -> None:
    model = sharp(FAMILIES["encoder"]())
    (padded,) = shortened(model)
    real = [row.bool() for row in padded["attention_mask"]]
    together = head_needs(model, [padded], real, limit=LIMIT)
    alone = [{"input_ids": row[keep][None]} for row, keep in zip(IDS, real, strict=True)]
    apart = head_needs(model, alone, [None] * 3, limit=LIMIT)
    assert together.records[0].rows == 10 + 14 + 12
    assert all(map(same, together.records, apart.records))
    counted = head_needs(model, [padded], limit=LIMIT)
    assert counted.records[0].rows == 3 * 14


def test_the_random_twin_is_measured_in_place_and_the_model_is_as_it_was() -> None:
    model = sharp(FAMILIES["grouped"]())
    before = {name: one.clone() for name, one in model.state_dict().items()}
    given = [arguments(model)]
    twin = on_random_twin(model, 0, lambda network: head_needs(network, given).records)
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())
    assert (
        max(one.divergence_without for one in twin)
        < 1e-3
        < min(one.divergence_without for one in head_needs(model, given).records)
    )
    assert [one.module for one in twin] == [one.module for one in head_needs(model, given).records]
    plain = on_random_twin(sharp(GPT(layers=1)), 0, lambda network: head_needs(network, [{"idx": IDS}]).records)
    assert len(plain) == 4


def test_what_cannot_be_measured_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    manual = GPT(layers=1, manual=True).eval()
    with pytest.raises(RequestError, match=r"required attention through the library's interface .* got GPT"):
        head_needs(manual, [{"idx": IDS}])
    model = FAMILIES["encoder"]()
    with pytest.raises(RequestError, match="required limit to be a finite number above 0"):
        head_needs(model, [arguments(model)], limit=0.0)
    monkeypatch.setattr(needed, "MOST_WEIGHTS", 100)
    with pytest.raises(RequestError, match=r"at most 100 attention weights a layer.*fewer tokens"):
        head_needs(model, [arguments(model)])


def test_a_search_whose_end_is_not_the_model_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = sharp(FAMILIES["grouped"]())

    def damaged(moments: ScoreMoments) -> Truncation:
        cut = best_truncation(moments)
        return Truncation(cut.left * 0.3, cut.right, cut.values)

    monkeypatch.setattr(needed, "best_truncation", damaged)
    for given in ([arguments(model)], [{"input_ids": row[None]} for row in IDS]):
        with pytest.raises(RequestError, match=r"stays within 0.005 nats a row when nothing is cut; got .*float32"):
            head_needs(model, given)


def test_half_precision_needs_what_float32_needs() -> None:
    model = sharp(FAMILIES["grouped"]()).bfloat16()
    rough = head_needs(model, [arguments(model)], limit=0.1).records
    fine = head_needs(model.float(), [arguments(model)], limit=0.1).records
    assert max(abs(one.needed_rank - two.needed_rank) for one, two in zip(rough, fine, strict=True)) <= 1


def test_a_call_is_known_by_its_module_and_how_often_that_ran() -> None:
    model = small_model("albert")
    seen: list[tuple[str, int]] = []

    def answer(call: HeldCall) -> Any:
        seen.append(call.place)
        return call.attend()

    with held_calls(model, answer), torch.inference_mode():
        model(input_ids=IDS)
        model(input_ids=IDS)
    assert seen == [(seen[0][0], number) for number in (0, 1, 2)] * 2
    assert len(head_needs(model, [{"input_ids": IDS}]).truncations) == 3


def test_truncations_of_the_run_are_handed_on() -> None:
    model = sharp(FAMILIES["plain module"]())
    found = head_needs(model, [{"idx": IDS}])
    assert list(found.truncations) == [(f"transformer.h.{layer}.attn", 0) for layer in (0, 1)]
    assert all(isinstance(one, Truncation) and (one.heads, one.rank) == (4, 8) for one in found.truncations.values())
