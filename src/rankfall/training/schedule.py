"""The learning rate over a run: linear warm-up, then a cosine to zero, constant within a chunk."""

from __future__ import annotations

import math


def schedule(chunk: int, chunks: int, warm_up: float) -> float:
    """The factor for chunk 0 <= chunk < chunks: (c+1)/w while c < w, then (1 + cos(pi (c-w)/(C-w)))/2.

    w = warm_up * C rounded, at least one chunk. The first chunk already moves, and the rate reaches zero only after
    the last.
    """
    rising = max(1, round(warm_up * chunks))
    if chunk < rising:
        return (chunk + 1) / rising
    return 0.5 * (1.0 + math.cos(math.pi * (chunk - rising) / max(1, chunks - rising)))
