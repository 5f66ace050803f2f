"""Adding a mask, norm, measure or verb is one file and one line: a file without its line fails here."""

from __future__ import annotations

from pathlib import Path

import pytest

import rankfall
from rankfall.attention.masks import ALL_MASKS, Explicit
from rankfall.attention.norms import ALL_NORMS
from rankfall.cli.main import ALL_VERBS
from rankfall.measures import ALL_MEASURES
from rankfall.reproduce import ALL_REPRODUCTIONS

ROOT = Path(rankfall.__file__).parent
NOT_PATTERNS = {"base", "catalogue", "graph", "schedule", "__init__"}


def files(folder: str, *, without: set[str]) -> set[str]:
    return {path.stem for path in (ROOT / folder).glob("*.py")} - without


def modules(listed: tuple[type, ...]) -> set[str]:
    return {kind.__module__.rpartition(".")[2] for kind in listed}


def test_every_mask_file_is_listed() -> None:
    assert files("attention/masks", without=NOT_PATTERNS) == modules((*ALL_MASKS, Explicit))


def test_every_norm_file_is_listed() -> None:
    assert files("attention/norms", without={"base", "catalogue", "placement", "__init__"}) == modules(ALL_NORMS)


def test_every_measure_file_is_listed() -> None:
    listed = {one.function.__module__.rpartition(".")[2] for one in ALL_MEASURES}
    assert files("measures", without={"base", "catalogue", "profile", "__init__"}) == listed


def test_every_verb_file_is_listed() -> None:
    assert files("cli", without={"main", "output", "__init__"}) == set(ALL_VERBS)


def test_every_reproduction_file_is_listed() -> None:
    listed = set(ALL_REPRODUCTIONS.values())
    on_disk = {
        path.stem
        for path in (ROOT / "reproduce").glob("*.py")
        if "\nREPRODUCTION" in path.read_text(encoding="utf-8")
    }
    assert on_disk == listed


@pytest.mark.parametrize("listed", [ALL_MASKS, ALL_NORMS, ALL_MEASURES], ids=["masks", "norms", "measures"])
def test_names_are_unique(listed: tuple) -> None:
    names = [one.name for one in listed]
    assert len(set(names)) == len(names)
