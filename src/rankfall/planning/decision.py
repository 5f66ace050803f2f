"""One recommendation from a table of candidates: by which criterion, for which reason, and what would change it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias, final

from rankfall.planning.evidence import Estimate, listed

Row: TypeAlias = Mapping[str, Any]
ErrorAt: TypeAlias = Callable[[Row, int], Estimate | None]
"""What the evidence says about a row in matches of so many directions."""
TextAt: TypeAlias = Callable[[Row], Estimate | None]
"""What language models say about a row: the share of their loss above that of the best rank."""

EQUAL_ERRORS = 0.05
"""Trained errors that differ by less count as equal: at full rank cells of m = 1 and m = 64 differ by 0.01."""
EQUAL_TEXT = 0.01
"""Share of a language model's loss that does not count: a row that costs more even at the lower end is left out."""
EQUAL_BOUNDS = 0.01
"""Relative difference below which the bound does not separate two rows."""
MOST_CACHE = 1.1
"""The cache that a recommended row may have, over that of the usual choice."""


@final
@dataclass(frozen=True)
class Recommendation:
    """The row to take, in numbers and in words."""

    heads: int
    rank: int
    usual: bool
    """Whether it is the usual choice."""
    directions: int
    error: float | None
    usual_error: float | None
    words: str
    criterion: str
    reason: str
    changes: tuple[str, ...]
    """What would change it."""
    caveats: tuple[str, ...]
    """Where the evidence was asked beyond what was tried."""
    by_directions: tuple[dict[str, Any], ...]
    """The row that the same criterion takes for other numbers of directions."""
    language: str = ""
    """What language models say of it, and whether that decided; empty where none are known."""

    def names(self, row: Row) -> bool:
        """Whether this is the recommended row."""
        return (row["heads"], row["rank"]) == (self.heads, self.rank)

    def record(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def unknown(row: Row) -> Estimate | None:
    """No language models are known."""
    return None


def criterion(directions: int, most_cache: float, language: bool = False) -> str:
    """How rows are ranked, in words."""
    first = (
        f"leaving out rows that surely cost language models of this size over {EQUAL_TEXT:.0%} more than the best "
        f"rank (the lower end of the range is above {EQUAL_TEXT:.0%}), and then "
        if language
        else ""
    )
    return (
        f"{first}the lowest trained error in matches of {directions} directions among rows of equal cost with at "
        f"most {most_cache:g} times the usual cache; errors within {EQUAL_ERRORS:g} of the lowest count as equal, "
        "and of those the row with most heads is taken, since each head can look for something else"
    )


def recommend(
    rows: Sequence[Row],
    directions: int,
    error_at: ErrorAt,
    most_cache: float = MOST_CACHE,
    text_at: TextAt = unknown,
) -> Recommendation:
    """Choose among the rows, of which the first is the usual choice."""
    usual = rows[0]
    decides = any(one is not None and not one.outside for one in map(text_at, rows))
    estimate = error_at(usual, directions)
    if estimate is None:
        return Recommendation(
            heads=usual["heads"],
            rank=usual["rank"],
            usual=True,
            directions=directions,
            error=None,
            usual_error=None,
            words=f"{named(usual)}, the usual choice",
            criterion=criterion(directions, most_cache, decides),
            reason="no trained results are at hand, and the bound alone is no reason to leave the usual choice",
            changes=(),
            caveats=(),
            by_directions=(),
            language=language(rows, usual, usual, text_at),
        )
    chosen = choose(rows, directions, error_at, most_cache, text_at)
    found = _known(error_at(chosen, directions))
    asked = sorted({directions, *(row["rank"] for row in rows)})
    table = tuple(_line(rows, k, error_at, most_cache, text_at) for k in asked)
    words = f"{named(chosen)}, the usual choice" if chosen is usual else f"{named(chosen)} instead of {named(usual)}"
    return Recommendation(
        heads=chosen["heads"],
        rank=chosen["rank"],
        usual=chosen is usual,
        directions=directions,
        error=found.value,
        usual_error=estimate.value,
        words=words,
        criterion=criterion(directions, most_cache, decides),
        reason=_reason(rows, chosen, directions, error_at, most_cache, text_at),
        changes=tuple(_changes(rows, chosen, directions, table, error_at, most_cache, text_at)),
        caveats=found.outside,
        by_directions=table,
        language=language(rows, chosen, choose(rows, directions, error_at, most_cache), text_at),
    )


def choose(
    rows: Sequence[Row], directions: int, error_at: ErrorAt, most_cache: float, text_at: TextAt = unknown
) -> Row:
    """The row that the criterion takes; the usual choice where it ties, then the cheaper one."""
    usual = rows[0]
    allowed, _ = by_text(within(rows, most_cache), text_at)
    errors = [_known(error_at(row, directions)).value for row in allowed]
    equal = [row for row, error in zip(allowed, errors, strict=True) if error <= min(errors) + EQUAL_ERRORS]
    return max(equal, key=lambda row: (row["heads"], row is usual, -row["flops"]))


def by_text(rows: Sequence[Row], text_at: TextAt) -> tuple[list[Row], list[Row]]:
    """The rows that language models leave, and those that they leave out; where they would leave none, all stay."""
    left_out = [row for row in rows if costs_text(row, text_at)]
    if len(left_out) == len(rows):
        return list(rows), []
    return [row for row in rows if row not in left_out], left_out


def costs_text(row: Row, text_at: TextAt) -> bool:
    """Whether language models of this size are known to lose more than counts with these heads."""
    found = text_at(row)
    return found is not None and not found.outside and found.low > EQUAL_TEXT


def language(rows: Sequence[Row], chosen: Row, without: Row, text_at: TextAt) -> str:
    """What language models say of the chosen row; `without` is what would be chosen without them."""
    found = text_at(chosen)
    known = [(row, one.value) for row in rows if (one := text_at(row)) is not None and one.known]
    if found is None or not known:
        return ""
    best, least = min(known, key=lambda one: one[1])
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
    if found.outside:
        return f"{words}; this did not decide, since {' and '.join(found.outside)}"
    if without is not chosen and (lost := _known(text_at(without))).known:
        return f"{words}; {named(without)}, which would be taken without them, lose {lost.value:.2%}"
    return words


def named(row: Row) -> str:
    """Heads and rank in words."""
    return f"{row['heads']} {'head' if row['heads'] == 1 else 'heads'} of rank {row['rank']}"


def within(rows: Sequence[Row], most_cache: float) -> list[Row]:
    """Rows whose cache is at most so many times that of the first; a rounding error is not more."""
    most = most_cache * rows[0]["kv_cache_bytes"]
    return [row for row in rows if row["kv_cache_bytes"] <= most * (1 + 1e-12)]


def separation(rows: Sequence[Row]) -> str:
    """Which rows the bound tells from the usual choice, in words; with the skip connection that models have."""
    field = "mse_lower_bound_with_skip"
    alike = [row for row in rows if not row["bound_separates"]]
    floors = [row[field] for row in alike]
    ranks = sorted({row["rank"] for row in alike})
    apart = sorted({row["rank"] for row in rows} - {*ranks})
    told = f" It separates rank {listed(apart)}." if apart else ""
    if len(ranks) == 1:
        return f"The bound separates every other rank from the usual {ranks[0]}."
    return (
        f"The bound does not separate these rows: rank {listed(ranks)} have bounds of {min(floors):.4f} to "
        f"{max(floors):.4f}, less than {EQUAL_BOUNDS:.0%} from that of the usual choice.{told}"
    )


def separated(bound: float, usual: float) -> bool:
    """Whether two bounds differ by as much as counts."""
    return bound != usual and abs(bound - usual) >= EQUAL_BOUNDS * max(usual, bound)


def _known(estimate: Estimate | None) -> Estimate:
    assert estimate is not None, "a source that knows one row knows all"
    return estimate


def _line(
    rows: Sequence[Row], directions: int, error_at: ErrorAt, most_cache: float, text_at: TextAt
) -> dict[str, Any]:
    row = choose(rows, directions, error_at, most_cache, text_at)
    found, usual = _known(error_at(row, directions)), _known(error_at(rows[0], directions))
    return {
        "directions": directions,
        "heads": row["heads"],
        "rank": row["rank"],
        "error": found.value,
        "error_low": found.low,
        "error_high": found.high,
        "usual_error": usual.value,
    }


def _reason(
    rows: Sequence[Row], chosen: Row, directions: int, error_at: ErrorAt, most_cache: float, text_at: TextAt
) -> str:
    """What decided against the usual choice, then the row beside its neighbours in rank."""

    def error(row: Row) -> float:
        return _known(error_at(row, directions)).value

    parts = [
        *_by_language(rows, chosen, directions, error_at, most_cache, text_at),
        *_over_usual(rows, chosen, directions, error_at, most_cache, text_at),
    ]
    lower = [row for row in rows if row["rank"] < chosen["rank"] and error(row) > error(chosen) + EQUAL_ERRORS]
    if lower:
        near = max(lower, key=lambda row: (row["rank"], row["heads"]))
        parts.append(
            f"a lower rank cannot compare {directions} directions, and more heads do not make up for it: trained "
            f"error {error(near):.2g} with {named(near)}, {error(chosen):.2g} here"
        )
    higher = [
        row
        for row in within(rows, most_cache)
        if row["rank"] > chosen["rank"]
        and row["heads"] < chosen["heads"]
        and error(row) >= error(chosen) - EQUAL_ERRORS
    ]
    if higher:
        near = min(higher, key=lambda row: (row["rank"], -row["heads"]))
        parts.append(
            f"a higher rank gains nothing in matches of {directions} directions and leaves {named(near)}"
            f"{_gain_on_text(chosen, higher, text_at)}"
        )
    return "; ".join(parts) or "no other row costs the same"


def _by_language(
    rows: Sequence[Row], chosen: Row, directions: int, error_at: ErrorAt, most_cache: float, text_at: TextAt
) -> list[str]:
    """The rows that would have been taken, or are the usual choice, had language models not left them out."""
    allowed = within(rows, most_cache)
    _, left_out = by_text(allowed, text_at)
    if not left_out:
        if all(costs_text(row, text_at) for row in allowed):
            return [f"language models surely lose over {EQUAL_TEXT:.0%} with every row, so none was left out for it"]
        return []
    without = choose(rows, directions, error_at, most_cache)
    decided = [row for row in left_out if row is rows[0] or row is without]
    if not decided and without is not chosen:
        # without them the lowest error, and with it what counts as equal to it, would be another
        decided = [min(left_out, key=lambda row: _known(error_at(row, directions)).value)]
    if not decided:
        return []
    lost = [(row, _known(text_at(row))) for row in decided]
    told = " and ".join(
        f"{named(row)} (they lose {one.value:.2%}, surely over {EQUAL_TEXT:.0%}: at least {one.low:.2%})"
        for row, one in lost
    )
    here = text_at(chosen)
    beside = f"lose {here.value:.2%} here" if here is not None and here.known else "say nothing of this row"
    return [f"language models rule out {told} and {beside}"]


def _over_usual(
    rows: Sequence[Row], chosen: Row, directions: int, error_at: ErrorAt, most_cache: float, text_at: TextAt
) -> list[str]:
    """By what trained errors or numbers of heads a row goes before a usual choice that was not left out."""
    usual = rows[0]
    kept, left_out = by_text(within(rows, most_cache), text_at)
    if chosen is usual or usual in left_out:
        return []
    errors = [_known(error_at(row, directions)).value for row in kept]
    here, there = (_known(error_at(row, directions)).value for row in (chosen, usual))
    if there <= min(errors) + EQUAL_ERRORS:
        return [
            f"in matches of {directions} directions its trained error, {here:.2g}, and that of the usual choice, "
            f"{there:.2g}, count as equal (within {EQUAL_ERRORS:g} of the lowest), and of such rows it has most "
            f"heads, {chosen['heads']} instead of {usual['heads']}"
        ]
    return [
        f"in matches of {directions} directions its trained error is {here:.2g}, that of the usual choice "
        f"{there:.2g}, more than {EQUAL_ERRORS:g} above the lowest, {min(errors):.2g}"
    ]


def _gain_on_text(chosen: Row, higher: Sequence[Row], text_at: TextAt) -> str:
    """What language models of this size gain by a higher rank that matches do not ask for."""
    here = text_at(chosen)
    known = [(row, one) for row in higher if (one := text_at(row)) is not None and one.known and not one.outside]
    if here is None or not here.known or here.outside or not known:
        return ""
    best, least = min(known, key=lambda one: one[1].value)
    if least.value >= here.value:
        return ""
    return f", but it gains on text: language models lose {least.value:.2%} with {named(best)}, {here.value:.2%} here"


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
        here = _known(error_at(chosen, above[0]["directions"])).value
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
        if choose(rows, one["directions"], error_at, math.inf, text_at)["rank"] != one["rank"]
    ]
    if roomy:
        wide = choose(rows, roomy[0], error_at, math.inf, text_at)
        # rounded up, so that what is printed is enough and is not what was printed as allowed
        rooms = {math.ceil(100 * row["kv_cache_bytes"] / rows[0]["kv_cache_bytes"]) / 100 for row in rows}
        enough = (room for room in sorted(rooms) if choose(rows, roomy[0], error_at, room, text_at) is wide)
        room = next(room for room in enough if room > most_cache)
        found.append(
            f"room for {room:g} times the usual cache: {named(wide)} in matches of {roomy[0]} directions"
            f"{_text_cost(wide, text_at)}"
        )
    spoken = text_at(chosen)
    if spoken is None or not spoken.known:
        found.append("evidence from language models, of which none is known for such heads")
    elif spoken.outside:
        found.append("evidence from language models of this size")
    return found
