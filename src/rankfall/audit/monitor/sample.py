"""A few tokens of a block's output, and what is measured on them; all on the device where they are."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rankfall.attention.norms import UnitNorm
from rankfall.measures import measure

MEASURES = ("relative_mu", "effective_rank", "mean_abs_cosine")


def token_output(output: Any) -> Tensor | None:
    """The (b, n, d) tokens among what a block returned."""
    if isinstance(output, Tensor):
        return output if output.ndim == 3 else None
    if isinstance(output, dict):
        output = tuple(output.values())
    if isinstance(output, (tuple, list)):
        return next((found for item in output if (found := token_output(item)) is not None), None)
    return None


def sampled(tokens: Tensor, most: int, real: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """At most `most` tokens of one sequence, evenly spaced and with the first, where sinks sit (m, d); their places.

    The sequence is the first of the batch; where `real` (b, n) marks padding, the longest, without its padding. No
    random numbers are drawn: a monitored run stays the same run.
    """
    row, where = 0, torch.arange(tokens.shape[1])
    if real is not None and real.shape == tokens.shape[:2]:
        row = int(real.sum(dim=-1).argmax())
        where = real[row].nonzero()[:, 0].cpu()
    spread = torch.linspace(0, len(where) - 1, min(most, len(where))).round().long()
    kept = where[spread]
    return tokens.detach()[row].index_select(0, kept.to(tokens.device)), kept


def measured(samples: Tensor, places: Tensor) -> list[dict[str, float]]:
    """One record per block of (k, m, d) samples; one decomposition and one transfer for all of them."""
    samples = samples.float()
    lengths = torch.linalg.vector_norm(samples, dim=-1)
    finite = lengths.isfinite().all(dim=-1)
    safe = samples.where(finite[:, None, None], 1.0)
    values = measure(UnitNorm()(safe), MEASURES)
    longest, where = lengths.max(dim=-1)
    median = lengths.median(dim=-1).values
    ratio = longest / median.where(median > 0, 1.0)
    table = torch.stack([*(values[name].float() for name in MEASURES), ratio, where.float(), finite.float()])
    records = []
    for column in table.T.tolist():
        record = dict(zip((*MEASURES, "norm_ratio", "longest_token"), column, strict=False))
        record["longest_token"] = float(places[int(record["longest_token"])])
        records.append(record if column[-1] else {"nonfinite": 1.0})
    return records
