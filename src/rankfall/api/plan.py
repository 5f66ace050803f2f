"""Heads and rank for a width, at equal parameters and at equal FLOPs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, final

from rankfall.api.result import Result, frame
from rankfall.errors import require_count, require_number
from rankfall.progress import Progress, silent
from rankfall.system import require_device, require_room

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from rankfall.planning.costs import StackShape, Timing
    from rankfall.planning.evidence import Estimate


@final
@dataclass(frozen=True, repr=False, eq=False)
class PlanResult(Result):
    """Candidates that cost what the usual choice costs."""

    verb: ClassVar[str] = "plan"
    width: int
    layers: int
    context: int
    hidden: int
    keys_and_values: str
    """How keys and values are kept, in words; empty where every layer keeps its own for all tokens."""
    feed_forward: str
    """gated (three maps), plain (two) or none."""
    directions: int
    """Directions in which a match is assumed to compare queries and keys."""
    device: str | None
    """Where steps were timed; None where they were not."""
    candidates: list[dict[str, Any]]
    """One record per pair of heads and rank, the usual choice first."""
    recommendation: dict[str, Any]
    """The row to take, the criterion, the reason, and what would change it."""
    bound: str
    """Which rows the bound tells apart, in words."""
    evidence: dict[str, str]
    """What each source of measured errors is about."""
    left_out_ranks: list[int]
    """Ranks of which no number of heads costs the same."""
    implications: str
    """What the numbers say, and what they do not."""
    own_models: str = ""
    """Whether your own language models speak here, in words; empty where none were given."""

    def tables(self) -> dict[str, pd.DataFrame]:
        """`candidates`: one row each."""
        return {"candidates": frame(self.candidates)}

    @property
    def title(self) -> str:
        """What was planned for, in words."""
        return f"d = {self.width}, {self.layers} layers, {self.context} tokens"

    def _record(self) -> dict[str, Any]:
        return {
            "dim": self.width,
            "layers": self.layers,
            "context": self.context,
            "hidden": self.hidden,
            "feed_forward": self.feed_forward,
            "keys_and_values": self.keys_and_values,
            "directions": self.directions,
            "device": self.device,
            "left_out_ranks": self.left_out_ranks,
            "recommendation": self.recommendation,
            "bound": self.bound,
            "evidence": self.evidence,
            "own_models": self.own_models,
            "implications": self.implications,
            "candidates": self.candidates,
        }

    def _lines(self) -> list[str]:
        return [self.title, f"recommended: {self.recommendation['words']}", *self.reasons()]

    def reasons(self) -> list[str]:
        """What the recommendation rests on, and what would change it, a line each."""
        of = self.recommendation
        return [
            f"because {of['reason']}",
            *([self.own_models] if self.own_models else []),
            *([f"language models: {of['language']}"] if of["language"] else []),
            self._assumed(),
            f"rule: {of['criterion']}",
            *(f"would change it: {line}" for line in of["changes"]),
            *(f"beyond the evidence: {line}" for line in of["caveats"]),
            self.bound,
        ]

    def _assumed(self) -> str:
        """For matches of how many directions errors are told, and who said so."""
        of = self.recommendation
        if of["decided_by"] == "matches":
            return f"asked about: matches that compare {of['directions']} directions"
        return (
            f"trained errors are those of matches in {of['directions']} directions, as many as the usual rank; they "
            "did not decide, since nothing says how many a model that is not trained yet compares: `--directions` "
            "asks about a number, `rankfall audit MODEL --head-needs` measures it in a trained one"
        )

    def _notes(self) -> list[str]:
        return [*self.evidence.values(), self.implications]

    def _figure(self) -> Figure:
        from rankfall.drawing.plan import draw_plan

        return draw_plan(self.candidates, self.title, self.directions)


def plan(
    width: int,
    *,
    layers: int = 12,
    context: int = 1024,
    heads: int | None = None,
    head_size: int | None = None,
    kv_heads: int | None = None,
    group: int = 1,
    rank: int | Sequence[int] | None = None,
    value_rank: int | None = None,
    feed_forward: str = "gated",
    hidden: int | None = None,
    window: int | None = None,
    windowed: int | None = None,
    shared: int = 0,
    shared_windowed: int | None = None,
    kv_latent: int = 0,
    q_latent: int = 0,
    rope_dims: int = 0,
    directions: int | None = None,
    most_cache: float = 1.1,
    seconds: float = 60.0,
    time: bool = True,
    device: str = "cpu",
    store: str | Path | None = None,
    results: str | Path | None = None,
    task: str = "farthest",
    progress: Progress = silent,
) -> PlanResult:
    """Candidate (heads, rank) pairs that cost what the usual choice costs, and one recommendation with its reason.

    `heads` and `head_size` are those of the usual choice (default: head size near 64, rank width / heads); `rank`
    limits the ranks compared. `feed_forward` is gated (3.5 width units unless `hidden` says otherwise), plain (4
    width) or none. `windowed` layers (all of them by default) cache a `window` only; `shared` layers use the keys and
    values of an earlier one, `shared_windowed` of them with the window (default: in proportion). With a `kv_latent`
    keys and values come from one vector of that size per token, beside `rope_dims` of the key that all heads share;
    with a `q_latent` queries do. `directions` is how many a match must compare: named, trained matches decide;
    otherwise language models do. `most_cache` is the cache allowed over the usual one. Step times are measured for
    `seconds` altogether unless `time` is off. A `store` of trained runs, or `results` exported from one, adds the
    error that they reached on `task`; language models among them stand in the place of those that ship, where they
    have the width.
    """
    from rankfall.planning.candidates import (
        Sharing,
        candidates,
        default_ranks,
        hidden_units,
        reference_shape,
        usual_heads,
    )
    from rankfall.planning.decision import recommend
    from rankfall.planning.own import evidence_for, own_evidence
    from rankfall.planning.recommendation import separation
    from rankfall.planning.table import (
        IMPLICATIONS,
        accuracy_column,
        estimated,
        evidence_column,
        floor_column,
        timing_column,
    )
    from rankfall.planning.table import plan as rows_of
    from rankfall.tasks.base import parse_task

    require_number("seconds", seconds, above=0, most=86_400)
    require_number("most_cache", most_cache, least=1)
    parse_task(task)
    ranks = [rank] if isinstance(rank, int) else list(rank) if rank else None
    sharing = Sharing(kv_heads, group)
    usual = usual_heads(width, sharing) if heads is None else heads
    with_window = (windowed if windowed is not None else layers) if window else windowed or 0
    others = {
        "gated": feed_forward == "gated",
        "window": window or 0,
        "windowed": with_window,
        "shared": shared,
        "shared_windowed": round(shared * with_window / max(layers, 1))
        if shared_windowed is None
        else shared_windowed,
        "kv_latent": kv_latent,
        "q_latent": q_latent,
        "rope_dims": rope_dims,
    }
    if value_rank is not None:
        others["value_rank"] = value_rank
    units = hidden_units(width, feed_forward, hidden)
    reference = reference_shape(width, layers, context, usual, units, sharing, rank=head_size, **others)
    chosen = candidates(reference, sharing, ranks, value_rank)
    compared = require_count(
        "directions",
        reference.structural_rank if directions is None else directions,
        most=width,
        remedy="at most the width",
    )
    own = own_evidence(store, results, task)
    sources, said = evidence_for(width, own)
    timings = _timed([one.shape for one in chosen], seconds, device, progress) if time else {}
    columns = [floor_column(reference), *(evidence_column(source, compared) for source in sources)]
    columns.append(timing_column(timings))
    if own is not None:
        columns.append(accuracy_column(own.rows, task))
    rows = rows_of(chosen, columns)
    matches, texts = (next(one for one in sources if one.by_directions is kind) for kind in (True, False))

    spoken = {(one.shape.heads, one.shape.rank): estimated(texts, one.shape, compared) for one in chosen}

    def error_at(row: Mapping[str, Any], k: int) -> Estimate | None:
        return matches.estimate(row["heads"], row["structural_rank"], k, width)

    def text_at(row: Mapping[str, Any]) -> Estimate | None:
        return spoken[row["heads"], row["rank"]]

    advice = recommend(rows, compared, error_at, most_cache, text_at, asked=directions is not None)
    kept = {row["rank"] for row in rows}
    return PlanResult(
        width=width,
        layers=layers,
        context=context,
        hidden=units,
        keys_and_values=reference.words,
        feed_forward=feed_forward if units else "none",
        directions=compared,
        device=device if time else None,
        candidates=[row | {"recommended": advice.names(row)} for row in rows],
        recommendation=advice.record(),
        bound=separation(rows),
        evidence={one.name: one.about for one in sources},
        own_models=said,
        left_out_ranks=[one for one in ranks or default_ranks(width, reference.rank) if one not in kept],
        implications=IMPLICATIONS,
    )


def _timed(shapes: Sequence[StackShape], seconds: float, device: str, progress: Progress) -> dict[StackShape, Timing]:
    """Step times, unless a layer would not fit into memory."""
    from rankfall.planning.costs import Stopwatch, step_bytes

    place = require_device(device)
    if place == "cpu":
        needed = max(step_bytes(shape) for shape in shapes)
        require_room(needed, "to time one layer of this size", "leave the timing out (--no-time)")
    return Stopwatch(seconds, place).measure(shapes, progress)
