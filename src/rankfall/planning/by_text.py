"""The row that language models ask for: the usual choice, unless they surely lose with it.

How many directions a match compares nobody knows of a model that is not trained yet; what head rank costs on text was
measured. So this decides unless a person names the directions.
"""

from __future__ import annotations

from collections.abc import Sequence

from rankfall.planning.recommendation import EQUAL_TEXT, Row, TextAt, known, named, within


def criterion(most_cache: float) -> str:
    """How a row is chosen, in words."""
    return (
        f"the usual choice, unless language models of about this size lose over {EQUAL_TEXT:.0%} with it, and "
        f"something at the lower end of the range too; then the row of equal cost, with at most {most_cache:g} times "
        "the usual cache, with which they lose least"
    )


def speaks(row: Row, text_at: TextAt) -> bool:
    """Whether language models have a number for these heads that may decide."""
    found = text_at(row)
    return found is not None and found.known and found.decides


def choose(rows: Sequence[Row], most_cache: float, text_at: TextAt) -> Row:
    """The usual choice, which comes first; the row that loses least where that one surely loses more than counts."""
    usual = rows[0]
    if not _loses(usual, text_at):
        return usual
    spoken = [row for row in within(rows, most_cache) if speaks(row, text_at)]
    return min(spoken, key=lambda row: (known(text_at(row)).value, row is not usual, row["flops"]))


def reason(rows: Sequence[Row], chosen: Row, text_at: TextAt) -> str:
    """Why this row was taken, in words."""
    usual = rows[0]
    if not speaks(usual, text_at):
        silent = text_at(usual)
        why = "none are known" if silent is None else " and ".join(silent.outside)
        return f"nothing that was measured speaks against the usual choice; of language models: {why}"
    cost = known(text_at(usual))
    lost = f"language models lose {cost.value:.2%} with {named(usual)} ({cost.low:.2%} to {cost.high:.2%})"
    if chosen is not usual:
        return f"{lost}, and {known(text_at(chosen)).value:.2%} here"
    if cost.value <= EQUAL_TEXT:
        return f"{lost}, less than the {EQUAL_TEXT:.0%} that counts"
    if cost.low > 0:
        return f"{lost}, and no less with any other row of the same cost"
    return f"{lost}, perhaps nothing: more seeds or texts would tell"


def _loses(row: Row, text_at: TextAt) -> bool:
    return speaks(row, text_at) and known(text_at(row)).value > EQUAL_TEXT and known(text_at(row)).low > 0
