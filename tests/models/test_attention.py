"""Statistics of attention weights against attention written out here, on eight families of models."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from tests.models.plain import GPT, HEADS, WIDTH, Columns, scrambled, some_ids
from torch import Tensor, nn

from rankfall.models.architectures.small import small_models
from rankfall.models.attention import observer as observer_module
from rankfall.models.attention import seen
from rankfall.models.attention.heads import HeadAttention
from rankfall.models.attention.observer import ROWS_AT_MOST, AttentionObserver, sampled_rows
from rankfall.models.attention.statistics import matrix_statistics
from rankfall.models.attention.summary import attention_reasons
from rankfall.models.audit import audit
from rankfall.models.recording.events import Call
from rankfall.models.recording.recorder import recorded
from rankfall.models.thresholds import THRESHOLDS

TOKENS = 12
NEAR = {"rel": 1e-4, "abs": 2e-5}
QUANTILES = {"logit_q01": 0.01, "logit_q25": 0.25, "logit_q50": 0.5, "logit_q75": 0.75, "logit_q99": 0.99}


@dataclass(frozen=True)
class Plain:
    """Attention of one call, (b, h, n, m) each: what went into the softmax, what came out, what the mask allows."""

    name: str
    logits: Tensor
    weights: Tensor
    allowed: Tensor
    values: Tensor
    cross: bool = False


def written_out(call: Call) -> Plain:
    """softmax(softcap(q k^T s) + bias + mask), with a learned sink beside the keys where the module has one."""
    assert call.query is not None
    assert call.key is not None
    assert call.value is not None
    groups = call.query.shape[1] // call.key.shape[1]
    key, value = (one.repeat_interleave(groups, dim=1).double() for one in (call.key, call.value))
    logits = torch.einsum("bhnr,bhmr->bhnm", call.query.double(), key) * call.scaling
    cap = call.options.get("softcap")
    logits = logits if cap is None else cap * torch.tanh(logits / cap)
    bias = call.options.get("position_bias")
    logits = logits if bias is None else logits + bias.double()
    allowed = torch.ones_like(logits, dtype=torch.bool)
    if call.mask is not None:
        added = torch.where(call.mask, 0.0, -1e30) if call.mask.dtype == torch.bool else call.mask.double()
        logits = logits + added
        allowed = (added > -1e3).expand_as(logits)
    elif call.options.get("is_causal"):
        allowed = allowed.tril()
        logits = logits.masked_fill(~allowed, -torch.inf)
    sinks = getattr(call.module, "sinks", None)
    if sinks is None:
        return Plain(call.name, logits, softmax(logits), allowed, value)
    more = sinks.detach().double()[None, :, None, None].expand(*logits.shape[:-1], 1)
    weights = softmax(torch.cat([logits, more], dim=-1))[..., :-1]
    return Plain(call.name, logits, weights, allowed, value)


def softmax(logits: Tensor) -> Tensor:
    powers = (logits - logits.amax(dim=-1, keepdim=True)).exp()
    return powers / powers.sum(dim=-1, keepdim=True)


def least_entropy(logits: list[float]) -> float:
    """Of one logit above equal others, as far from their mean in all as these are."""
    mean, others = sum(logits) / len(logits), len(logits) - 1
    gap = math.sqrt(sum((one - mean) ** 2 for one in logits) * len(logits) / others)
    powers = [1.0] + [math.exp(-gap)] * others
    return -sum(one / sum(powers) * math.log(one / sum(powers)) for one in powers if one > 0)


def expected(plain: Plain, head: int, real: list[list[int]]) -> dict[str, float]:
    """Every statistic of one head by loops over texts, rows and keys."""
    texts = []
    for text, kept in enumerate(real):
        logits, weights, allowed = (one[text, head].numpy() for one in (plain.logits, plain.weights, plain.allowed))
        rows: dict[str, list[float]] = {}
        pairs: list[float] = []
        received = np.zeros(len(kept))
        for i in kept:
            seen = [j for j in kept if allowed[i, j]]
            if len(seen) < 2:
                continue
            total = sum(weights[i, j] for j in kept)
            shares = {j: weights[i, j] / total for j in kept}
            entropy = -sum(p * math.log(p) for p in shares.values() if p > 0)
            found = {
                "entropy": entropy,
                "relative_entropy": entropy / math.log(len(seen)),
                "first_token_mass": weights[i, kept[0]],
                "sink_mass": 1 - weights[i].sum(),
                "entropy_floor": least_entropy([logits[i, j] for j in seen]),
            }
            assert found["entropy_floor"] <= entropy + 1e-9
            if not plain.cross:
                found["self_mass"] = weights[i, i]
                found["distance"] = sum(p * abs(kept.index(i) - kept.index(j)) for j, p in shares.items())
            for name, value in found.items():
                rows.setdefault(name, []).append(value)
            pairs += [logits[i, j] for j in seen]
            received += weights[i, kept]
        matrix = weights[np.ix_(kept, kept)]
        values = np.linalg.svd(matrix, compute_uv=False)
        share = values / values.sum()
        texts.append(
            {name: float(np.mean(some)) for name, some in rows.items()}
            | {name: float(np.quantile(pairs, at)) for name, at in QUANTILES.items()}
            | {
                "logit_max": max(pairs),
                "log_gap": math.log(values[0] / values[1]),
                "effective_rank": math.exp(-sum(p * math.log(p) for p in share if p > 0)),
                "busiest_mass": max(received) / len(rows["entropy"]),
            }
        )
    means = {name: float(np.mean([one[name] for one in texts])) for name in texts[0]}
    means["spectral_gap"] = math.exp(means.pop("log_gap"))
    means["logit_max"] = max(one["logit_max"] for one in texts)
    return means


def compare(heads: list[HeadAttention], plain: list[Plain], real: list[list[int]]) -> None:
    """Every head of every call has every statistic of the direct computation."""
    assert len(heads) == sum(one.weights.shape[1] for one in plain)
    at = iter(heads)
    for call in plain:
        for head in range(call.weights.shape[1]):
            found = next(at)
            assert (found.module, found.head) == (call.name, head)
            for name, value in expected(call, head, real).items():
                assert found.values[name] == pytest.approx(value, **NEAR), f"{call.name} {head} {name}"


def observed(model: nn.Module, inputs: dict[str, Any], real: list[Tensor | None]) -> AttentionObserver:
    observer = AttentionObserver(real)
    with torch.inference_mode(), recorded(model, observer.see, own=True, on_leaf=observer.see_linear):
        model(**inputs)
    return observer


def plainly(model: nn.Module, inputs: dict[str, Any]) -> list[Plain]:
    """Attention of all calls of an eager run, written out; what the library itself calls weights must be the same."""
    calls: list[Plain] = []

    def see(call: Call) -> None:
        calls.append(written_out(call))
        assert call.weights is not None
        assert torch.allclose(calls[-1].weights, call.weights.double(), atol=1e-6)

    with torch.inference_mode(), recorded(model, see):
        model(**inputs)
    return calls


# Latent attention gives every head keys of its own.
SETTINGS = {"deepseek_v3": {"num_key_value_heads": 4}}


def small(kind: str, **settings: Any) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = next(iter(small_models(kind, **SETTINGS.get(kind, {}), **settings)))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, one in model.named_parameters():
            if one.ndim == 2:
                # Scores of a size at which heads differ.
                one.copy_(2.0 * one.shape[-1] ** -0.5 * torch.randn(one.shape, generator=generator))
            elif name.endswith("sinks"):
                one.copy_(torch.linspace(-1.0, 3.0, len(one)))
    return model.eval()


FAMILIES = ("deepseek_v3", "llama", "qwen3", "gpt_oss", "mistral", "gemma2", "bert")


@pytest.mark.parametrize("kind", FAMILIES)
def test_every_statistic_is_that_of_attention_written_out(kind: str) -> None:
    model = small(kind)
    ids = torch.randint(3, 100, (2, TOKENS), generator=torch.Generator().manual_seed(0))
    inputs: dict[str, Any] = {"input_ids": ids, "use_cache": False} if kind != "bert" else {"input_ids": ids}
    observer = observed(model, inputs, [None, None])
    assert observer.missing == {}
    plain = plainly(model, inputs)
    compare(observer.heads(), plain, [list(range(TOKENS))] * 2)
    assert any(bool((~one.allowed).any()) for one in plain) == (kind != "bert")


def test_a_learned_sink_is_what_rows_lack() -> None:
    model = small("gpt_oss")
    heads = observed(model, {"input_ids": torch.arange(3, 15)[None]}, [None]).heads()
    assert min(head.values["sink_mass"] for head in heads) > 1e-3
    assert max(head.values["sink_mass"] for head in heads) > 0.3
    others = observed(small("llama"), {"input_ids": torch.arange(3, 15)[None]}, [None]).heads()
    assert {head.values["sink_mass"] for head in others} == {0.0}


def test_biases_of_t5_and_attention_to_other_tokens() -> None:
    model = small("t5")
    ids = torch.randint(3, 100, (1, TOKENS), generator=torch.Generator().manual_seed(0))
    inputs = {"input_ids": ids, "decoder_input_ids": ids[:, :7], "use_cache": False}
    observer = observed(model, inputs, [None])
    assert observer.missing == {}
    plain = plainly(model, inputs)
    found = observer.heads()
    for head in found:
        call = plain[head.layer]
        cross = call.weights.shape[-2] != call.weights.shape[-1]
        assert head.kind == ("cross" if cross else "self")
        if not cross:
            kept = [list(range(call.weights.shape[-1]))]
            for name, value in expected(call, head.head, kept).items():
                assert head.values[name] == pytest.approx(value, **NEAR), f"{call.name} {head.head} {name}"
        else:
            assert "distance" not in head.values
            assert head.values["first_token_mass"] == pytest.approx(
                float(call.weights[0, head.head, :, 0].mean()), **NEAR
            )
    assert {head.kind for head in found} == {"self", "cross"}


def of_weights(module: Any, x: Tensor, causal: bool) -> Plain:
    """Of a module with one map for queries, keys and values."""
    weight, bias = (
        (module.in_proj_weight, module.in_proj_bias)
        if isinstance(module, nn.MultiheadAttention)
        else (module.c_attn.weight, module.c_attn.bias)
    )
    mapped = x.double() @ weight.double().T + bias.double()
    q, k, v = (one.reshape(*x.shape[:2], HEADS, -1).transpose(1, 2) for one in mapped.split(WIDTH, dim=-1))
    logits = q @ k.mT / math.sqrt(WIDTH // HEADS)
    allowed = torch.ones_like(logits, dtype=torch.bool)
    allowed = allowed.tril() if causal else allowed
    logits = logits.masked_fill(~allowed, -torch.inf)
    return Plain("", logits.detach(), softmax(logits).detach(), allowed, v.detach())


@pytest.mark.parametrize("manual", [False, True])
def test_a_plain_module_with_fused_attention_or_one_written_out(manual: bool) -> None:
    model = scrambled(GPT(layers=2, manual=manual))
    given: list[Tensor] = []
    for block in model.transformer["h"]:
        block.attn.register_forward_pre_hook(lambda module, args: given.append(args[0].detach()))
    heads = observed(model, {"idx": some_ids(2, TOKENS)}, [None, None]).heads()
    blocks = list(model.transformer["h"])
    plain = [of_weights(block.attn, x, causal=True) for block, x in zip(blocks, given, strict=True)]
    named = [Plain(f"transformer.h.{at}.attn", *vars_of(one)) for at, one in enumerate(plain)]
    compare(heads, named, [list(range(TOKENS))] * 2)
    if not manual:
        for at, block in enumerate(blocks):
            check_shares([head for head in heads if head.layer == at], plain[at], block.attn.c_proj.weight)


def vars_of(plain: Plain) -> tuple[Tensor, ...]:
    return plain.logits, plain.weights, plain.allowed, plain.values


def check_shares(heads: list[HeadAttention], plain: Plain, output: Tensor) -> None:
    """The share of a layer's output, head by head, over the rows that are counted."""
    attended = plain.weights @ plain.values
    parts = torch.stack(
        [
            one @ columns.T
            for one, columns in zip(attended.unbind(1), output.double().split(WIDTH // HEADS, 1), strict=True)
        ]
    )
    energies = parts[:, :, 1:].square().sum(dim=-1)
    shares = (energies / energies.sum(dim=0)).mean(dim=(1, 2))
    for head, share in zip(heads, shares.tolist(), strict=True):
        assert head.values["output_share"] == pytest.approx(share, rel=1e-4)


def test_torch_multihead_attention_with_the_sequence_first() -> None:
    model = scrambled(Columns(layers=2))
    given: list[Tensor] = []
    for block in model.blocks:
        block.register_forward_pre_hook(lambda module, args: given.append(args[0].detach().transpose(0, 1)))
    observer = observed(model, {"src": some_ids(TOKENS, 2)}, [None, None])
    plain = [of_weights(block.self_attn, x, causal=False) for block, x in zip(model.blocks, given, strict=True)]
    named = [Plain(f"blocks.{at}.self_attn", *vars_of(one)) for at, one in enumerate(plain)]
    heads = observer.heads()
    compare(heads, named, [list(range(TOKENS))] * 2)
    assert sum(head.values["output_share"] for head in heads if head.layer == 0) == pytest.approx(1.0)


def test_padding_is_left_out_on_either_side() -> None:
    model = small("llama")
    ids = torch.randint(3, 100, (2, TOKENS), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[0, -3:] = 0
    mask[1, :4] = 0
    inputs = {"input_ids": ids, "attention_mask": mask, "use_cache": False}
    heads = observed(model, inputs, list(mask.bool())).heads()
    assert {head.texts for head in heads} == {2}
    compare(heads, plainly(model, inputs), [list(range(TOKENS - 3)), list(range(4, TOKENS))])


def test_long_texts_are_sampled_evenly_and_say_so() -> None:
    drawn = sampled_rows(1000, seed=3)
    assert len(drawn) == ROWS_AT_MOST
    assert bool((drawn.diff() > 0).all())
    assert int(drawn.diff().max()) <= 2 * math.ceil(1000 / ROWS_AT_MOST)
    assert torch.equal(drawn, sampled_rows(1000, seed=3))
    assert not torch.equal(drawn, sampled_rows(1000, seed=4))
    assert sampled_rows(ROWS_AT_MOST).tolist() == list(range(ROWS_AT_MOST))
    model = small("llama", max_position_embeddings=512)
    inputs = {"input_ids": torch.randint(3, 100, (1, 300), generator=torch.Generator().manual_seed(0))}
    found = observed(model, inputs, [None]).heads()[0]
    assert (found.rows, found.tokens) == (ROWS_AT_MOST, 300)
    (call, *_) = plainly(model, inputs)
    means = call.weights[0, 0, sampled_rows(300), 0]
    assert found.values["first_token_mass"] == pytest.approx(float(means[1:].mean()), rel=1e-4)
    low, high = found.interval["first_token_mass"]
    assert low < float(call.weights[0, 0, 1:, 0].mean()) < high
    assert found.interval_over == "rows"


def head(changes: dict[str, float], heads: int = 8) -> HeadAttention:
    values = dict.fromkeys(("first_token_mass", "sink_mass", "self_mass", "busiest_mass"), 0.1)
    values |= {
        "relative_entropy": 0.5,
        "output_share": 1 / heads,
        "logit_max": 3.0,
        "logit_q50": 0.0,
        "logit_q99": 2.0,
    }
    return HeadAttention(1, "layers.0.attn", 0, heads, "self", 2, 32, 32, {**values, **changes}, {}, None, (5, "the"))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, None),
        ({"first_token_mass": 0.79}, None),
        ({"first_token_mass": 0.81}, "first token"),
        ({"sink_mass": 0.81}, "learned sink"),
        ({"self_mass": 0.9}, "itself"),
        ({"busiest_mass": 0.9}, "one token"),
        ({"output_share": 0.1 / 8 - 1e-9}, "small output"),
        ({"output_share": 0.1 / 8 + 1e-9}, None),
    ],
)
def test_heads_that_do_nothing(changes: dict[str, float], why: str | None) -> None:
    assert head(changes).does_nothing == why
    assert head(changes).record()["does_nothing"] == why


