"""How fast uniform attention over a mask makes tokens equal: what pure attention does once its scores are flat."""

from __future__ import annotations

from rankfall.attention.masks import Causal, Complete, Mask
from rankfall.theory.uniform_attention import tail_rate

# Beyond this many tokens the eigenvalues of a pattern take longer than the audit itself.
TOKENS_AT_MOST = 2048


def uniform_rate(mask: Mask, n: int) -> float | None:
    """|second eigenvalue| of U = mask / row sums: mu falls by this factor a layer in the long run.

    Complete: 0, the collapse is faster than exponential. Causal: 1/2. None where only a large problem would tell.
    """
    if n < 2 or isinstance(mask, Complete):
        return 0.0
    if isinstance(mask, Causal):
        return 0.5
    return tail_rate(mask, n) if n <= TOKENS_AT_MOST else None
