"""What of a block's output is measured: a few tokens of one sequence, without padding, and their numbers."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rankfall.errors import RequestError, require
from rankfall.measures.base import measure
from rankfall.models.recording.blocks import stream_of
from rankfall.norms import UnitNorm

MEASURES = ("relative_mu", "effective_rank", "energy_rank", "mean_abs_cosine")

# Names of (b, n) masks, and whether they mark real tokens or padding.
MARKS_REAL = {"attention_mask": True, "src_key_padding_mask": False, "key_padding_mask": False}


def real_tokens(model: nn.Module, given: Sequence[Any], named: Mapping[str, Any]) -> Tensor | None:
    """(b, n) booleans; None where the model got no such mask, and every token counts."""
    for name, value in {**_bound(model, given), **named}.items():
        if name in MARKS_REAL and isinstance(value, Tensor) and value.ndim == 2:
            if MARKS_REAL[name]:
                return value != 0
            # A mask of padding is true there, or minus infinity.
            return value == 0
    return None


def _bound(model: nn.Module, given: Sequence[Any]) -> Mapping[str, Any]:
    try:
        return inspect.signature(model.forward).bind_partial(*given).arguments
    except (TypeError, ValueError):
        return {}


def tokens_of(block: nn.Module, output: Any) -> Tensor | None:
    """The stream among what a block gave; torch's own layers say themselves if theirs is (n, b, d)."""
    tokens = stream_of(output)
    attention = getattr(block, "self_attn", None)
    own = isinstance(block, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer)
    if (
        tokens is not None
        and tokens.ndim == 3
        and own
        and isinstance(attention, nn.MultiheadAttention)
        and not attention.batch_first
    ):
        return tokens.transpose(0, 1)
    return tokens


def sampled(tokens: Tensor | None, most: int, real: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """At most `most` tokens of one sequence, evenly spaced and with the first (m, d), and their places.

    The sequence is the first of the batch; where `real` (b, n) marks padding, the longest, without its padding. No
    random numbers are drawn: a monitored run stays the same run.
    """
    if tokens is None or tokens.ndim != 3 or tokens.numel() == 0:
        got = "something else" if tokens is None else tuple(tokens.shape)
        raise RequestError(required="a block that gives (b, n, d) tokens", got=got, remedy="watch other modules")
    tokens = _here(tokens.detach())
    row, where = 0, torch.arange(tokens.shape[1])
    if real is not None and real.shape == tokens.shape[:2]:
        row = int(real.sum(dim=-1).argmax())
        where = real[row].nonzero()[:, 0].cpu()
    spread = torch.linspace(0, len(where) - 1, min(most, len(where))).round().long()
    kept = where[spread]
    require(len(kept) > 1, required="two or more tokens", got=len(kept), remedy="nothing is measured here")
    return tokens[row].index_select(0, kept.to(tokens.device)), kept


def _here(tokens: Tensor) -> Tensor:
    """Of a tensor that is spread over processes the part that is here, if that is whole tokens: the rest would have
    to be sent for, and processes would wait for each other."""
    placements = getattr(tokens, "placements", None)
    if placements is None:
        return tokens
    whole = not any(one.is_partial() or one.is_shard(tokens.ndim - 1) for one in placements)
    require(whole, required="whole tokens on each process", got=placements, remedy="watch modules that give them")
    local: Tensor = tokens.to_local()  # type: ignore[attr-defined]
    return local


def measured(samples: Mapping[str, tuple[Tensor, Tensor]]) -> dict[str, dict[str, float]]:
    """A record for each block's sample; blocks of one shape share a decomposition and a transfer."""
    alike: dict[Any, list[str]] = {}
    for name, (tokens, places) in samples.items():
        alike.setdefault((tokens.shape, tokens.dtype, tokens.device, tuple(places.tolist())), []).append(name)
    records: dict[str, dict[str, float]] = {}
    for names in alike.values():
        stacked = torch.stack([samples[name][0] for name in names])
        records.update(zip(names, _records(stacked, samples[names[0]][1]), strict=True))
    return {name: records[name] for name in samples}


def _records(samples: Tensor, places: Tensor) -> list[dict[str, float]]:
    # Autocast would round what is measured to the precision of the training.
    with torch.no_grad(), torch.autocast(samples.device.type, enabled=False):
        samples = samples.float()
        lengths = torch.linalg.vector_norm(samples, dim=-1)
        finite = lengths.isfinite().all(dim=-1)
        values = measure(UnitNorm()(samples.where(finite[:, None, None], 1.0)), MEASURES)
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