def test_sinks_of_weights_are_told_by_the_threshold() -> None:
    assert not head({"first_token_mass": THRESHOLDS.attention_sink_mass - 0.1}).is_sink
    assert head({"first_token_mass": THRESHOLDS.attention_sink_mass}).is_sink


def test_the_summary_counts_and_names() -> None:
    heads = [head({"first_token_mass": 0.95, "relative_entropy": 0.05}), head({"logit_max": 44.4}), head({})]
    said = {one.topic: one.text for one in attention_reasons(heads)}
    assert said["attention sinks"].startswith(
        "1 of 3 heads put more than 30% of their weight on the first token or on"
    )
    assert "which get 10% of all weight (layer 1); most at layer 1 (layers.0.attn), 48%" in said["attention sinks"]
    assert said["heads that do nothing"].startswith("1 of 3 heads do nothing: 1 because 90% or more of the weight")
    assert "collapsed (below 10%) in 1 of 3 heads (layer 1)" in said["attention entropy"]
    assert said["attention logits"].startswith("the largest logit is 44.4, in head 0 of layer 1")
    bounded = [head({"entropy": 2.0, "entropy_floor": floor}) for floor in (0.1, 0.5, 1.9)]
    (entropy,) = (one.text for one in attention_reasons(bounded) if one.topic == "attention entropy")
    assert entropy.endswith("could let the median head's entropy fall to 25% of what it is, and no lower")
    (entropy,) = (
        one.text
        for one in attention_reasons([head({"entropy": 2.0, "entropy_floor": 0.009})])
        if one.topic == "attention entropy"
    )
    assert entropy.endswith("would allow the median head to attend to a single token")
    flat = {one.topic: one.text for one in attention_reasons([head({"entropy": 2.0, "entropy_floor": 1.999})])}
    assert "; every layer has " in flat["attention entropy"]
    assert flat["attention entropy"].endswith("cannot make the median head's entropy lower than it is")
    small_logits = [head({"logit_max": 0.0312, "logit_q99": 0.0456, "logit_q50": 0.0})]
    (logits,) = (one.text for one in attention_reasons(small_logits) if one.topic == "attention logits")
    assert "the largest logit is 0.0312, in head 0" in logits
    assert logits.endswith("1% of the pairs are more than 0.046 above its median logit")
    none = {one.topic: one.text for one in attention_reasons([head({"sink_mass": 0.0})])}
    assert none["heads that do nothing"].startswith("none of 1 heads: none has 90% of its weight on one token")
    assert "learned" not in none["attention sinks"]
    rests = attention_reasons([head({"sink_mass": 0.0, "busiest_mass": 0.6})])[0]
    assert "; 1 head puts as much on another single token, the most head 0" in rests.text
    assert "60% on token 5 ('the')" in rests.text


