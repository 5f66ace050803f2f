"""The row that trained matches ask for, where a person says how many directions a match compares.

The lowest trained error among rows that language models do not rule out; errors that count as equal go to most heads.
"""

from __future__ import annotations

from collections.abc import Sequence

from rankfall.planning.recommendation import EQUAL_TEXT, ErrorAt, Row, TextAt, known, named, unknown, within

EQUAL_ERRORS = 0.05
"""Trained errors that differ by less count as equal: at full rank cells of m = 1 and m = 64 differ by 0.01."""


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


def choose(
    rows: Sequence[Row], directions: int, error_at: ErrorAt, most_cache: float, text_at: TextAt = unknown
) -> Row:
    """The row that the criterion takes; the usual choice where it ties, then the cheaper one."""
    usual = rows[0]
    allowed, _ = by_text(within(rows, most_cache), text_at)
    errors = [known(error_at(row, directions)).value for row in allowed]
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
    return found is not None and found.decides and found.low > EQUAL_TEXT


def reason(
    rows: Sequence[Row], chosen: Row, directions: int, error_at: ErrorAt, most_cache: float, text_at: TextAt
) -> str:
    """What decided against the usual choice, then the row beside its neighbours in rank."""

    def error(row: Row) -> float:
        return known(error_at(row, directions)).value

    parts = [
        *_by_language(rows, chosen, directions, error_at, most_cache, text_at),
        *_over_usual(rows, chosen, directions, error_at, most_cache, text_at),
    ]
    parts += lower_ranks(rows, chosen, directions, error_at)
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


def lower_ranks(rows: Sequence[Row], chosen: Row, directions: int, error_at: ErrorAt) -> list[str]:
    """What a lower rank than that of a row costs in matches of so many directions, if anything, in words."""

    def error(row: Row) -> float:
        return known(error_at(row, directions)).value

    lower = [row for row in rows if row["rank"] < chosen["rank"] and error(row) > error(chosen) + EQUAL_ERRORS]
    if not lower:
        return []
    near = max(lower, key=lambda row: (row["rank"], row["heads"]))
    return [
        f"a lower rank cannot compare {directions} directions, and more heads do not make up for it: trained error "
        f"{error(near):.2g} with {named(near)}, {error(chosen):.2g} here"
    ]


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
        decided = [min(left_out, key=lambda row: known(error_at(row, directions)).value)]
    if not decided:
        return []
    lost = [(row, known(text_at(row))) for row in decided]
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
    errors = [known(error_at(row, directions)).value for row in kept]
    here, there = (known(error_at(row, directions)).value for row in (chosen, usual))
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
    told = [(row, one) for row in higher if (one := text_at(row)) is not None and one.known and one.decides]
    if here is None or not here.known or not here.decides or not told:
        return ""
    best, least = min(told, key=lambda one: one[1].value)
    if least.value >= here.value:
        return ""
    return f", but it gains on text: language models lose {least.value:.2%} with {named(best)}, {here.value:.2%} here"
