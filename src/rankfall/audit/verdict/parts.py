"""Reasons about parts: which of norm, residual and feed-forward holds the token rank up."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rankfall.audit.verdict.reason import Reason

PURE, FULL = "attention", "full model"
# A variant whose tokens differ by less than this has collapsed; one above holds the rank up.
HELD = 0.01


def parts_reason(rows: Sequence[Mapping[str, Any]]) -> Reason | None:
    """The ends of all variants, scale-matched where a variant comes both ways."""
    ends = variant_ends(rows)
    if PURE not in ends or FULL not in ends:
        return None
    listed = ", ".join(f"{name} {value:.2g}" for name, value in ends.items())
    text = f"relative mu at the last layer by parts of the block: {listed}"
    single = {name: ends[name] for name in ("attention + norm", "attention + residual") if name in ends}
    holding = [name.removeprefix("attention + ") for name, value in single.items() if value >= HELD]
    if ends[PURE] < HELD:
        if holding:
            text += f"; attention alone collapses, and the {' or the '.join(holding)} is enough to prevent it"
        elif ends.get("attention + norm + residual", 0.0) >= HELD:
            text += "; attention alone collapses, and only norm and residual together prevent it"
        else:
            text += "; attention collapses with norm and residual too, and only the feed-forward layers hold it up"
    else:
        text += "; not even attention alone collapses within this depth"
    return Reason("what holds it up", text, ends)


def variant_ends(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Mean relative mu at the last layer by variant, at the model's own temperature and mask."""
    found: dict[str, list[float]] = {}
    if not rows:
        return {}
    last = max(int(row["layer"]) for row in rows)
    for row in rows:
        plain = row.get("mask") is None and row.get("temperature", 1.0) == 1.0
        value = row.get("relative_mu")
        wanted = "raw" if row["variant"] == FULL else "matched"
        here = int(row["layer"]) == last and row.get("scaling", wanted) == wanted
        if plain and here and value is not None and math.isfinite(float(value)):
            found.setdefault(str(row["variant"]), []).append(float(value))
    return {name: sum(values) / len(values) for name, values in found.items()}
