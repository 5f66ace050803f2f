"""A recommendation among candidates, in numbers and in words, and what all ways to find one share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias, final

from rankfall.planning.evidence import Estimate, listed

Row: TypeAlias = Mapping[str, Any]
ErrorAt: TypeAlias = Callable[[Row, int], Estimate | None]
"""What the evidence says about a row in matches of so many directions."""
TextAt: TypeAlias = Callable[[Row], Estimate | None]
"""What language models say about a row: the share of their loss above that of the best rank."""

EQUAL_TEXT = 0.01
"""Share of a language model's loss that does not count."""
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
    decided_by: str
    """matches, language models, or nothing: then the usual choice stays for want of evidence."""
    directions: int
    error: float | None
    usual_error: float | None
    words: str
    criterion: str
    reason: str
    changes: tuple[str, ...]
    """What would change it."""
    caveats: tuple[str, ...]
    """Where the evidence that decided was asked beyond what was tried."""
    by_directions: tuple[dict[str, Any], ...]
    """The row to take for each number of directions that a match may have to compare."""
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


def known(estimate: Estimate | None) -> Estimate:
    """What a source says that knows one row, and so knows all."""
    assert estimate is not None
    return estimate


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
