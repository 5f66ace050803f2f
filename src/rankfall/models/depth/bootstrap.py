"""Percentile bootstrap intervals of many means at once."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

RESAMPLES = 2000
CONFIDENCE = 0.95


def bootstrap(values: Float[Tensor, "t k"], seed: int = 0) -> Float[Tensor, "2 k"]:
    """Lower and upper end for the mean over t texts of each of k quantities, all drawn alike."""
    texts = values.shape[0]
    drawn = np.random.default_rng(seed).integers(0, texts, size=(RESAMPLES, texts))
    times = (drawn[:, :, None] == np.arange(texts)).sum(axis=1) / texts
    means = torch.from_numpy(times).to(values) @ values
    in_order = means.sort(dim=0).values
    tail = (1 - CONFIDENCE) / 2
    return torch.stack([_between(in_order, tail), _between(in_order, 1 - tail)])


def _between(in_order: Float[Tensor, "r k"], share: float) -> Float[Tensor, k]:
    """The value below which this share lies, on the straight line between its neighbours."""
    place = share * (in_order.shape[0] - 1)
    below = int(place)
    return torch.lerp(in_order[below], in_order[min(below + 1, in_order.shape[0] - 1)], place - below)
