"""One recommendation from a table of candidates: what decided, for which reason, and what would change it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rankfall.planning import by_matches, by_text
from rankfall.planning.recommendation import (
    EQUAL_TEXT,
    MOST_CACHE,
    ErrorAt,
    Recommendation,
    Row,
    TextAt,
    known,
    named,
    unknown,
)


def recommend(
    rows: Sequence[Row],
    directions: int,
    error_at: ErrorAt,
    most_cache: float = MOST_CACHE,
    text_at: TextAt = unknown,
    *,
    asked: bool = True,
) -> Recommendation:
    """Choose among the rows, of which the first is the usual choice.

    Where the directions of a match were asked about, trained matches decide; otherwise language models do, and the
    directions are only those that errors are told for.
    """
    usual = rows[0]
    trained = error_at(usual, directions)
    if asked and trained is not None:
        chosen = by_matches.choose(rows, directions, error_at, most_cache, text_at)
        without = by_matches.choose(rows, directions, error_at, most_cache)
        decided_by, caveats = "matches", known(error_at(chosen, directions)).outside
        rule = by_matches.criterion(directions, most_cache, any(by_text.speaks(row, text_at) for row in rows))
        reason = by_matches.reason(rows, chosen, directions, error_at, most_cache, text_at)
    else:
        chosen, without = by_text.choose(rows, most_cache, text_at), usual
        speaks = by_text.speaks(usual, text_at)
        decided_by, caveats = ("language models", known(text_at(chosen)).outside) if speaks else ("nothing", ())
        rule = by_text.criterion(most_cache)
        beside = by_matches.lower_ranks(rows, usual, directions, error_at) if trained and not speaks else []
        reason = "; ".join([by_text.reason(rows, chosen, text_at), *beside])
    ranks = sorted({directions, *(row["rank"] for row in rows)})
    table = [_line(rows, k, error_at, most_cache, text_at) for k in ranks] if trained is not None else []
    pivot = directions if decided_by == "matches" else chosen["rank"]
    found = error_at(chosen, directions)
    return Recommendation(
        heads=chosen["heads"],
        rank=chosen["rank"],
        usual=chosen is usual,
        decided_by=decided_by,
        directions=directions,
        error=found.value if found else None,
        usual_error=trained.value if trained else None,
        words=_words(chosen, usual, decided_by),
        criterion=rule,
        reason=reason,
        changes=tuple(_changes(rows, chosen, pivot, table, error_at, most_cache, text_at)),
        caveats=caveats,
        by_directions=tuple(table),
        language=language(rows, chosen, without, text_at),
    )


def _words(chosen: Row, usual: Row, decided_by: str) -> str:
    if chosen is not usual:
        return f"{named(chosen)} instead of {named(usual)}"
    return f"{named(usual)}, the usual choice{', for want of evidence' if decided_by == 'nothing' else ''}"


def language(rows: Sequence[Row], chosen: Row, without: Row, text_at: TextAt) -> str:
    """What language models say of the chosen row; `without` is what would be chosen without them."""
    found = text_at(chosen)
    told = [(row, one.value) for row in rows if (one := text_at(row)) is not None and one.known]
    if found is None or not told:
        return ""
    best, least = min(told, key=lambda one: one[1])
    others = f"of these rows {named(best)} lose least, {least:.2%}"
    if not found.known:
        return f"they say nothing of {named(chosen)}, since {' and '.join(found.outside)}; {others}"
    surely = "even" if found.low > EQUAL_TEXT else "though not"
    cost = (
        f", a cost above {EQUAL_TEXT:.0%}, {surely} at the lower end of the range" if found.value > EQUAL_TEXT else ""
    )
    words = (
        f"with {named(chosen)} language models lose {found.value:.2%} ({found.low:.2%} to {found.high:.2%}) over the "
        f"best rank{cost}; {others}"
    )
    if not found.decides:
        return f"{words}; this did not decide, since {' and '.join(found.outside)}"
    if without is not chosen and (lost := known(text_at(without))).known:
        return f"{words}; {named(without)}, which would be taken without them, lose {lost.value:.2%}"
    return words


def _line(
    rows: Sequence[Row], directions: int, error_at: ErrorAt, most_cache: float, text_at: TextAt
) -> dict[str, Any]:
    row = by_matches.choose(rows, directions, error_at, most_cache, text_at)
    found, usual = known(error_at(row, directions)), known(error_at(rows[0], directions))
    return {
        "directions": directions,
        "heads": row["heads"],
        "rank": row["rank"],
        "error": found.value,
        "error_low": found.low,
        "error_high": found.high,
        "usual_error": usual.value,
    }


def _text_cost(row: Row, text_at: TextAt) -> str:
    """What an offered row costs on text, where that is more than counts."""
    found = text_at(row)
    if found is None or not found.known or found.value <= EQUAL_TEXT:
        return ""
    return f", at a text loss of {found.value:.2%}"


def _changes(
    rows: Sequence[Row],
    chosen: Row,
    directions: int,
    table: Sequence[Mapping[str, Any]],
    error_at: ErrorAt,
    most_cache: float,
    text_at: TextAt,
) -> list[str]:
    """More or fewer directions, more room for the cache, evidence of another kind."""
    found = []
    above = [one for one in table if one["directions"] > directions and one["rank"] > chosen["rank"]]
    if above:
        here = known(error_at(chosen, above[0]["directions"])).value
        found.append(
            f"matches of {above[0]['directions']} directions or more: {named(above[0])} "
            f"(trained error {above[0]['error']:.2g} instead of {here:.2g} at {above[0]['directions']})"
            f"{_text_cost(above[0], text_at)}"
        )
    below = [one for one in table if one["directions"] < directions and one["heads"] > chosen["heads"]]
    if below:
        cache = {(row["heads"], row["rank"]): row["kv_cache_bytes"] for row in rows}
        share = cache[below[-1]["heads"], below[-1]["rank"]] / chosen["kv_cache_bytes"]
        saved = f", with {share:.2g} of the cache" if share < 1 / MOST_CACHE else ""
        found.append(
            f"matches of no more than {below[-1]['directions']} directions: {named(below[-1])}{saved}"
            f"{_text_cost(below[-1], text_at)}"
        )
    roomy = [
        one["directions"]
        for one in table
        if by_matches.choose(rows, one["directions"], error_at, math.inf, text_at)["rank"] != one["rank"]
    ]
    if roomy:
        wide = by_matches.choose(rows, roomy[0], error_at, math.inf, text_at)
        # rounded up, so that what is printed is enough and is not what was printed as allowed
        rooms = {math.ceil(100 * row["kv_cache_bytes"] / rows[0]["kv_cache_bytes"]) / 100 for row in rows}
        enough = (
            room for room in sorted(rooms) if by_matches.choose(rows, roomy[0], error_at, room, text_at) is wide
        )
        room = next(room for room in enough if room > most_cache)
        found.append(
            f"room for {room:g} times the usual cache: {named(wide)} in matches of {roomy[0]} directions"
            f"{_text_cost(wide, text_at)}"
        )
    spoken = text_at(chosen)
    if spoken is None or not spoken.known:
        found.append("evidence from language models, of which none is known for such heads")
    elif not spoken.decides:
        found.append("evidence from language models of this size")
    return found
