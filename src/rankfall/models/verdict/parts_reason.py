"""What holds the rank up: which variants of the block collapse, and what follows from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rankfall.models.ablation.ablation import ALL_VARIANTS, FULL
from rankfall.models.thresholds import THRESHOLDS
from rankfall.models.verdict.judgement import Decision, collapse_margin, decide, middle
from rankfall.models.verdict.reasons import Reason

PURE, NORM, RESIDUAL, BOTH, CROSS = (one.name for one in ALL_VARIANTS)


def parts_reason(rows: Sequence[Mapping[str, Any]], *, too_little: str | None = None) -> Reason | None:
    """Which variants of the block collapse, by the thresholds of the verdict, and in how many passages.

    Where there was `too_little` text to judge, numbers and counts are given, and nothing is concluded from them.
    """
    ends = variant_ends(rows)
    if PURE not in ends or FULL not in ends:
        return None
    decided = {name: _collapse(values) for name, values in ends.items()}
    listed = "; ".join(
        f"{name}{'' if too_little else ' ' + _state(decided[name])}"
        f" (relative mu {middle([mu for mu, _ in values]).median:.2g}, energy rank"
        f" {middle([rank for _, rank in values]).median:.2g}, collapsed in {decided[name].held} of"
        f" {_passages(decided[name].passages)})"
        for name, values in ends.items()
    )
    text = (
        "blocks taken apart, scale-matched, tokens of length one at the last layer, before the final norm where the"
        f" replay shows that; collapsed is a relative mu below {THRESHOLDS.collapsed_relative_mu:g} or an energy rank"
        f" below {THRESHOLDS.collapsed_energy_rank:g}{'' if too_little else '; medians over passages'}: {listed}"
    )
    text = f"{too_little}; {text}" if too_little else f"{text}: {_holding(decided)}"
    numbers = {
        name: {
            "relative_mu": middle([mu for mu, _ in ends[name]]).median,
            "energy_rank": middle([rank for _, rank in ends[name]]).median,
            **one.record(),
        }
        for name, one in decided.items()
    }
    return Reason("what holds it up", text, numbers)


def variant_ends(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[float, float]]]:
    """Relative mu and energy rank of tokens of length one at the last layer, by variant and passage, at the model's
    own temperature and mask; passages whose tokens overflowed are left out."""
    found: dict[str, list[tuple[float, float]]] = {}
    last = max((int(row["layer"]) for row in rows), default=0)
    for row in rows:
        own = row.get("mask") is None and row.get("temperature", 1.0) == 1.0 and int(row["layer"]) == last
        wanted = "raw" if row["variant"] == FULL else "matched"
        mu, rank = row.get("unit_relative_mu"), row.get("unit_energy_rank")
        if own and row.get("scaling", wanted) == wanted and mu is not None and rank is not None:
            found.setdefault(str(row["variant"]), []).append((float(mu), float(rank)))
    return found


def _collapse(values: Sequence[tuple[float, float]]) -> Decision:
    margins = [collapse_margin(mu, rank) for mu, rank in values]
    return decide("collapsed", THRESHOLDS.collapsed_relative_mu, margins, clear_factor=THRESHOLDS.clear_factor)


def _state(one: Decision) -> str:
    if one.holds is not None:
        return "collapses" if one.holds else "stands"
    if 0 < one.held < one.passages:
        return "collapses in some passages"
    return f"{'collapses' if one.held else 'stands'}, but not clearly"


def _passages(count: int) -> str:
    return f"{count} passage{'' if count == 1 else 's'}"


def _holding(decided: Mapping[str, Decision]) -> str:
    """What prevents the collapse, from which variants collapse (None: open)."""
    collapsed, full = {name: one.holds for name, one in decided.items()}, decided[FULL]
    enough = [name.removeprefix("attention + ") for name in (NORM, RESIDUAL) if collapsed.get(name, True) is False]
    without = [name for name in (NORM, RESIDUAL, BOTH) if name in collapsed]
    if collapsed[FULL]:
        return "the full model collapses too, so nothing holds it up"
    if full.held:
        where = "" if full.held == full.passages else " in these"
        found = f"the full model itself collapses in {full.held} of {full.passages} passages"
        return f"{found}, so nothing holds it up{where}"
    if collapsed[FULL] is None:
        return "the full model comes so near to collapse that another text may decide otherwise"
    if collapsed[PURE] is False:
        return "not even attention alone collapses within this depth"
    if collapsed[PURE] is None:
        return f"whether attention alone collapses {_open([decided[PURE]])}"
    if enough:
        return f"attention alone collapses, and the {' or the '.join(enough)} is enough to prevent it"
    if collapsed.get(BOTH) is False:
        unsure = [name for name in (NORM, RESIDUAL) if collapsed.get(name, True) is None]
        named = " or the ".join(name.removeprefix("attention + ") for name in unsure)
        text = "attention alone collapses, and norm and residual prevent it together"
        return text + (
            f"; whether the {named} alone does {_open([decided[name] for name in unsure])}"
            if unsure
            else ", not one without the other"
        )
    if all(collapsed[name] for name in without) and CROSS in collapsed:
        return {
            False: "attention alone collapses, and norm and residual do not prevent it; together with what"
            " cross-attention takes from the other half they do, without the feed-forward layers",
            True: "whatever is kept beside attention, also cross-attention, it collapses without the feed-forward"
            " layers: they do the work",
            None: "attention alone collapses, and norm and residual do not prevent it; whether they do with"
            f" cross-attention {_open([decided[CROSS]])}",
        }[collapsed[CROSS]]
    if all(collapsed[name] for name in without):
        return "whatever is kept beside attention, it collapses without the feed-forward layers: they do the work"
    unsure = [name for name in without if collapsed[name] is None]
    return (
        "attention alone collapses; whether norm and residual prevent it without the feed-forward layers"
        f" {_open([decided[name] for name in unsure])}"
    )


def _open(decisions: Sequence[Decision]) -> str:
    """On what an open answer depends: passages that disagree, or numbers too near the threshold in all of them."""
    disagree = any(0 < one.held < one.passages for one in decisions)
    return "depends on the passage" if disagree else "is too near the threshold to tell on this text"
