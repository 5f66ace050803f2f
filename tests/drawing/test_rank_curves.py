"""Errors against rank: tick labels in sight whatever the runs are."""

from __future__ import annotations

import pytest

from rankfall.api.runs import error_by_rank


@pytest.mark.parametrize(
    "errors",
    [
        {1: 0.866, 2: 0.862, 4: 0.855},  # no 1, 2 or 5 of any decade lies between them
        {3: 0.31},
        {1: 0.9, 8: 0.5, 64: 0.002},
    ],
    ids=["narrow", "single", "wide"],
)
def test_both_axes_have_labels_in_sight(errors: dict[int, float]) -> None:
    rows = [
        {"rank": rank, "dim": 64, "task": "farthest", "layers": 1, "multiplier": 1, "mse_best": error}
        for rank, error in errors.items()
    ]
    figure = error_by_rank(rows)
    figure.draw_without_rendering()
    (ax,) = figure.axes
    for axis, (low, high), least in ((ax.xaxis, ax.get_xlim(), len(errors)), (ax.yaxis, ax.get_ylim(), 2)):
        labels = [
            label.get_text()
            for place, label in zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=True)
            if low <= place <= high
        ]
        assert sum(bool(text) for text in labels) >= least
