"""The monitor's attention statistics: those of attention written out, in a run that stays what it would have been."""

from __future__ import annotations

import csv
import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.models.plain import GPT, HEADS, WIDTH, scrambled, some_ids
from tests.models.small import small_model
from torch import Tensor, nn

from rankfall.models.architectures.small import small_models
from rankfall.models.monitor.alarms import Alarms, RankWarning
from rankfall.models.monitor.attention import ROWS
from rankfall.models.monitor.monitor import RankMonitor
from rankfall.models.monitor.ranks import reduced

QUIET = Alarms(relative_mu=0.0, energy_rank=0.0, norm_ratio=1e9)
TOKENS = 14


def direct(weights: Tensor, logits: Tensor) -> list[dict[str, float]]:
    """Of causal attention (h, n, n): rows from the second on, by loops."""
    found = []
    for head in range(len(weights)):
        entropies, relative, first = [], [], []
        largest = -math.inf
        for i in range(1, weights.shape[-1]):
            row = weights[head, i, : i + 1].tolist()
            entropies.append(-sum(p * math.log(p) for p in row if p > 0))
            relative.append(entropies[-1] / math.log(i + 1))
            first.append(row[0])
            largest = max(largest, float(logits[head, i, : i + 1].max()))
        count = len(entropies)
        means = {"entropy": sum(entropies), "relative_entropy": sum(relative), "first_token_mass": sum(first)}
        found.append({name: value / count for name, value in means.items()} | {"logit_max": largest})
    return found


def check(logged: dict[str, float], name: str, expected: list[dict[str, float]]) -> None:
    for head, values in enumerate(expected):
        for measure, value in values.items():
            key = f"rankfall/{name}/attention/head.{head}/{measure}"
            assert logged[key] == pytest.approx(value, rel=1e-4, abs=1e-6), key
    for measure in ("entropy", "relative_entropy", "first_token_mass"):
        mean = sum(one[measure] for one in expected) / len(expected)
        assert logged[f"rankfall/{name}/attention/{measure}"] == pytest.approx(mean, rel=1e-4)
    largest = max(one["logit_max"] for one in expected)
    assert logged[f"rankfall/{name}/attention/logit_max"] == pytest.approx(largest, rel=1e-4)
    assert logged[f"rankfall/{name}/attention/sink_mass"] == 0.0


def plain(module: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    mapped = x.double() @ module.c_attn.weight.double().T + module.c_attn.bias.double()
    q, k, _ = (one.reshape(*x.shape[:1], HEADS, -1).transpose(0, 1) for one in mapped.split(WIDTH, dim=-1))
    logits = (q @ k.mT / math.sqrt(WIDTH // HEADS)).masked_fill(~torch.ones(len(x), len(x)).tril().bool(), -torch.inf)
    return logits.softmax(dim=-1).detach(), logits.detach()


@pytest.mark.parametrize("manual", [False, True])
def test_a_plain_module_is_measured_as_written_out(manual: bool) -> None:
    model = scrambled(GPT(layers=3, manual=manual)).train()
    given: list[Tensor] = []
    for block in model.transformer["h"]:
        block.attn.register_forward_pre_hook(lambda module, args: given.append(args[0].detach()))
    logged: list[dict[str, float]] = []
    with RankMonitor(model, logged, alarms=QUIET, attention=True, blocks=3):
        model(some_ids(2, TOKENS))
    assert len(given) == 3  # the second run passes hooks by
    for at, block in enumerate(model.transformer["h"]):
        check(logged[0], f"transformer.h.{at}.attn", direct(*plain(block.attn, given[at][0])))


def train(model: nn.Module, steps: int = 3) -> list[float]:
    torch.manual_seed(0)
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for step in range(steps):
        ids = torch.randint(4, 60, (2, TOKENS), generator=torch.Generator().manual_seed(step))
        loss = model(input_ids=ids).last_hidden_state.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("llama", {"attention_dropout": 0.5}),
        ("bert", {"attention_probs_dropout_prob": 0.5}),
        ("gpt2", {}),
        ("gpt_oss", {"num_local_experts": 2, "num_experts_per_tok": 1, "num_key_value_heads": 2}),
    ],
)
def test_training_stays_the_same_with_dropout_and_caches(kind: str, changes: dict[str, Any]) -> None:
    logged: list[dict[str, float]] = []
    model = small_model(kind, **changes)
    with RankMonitor(model, logged, alarms=QUIET, every=1, attention=True):
        watched = train(model)
    assert watched == train(small_model(kind, **changes))
    assert len(logged) == 3
    names = {name for one in logged for name in one if name.endswith("/entropy") and "/head." in name}
    assert len(names) == 3 * 4
    assert all(math.isfinite(value) for one in logged for value in one.values())


def test_weights_of_the_library_are_those_that_are_measured() -> None:
    model = small_model("llama", attn_implementation="eager").train()
    ids = torch.randint(4, 60, (1, TOKENS), generator=torch.Generator().manual_seed(0))
    logged: list[dict[str, float]] = []
    with RankMonitor(model, logged, alarms=QUIET, attention=True, blocks=3):
        shown = model(input_ids=ids, output_attentions=True).attentions
    for at, weights in enumerate(shown):
        means = weights[0, :, 1:, 0].mean(dim=-1).tolist()
        for head, mean in enumerate(means):
            key = f"rankfall/layers.{at}.self_attn/attention/head.{head}/first_token_mass"
            assert logged[0][key] == pytest.approx(mean, rel=1e-5)


def test_a_long_sequence_is_sampled_and_the_longest_text_is_read() -> None:
    model = small_model("llama", max_position_embeddings=256).train()
    tokens = 3 * ROWS
    ids = torch.randint(4, 60, (2, tokens), generator=torch.Generator().manual_seed(0))
    real = torch.ones_like(ids)
    real[0, 5:] = 0
    logged: list[dict[str, float]] = []
    with RankMonitor(model, logged, alarms=QUIET, attention=True, blocks=1):
        model(input_ids=ids, attention_mask=real)
    alone: list[dict[str, float]] = []
    with RankMonitor(model, alone, alarms=QUIET, attention=True, blocks=1):
        model(input_ids=ids[1:])
    for name, value in alone[0].items():
        assert logged[0][name] == pytest.approx(value, rel=1e-4, abs=1e-6), name


def train_on(model: nn.Module, batches: list[Tensor]) -> None:
    for one in batches:
        model(one)


def test_what_has_no_attention_is_a_gap() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])

        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                x = block(x)
            return x

    model, logged = Mixed().train(), []
    said = "gap at blocks.0/attention, step 0: measuring attention failed"
    with (
        pytest.warns(RankWarning, match=said) as caught,
        RankMonitor(model, logged, alarms=QUIET, every=1, attention=True),
    ):
        train_on(model, [torch.randn(1, 9, 8), torch.randn(1, 9, 8)])
    assert len(caught) == 1
    assert len(logged) == 2
    assert "rankfall/blocks.0/effective_rank" in logged[1]