def test_an_audit_has_it_in_every_form_and_can_leave_it_out() -> None:
    model = small("llama")
    ids = torch.randint(3, 100, (2, 20), generator=torch.Generator().manual_seed(0))
    found = audit(model, inputs=ids, heads=False, controls=False, ablation=False)
    assert found.missing == {}
    assert [(one.layer, one.head) for one in found.attention] == [(layer, at) for layer in (1, 2) for at in range(4)]
    record = found.record()["attention"]
    table = found.tables()["attention"]
    assert len(record) == len(table) == 8
    assert (
        record[3]["relative_entropy"] == table["relative_entropy"][3] == found.attention[3].values["relative_entropy"]
    )
    assert record[3]["interval"]["relative_entropy"][0] == table["relative_entropy_low"][3]
    sinks = next(one for one in found.verdict.reasons if one.topic == "attention sinks")
    by_layer = table.groupby("layer")["first_token_mass"].mean().to_dict()
    assert sinks.numbers["first_token_mass_by_layer"] == pytest.approx(by_layer)
    topics = [one.topic for one in found.verdict.reasons]
    assert {"attention sinks", "heads that do nothing", "attention entropy", "attention logits"} <= set(topics)
    without = audit(model, inputs=ids, heads=False, controls=False, ablation=False, attention=False)
    assert without.attention == ()
    assert without.missing == {}
    assert not any(one.topic.startswith("attention") for one in without.verdict.reasons)


