"""Numbers in sentences and tables of the documentation that can be computed while one waits."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rankfall
from rankfall.constructions.full_rank_head import FullRankHead
from rankfall.constructions.votes import MajorityVote
from rankfall.theory.random_features.learning_curve import predicted_error
from tests.calls import answer
from tests.pages import DOCS, commands_in

GUIDE = DOCS / "guide"


def words(page: Path) -> str:
    return " ".join(page.read_text(encoding="utf-8").split())


def rows(page: Path, head: str) -> list[list[str]]:
    """The cells of a table below its heading, row by row."""
    _, _, behind = page.read_text(encoding="utf-8").partition(f"\n{head}\n")
    assert behind, f"{page.name}: no table {head}"
    lines = behind.split("\n\n", 1)[0].splitlines()[1:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize(
    ("head", "widths", "error"),
    [
        (
            "| $c$ | $d=8$ | $d=64$ | $d=768$ |",
            (8, 64, 768),
            lambda width, c: FullRankHead(width, inverse_temperature=c),
        ),
        ("| $H$ | $d=4$ | $d=16$ | $d=64$ |", (4, 16, 64), MajorityVote),
    ],
)
def test_tables_of_constructions_are_what_they_predict(
    head: str, widths: tuple[int, ...], error: Callable[[int, int], Any]
) -> None:
    found = rows(GUIDE / "constructions.md", head)
    assert len(found) >= 4
    for size, *errors in found:
        assert errors == [f"{error(width, int(size)).predicted_error().mse:.4f}" for width in widths]


def test_independent_random_heads_are_what_is_predicted() -> None:
    """Measured in the table, within a percent of the prediction."""
    ((name, *errors), *_) = rows(GUIDE / "random-features.md", "| keys | H=128 | 1024 | 16384 | limit |")
    assert name == "independent of the query"
    for heads, error in zip((128, 1024, 16384), errors, strict=False):
        assert float(error) == pytest.approx(predicted_error("independent", 64, heads), rel=0.01)


def test_floors_at_the_usual_choice() -> None:
    found = {rank: rankfall.bounds(width=64, rank=rank, heads=64 // rank).mse_lower_bound for rank in (1, 8, 32)}
    said = ", ".join(f".{round(1000 * error)} for $r={rank}$" for rank, error in found.items())
    assert f"leaves at least {said.replace('179 for', '179 of squared error for')}," in words(GUIDE / "bounds.md")


@pytest.mark.usefixtures("_unchecked_axes")
def test_the_first_simulation() -> None:
    causal, window = (rankfall.simulate(mask, thin=10) for mask in ("causal", "window:4"))
    power = round(causal.layers[-1]["log10_mu"])
    said = (
        f"Under a causal mask it falls by one half in every layer and ends near $10^{{{power}}}$;"
        f" under a window of four tokens to each side only by a factor of {window.measured_rate:.3f}."
    )
    assert causal.measured_rate == pytest.approx(0.5, rel=1e-6)
    assert said in words(DOCS / "start.md")


PAIR = re.compile(r"(\d+) (?:heads )?of (?:rank )?(\d+)")


def test_known_shapes_are_planned_as_the_table_says(capfd: pytest.CaptureFixture[str]) -> None:
    section = (GUIDE / "plan.md").read_text(encoding="utf-8").split("## Five known shapes")[1].split("\n| model")[0]
    told = rows(GUIDE / "plan.md", "| model | recommended | half the usual rank | turns at |")
    plans = [answer(capfd, *one.words) for one in commands_in(section)]
    for (model, recommended, half, turns), plan in zip(told, plans, strict=True):
        errors = {(row["heads"], row["rank"]): row["trained_error"] for row in plan["candidates"]}
        advice = plan["recommendation"]
        assert pair(recommended) == (advice["heads"], advice["rank"]), model
        assert f"({errors[pair(recommended)]:.3f})" in recommended
        assert f": {errors[pair(half)]:.2f}" in half
        for turn in turns.split("; "):
            when, _, instead = turn.partition(": ")
            few, directions = re.fullmatch(r"(no more than )?(\d+)(?: directions)?", when).groups()
            start = (
                f"matches of no more than {directions} directions"
                if few
                else f"matches of {directions} directions or more"
            )
            (change,) = (line for line in advice["changes"] if line.startswith(f"{start}: "))
            assert "{} heads of rank {}".format(*pair(instead)) in change
            assert {*re.findall(r"(0\.\d+)[ )](?!of)", instead)} <= {*re.findall(r"0\.\d+", change)}
    minilm = plans[-1]["candidates"][0]
    low, most = minilm["text_excess_low"], minilm["text_excess_high"]
    said = (
        f"decoders of that width lose {minilm['text_excess']:.2%} ({low:.1%} to {most:.1%}) with rank 32 over rank 64"
    )
    assert said.replace("% to", " to").replace("%", " %") in words(GUIDE / "plan.md")


def pair(text: str) -> tuple[int, int]:
    found = PAIR.search(text)
    assert found, text
    return int(found[1]), int(found[2])


def test_equilibria_of_every_rank() -> None:
    """To a tenth: the largest growths are products of many roundings."""
    least = r"$\sigma_{\min}$, radius"
    head = f"| rank | star: {least} | window: {least}, growth | chain: {least}, growth |"
    found = rows(GUIDE / "equilibrium.md", head)
    assert len(found) == 7
    for rank, *cells in found:
        for family, cell in zip(("star", "window", "chain"), cells, strict=True):
            built = rankfall.equilibrium(tokens=12, width=9, rank=int(rank), family=family).record()
            names = ("smallest_singular_value", "spectral_radius", "transient_growth")
            told = [float(number) for number in cell.split(", ")]
            assert [built[name] for name in names[: len(told)]] == pytest.approx(told, rel=0.1), (rank, family)
