"""The registry of statements: every name in it exists, every figure names known statements, the page is current."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from rankfall.catalogue import FIGURES
from rankfall.figures.statements import ALL_STATEMENTS, Statement, claims_page

ROOT = Path(__file__).parents[2]
KNOWN = {one.id for one in ALL_STATEMENTS}


def resolve(dotted: str) -> object:
    """A module, or something in one."""
    try:
        return importlib.import_module(f"rankfall.{dotted}")
    except ModuleNotFoundError:
        module, _, name = dotted.rpartition(".")
        return getattr(importlib.import_module(f"rankfall.{module}"), name)


@pytest.mark.parametrize("one", ALL_STATEMENTS, ids=lambda one: one.id)
def test_code_and_tests_exist(one: Statement) -> None:
    for name in one.code:
        assert resolve(name) is not None
    for name in one.tests:
        assert "def test_" in (ROOT / "tests" / name).read_text(), name


@pytest.mark.parametrize("identity", FIGURES.names)
def test_figures_name_known_statements(identity: str) -> None:
    figure = FIGURES[identity]
    assert figure.id == identity
    assert figure.title
    # What goes beyond the papers may show no statement of theirs.
    assert figure.statements or identity.startswith("rankfall/")
    assert set(figure.statements) <= KNOWN


def test_every_figure_and_table_of_the_papers_is_reproduced() -> None:
    shown = {statement for identity in FIGURES.names for statement in FIGURES[identity].statements}
    drawn = {one.id for one in ALL_STATEMENTS if "-fig" in one.id or "-tab" in one.id}
    assert drawn <= shown


def test_page_is_current() -> None:
    written = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
    assert written == claims_page(), "run: python -m rankfall.figures.statements > docs/claims.md"
