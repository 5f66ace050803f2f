"""Everything that `rankfall bounds` says about one request, as one record."""

from __future__ import annotations

import math
from typing import Any, Literal

from rankfall.errors import require
from rankfall.theory.biased import biased_floor, biased_heads_needed, norm_statement
from rankfall.theory.head_bounds import HeadClass, heads_needed, mse_floor

MOST_DIGITS, MOST_RANKS = 4000, 128
TABLE_ERRORS = (0.1, 0.05, 0.01)


def nearest_report(heads_class: HeadClass, heads: int | None, error: float | None) -> dict[str, Any]:
    """The lower bound on the nearest-neighbour target: the bound for `heads`, the count for `error`, or both."""
    record: dict[str, Any] = {
        "target": "nearest",
        "dim": heads_class.dim,
        "rank": heads_class.rank,
        "points": heads_class.points,
        "skip": heads_class.skip,
        "generalised": heads_class.generalised,
        "values": heads_class.values,
        "baseline": mse_floor(heads_class, 1).baseline,
        "statement": heads_class.statement,
        "method": heads_class.method,
        "hypotheses": heads_class.hypotheses,
        "vacuous": False,
    }
    if heads is not None:
        floor = mse_floor(heads_class, heads)
        record |= {"heads": heads, "mse_lower_bound": floor.mse, "vacuous": floor.vacuous}
    if error is not None:
        record |= _needed(heads_needed(heads_class, error), error, record["vacuous"])
    return record


def biased_report(
    dim: int, rank: int, heads: int | None, error: float | None, value_norm: float | None
) -> dict[str, Any]:
    """The same for the oscillating target of A-thm4, and A-rem5's comparison where a norm of the values is given."""
    base = HeadClass(dim, rank)
    record: dict[str, Any] = {
        "target": "biased",
        "dim": dim,
        "rank": rank,
        "baseline": 0.5,
        "statement": "A-thm4 (biased nearest neighbours); the number is our dimension count, without any norm of V",
        "method": "harmonic dimension count, query side, every degree of the oscillating target",
        "hypotheses": [
            f"one bare attention layer; its target alternates between two points at {2 * dim**2} breakpoints of "
            "<x1-x2, y>",
            *base.hypotheses[1:],
        ],
        "full_rank_heads": 2 * dim**2 + 1,
        "vacuous": False,
    }
    if heads is not None:
        floor = biased_floor(dim, rank, heads)
        record |= {"heads": heads, "mse_lower_bound": floor, "vacuous": floor <= 0.0}
    if error is not None:
        record |= _needed(biased_heads_needed(dim, rank, error), error, record["vacuous"])
    if value_norm is not None:
        require(
            heads is not None,
            required="--heads beside --value-norm",
            got="none",
            remedy="A-thm4 compares d H max||V||^2 with exp(c(d-r))",
        )
        said = norm_statement(dim, rank, heads or 1, value_norm)
        record["norm_statement"] = {
            "value_norm": value_norm,
            "log_d_heads_norm_squared": said.log_quantity,
            "deciding_constant": said.deciding_constant if math.isfinite(said.deciding_constant) else None,
            "reading": "error stays above 1/40 if the statement's c exceeds deciding_constant; constants not given",
        }
    return record


def _needed(count: int, error: float, vacuous: bool) -> dict[str, Any]:
    """A count has thousands of digits at large widths; beyond what Python will print, its logarithm stands alone."""
    log10 = math.log10(count)
    exact = count if log10 < MOST_DIGITS else None
    return {"error": error, "heads_needed": exact, "log10_heads_needed": log10, "vacuous": vacuous or count == 1}


def ranks_to_show(dim: int) -> list[int]:
    """Every rank below d, or about MOST_RANKS of them spread evenly over the logarithm where there are more."""
    if dim - 1 <= MOST_RANKS:
        return list(range(1, dim))
    return sorted({round((dim - 1) ** (step / (MOST_RANKS - 1))) for step in range(MOST_RANKS)})


def rank_table(
    dim: int, *, skip: bool, generalised: bool, values: Literal["matrix", "scalar"]
) -> list[dict[str, Any]]:
    """Heads needed for errors .1, .05 and .01 at every rank."""
    rows = []
    for rank in ranks_to_show(dim):
        heads_class = HeadClass(dim, rank, skip=skip, generalised=generalised, values=values)
        row: dict[str, Any] = {"rank": rank}
        for error in TABLE_ERRORS:
            row[f"heads_for_{error}"] = heads_needed(heads_class, error)
        rows.append(row)
    return rows
