"""The table of a plan: every candidate, what it costs, and the evidence: its floor, its step time, trained errors."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from rankfall.planning.candidates import Candidate
from rankfall.planning.costs import StackShape, Timing
from rankfall.planning.evidence import Estimate, Evidence
from rankfall.planning.recommendation import separated
from rankfall.theory.head_bounds import HeadClass, mse_floor
from rankfall.training.cell import Cell

Column: TypeAlias = Callable[[Candidate], Mapping[str, Any]]
"""Fields of a candidate's row; one function for each kind of evidence."""

FIELDS = tuple(Cell.__dataclass_fields__)

OTHER_HEADS = "they have keys and values for every head, as wide as its rank"
"""Why models say nothing of heads that share keys and values, read them from a latent or size them otherwise."""

IMPLICATIONS = (
    "The floor is a bound, not an error: no bare attention layer of these heads, its output read linearly, finds "
    "the nearer of two orthonormal points with less error. A norm after attention, a feed-forward block or a second "
    "layer go below it. The trained errors are those of one kind of match in models of width 64; what a real layer "
    "looks for, and in how many directions, they do not say."
)


def plan(candidates: Sequence[Candidate], evidence: Sequence[Column] = ()) -> list[dict[str, Any]]:
    """One record per candidate: shape, costs (also relative to the first, the reference), then the evidence."""
    costs = costs_column(candidates[0].shape)
    return [
        {key: value for column in (costs, *evidence) for key, value in column(candidate).items()}
        for candidate in candidates
    ]


def costs_column(reference: StackShape) -> Column:
    """Shape and counted costs. FLOPs are of one training step on one sequence; decoding is per token."""

    def column(candidate: Candidate) -> dict[str, Any]:
        shape = candidate.shape
        return {
            "heads": shape.heads,
            "rank": shape.rank,
            "kv_heads": shape.kv_heads,
            "value_rank": shape.value_rank,
            "structural_rank": shape.structural_rank,
            "equal": list(candidate.equal),
            "heads_times_rank_over_width": shape.heads * shape.rank / shape.dim,
            "parameters": shape.parameters,
            "attention_parameters": shape.attention_parameters,
            "parameters_over_reference": shape.attention_parameters / reference.attention_parameters,
            "flops": shape.training_flops,
            "flops_over_reference": shape.training_flops / reference.training_flops,
            "decoding_flops": shape.decoding_flops,
            "kv_cache_bytes": shape.kv_cache_bytes(),
        }

    return column


def floor_column(reference: StackShape) -> Column:
    """The bound for one bare layer with these heads on the nearest of two points (A-thm2, with constants).

    Once without and once with a skip connection from the query, which gives the linear part of the answer for free;
    `bound_separates` says whether the latter differs from the reference's by 1 % or more.
    """

    @functools.cache
    def bound(rank: int, heads: int, skip: bool) -> float:
        return mse_floor(HeadClass(reference.dim, rank, skip=skip), heads).mse

    def column(candidate: Candidate) -> dict[str, Any]:
        shape = candidate.shape
        plain, skip = (bound(shape.structural_rank, shape.heads, skip) for skip in (False, True))
        return {
            "mse_lower_bound": plain,
            "mse_lower_bound_with_skip": skip,
            "bound_separates": separated(skip, bound(reference.structural_rank, reference.heads, True)),
            "vacuous": plain <= 0.0,
        }

    return column


def evidence_column(source: Evidence, directions: int) -> Column:
    """What a source says of matches in so many directions, with its range; where they count, of whole vectors.

    Empty where it has no number; `_outside` then says why.
    """

    def column(candidate: Candidate) -> dict[str, Any]:
        shape = candidate.shape
        found = estimated(source, shape, directions)
        known = found is not None and found.known
        columns = {
            source.name: found.value if found and known else None,
            f"{source.name}_low": found.low if found and known else None,
            f"{source.name}_high": found.high if found and known else None,
            f"{source.name}_outside": "; ".join(found.outside) if found else None,
        }
        if not source.by_directions:
            return columns
        whole = source.estimate(shape.heads, shape.structural_rank, shape.dim, shape.dim)
        return columns | {
            f"{source.name}_whole": whole and whole.value,
            f"{source.name}_whole_outside": "; ".join(whole.outside) if whole else None,
        }

    return column


def estimated(source: Evidence, shape: StackShape, directions: int) -> Estimate | None:
    """What a source says of a shape. One that knows nothing of directions is about whole models, and of heads unlike
    those of its models it says nothing."""
    alike = (
        shape.kv_heads == shape.heads
        and shape.value_rank == shape.rank
        and not (shape.kv_latent or shape.q_latent or shape.shared)
    )
    found = source.estimate(shape.heads, shape.structural_rank, directions, shape.dim)
    return found if source.by_directions or alike or found is None else Estimate.missing(OTHER_HEADS)


def timing_column(timings: Mapping[StackShape, Timing]) -> Column:
    """The measured time of a training step; None where nothing was measured, so that rows keep their shape."""

    def column(candidate: Candidate) -> dict[str, Any]:
        timing = timings.get(candidate.shape)
        return {
            "step_seconds": None if timing is None else timing.seconds,
            "steps_timed": 0 if timing is None else timing.steps,
        }

    return column


def accuracy_column(runs: Sequence[Mapping[str, Any]], task: str) -> Column:
    """Mean error on fresh data over all finished runs of the task with the candidate's width, layers, heads and rank.

    `runs` are rows of a store. Points, steps and protocol may differ between them: the column says what training
    reached, `runs_measured` how many runs it is the mean of. No run: None.
    """
    errors: dict[tuple[int, ...], list[float]] = {}
    for run in runs:
        if (
            run.get("status") == "done"
            and run.get("task") == task
            and math.isfinite(run.get("mse_fresh") or math.nan)
        ):
            cell = Cell(**{name: run[name] for name in FIELDS if name in run})
            key = (cell.width, cell.layers, cell.heads, cell.heads, cell.rank, cell.value_width)
            errors.setdefault(key, []).append(float(run["mse_fresh"]))

    def column(candidate: Candidate) -> dict[str, Any]:
        found = errors.get(_key(candidate.shape), [])
        return {"mse_measured": statistics.fmean(found) if found else None, "runs_measured": len(found)}

    return column


def _key(shape: StackShape) -> tuple[int, ...]:
    return shape.dim, shape.layers, shape.heads, shape.kv_heads, shape.rank, shape.value_rank
