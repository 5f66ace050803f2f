"""Audits of trained language models: numbers against matrices written out, kept once, exported, refused in words."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from tests.calls import call
from torch import Tensor

import rankfall
from rankfall.api.sweep import SweepResult
from rankfall.catalogue import ENGINES
from rankfall.models.trained import audited as trained_text
from rankfall.models.trained import stored as text_runs
from rankfall.models.trained.audited import audit_columns, held_out_passages
from rankfall.models.trained.stored import audit_runs
from rankfall.report.verb_definitions import definitions_for
from rankfall.store.store import Store
from rankfall.training.kinds import cell_from
from rankfall.training.options import Options
from rankfall.training.text.cell import TextCell
from rankfall.training.text.columns import AUDIT_COLUMNS
from rankfall.training.text.comparison import SETTING, SHAPE
from rankfall.training.text.corpus import Corpus, open_corpus
from rankfall.training.text.decoder import text_layout
from rankfall.training.text.module import TextModel, text_model

GRID: dict[str, Any] = {
    "task": "text", "width": 16, "layers": 2, "heads": 2, "rank": [2, 8], "context": 24, "batch": 4, "steps": 100,
}  # fmt: skip


class Swept:
    """A grid of two models with their audits."""

    def __init__(self, folder: Path) -> None:
        self.grid, self.book, self.store = folder / "grid.toml", folder / "book.txt", folder / "store"
        self.grid.write_text("\n".join(f"{key} = {json.dumps(value)}" for key, value in GRID.items()))
        verses = (f"Verse {n}: sun and moon and {n % 9} stars over {n % 4} hills." for n in range(600))
        self.book.write_text("\n\n".join(verses))
        self.result = self.again()

    def again(self, **options: Any) -> SweepResult:
        return rankfall.sweep(self.grid, **({"text": self.book, "store": self.store, "threads": 1} | options))

    def model(self, rank: int) -> tuple[TextCell, TextModel, Corpus]:
        run = next(run for run in Store(self.store).runs() if run.config["rank"] == rank)
        cell = cast(TextCell, cell_from(run.config))
        return cell, text_model(cell, run.weights()), open_corpus(cell.corpus, self.store)


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Swept:
    return Swept(tmp_path_factory.mktemp("audits"))


def effective_rank(matrix: Tensor) -> float:
    values = torch.linalg.svdvals(matrix.double())
    shares = values / values.sum()
    return math.exp(-float((shares * shares.clamp_min(1e-300).log()).sum()))


@torch.no_grad()
@pytest.mark.parametrize("rank", [2, 8])
def test_numbers_are_those_of_the_matrices_written_out(swept: Swept, rank: int) -> None:
    cell, model, corpus = swept.model(rank)
    (row,) = (row for row in swept.result.audits if row["rank"] == rank)
    ids = held_out_passages(corpus, cell.context)
    assert ids.shape == (4, 24)
    forms, masses, entropies, tokens = [], [], [], [model.embedding(ids)]
    for block in model.blocks:
        attention, x = cast(Any, block).attention, tokens[-1]
        for head in range(cell.heads):
            rows = slice(head * rank, (head + 1) * rank)
            forms.append(effective_rank(attention.query.weight[rows].T @ attention.key.weight[rows]))
            inside = cast(Any, block).attention_norm(x)
            q, k = (turned(inside @ map_.weight[rows].T) for map_ in (attention.query, attention.key))
            scores = (q @ k.mT / rank**0.5).masked_fill(torch.ones(24, 24).triu(1).bool(), -math.inf)
            weights = scores.softmax(dim=-1).double()
            # the first row, which sees one key, has no choice
            masses.append(weights[:, 1:, 0].mean())
            entropy = -torch.special.xlogy(weights, weights).sum(dim=-1)[:, 1:]
            entropies.append((entropy / torch.arange(2, 25).log()).mean())
        tokens.append(block(x))
    tokens[-1] = model.final_norm(tokens[-1])  # as `hidden_states` has it
    assert row["head_rank_used"] == pytest.approx(sum(sorted(forms)[1:3]) / 2, rel=1e-4)
    for layer, found in enumerate(tokens):
        ranks = [effective_rank(one / one.norm(dim=-1, keepdim=True)) for one in found]
        assert row[f"token_rank_layer_{layer}"] == pytest.approx(sum(ranks) / 4, rel=1e-4)
    assert row["token_rank_last"] == row["token_rank_layer_2"]
    assert row["attention_entropy"] == pytest.approx(float(sum(entropies)) / 4, rel=1e-4)
    assert row["first_token_mass"] == pytest.approx(float(sum(masses)) / 4, rel=1e-4)


def turned(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[1])[:, None] * 10_000.0 ** (-torch.arange(half) / half)
    both = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([both.real, both.imag], dim=-1)


def test_the_three_sides_stand_in_one_row(swept: Swept) -> None:
    low, high = swept.result.audits
    assert (low["rank"], high["rank"]) == (2, 8)
    assert 0 < high["mse_lower_bound"] < low["mse_lower_bound"], "theory: the floor falls with the rank"
    assert 0 < high["synthetic_error"] < low["synthetic_error"] < 1, "paper A's cells: so does the trained error"
    assert {row["id"]: row["nats_per_byte"] for row in swept.result.audits} == {
        row["id"]: row["nats_per_byte"] for row in swept.result.runs
    }
    for row in (low, high):
        assert row["missing"] is None
        assert set(AUDIT_COLUMNS) <= set(row)
        assert 1 <= row["head_rank_used"] <= row["rank"]
        assert 0 <= row["head_rank_needed"] <= row["rank"]
    assert [(row["rank"], row["layer"]) for row in swept.result.audit_layers] == [
        (rank, layer) for rank in (2, 8) for layer in (0, 1, 2)
    ]
    assert swept.result.audit_layers[2]["token_rank"] == low["token_rank_last"]
    (sentence,) = swept.result.findings
    assert f"of rank 2 use {low['head_rank_used']:.1f} and need {low['head_rank_needed']:.1f}" in sentence
    assert sentence in repr(swept.result)


def test_the_function_gives_the_columns_of_the_row(swept: Swept) -> None:
    cell, _, corpus = swept.model(8)
    run = next(run for run in Store(swept.store).runs() if run.config["rank"] == 8)
    found = audit_columns(cell, run.weights(), corpus)
    (row,) = (row for row in swept.result.audits if row["rank"] == 8)
    assert {**found, "audit_seconds": 0} == {**{name: row[name] for name in found}, "audit_seconds": 0}


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ({"context": 1}, {"attention_entropy", "first_token_mass", "sink_heads", "idle_heads"}),
        ({"rank": 32, "value_rank": 1, "mask": "causal-window:3"}, set()),
        ({"positions": "learned", "rank": 1, "heads": 4, "dtype": "float64"}, set()),
    ],
)
def test_shapes_at_the_edge_have_audits(swept: Swept, changes: dict[str, Any], missing: set[str]) -> None:
    cell = replace(swept.model(8)[0], **changes)
    layout = text_layout(cell)
    views = layout.views(layout.initial(0)[None].to(torch.float64 if cell.dtype == "float64" else torch.float32))
    found = audit_columns(cell, {name: view[0] for name, view in views.items()}, swept.model(8)[2])
    assert {name for name, value in found.items() if value is None} == missing


def test_every_column_has_words_and_the_record_is_plain(swept: Swept, tmp_path: Path) -> None:
    known = definitions_for("sweep")
    assert set(swept.result.tables()) == {"runs", "by_shape", "to_level", "audits", "audit_layers"}
    for name, table in swept.result.tables().items():
        assert [column for column in table.columns if not known.get(column)] == [], name
        assert name == "runs" or set(SETTING) | set(SHAPE) < set(table.columns), name
    record = json.loads(json.dumps(swept.result.record(), allow_nan=False))
    assert record["audits"][0]["head_rank_used"] == swept.result.audits[0]["head_rank_used"]
    page = swept.result.save(tmp_path / "report")
    assert "head rank used" in page.read_text().lower().replace("_", " ")


def test_nothing_is_audited_twice(swept: Swept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_runs, "audit_text", lambda *_: pytest.fail("audited again"))
    again = swept.again()
    assert again.audits == swept.result.audits
    assert again.audit_layers == swept.result.audit_layers


def test_audits_can_be_left_out(swept: Swept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_runs, "audit_runs", lambda *_: pytest.fail("asked for"))
    assert set(swept.again(audit=False).tables()) == {"runs", "by_shape", "to_level"}


def test_a_damaged_audit_is_made_anew(swept: Swept) -> None:
    first = sorted(Store(swept.store).audits_folder.glob("[!.a]*.json"))[0]
    first.write_text(first.read_text().replace('"head_rank_used": ', '"head_rank_used": 1'))
    again = swept.again()
    assert [row["head_rank_used"] for row in again.audits] == [row["head_rank_used"] for row in swept.result.audits]


def test_audits_travel_with_exported_results(swept: Swept, tmp_path: Path) -> None:
    rankfall.runs(swept.store, export_results=tmp_path / "results")
    there = swept.again(store=tmp_path / "next", results=tmp_path / "results")
    assert there.trained == 0
    kept = [name for name in swept.result.audits[0] if name not in ("missing", "audit_seconds")]
    assert [{name: row[name] for name in kept} for row in there.audits] == [
        {name: row[name] for name in kept} for row in swept.result.audits
    ]
    assert there.audit_layers == []


def test_results_without_audits_and_weights_say_so(swept: Swept, tmp_path: Path) -> None:
    from rankfall.store.results import export_results

    export_results(Store(swept.store).runs(), tmp_path / "results")
    there = swept.again(store=tmp_path / "next", results=tmp_path / "results")
    assert there.complete
    assert all("--weights" in row["missing"] for row in there.audits)
    assert there.findings == []


def test_an_audit_that_fails_is_said_once_and_loses_nothing(
    swept: Swept, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fails(*_: Any) -> Any:
        raise ValueError("no such thing")

    monkeypatch.setattr(text_runs, "audit_text", fails)
    monkeypatch.setattr(trained_text, "TOKENS", 12)  # other settings: another audit
    said: list[str] = []
    found = swept.again(note=said.append)
    assert [line for line in said if "no audit" in line] == ["no audit of L2-d16-H2-r2-s0: ValueError: no such thing"]
    assert [row["missing"] for row in found.audits] == ["ValueError: no such thing"] * 2
    assert (found.complete, found.runs) == (True, swept.result.runs)


def test_a_stopped_audit_is_not_complete(swept: Swept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trained_text, "TOKENS", 12)
    store = Store(swept.store)
    found, complete = audit_runs(list(store.runs()), store, ENGINES["local"](Options()), stop=lambda: True)
    assert not complete
    assert {one.reason for one in found} == {"stopped before it was audited"}


def test_a_loss_to_count_to(swept: Swept) -> None:
    ends = [row["level"] for row in swept.result.to_level]
    assert len(set(ends)) == 1
    never = swept.again(to_loss=1e-3)
    assert [(row["level"], row["tokens"], row["seconds"]) for row in never.to_level] == [(1e-3, None, None)] * 2
    at_once = swept.again(to_loss=100.0)
    assert [row["tokens"] for row in at_once.to_level] == [100 * 4 * 24] * 2


def test_the_command_prints_the_audits(swept: Swept, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("sweep", swept.grid, "--text", swept.book, "--store", swept.store, "--threads", "1")
    for extra, expected in (((), True), (("--no-audit",), False)):
        status, printed, _ = call(capsys, *words, *extra)
        assert status == 0
        assert "tokens and seconds to the loss that all models" in " ".join(printed.split())
        assert ("audits on held-out text" in printed) is expected
        assert ("heads of rank 2 use" in printed) is expected
