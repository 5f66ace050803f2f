"""The attention statistics of one head over all texts: means, intervals, and whether it does anything."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

import torch
from torch import Tensor

from rankfall.models.attention.statistics import LOGIT_STATISTICS, MATRIX_STATISTICS, ROW_STATISTICS
from rankfall.models.depth.rows import bootstrap
from rankfall.models.recording.events import AttentionKind
from rankfall.models.thresholds import THRESHOLDS

STATISTICS = (*ROW_STATISTICS, *MATRIX_STATISTICS, *LOGIT_STATISTICS, "busiest_mass", "output_share")
# Means of these are taken of the logarithm, and of these the largest counts.
RATIOS = ("spectral_gap",)
LARGEST = ("logit_max",)

Nothing = Literal["first token", "learned sink", "itself", "one token", "small output"]
"""Why a head does nothing: where nearly all of its mass rests, or that what it writes is small."""


@final
@dataclass(frozen=True, eq=False)
class AttendedText:
    """One text at one call: every statistic as (h,), and of each head which key most of the mass goes to.

    `by_row` holds the statistics of rows (h, r), where there is no other text to draw an interval from.
    """

    text: int
    tokens: int
    rows: int
    rows_in_all: int
    values: dict[str, Tensor]
    busiest: Sequence[tuple[int, str]]
    by_row: Mapping[str, Tensor] | None = None


@final
@dataclass(frozen=True)
class HeadAttention:
    """What one head attends to, over all texts: means over texts of the means over a text's rows.

    `values` has every statistic that could be had; `interval` (low, high) of those, 95 % bootstrap over texts, or
    over rows where there is one text (`interval_over`). `rows` of `tokens` queries were looked at, per text; the
    spectrum is that of the matrix of these rows. `busiest` is the token that gets the most mass: position and name.
    """

    layer: int
    module: str
    head: int
    heads: int
    kind: AttentionKind
    texts: int
    tokens: int
    rows: int
    values: Mapping[str, float]
    interval: Mapping[str, tuple[float, float]]
    interval_over: Literal["texts", "rows"] | None
    busiest: tuple[int, str]

    @property
    def resting_mass(self) -> float:
        """The mass on the first token and on a learned sink together."""
        return self.values["first_token_mass"] + self.values["sink_mass"]

    @property
    def is_sink(self) -> bool:
        """Whether the first token, or a learned sink, is an attention sink of this head."""
        return self.resting_mass > THRESHOLDS.attention_sink_mass

    @property
    def does_nothing(self) -> Nothing | None:
        """Why this head does nothing, or None: see `Thresholds`, idle."""
        values = self.values
        if self.resting_mass >= THRESHOLDS.idle_mass:
            return "learned sink" if values["sink_mass"] > values["first_token_mass"] else "first token"
        if values.get("self_mass", 0.0) >= THRESHOLDS.idle_mass:
            return "itself"
        if values["busiest_mass"] >= THRESHOLDS.idle_mass:
            return "one token"
        if values.get("output_share", 1.0) * self.heads < THRESHOLDS.idle_output_share:
            return "small output"
        return None

    def record(self) -> dict[str, Any]:
        """The head as `--json` prints it; what could not be had is null."""
        return {
            "layer": self.layer,
            "module": self.module,
            "head": self.head,
            "kind": self.kind,
            "texts": self.texts,
            "tokens": self.tokens,
            "rows": self.rows,
            **{name: self.values.get(name) for name in STATISTICS},
            "busiest_position": self.busiest[0],
            "busiest_token": self.busiest[1],
            "sink": self.is_sink,
            "does_nothing": self.does_nothing,
            "interval_over": self.interval_over,
            "interval": {name: list(ends) for name, ends in self.interval.items()},
        }

    def line(self) -> dict[str, Any]:
        """The head as a line of a table: of the intervals those that are read most."""
        record = self.record()
        ends = record.pop("interval")
        for name in ("relative_entropy", "first_token_mass"):
            low, high = ends.get(name, (None, None))
            record |= {f"{name}_low": low, f"{name}_high": high}
        return record


def head_attention(
    layer: int, module: str, kind: AttentionKind, texts: Sequence[AttendedText], seed: int = 0
) -> list[HeadAttention]:
    """One record for each head of an attention call that was seen on these texts; none of one without a choice."""
    names = [name for name in STATISTICS if all(name in one.values for one in texts)]
    table = torch.stack([torch.stack([one.values[name].cpu().double() for name in names]) for one in texts])
    means = table.nanmean(dim=0)
    ends: Tensor | None = None
    over: Literal["texts", "rows"] | None = None
    for name in RATIOS:
        means[names.index(name)] = table[:, names.index(name)].log().nanmean(dim=0).exp()
    for name in LARGEST:
        if name in names:
            means[names.index(name)] = table[:, names.index(name)].amax(dim=0)
    if len(texts) > 1:
        ends, over = bootstrap(table.nan_to_num().flatten(1), seed).unflatten(1, table.shape[1:]), "texts"
    elif texts[0].by_row is not None:
        over = "rows"
    heads = table.shape[-1]
    by_row = None if ends is not None or texts[0].by_row is None else _over_rows(texts[0].by_row, seed)
    found = []
    for head, given_means in enumerate(means.T.tolist()):
        values = {name: mean for name, mean in zip(names, given_means, strict=True) if math.isfinite(mean)}
        if "first_token_mass" not in values:
            # No row of it sees two keys.
            continue
        interval: dict[str, tuple[float, float]] = {}
        if ends is not None:
            given = {name: ends[:, at, head].tolist() for at, name in enumerate(names) if name not in LARGEST}
            interval = {name: (low, high) for name, (low, high) in given.items() if name in values}
        elif by_row is not None:
            interval = by_row[head]
        found.append(
            HeadAttention(
                layer=layer,
                module=module,
                head=head,
                heads=heads,
                kind=kind,
                texts=len(texts),
                tokens=max(one.rows_in_all for one in texts),
                rows=max(one.rows for one in texts),
                values=values,
                interval=interval,
                interval_over=over,
                busiest=Counter(one.busiest[head] for one in texts).most_common(1)[0][0],
            )
        )
    return found


def layer_means(heads: Sequence[HeadAttention], name: str) -> dict[int | str, float]:
    """The mean of a statistic over the heads of each layer, by the layer's number; by module where numbers stand for
    several, as in a model of two stacks."""
    found: dict[tuple[int, str], list[float]] = {}
    for one in heads:
        if name in one.values:
            found.setdefault((one.layer, one.module), []).append(one.values[name])
    unique = len({layer for layer, _ in found}) == len(found)
    return {layer if unique else module: statistics.fmean(values) for (layer, module), values in found.items()}


def _over_rows(by_row: Mapping[str, Tensor], seed: int) -> list[dict[str, tuple[float, float]]]:
    """Intervals of each head over its counted rows; heads that count the same rows are drawn together."""
    rows = torch.stack([values.cpu() for values in by_row.values()], dim=-1)
    counted = rows.isfinite().all(dim=-1)
    found: list[dict[str, tuple[float, float]]] = [{} for _ in rows]
    alike, group = counted.unique(dim=0, return_inverse=True)
    for number, some in enumerate(alike):
        if int(some.sum()) < 2:
            continue
        heads = (group == number).nonzero()[:, 0]
        ends = bootstrap(rows[heads][:, some].transpose(0, 1).flatten(1), seed).unflatten(1, (len(heads), -1))
        for head, (low, high) in zip(heads.tolist(), ends.transpose(0, 1).tolist(), strict=True):
            found[head] = {name: (low[at], high[at]) for at, name in enumerate(by_row)}
    return found
