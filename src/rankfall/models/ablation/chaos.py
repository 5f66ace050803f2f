"""Which rows of an ablation say nothing: where scores are so large that their rounding decides who attends to whom.

Attention without a norm is given tokens of any size, and scores grow with the square of it. Tokens f times as large
as the model's own make scores of about f^2, of which float64 rounds off eps f^2. From f^2 eps = 1 on (f about 7e7)
softmax puts all weight on one key, and rounding chooses among those that are near: another order of summation gives
another answer, from that layer on. SmolLM2's raw stream without norms reaches f = 1e34.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from rankfall.models.ablation.ablation import FULL

NORMED = "norm"
EPSILON = torch.finfo(torch.float64).eps


def with_chaos(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows, each with `chaotic`: whether rounding decides its attention, or did in a layer before."""
    own = {(row["text"], row["layer"]): size for row in rows if row["variant"] == FULL and (size := _size(row))}
    first: dict[tuple[Any, ...], int] = {}
    for row in rows:
        size, trained = _size(row), own.get((row["text"], row["layer"]))
        if NORMED in row["variant"] or row["variant"] == FULL or row["scaling"] != "raw" or not size or not trained:
            continue
        # Logarithms: the square of such a size may overflow.
        if 2 * math.log(size / trained) - math.log(row["temperature"]) >= -math.log(EPSILON):
            key = _run(row)
            first[key] = min(row["layer"], first.get(key, row["layer"]))
    return [{**row, "chaotic": row["layer"] >= first.get(_run(row), math.inf)} for row in rows]


def _run(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["variant"], row["scaling"], row["temperature"], row["mask"], row["text"]


def _size(row: Mapping[str, Any]) -> float | None:
    """The Frobenius norm of the tokens; None where they overflowed or are equal."""
    mu, relative = row.get("mu"), row.get("relative_mu")
    return mu / relative if mu and relative else None
