"""Trained language models as folders of transformers: the same logits, the same ids, and audits open them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import rankfall
from rankfall.errors import RequestError
from rankfall.models.trained.export import configuration
from rankfall.store.run import Run
from rankfall.store.store import Store
from rankfall.training.kinds import cell_from
from rankfall.training.text.cell import TextCell
from rankfall.training.text.corpus import open_corpus
from rankfall.training.text.module import text_model

GRID = """
task = "text"
width = 16
layers = 2
heads = 4
context = 16
batch = 4
steps = 100
[[grid]]
rank = 4
[[grid]]
rank = 6
value_rank = 2
key_heads = 2
mask = "causal-window:3"
tied = false
tokenizer = "bpe:300"
[[grid]]
rank = 4
value_rank = [7, 12]
key_heads = [1, 4]
[[grid]]
positions = "learned"
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of trained models, and the folders of those that have one."""
    home = tmp_path_factory.mktemp("export")
    verses = (f"Verse {n}: naïve sun and moon and {n % 9} stars over {n % 4} hills." for n in range(300))
    (home / "book.txt").write_text("\n\n".join(verses))
    (home / "grid.toml").write_text(GRID)
    rankfall.sweep(home / "grid.toml", text=home / "book.txt", store=home / "runs", threads=1, audit=False)
    found = rankfall.runs(home / "runs", export_models=home / "models")
    (home / "notes.txt").write_text("\n".join(found.notes))
    return home


def run_of(home: Path, **of: Any) -> Run:
    of = {"positions": "rotary", **of}
    (run,) = (run for run in Store(home / "runs").runs() if all(run.config[name] == of[name] for name in of))
    return run


SHAPES = [
    {"rank": 4, "value_rank": 4},
    {"rank": 6, "value_rank": 2, "key_heads": 2, "tokenizer": "bpe:300"},
    *({"rank": 4, "value_rank": wide, "key_heads": keys} for wide in (7, 12) for keys in (1, 4)),
]


SIZES = [({"rank": 4, "value_rank": 4}, 4), ({"rank": 4, "value_rank": 7, "key_heads": 1}, 8)]
"""Two of these, and the size of a head in their folders."""


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_logits_and_ids_are_those_of_the_trained_model(home: Path, shape: dict[str, Any]) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    run = run_of(home, **shape)
    cell = cell_from(run.config)
    assert isinstance(cell, TextCell)
    folder = home / "models" / run.id
    words = AutoTokenizer.from_pretrained(folder)
    text = "Verse 7: naïve sun\n\tand 7 stars ☉"
    ids = words(text)["input_ids"]
    corpus = open_corpus(cell.corpus, home / "runs")
    assert ids == corpus.encoding.encode(text).tolist()
    assert words.decode(ids) == text
    assert words.bos_token_id == corpus.encoding.end
    given = torch.randint(cell.vocabulary, (2, cell.context), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        ours = text_model(cell, run.weights())(given)
        theirs = AutoModelForCausalLM.from_pretrained(folder)(given).logits
    assert theirs.shape == ours.shape
    torch.testing.assert_close(theirs, ours, rtol=1e-4, atol=1e-5)


def test_what_has_no_such_form_is_noted_and_the_rest_written(home: Path) -> None:
    notes = (home / "notes.txt").read_text().splitlines()
    assert len([note for note in notes if note.startswith("wrote ")]) == len(SHAPES)
    (left,) = (note for note in notes if not note.startswith("wrote "))
    assert "got positions=learned; build the module in Python" in left
    before = sorted(path.stat().st_mtime_ns for path in (home / "models").rglob("*"))
    rankfall.runs(home / "runs", export_models=home / "models")
    assert sorted(path.stat().st_mtime_ns for path in (home / "models").rglob("*")) == before


@pytest.mark.parametrize(("shape", "size"), SIZES)
def test_an_audit_opens_the_folder(home: Path, shape: dict[str, Any], size: int) -> None:
    run = run_of(home, **shape)
    asked: dict[str, Any] = {"tokens": 12, "passages": 1, "controls": False, "ablate": False}
    record = rankfall.audit(home / "models" / run.id, home / "book.txt", **asked).record()
    assert {head["head_dim"] for head in record["heads"]} == {size}
    assert [row["layer"] for row in record["depth"]] == [0, 1, 2]
    assert all(0 < head["qk_effective_rank"] <= shape["rank"] + 1e-6 for head in record["heads"])


@pytest.mark.parametrize(
    ("changes", "got"),
    [
        ({"activation": "relu2"}, "activation=relu2"),
        ({"norm": "layer:1e-5"}, "norm=layer:1e-5"),
        ({"positions": "none", "rank": 3, "value_rank": 64}, "positions=none, value_rank=64 beside rank=3"),
    ],
)
def test_shapes_that_these_architectures_lack_are_refused(changes: dict[str, Any], got: str) -> None:
    with pytest.raises(RequestError, match="as Llama has them") as refused:
        configuration(TextCell(**changes))
    assert got in str(refused.value)


def test_runs_of_other_tasks_and_without_weights_have_no_folder(home: Path, tmp_path: Path) -> None:
    (tmp_path / "points.toml").write_text("dim = 4\npoints = 3\nfeed_forward = 4\nbatch = 4\nsteps = 100\nrank = 1\n")
    rankfall.sweep(tmp_path / "points.toml", store=tmp_path / "points", threads=1)
    found = rankfall.runs(tmp_path / "points", export_models=tmp_path / "models")
    assert "required a language model; got a run of the task" in found.notes[0]
    rankfall.runs(home / "runs", export_results=tmp_path / "results")
    rankfall.runs(tmp_path / "taken", import_results=tmp_path / "results")
    found = rankfall.runs(tmp_path / "taken", export_models=tmp_path / "models")
    assert sum("without them; train it with --weights" in note for note in found.notes) == len(SHAPES) + 1
    assert not (tmp_path / "models").exists()


def test_a_store_of_language_models_has_a_picture(home: Path) -> None:
    panels = rankfall.runs(home / "runs").plot().axes
    assert "nats per byte" in panels[0].get_ylabel()
