"""The learning rate over a run: linear warm-up, then a cosine to zero, constant within a chunk."""

from __future__ import annotations

import math


def schedule(chunk: int, chunks: int, warm_up: float, warm_up_from: str = "first") -> float:
    """The factor for chunk 0 <= chunk < chunks: rising to 1 while c < w, then (1 + cos(pi (c-w)/(C-w)))/2.

    w = warm_up * C rounded, at least one chunk. From `first` it rises as (c+1)/w, from `zero` as c/(w-1), so that
    either way the last chunk of the warm-up has the full rate. The rate reaches zero only after the last chunk.
    """
    rising = max(1, round(warm_up * chunks))
    if chunk < rising:
        return chunk / max(1, rising - 1) if warm_up_from == "zero" else (chunk + 1) / rising
    return 0.5 * (1.0 + math.cos(math.pi * (chunk - rising) / max(1, chunks - rising)))
