"""`rankfall equilibrium` as people and programs call it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tests.calls import answer, call
from tests.sampling import normal

from rankfall.equilibria.families import families

NEEDED = {"tokens", "value", "attention", "residual", "rank", "spectral_radius", "stable", "family", "statement"}


@pytest.mark.parametrize("norm", ["unit", "layer"])
@pytest.mark.parametrize("stable", [False, True])
def test_prints_a_fixed_point_that_can_be_checked_from_the_outside(
    capsys: pytest.CaptureFixture[str], norm: str, stable: bool
) -> None:
    flags = ["--stable"] if stable else []
    found = answer(capsys, "equilibrium", "--tokens", "6", "--dim", "5", "--rank", "3", "--norm", norm, *flags)
    assert found["schema"] == 2
    assert set(found) >= NEEDED
    tokens, value, attention = (
        torch.tensor(found[name], dtype=torch.float64) for name in ("tokens", "value", "attention")
    )
    mixed = attention @ tokens @ value
    if norm == "layer":
        mixed = mixed - mixed.mean(dim=-1, keepdim=True)
        mixed = mixed / mixed.square().mean(dim=-1, keepdim=True).sqrt()
    else:
        mixed = mixed / mixed.norm(dim=-1, keepdim=True)
    assert (mixed - tokens).abs().max() < 1e-12
    assert found["residual"] < 1e-12
    assert found["rank"] == int(torch.linalg.matrix_rank(tokens)) == 3
    assert found["stable"] is stable
    assert (found["spectral_radius"] < 1 - 1e-9) is stable


def test_full_rank_of_many_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "equilibrium", "--tokens", "64", "--dim", "32")
    assert (found["rank"], found["family"], found["stability"]) == (32, "star", "marginal")
    assert found["smallest_singular_value"] > 0.1


def test_all_ranks_share_one_value_matrix(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    picture = tmp_path / "ranks.png"
    found = answer(
        capsys, "equilibrium", "--tokens", "6", "--dim", "4", "--all-ranks", "--stable", "--plot", str(picture)
    )
    assert [row["rank"] for row in found["ranks"]] == [1, 2, 3, 4]
    assert all(row["stable"] for row in found["ranks"])
    assert len(found["value"]) == 4
    assert picture.stat().st_size > 5000


def test_disturbed_tokens_return(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--tokens", "4", "--dim", "3", "--rank", "3", "--stable", "--disturb", "1e-4", "--layers")
    found = answer(capsys, "equilibrium", *flags, "300", "--seed", "3")
    assert found["recovery"]["returned"] is True
    assert found["recovery"]["rank"] == 3
    short = answer(capsys, "equilibrium", *flags, "20", "--seed", "3")
    assert short["recovery"]["distance"] > found["recovery"]["distance"]
    assert answer(capsys, "equilibrium", *flags, "20", "--seed", "3") == short
    assert answer(capsys, "equilibrium", *flags, "20", "--seed", "4")["recovery"] != short["recovery"]


def test_polishes_its_own_output(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    found = answer(capsys, "equilibrium", "--tokens", "5", "--dim", "4", "--rank", "4")
    noise = normal(0, 5, 4)
    found["tokens"] = (torch.tensor(found["tokens"], dtype=torch.float64) + 0.01 * noise).tolist()
    path = tmp_path / "start.json"
    path.write_text(json.dumps(found))
    picture = tmp_path / "polished.svg"
    polished = answer(capsys, "equilibrium", "--polish", str(path), "--plot", str(picture))
    assert polished["converged"] is True
    assert polished["residual"] < 1e-12
    assert (polished["rank"], polished["stability"]) == (4, "marginal")
    assert 0 < polished["moved"] < 0.2
    assert picture.read_text().startswith("<?xml")


def test_says_so_when_polishing_finds_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "turning.json"
    path.write_text('{"tokens": [[1, 0]], "value": [[0, 1], [-1, 0]], "attention": [[1]]}')
    status, out, _ = call(capsys, "equilibrium", "--polish", str(path), "--json")
    assert status == 1
    assert json.loads(out)["converged"] is False


def test_shows_tables_to_people(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = call(capsys, "equilibrium", "--tokens", "3", "--dim", "3", "--rank", "2")
    assert status == 0
    assert "marginal" in out
    assert "value" in out
    status, out, _ = call(capsys, "equilibrium", "--tokens", "3", "--dim", "2", "--all-ranks")
    assert status == 0
    assert "equilibria of one layer" in out


def test_growth_before_the_return_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = call(capsys, "equilibrium", "--tokens", "12", "--width", "9", "--stable")
    assert "tokens return only from nearer than float64 can tell apart" in " ".join(out.split())
    arguments = ("equilibrium", "--family", "window", "--rank", "4")
    growth = answer(capsys, *arguments)["transient_growth"]
    assert growth > 100
    _, out, _ = call(capsys, *arguments)
    assert f"tokens return only from within about {1 / growth:.0e} of their length" in " ".join(out.split())
    _, out, _ = call(capsys, "equilibrium", "--rank", "2", "--stable")
    assert "grows" not in out


def test_a_narrow_table_does_not_break_its_title(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = call(capsys, "equilibrium", "--tokens", "1", "--width", "1")
    assert {"value", "tokens", "attention"} <= {line.strip() for line in out.splitlines()}


def test_help_names_every_family_and_gives_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = call(capsys, "equilibrium", "--help")
    assert status == 0
    assert "Example:" in out
    assert all(family.name in out for family in families())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--rank", "0"), "the rank to be a whole number of at least 1"),
        (("--rank", "9"), "a rank of at most 4"),
        (("--tokens", "0"), "the number of tokens"),
        (("--dim", "-1"), "the width"),
        (("--family", "moon"), "a family among"),
        (("--norm", "none"), "a norm among unit, layer"),
        (("--norm", "layer", "--rank", "4"), "at most 3 under LayerNorm"),
        (("--tokens", "30", "--dim", "20", "--rank", "12", "--stable"), "at most 9 for a strictly stable"),
        (("--norm", "layer", "--width", "1"), "a width of at least 2 under LayerNorm"),
        (("--draws", "5"), "disturb beside every_layer or draws"),
        (("--every-layer",), "disturb beside every_layer or draws"),
        (("--all-ranks", "--rank", "2"), "all ranks alone"),
        (("--polish", "nowhere.json"), "a readable JSON file"),
        (("--polish", "nowhere.json", "--rank", "2"), "polish alone: what it polishes"),
        (("--disturb", "3"), "a disturbance between 0 and 1"),
        (("--plot", "picture.docx"), "--plot to end in one of"),
    ],
)
def test_wrong_requests_are_one_line_and_status_two(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    status, out, err = call(capsys, "equilibrium", *arguments)
    assert status == 2
    assert out == ""
    assert message in " ".join(err.split())
    assert "Traceback" not in err