def test_heads_have_rows_of_their_own_in_a_csv_file(tmp_path: Path) -> None:
    model = scrambled(GPT(layers=1)).train()
    path = tmp_path / "log.csv"
    with RankMonitor(model, str(path), alarms=QUIET, attention=True):
        model(some_ids(1, TOKENS))
    with path.open() as file:
        rows = {row["block"]: row for row in csv.DictReader(file)}
    assert list(rows) == [
        "transformer.h.0",
        "transformer.h.0.attn/attention",
        *(f"transformer.h.0.attn/attention/head.{head}" for head in range(HEADS)),
    ]
    head = rows["transformer.h.0.attn/attention/head.1"]
    assert float(head["entropy"]) > 0
    assert head["relative_mu"] == ""
    assert rows["transformer.h.0"]["entropy"] == ""


@pytest.mark.parametrize("whole", [True, False])
def test_attention_inside_a_compiled_graph_is_seen_in_a_pass_of_its_own(whole: bool) -> None:
    logged: list[dict[str, float]] = []
    expected: list[dict[str, float]] = []
    model = scrambled(GPT(layers=2)).train()
    with RankMonitor(model, expected, alarms=QUIET, attention=True, blocks=2):
        model(some_ids(1, TOKENS))
    if whole:
        compiled: nn.Module = torch.compile(model, backend="eager")
    else:
        compiled = model
        for block in model.transformer["h"]:
            block.compile(backend="eager")
    with warnings.catch_warnings():
        # Of torch, about gradients inside of what it compiles.
        warnings.simplefilter("ignore", UserWarning)
        warnings.simplefilter("error", RankWarning)
        with RankMonitor(compiled, logged, alarms=QUIET, every=1, attention=True, blocks=2):
            for _ in range(2):
                compiled(some_ids(1, TOKENS))
    torch._dynamo.reset()
    assert len(logged) == 2
    for name, value in expected[0].items() - {("step", 0)}:
        assert logged[1][name] == pytest.approx(value, rel=1e-5, abs=1e-7), name


def test_processes_join_attention_by_means_and_the_largest_logit() -> None:
    some = [{"a/attention": {"entropy": entropy, "logit_max": logit}} for entropy, logit in ((1.0, 3.0), (2.0, 7.0))]
    assert reduced(some) == {"a/attention": {"entropy": 1.5, "logit_max": 7.0, "ranks": 2.0}}


def form(query: Tensor, key: Tensor) -> float:
    """Stable rank of W_Q W_K^T by the singular values of the whole matrix."""
    values = torch.linalg.svdvals(query.double() @ key.double().T)
    return float(values.square().sum() / values[0].square())