def test_attention_that_is_not_what_the_model_computed_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small("llama")
    ids = torch.randint(3, 100, (2, 20), generator=torch.Generator().manual_seed(0))
    genuine = seen.written_out

    def wrong(*given: Any, **options: Any) -> tuple[Tensor, Tensor]:
        output, weights = genuine(*given, **options)
        return output + 0.01 * output.abs().max(), weights

    monkeypatch.setattr(seen, "written_out", wrong)
    found = audit(model, inputs=ids, heads=False, controls=False, ablation=False)
    assert found.attention == ()
    assert found.missing["attention statistics"].startswith(
        "2 attention modules, the first layers.0.self_attn: required"
    )
    assert found.masks


def test_half_precision_is_read_as_the_model_computes_it() -> None:
    model = small("llama")
    ids = torch.randint(3, 100, (2, 20), generator=torch.Generator().manual_seed(0))
    options: dict[str, Any] = {"heads": False, "controls": False, "ablation": False}
    exact = audit(model, inputs=ids, **options)
    rounded = audit(model.bfloat16(), inputs=ids, **options)
    assert rounded.missing == {}
    for one, other in zip(exact.attention, rounded.attention, strict=True):
        assert other.values["sink_mass"] == 0.0
        assert other.values["relative_entropy"] == pytest.approx(one.values["relative_entropy"], abs=0.05)
        assert other.values["first_token_mass"] == pytest.approx(one.values["first_token_mass"], abs=0.05)


