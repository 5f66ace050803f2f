"""Read what a picture shows, by the way that a report does."""

from __future__ import annotations

from typing import Any

import pytest

from rankfall.drawing.from_matplotlib import plot_of


def panels_of(figure: Any) -> list[dict[str, Any]]:
    """The panels of the interactive plot of a figure."""
    panels: list[dict[str, Any]] = plot_of(figure, "name", "what it says")["panels"]
    return panels


def curves(panel: dict[str, Any]) -> dict[str, tuple[list[float], list[float]]]:
    """Every curve of a panel that is no aside, by its name, with its group's in front."""
    return {
        ", ".join(filter(None, (one.get("group"), one["name"]))): (one["x"], one["y"])
        for one in panel["series"]
        if one["type"] == "line" and "aside" not in one
    }


def same(drawn: tuple[list[float], list[float]], x: Any, y: Any) -> bool:
    """Whether a curve is these numbers, to the seven digits that travel."""
    return drawn[0] == pytest.approx(list(x), rel=1e-6) and drawn[1] == pytest.approx(list(y), rel=1e-6, abs=1e-300)
