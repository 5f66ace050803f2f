"""Which named mask a matrix is."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Bool
from torch import Tensor

from rankfall.attention.masks import BlockDiagonal, Causal, CausalWindow, Complete, Explicit, Mask, Prefix, Window


def recognise(allowed: Bool[Tensor, "n n"]) -> Mask:
    """The simplest named mask equal to the matrix, or the matrix itself; it must have a true diagonal."""
    n = allowed.shape[-1]
    for candidate in _candidates(allowed):
        if torch.equal(candidate.dense(n, allowed.device), allowed):
            return candidate
    return Explicit(allowed.cpu())


def _candidates(allowed: Tensor) -> Iterator[Mask]:
    """Parameters are read off the first and last row; whether they fit is checked against the whole."""
    n = allowed.shape[-1]
    yield Complete()
    yield Causal()
    ahead, behind = int(allowed[0].sum()) - 1, int(allowed[-1].sum()) - 1
    if ahead >= 1:
        yield Window(ahead)
        yield Prefix(ahead + 1)
        yield BlockDiagonal(ahead + 1)
    if 1 <= behind < n - 1:
        yield CausalWindow(behind)