def test_spectra_that_wait_for_each_other_are_those_taken_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small("llama")
    inputs = {"input_ids": some_ids(2, TOKENS)}
    together = [one.values for one in observed(model, inputs, [None, None]).heads()]
    monkeypatch.setattr(observer_module, "NUMBERS_WAITING", 0)
    alone = [one.values for one in observed(model, inputs, [None, None]).heads()]
    assert together == alone
    assert all("effective_rank" in one for one in together)


@pytest.mark.parametrize("most", [0, 2**26])
def test_spectra_beside_the_pass_are_the_same(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small("llama")
    inputs = {"input_ids": some_ids(2, TOKENS)}
    together = [one.values for one in observed(model, inputs, [None, None]).heads()]
    asked: list[tuple[int | None, bool]] = []

    def watched(gram: Tensor, threads: int | None = None) -> dict[str, Tensor]:
        asked.append((threads, threading.current_thread() is threading.main_thread()))
        return matrix_statistics(gram, threads)

    monkeypatch.setattr(observer_module, "matrix_statistics", watched)
    monkeypatch.setattr(observer_module, "BESIDE", ("cpu",))
    monkeypatch.setattr(observer_module, "NUMBERS_WAITING", most)
    before = threading.active_count()
    beside = [one.values for one in observed(model, inputs, [None, None]).heads()]
    assert together == beside
    assert set(asked) == {(1, False)}, "each on a thread of its own"
    assert threading.active_count() == before, "which has ended"


def test_a_spectrum_that_fails_beside_the_pass_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(gram: Tensor, threads: int | None = None) -> dict[str, Tensor]:
        raise RuntimeError("no spectrum")

    monkeypatch.setattr(observer_module, "matrix_statistics", failing)
    monkeypatch.setattr(observer_module, "BESIDE", ("cpu",))
    found = audit(small("llama"), inputs=some_ids(1, TOKENS), heads=False, controls=False, ablation=False)
    assert "no spectrum" in found.missing["attention statistics"]
    assert found.depth


def test_attention_that_is_not_finite_is_left_out_with_a_reason() -> None:
    model = small("llama")
    with torch.no_grad():
        broken = next(
            one for name, one in model.named_parameters() if name.endswith("layers.1.self_attn.q_proj.weight")
        )
        broken[0, 0] = torch.nan
    observer = observed(model, {"input_ids": some_ids(1, TOKENS)}, [None])
    assert {one.layer for one in observer.heads()} == {0}
    assert all(reason for reason in observer.missing.values())
    assert len(observer.missing) >= 1


def test_attention_to_one_key_is_missing_and_ends_no_audit() -> None:
    """A decoder that looks at one other token has a choice among its own alone; one token has none at all."""
    model = small("t5")
    ids = torch.randint(3, 100, (1, TOKENS), generator=torch.Generator().manual_seed(0))
    result = audit(model, inputs={"input_ids": ids[:, :1], "decoder_input_ids": ids}, controls=False)
    assert {head.kind for head in result.attention} == {"self"}
    assert "each of its tokens sees one key alone" in result.missing["attention statistics"]
    assert all("first_token_mass" in head.record() for head in result.attention)
    alone = audit(small("llama"), inputs=ids[:, :1], controls=False)
    assert alone.attention == ()
    assert "each of its tokens sees one key alone" in alone.missing["attention statistics"]
    assert alone.record()["attention"] == []
