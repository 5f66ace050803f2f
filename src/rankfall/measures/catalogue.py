"""Every measure, and how a batch of token matrices is measured."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from rankfall.errors import RequestError
from rankfall.measures import (
    effective_rank,
    largest_token_share,
    max_singular_value,
    mean_abs_cosine,
    min_singular_value,
    mu,
    participation_ratio,
    rank,
    rank_one_residual,
    relative_mu,
    stable_rank,
)
from rankfall.measures.base import Measure
from rankfall.measures.profile import Profile
from rankfall.mechanism.checks import check_finite, check_tokens

ALL_MEASURES: tuple[Measure, ...] = (
    mu.MEASURE,
    relative_mu.MEASURE,
    rank.MEASURE,
    effective_rank.MEASURE,
    stable_rank.MEASURE,
    participation_ratio.MEASURE,
    mean_abs_cosine.MEASURE,
    min_singular_value.MEASURE,
    max_singular_value.MEASURE,
    rank_one_residual.MEASURE,
    largest_token_share.MEASURE,
)


# Samples are measured in groups of this many numbers: temporaries stay near the caches, memory stays flat.
NUMBERS_AT_ONCE = 1 << 22


def measure(tokens: Tensor, names: Iterable[str] | None = None) -> dict[str, Tensor]:
    """The named measures (default: all) of (..., n, d) tokens, each a float64 tensor of the batch axes' shape."""
    check_tokens(tokens)
    check_finite(tokens)
    chosen = ALL_MEASURES if names is None else tuple(find(name) for name in names)
    samples = tokens.detach().reshape(-1, *tokens.shape[-2:])
    columns: dict[str, list[Tensor]] = {one.name: [] for one in chosen}
    for chunk in samples.split(max(1, NUMBERS_AT_ONCE // samples[0].numel())):
        profile = Profile(chunk)
        for one in chosen:
            columns[one.name].append(one.of(profile))
    return {name: torch.cat(parts).reshape(tokens.shape[:-2]) for name, parts in columns.items()}


def find(name: str) -> Measure:
    """The measure of that name, or an error that lists them."""
    for one in ALL_MEASURES:
        if one.name == name:
            return one
    known = ", ".join(one.name for one in ALL_MEASURES)
    raise RequestError(required=f"a measure among {known}", got=name, remedy="for example effective_rank")
