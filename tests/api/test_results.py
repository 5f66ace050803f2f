"""What every result offers: a short text, a view in notebooks, a record, tables, a picture, a report."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.figure
import pandas as pd
import pytest
import torch
from tests.calls import answer
from tests.models.small import small_model

import rankfall
from rankfall.api.result import Result, frame
from rankfall.catalogue import VERBS
from rankfall.errors import RequestError
from rankfall.masks import Window
from rankfall.norms import LayerNorm
from rankfall.store.store import Store
from rankfall.training.cell import Cell

GRID = "dim = 4\npoints = 3\nfeed_forward = 4\nbatch = 4\nsteps = 100\nrank = [1, 2]\n"


def audited(folder: Path) -> Result:
    ids = torch.randint(64, (1, 12), generator=torch.Generator().manual_seed(0))
    return rankfall.audit(small_model("bert"), inputs=ids, controls=False, ablate=False)


def compared(folder: Path) -> Result:
    ids = torch.randint(64, (1, 12), generator=torch.Generator().manual_seed(0))
    return rankfall.compare(small_model("bert"), small_model("gpt2"), inputs=ids)


def in_series(folder: Path) -> Result:
    ids = torch.randint(64, (1, 12), generator=torch.Generator().manual_seed(0))
    return rankfall.series([small_model("gpt2", seed) for seed in (0, 1, 2)], inputs=ids)


def swept(folder: Path) -> Result:
    (folder / "grid.toml").write_text(GRID)
    return rankfall.sweep(folder / "grid.toml", store=folder / "runs", threads=1)


def stored(folder: Path) -> Result:
    store = Store(folder / "runs")
    for rank in (4, 8):
        cell = Cell(rank=rank)
        summary = {
            "status": "done",
            **vars(cell),
            "mse_best": 0.5,
            "mse_final": 0.6,
            "mse_fresh": 0.7,
            "seconds": 1.0,
        }
        store.write(cell, summary=summary, environment={"date": "2026-01-02"})
    return rankfall.runs(folder / "runs", where=["rank<=8"])


MADE: dict[str, Callable[[Path], Result]] = {
    "audit": audited,
    "compare": compared,
    "series": in_series,
    "coverage": lambda _: rankfall.coverage(outcome="partial"),
    "simulate": lambda _: rankfall.simulate(["causal", Window(2)], tokens=6, width=3, layers=20, seeds=2),
    "equilibrium": lambda _: rankfall.equilibrium(5, 3, 2, stable=True, disturb=1e-4, layers=50),
    "bounds": lambda _: rankfall.bounds(64, 8, heads=8, error=0.05),
    "plan": lambda _: rankfall.plan(32, layers=2, context=16, heads=4, time=False),
    "survey": lambda _: rankfall.survey(["gpt2", "gemma", "resnet"]),
    "sweep": swept,
    "runs": stored,
    "reproduce": lambda _: rankfall.reproduce("wu/fig1", scale="smoke"),
}


@pytest.fixture(scope="module", params=MADE)
def result(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Result:
    made = MADE[request.param](tmp_path_factory.mktemp(request.param))
    assert made.verb == request.param
    return made


def test_every_public_verb_is_tried_here() -> None:
    # A series is what the command `audit` makes of several models.
    assert {*MADE} == {*VERBS.names, "series"} & {*rankfall.__all__}


def test_repr_is_short_and_html_is_escaped(result: Result) -> None:
    text, page = repr(result), result._repr_html_()
    assert text.startswith(f"{type(result).__name__}: ")
    assert 2 <= len(text.splitlines()) <= 16
    assert max(len(line) for line in text.splitlines()) < 400
    assert page.startswith("<div>")
    assert "<table" in page


def test_record_is_plain(result: Result) -> None:
    record = result.record()
    assert json.loads(json.dumps(record, allow_nan=False)) == record


def test_tables_are_flat_and_the_first_is_the_main_one(result: Result) -> None:
    tables = result.tables()
    pd.testing.assert_frame_equal(result.to_frame(), next(iter(tables.values())))
    assert all(len(table) and len(table.columns) for table in tables.values())


def test_plot_gives_a_figure_and_writes_it(result: Result, tmp_path: Path) -> None:
    assert isinstance(result.plot(tmp_path / "picture.png"), matplotlib.figure.Figure)
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_save_writes_page_tables_and_pictures(result: Result, tmp_path: Path) -> None:
    page = result.save(tmp_path / "report")
    names = {path.suffix for path in page.parent.iterdir()}
    assert page.name == "report.html"
    assert {".csv", ".parquet", ".png", ".svg", ".pdf"} <= names
    assert f"rankfall.{result.verb}(...) in Python" in page.read_text(encoding="utf-8")


def test_a_report_is_not_written_over_a_file(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("x")
    with pytest.raises(
        rankfall.RequestError,
        match=r"a place to write the report; got .*taken: a file, where a folder would be needed",
    ):
        rankfall.bounds(8, 2, heads=1).save(tmp_path / "taken")


def test_words_from_outside_are_escaped_in_notebooks() -> None:
    model = small_model("bert")
    ids = torch.randint(64, (1, 8), generator=torch.Generator().manual_seed(0))
    found = rankfall.audit(model, inputs=ids, heads=False, controls=False, ablate=False)
    bad = type(found)(**{**vars(found), "missing": {"heads": "<script>alert(1)</script>"}})
    assert "<script>" not in bad._repr_html_()
    assert "&lt;script&gt;" in bad._repr_html_()
    assert "<b>" not in frame([{"a": "<b>"}]).to_html()


def test_simulation_fields_are_those_of_the_record() -> None:
    found = rankfall.simulate(["causal", "window:2"], tokens=6, width=3, layers=200, thin=5)
    record = found.record()
    for name in ("measured_rate", "tail_rate", "bound_applies", "bound_rate", "layers"):
        assert getattr(found, name) == record[name]
        assert getattr(found.others[0], name) == record["others"][0][name]
    assert (found.mask, found.others[0].mask) == ("causal", "window:2")
    assert found.measured_rate == pytest.approx(0.5, rel=1e-6)


def test_masks_and_norms_are_taken_by_name_or_as_they_are() -> None:
    sizes = {"tokens": 6, "width": 4, "layers": 10}
    named = rankfall.simulate("window:2", "layer:1e-05", **sizes)
    given = rankfall.simulate(Window(2), LayerNorm(1e-5), **sizes)
    assert named.record() == given.record()
    heads, tokens = rankfall.Heads.random(2, 4, 2), torch.randn(6, 4)
    assert torch.equal(
        rankfall.attention(heads, tokens, mask="window:2"), rankfall.attention(heads, tokens, mask=Window(2))
    )


def test_bounds_answer_both_questions() -> None:
    assert rankfall.bounds(64, 8, heads=8).mse_lower_bound == pytest.approx(0.1780, abs=5e-5)
    assert rankfall.bounds(64, 8, heads=8).heads_needed is None
    assert f"{rankfall.bounds(64, 8, error=0.05).heads_needed:.3e}" == "2.355e+12"
    assert [row["rank"] for row in rankfall.bounds(12).ranks] == list(range(1, 12))
    assert "ranks" in rankfall.bounds(12).tables()
    assert rankfall.bounds(4096, 1, error=0.001).log10_heads_needed > 4000


def test_equilibria_of_every_rank() -> None:
    found = rankfall.equilibrium(6, 4, all_ranks=True)
    assert [row["rank"] for row in found.ranks] == [1, 2, 3, 4]
    assert found.as_asked
    assert found.rank == 4
    assert found.residual < 1e-12
    near = {**rankfall.equilibrium(5, 3, 3).record()}
    again = rankfall.equilibrium(polish=near)
    assert again.found["converged"]
    assert again.family is None


def test_an_audit_of_a_module_in_memory() -> None:
    ids = torch.randint(64, (1, 12), generator=torch.Generator().manual_seed(0))
    found = rankfall.audit(small_model("bert"), inputs=ids, layers="1-2", controls=False, ablate=False)
    assert [row.layer for row in found.boundaries] == [0, 1, 2, 3]
    assert found.model.layers == 3
    assert set(found.verdict.statuses.values()) == {"too little text"}
    assert len(found.heads) == 12
    last = found.boundaries[-1].values["unit"]["energy_rank"]
    assert found.failures(f"energy_rank < {last + 1} at last") == [{"layer": 3, "value": last}]


def test_texts_are_strings_and_files_are_paths(tmp_path: Path) -> None:
    from tests.models.small import save_small, some_text

    folder, path = save_small(tmp_path / "bert"), tmp_path / "text.txt"
    path.write_text(some_text(20))
    cheap: dict[str, Any] = {"tokens": 10, "heads": False, "controls": False, "ablate": False}
    read, given = rankfall.audit(folder, path, **cheap), rankfall.audit(str(folder), some_text(20), **cheap)
    assert read.record()["depth"] == given.record()["depth"]


def test_a_dry_run_estimates(tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text(GRID)
    found = rankfall.sweep(tmp_path / "grid.toml", store=tmp_path / "runs", dry_run=True)
    assert found.estimate is not None
    assert found.record()["cells"] == 2
    assert "seconds" in repr(found)
    assert not (tmp_path / "runs").exists()
    with pytest.raises(rankfall.RequestError, match="finished runs with rank"):
        found.plot()


def test_measures_take_tensors_arrays_and_lists() -> None:
    x = torch.randn(5, 3, dtype=torch.float64)
    every = rankfall.measure(x)
    assert rankfall.effective_rank(x) == rankfall.effective_rank(x.numpy()) == every["effective_rank"]
    assert rankfall.energy_rank(x) == rankfall.energy_rank(x.numpy()) == every["energy_rank"]
    assert rankfall.mu([[1, 2], [3, 4]]) == pytest.approx(2.0)
    assert rankfall.rank(torch.eye(4)) == 4
    batch = torch.randn(2, 5, 3)
    assert torch.equal(torch.as_tensor(rankfall.mu(batch)), rankfall.measure(batch)["mu"])
    assert rankfall.measure(batch.numpy())["mu"].shape == (2,)
    assert every["most"] == 3
    assert {name: getattr(rankfall, name)(x) for name in rankfall._MEASURES} == {
        name: every[name] for name in rankfall._MEASURES
    }


@pytest.mark.parametrize("verb", [verb for verb in MADE if verb in VERBS])
def test_a_command_has_the_defaults_of_its_function(verb: str) -> None:
    """Where both take an argument of one name, they agree on what it is when left out."""
    function = inspect.signature(getattr(rankfall, verb)).parameters
    command = inspect.signature(VERBS[verb]).parameters
    shared = [name for name in command if name in function and name not in ("figures", "where")]
    for name in shared:
        ours, theirs = command[name].default, function[name].default
        assert (str(ours) if isinstance(ours, Path) else ours) == theirs, name
    if verb == "audit":
        # Of several models it makes a series.
        function = {**function, **inspect.signature(rankfall.series).parameters, "context": None}
    only = {name for name in command if name not in function}
    files = {"csv", "plot", "out", "head_spectra"}
    assert only <= files | {"json", "every", "fail_if", "weights_only", "check"}


def test_a_command_prints_the_record_of_its_function(capsys: pytest.CaptureFixture[str]) -> None:
    printed = answer(capsys, "simulate", "--mask", "causal", "--tokens", "5", "--width", "3", "--layers", "8")
    assert printed == {"schema": 2, **rankfall.simulate("causal", tokens=5, width=3, layers=8).record()}


def test_progress_goes_from_nothing_to_all() -> None:
    told: list[tuple[str, float]] = []
    rankfall.simulate("causal", tokens=5, width=3, layers=20, progress=lambda what, share: told.append((what, share)))
    shares = [share for _, share in told]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_along_a_band_many_tokens_need_no_matrix_of_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    from rankfall import system
    from rankfall.masks import Mask

    def refuse(*_: object) -> None:
        raise AssertionError("a matrix of all pairs was formed")

    monkeypatch.setattr(system, "available_memory", lambda: 1 << 30)
    monkeypatch.setattr(Mask, "dense", refuse)
    found = rankfall.simulate("window:4", tokens=8192, width=2, layers=2, thin=2)
    assert found.tail_rate is not None
    assert 1 - 1e-5 < found.tail_rate < 1
    assert found.bound_applies
    with pytest.raises(RequestError, match="about 3 GiB of memory"):
        rankfall.simulate("causal", tokens=8192, width=2, layers=2)
