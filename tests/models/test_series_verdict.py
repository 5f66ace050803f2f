"""The verdict over a series, on records whose answer is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from rankfall.drawing.series import layer_grid
from rankfall.models.series.records import checkpoint_rows, loss_of, statuses
from rankfall.models.series.verdict import judge_series, trend
from rankfall.models.series.work import AuditedModel


def made(
    step: int, ranks: Sequence[float], loss: float | None = None, status: str = "kept", kind: str = "gpt2"
) -> AuditedModel:
    """An audited model with these effective ranks by layer."""
    unit = [
        {"effective_rank": rank, "energy_rank": rank, "relative_mu": 0.5, "mean_abs_cosine": 0.1} for rank in ranks
    ]
    record: dict[str, Any] = {
        "model": {"kind": kind, "layers": len(ranks) - 1, "parameters": 10},
        "text": {"loss": loss},
        "depth": [{"layer": layer, "unit": one} for layer, one in enumerate(unit)],
        "heads": [],
        "verdict": {"status": status, "headline": "x", "reasons": [{"topic": "y", "text": "z"}], "thresholds": {}},
    }
    return AuditedModel(f"run/step{step}", f"step{step}", step, record, id="i", seconds=1.0)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([10, 10.5, 10.9], "steady"),
        ([10, 10.5, 11.5], "rises"),
        ([10, 9.5, 9.05], "steady"),
        ([10, 9.5, 8.95], "falls"),
        ([10, 5, 9.5], "falls, then rises"),
        ([10, 5, 15], "falls, then rises"),
        ([10, 15, 9.5], "rises, then falls"),
        ([10, 5, 15, 10], "goes up and down"),
        ([10, 9.6, 12], "rises"),
    ],
)
def test_trends(values: list[float], kind: str) -> None:
    assert trend(values) == kind


def test_where_when_and_which_layers() -> None:
    models = [
        made(0, [10, 9, 8], loss=4.0, status="kept"),
        made(10, [10, 9, 7], loss=3.0, status="kept"),
        made(20, [10, 3, 2], loss=2.0, status="reduced"),
        made(30, [10, 4, 1], loss=1.0, status="collapsed"),
    ]
    verdict = judge_series(models)
    said = {one.topic: one for one in verdict.reasons}
    assert verdict.trend == "falls"
    assert verdict.headline == (
        "from step0 to step30 the effective rank at the last layer falls: 8 at step0 and 1 at step30"
    )
    assert said["last layer"].numbers["lowest_at"] == "step30"
    assert said["layers"].numbers["layers"][:2] == [2, 1]
    assert (said["layers"].numbers["risen"], said["layers"].numbers["fallen"]) == (0, 2)
    assert "layer 2 (8 to 1), layer 1 (9 to 4)" in said["layers"].text
    assert said["when"].numbers == {"before": "step10", "after": "step20", "factor": pytest.approx(15 / 26)}
    assert "between step10 and step20, where the mean over layers falls from 8.667 to 5" in said["when"].text
    assert said["loss"].numbers["rank_correlation"] == pytest.approx(1.0)
    assert (
        "the loss on the text falls: 4 at step0 and 1 at step30; the rank falls and rises with it"
        in said["loss"].text
    )
    assert said["verdicts"].text == "status kept from step0, then reduced from step20, then collapsed from step30"
    assert "not audited" not in said


def test_a_rank_that_rises_as_the_loss_falls() -> None:
    ranks, losses = (1, 2, 3, 4, 3.5), (5, 4, 3, 2, 2.5)
    models = [made(step, [5, rank], loss) for step, (rank, loss) in enumerate(zip(ranks, losses, strict=True))]
    (said,) = [one for one in judge_series(models).reasons if one.topic == "loss"]
    assert "the rank rises as it falls, and falls as it rises (rank correlation -1.00 over 5" in said.text
    two = [one for one in judge_series(models[:2]).reasons if one.topic == "loss"]
    assert two[0].text.endswith("; the rank rises meanwhile")
    level = [made(step, [5, rank], 2.0) for step, rank in enumerate(ranks)]
    (said,) = [one for one in judge_series(level).reasons if one.topic == "loss"]
    assert said.numbers["rank_correlation"] is None


def test_losses_of_different_kinds_of_models_are_not_compared() -> None:
    topics = [one.topic for one in judge_series([made(0, [2, 1], 3.0), made(1, [2, 1], 2.0, kind="bert")]).reasons]
    assert "loss" not in topics


def test_fewer_than_two_leave_nothing_to_compare() -> None:
    bad = AuditedModel("run/step1", "step1", 1, reason="no weights")
    verdict = judge_series([made(0, [2, 1]), bad])
    assert verdict.trend == "unknown"
    assert verdict.headline.startswith("1 of 2 checkpoints could be audited")
    assert verdict.reasons[0].text == "1 of 2 are missing: step1: no weights"
    assert checkpoint_rows([bad])[0]["reason"] == "no weights"


def test_whatever_statuses_a_verdict_has_are_read() -> None:
    assert statuses({"status": "kept", "reasons": [{"topic": "a", "text": "b"}]}) == {"status": "kept"}
    by_name = {"aligned": {"status": "yes", "text": "x"}, "dominated": {"status": "no"}}
    assert statuses(by_name) == {"aligned": "yes", "dominated": "no"}
    assert statuses({"questions": [{"question": "aligned", "status": "yes"}]}) == {"aligned": "yes"}
    both = {"statuses": {"aligned": "kept"}, "findings": [{"question": "aligned", "status": "kept"}]}
    assert statuses(both) == {"aligned": "kept"}
    assert loss_of({"text": {}}) is None
    assert loss_of({"text": {"loss": 2}}) == 2.0


def test_a_number_that_is_none_in_json_does_not_end_it() -> None:
    odd = made(1, [2, 1])
    odd.record["depth"][0]["unit"]["effective_rank"] = None  # type: ignore[index]
    assert len(checkpoint_rows([odd])) == 1
    judge_series([made(0, [2, 1]), odd, made(2, [2, 1])])


def test_a_map_takes_the_nearest_layer_where_depths_differ() -> None:
    import pandas as pd

    rows = [
        {"model": name, "layer": layer, "depth": layer / last, "m": 10 * last + layer}
        for name, last in (("a", 2), ("b", 4))
        for layer in range(last + 1)
    ]
    grid, alike = layer_grid(pd.DataFrame(rows), "m", ["a", "b"])
    assert not alike
    assert grid[:, 1].tolist() == [40, 41, 42, 43, 44]
    assert grid[:, 0].tolist() == [20, 20, 21, 21, 22]


def test_the_last_energy_rank_stands_over_the_highest_under_its_own_name() -> None:
    (row,) = checkpoint_rows([made(0, [10, 20, 5])])
    assert row["last_over_highest"] == pytest.approx(0.25)
    assert "kept_share" not in row


def test_a_series_without_random_weights_says_so_and_calls_nothing_kept() -> None:
    def said(word: str) -> str:
        models = [made(step, [10, 9]) for step in (0, 1)]
        for one in models:
            assert one.record is not None
            one.record["verdict"]["statuses"] = {"distinctions": word}
        return next(one.text for one in judge_series(models).reasons if one.topic == "verdicts")

    assert said("not lost").startswith("distinctions not lost throughout; without --controls")
    assert said("kept") == "distinctions kept throughout"