def maps_of(kind: str, attention: Any, config: Any) -> list[tuple[Tensor, Tensor]]:
    """W_Q and W_K (d, r) of every head, by the names of the family's weights."""
    heads = config.num_attention_heads
    if kind == "gpt2":
        query, key, _ = attention.c_attn.weight.detach().T.chunk(3)
    elif kind == "gpt_neox":
        fused = attention.query_key_value.weight.detach().unflatten(0, (heads, 3, -1))
        query, key = fused[:, 0].flatten(0, 1), fused[:, 1].flatten(0, 1)
    else:
        query, key = attention.q_proj.weight.detach(), attention.k_proj.weight.detach()
    query, key = query.unflatten(0, (heads, -1)), key.unflatten(0, (-1, query.shape[0] // heads))
    if kind in ("qwen3", "gemma3_text"):
        more = 1.0 if kind == "gemma3_text" else 0.0
        query, key = (
            one * (norm.weight.detach() + more)[:, None]
            for one, norm in ((query, attention.q_norm), (key, attention.k_norm))
        )
    return [(query[head].T.clone(), key[head * len(key) // heads].T.clone()) for head in range(heads)]


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma3_text", "gpt2", "gpt_neox"])
def test_stable_ranks_of_weights_and_of_their_change(kind: str) -> None:
    grouped = {} if kind in ("gpt2", "gpt_neox") else {"num_key_value_heads": 2, "head_dim": 8}
    model: Any = small_model(kind, **grouped)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, one in model.named_parameters():
            if name.endswith(("q_norm.weight", "k_norm.weight")):
                one.copy_(torch.rand(one.shape, generator=generator))
    logged: list[dict[str, float]] = []
    model.train()
    ids = torch.randint(4, 60, (2, TOKENS), generator=torch.Generator().manual_seed(0))
    monitor = RankMonitor(model, logged, alarms=QUIET, every=1, weights=True, blocks=1)
    (block,) = monitor.blocks.values()
    attention = getattr(block, {"gpt2": "attn", "gpt_neox": "attention"}.get(kind, "self_attn"))
    with monitor:
        first = maps_of(kind, attention, model.config)
        model(input_ids=ids)
        with torch.no_grad():
            for one in model.parameters():
                one.add_(1e-4 * torch.randn(one.shape, generator=generator))
        second = maps_of(kind, attention, model.config)
        model(input_ids=ids)
    name = next(key for key in logged[0] if key.endswith("/head.0/entropy")).removesuffix("/head.0/entropy")
    assert "qk_update_stable_rank" not in " ".join(logged[0])
    for head, ((q, k), (later_q, later_k)) in enumerate(zip(first, second, strict=True)):
        assert logged[0][f"{name}/head.{head}/qk_stable_rank"] == pytest.approx(form(q, k), rel=1e-4)
        assert logged[1][f"{name}/head.{head}/qk_stable_rank"] == pytest.approx(form(later_q, later_k), rel=1e-4)
        change = later_q.double() @ later_k.double().T - q.double() @ k.double().T
        values = torch.linalg.svdvals(change)
        expected = float(values.square().sum() / values[0].square())
        assert logged[1][f"{name}/head.{head}/qk_update_stable_rank"] == pytest.approx(expected, rel=1e-3)


def test_weights_of_torch_multihead_attention() -> None:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 48, batch_first=True, dropout=0.0)
    model = nn.TransformerEncoder(layer, 2).train()
    logged: list[dict[str, float]] = []
    with RankMonitor(model, logged, alarms=QUIET, weights=True, blocks=1):
        model(torch.randn(2, TOKENS, WIDTH))
    names = [name for name in logged[0] if name.endswith("qk_stable_rank") and "head." in name]
    attention: Any = model.get_submodule(names[0].removeprefix("rankfall/").partition("/attention")[0])
    query, key, _ = attention.in_proj_weight.detach().chunk(3)
    size = WIDTH // HEADS
    for head, name in enumerate(names):
        rows = slice(head * size, (head + 1) * size)
        assert logged[0][name] == pytest.approx(form(query[rows].T, key[rows].T), rel=1e-4)


def test_latent_queries_and_keys_are_a_gap_in_the_weights_alone() -> None:
    model = next(iter(small_models("deepseek_v3", num_key_value_heads=4))).train()
    logged: list[dict[str, float]] = []
    with (
        pytest.warns(RankWarning, match="measuring weights failed.*one linear map that gives the query"),
        RankMonitor(model, logged, alarms=QUIET, weights=True, blocks=1),
    ):
        model(input_ids=torch.randint(4, 60, (2, TOKENS)), use_cache=False)
    assert any(name.endswith("head.0/entropy") for name in logged[0])
    assert not any("stable_rank" in name and "qk" in name for name in logged[0])
