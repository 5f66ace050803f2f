"""Grid files: what they spell, and how a wrong one is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import rankfall
from rankfall.errors import RequestError
from rankfall.store.store import Store
from rankfall.training.cell import Cell
from rankfall.training.grid import chosen_cells, find_grid, read_grid, read_points, shipped_grids
from rankfall.training.kinds import Surroundings, TrainingCell
from rankfall.training.text import timing


def grid(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "my.toml"
    path.write_text(text)
    return path


def test_scalars_are_fixed_lists_crossed_tables_united(tmp_path: Path) -> None:
    text = """
    dim = 8
    rank = [1, 2]
    [[grid]]
    seed = [0, 1]
    [[grid]]
    rank = 4
    learning_rate = 1
    value_rank = ["none", 2]
    """
    expected = [Cell(dim=8, rank=rank, seed=seed) for rank in (1, 2) for seed in (0, 1)]
    expected += [Cell(dim=8, rank=4, learning_rate=1.0, value_rank=value) for value in (None, 2)]
    cells = read_grid(grid(tmp_path, text))
    assert cells == expected
    assert isinstance(cells[-1].learning_rate, float), "1 and 1.0 must be the same cell"


def test_a_grid_without_tables_is_one_table(tmp_path: Path) -> None:
    assert read_grid(grid(tmp_path, "rank = [32, 64]")) == [Cell(rank=32), Cell(rank=64)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"required settings in .*my\.toml; got an empty grid; name at least one"),
        ("[[grid]]\n[[grid]]", r"got an empty grid"),
        ("rank = []", r"at least one value of rank in .*my\.toml; got an empty list"),
        ("rnk = 4", r"settings of a cell in .*my\.toml; got the key rnk; did you mean rank\?"),
        ("zzz = 4", r"got the key zzz; the keys are task, points, dim"),
        ("[[grid]]\nrank=1\n[[grid]]\nRank = 4", r"my\.toml, \[\[grid\]\] 2; got the key Rank"),
        ("rank = [1, 3]", r"a rank that divides the width 64 \(.*my\.toml\); got rank=3; choose among 1, 2, 4"),
        ("[[grid]]\ndim = 6\nrank = 4", r"divides the width 6 \(.*my\.toml, \[\[grid\]\] 1\); got rank=4"),
        ("steps = 150", r"steps in multiples of 100.*my\.toml.*got steps=150"),
        ('rank = "four"', r"rank in .*my\.toml to be int; got 'four'; the default is 64"),
        ("rank = 4.0", r"rank in .* to be int; got 4\.0"),
        ("rank = true", r"rank in .* to be int; got True"),
        ("rank = [[1, 2]]", r"rank in .* to be int; got \[1, 2\]"),
        ("[rank]\nlow = 1", r"rank in .* to be int; got \{'low': 1\}"),
        ('learning_rate = "fast"', r"learning_rate in .* to be float; got 'fast'"),
        ('task = "sorting"', r"got sorting"),
        ("[grid]\nrank = 4", r"required \[\[grid\]\] tables in .*my\.toml; got grid as dict; write \[\[grid\]\]"),
        ("rank = [4, 4]", r"every cell of .*my\.toml once; got twice the cell with rank=4"),
        ("[[grid]]\nrank = 64\n[[grid]]\nseed = 0", r"got twice the cell with all defaults"),
        ("rank = [1, 2", r"required TOML in .*my\.toml; got Unclosed array"),
    ],
)
def test_a_wrong_grid_is_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(RequestError, match=message) as refused:
        read_grid(grid(tmp_path, text))
    assert "\n" not in str(refused.value)


def test_conditions_choose_cells() -> None:
    cells = [
        Cell(rank=rank, seed=seed, learning_rate=rate, value_rank=value)
        for rank in (1, 8)
        for seed in (0, 1)
        for rate, value in ((0.01, None), (0.003, 4))
    ]
    assert chosen_cells(cells, ["rank=8", "seed=0,1", "learning_rate=1e-2"]) == [cells[4], cells[6]]
    assert chosen_cells(cells, ["rank=1, 8", "seed=1", "value_rank=none"]) == [cells[2], cells[6]]
    assert chosen_cells(cells, ["steps=100_000"]) == cells
    for conditions, message in (
        (["rank"], r"a condition such as layers=3 or rank=8,64; got rank;"),
        (["rank="], r"got rank=;"),
        (["rnk=1"], r"settings of a cell in the condition; got the key rnk; did you mean rank\?"),
        (["rank=1,4"], r"a value of rank that the grid has: 1, 8; got 4;"),
        (
            ["learning_rate=0.01", "value_rank=4"],
            r"cells that meet every condition; got none of 8 with learning_rate",
        ),
    ):
        with pytest.raises(RequestError, match=message):
            chosen_cells(cells, conditions)


def test_the_grid_of_what_to_train_first_holds_one_seed_of_the_whole_figure() -> None:
    first, whole = read_points("amsel-fig1-first"), read_points("amsel-fig1")
    assert {*first} < {*whole}
    assert {cell for cell in first if cell.seed == 0} == {cell for cell in whole if cell.seed == 0}
    assert [cell.layers for cell in first[:28]].count(1) == 0


def test_a_missing_grid_names_the_shipped_ones(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"got .*nowhere\.toml, which is not there; .*amsel-fig1.*smoke"):
        read_grid(tmp_path / "nowhere.toml")


def test_shipped_grids_are_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_grid("smoke") == find_grid("grids/smoke.toml") == find_grid("smoke.toml")


def shipped(path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[TrainingCell]:
    """A grid whose cells name their corpora is read as it is, others with a text; times of steps are made up."""
    text = str(Path(rankfall.__file__).parent / "models" / "inputs" / "harbour.txt")
    named = "corpus = " in path.read_text()
    monkeypatch.setattr(timing, "_measured", lambda cell, folder, device: 1e-5 * cell.feed_forward)
    return read_grid(path, Surroundings(text=None if named else text, store=lambda: Store(folder).path))


@pytest.mark.parametrize("path", shipped_grids(), ids=lambda path: path.stem)
def test_every_shipped_grid_is_sound(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = shipped(path, tmp_path / "store", monkeypatch)
    assert len(cells) == len(set(cells)) > 1


def test_published_grids_hold_every_published_point() -> None:
    import csv
    from importlib.resources import files

    def published(name: str) -> list[dict[str, str]]:
        page = files("rankfall.figures") / "published" / f"{name}.csv"
        return list(csv.DictReader(page.read_text().splitlines()))

    first = {(cell.layers, cell.multiplier, cell.rank) for cell in read_points("amsel-fig1")}
    third = {(cell.layers, cell.positions, cell.rank) for cell in read_points("amsel-fig3")}
    fourth = {(cell.points, cell.rank) for cell in read_points("amsel-fig4")}
    for row in published("amsel_fig1"):
        assert (int(row["layers"]), int(row["width_multiplier"]), int(row["rank"])) in first
    for row in published("amsel_fig3"):
        assert (int(row["layers"]), row["positional_encoding"], int(row["rank"])) in third
    for row in published("amsel_fig4"):
        assert (int(row["num_points"]), int(row["rank"])) in fourth


def test_the_guide_lists_every_shipped_grid_with_its_number_of_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guide = Path(__file__).parents[2] / "docs" / "guide" / "sweep.md"
    listed: dict[str, int] = {}
    for line in guide.read_text().splitlines():
        row = re.match(r"\| (`[a-z0-9-]+`(?:, `[a-z0-9-]+`)*) \| (\d+(?:, \d+)*) \|", line)
        if row is not None:
            names = row[1].replace("`", "").split(", ")
            listed |= dict(zip(names, map(int, row[2].split(", ")), strict=True))
    assert listed == {path.stem: len(shipped(path, tmp_path / "store", monkeypatch)) for path in shipped_grids()}
