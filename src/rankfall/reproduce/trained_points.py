"""Trained cells against published points: ours on the repeated sample, ours on fresh data, and whether they agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rankfall.training.summary import Trained, aggregate

TOLERANCE = 0.03
"""Share of the published value by which ours may differ, or the spread over our seeds where that is larger."""

Key = tuple[Any, ...]


def points(trained: Sequence[Trained], by: tuple[str, ...], published: Mapping[Key, float]) -> list[dict[str, Any]]:
    """One record per setting: what was published, ours on the repeated sample (this must agree), ours on fresh data.

    `ours` is the least training loss over seeds, as the paper plots it; `same_weights_fresh` is what these very
    models reach on data they have not seen; `trained_fresh` the models that saw new data in every step.
    """
    settings: dict[Key, dict[str, dict[str, Any]]] = {}
    for record in aggregate(trained, (*by, "data")):
        settings.setdefault(tuple(record[name] for name in by), {})[record["data"]] = record
    for key in published:
        settings.setdefault(key, {})
    return [_point(dict(zip(by, key, strict=True)), kinds, published.get(key)) for key, kinds in settings.items()]


def _point(key: dict[str, Any], kinds: Mapping[str, Mapping[str, Any]], published: float | None) -> dict[str, Any]:
    repeated, fresh = kinds.get("published", {}), kinds.get("fresh", {})
    ours = repeated.get("mse_best_best")
    agrees = None
    if published is not None and ours is not None:
        agrees = abs(ours - published) <= max(TOLERANCE * published, repeated["mse_best_spread"])
    return {
        **key,
        "published": published,
        "ours": ours,
        "agrees": agrees,
        "mean": repeated.get("mse_best_mean"),
        "spread": repeated.get("mse_best_spread"),
        "same_weights_fresh": repeated.get("mse_fresh_mean"),
        "trained_fresh": fresh.get("mse_fresh_mean"),
        "trained_fresh_best": fresh.get("mse_fresh_best"),
        "trained_fresh_spread": fresh.get("mse_fresh_spread"),
        "runs": repeated.get("runs", 0),
        "runs_fresh": fresh.get("runs", 0),
        "diverged": repeated.get("diverged", 0) + fresh.get("diverged", 0),
    }


def error_of(record: Mapping[str, Any]) -> float | None:
    """The error to judge a claim by: models trained on fresh data where there are any."""
    for name in ("trained_fresh", "same_weights_fresh", "ours"):
        if record[name] is not None:
            return float(record[name])
    return None
