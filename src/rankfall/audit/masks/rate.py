"""How fast uniform attention over a mask makes tokens equal: what pure attention does once its scores are flat."""

from __future__ import annotations

import numpy as np

from rankfall.attention.masks import Causal, Complete, Mask

# Beyond this many tokens the eigenvalues of a pattern without structure take too long to be worth it.
GENERAL_TOKENS_AT_MOST = 1024


def uniform_rate(mask: Mask, n: int) -> float | None:
    """|second eigenvalue| of U = mask / row sums: mu falls by this factor a layer, in the long run (B-thm1's true rate).

    Complete: 0, the collapse is faster than exponential. Causal: 1/2. Other triangular masks: the second largest
    1/degree. Symmetric ones by a symmetric eigenproblem. None where only a large general problem would tell.
    """
    if n < 2 or isinstance(mask, Complete):
        return 0.0
    if isinstance(mask, Causal):
        return 0.5
    allowed = mask.dense(n).numpy()
    degrees = allowed.sum(axis=1).astype(np.float64)
    if not np.triu(allowed, 1).any():
        return float(np.sort(1.0 / degrees)[-2])
    if (allowed == allowed.T).all():
        root = 1.0 / np.sqrt(degrees)
        values = np.linalg.eigvalsh(allowed * root[:, None] * root[None, :])
    elif n <= GENERAL_TOKENS_AT_MOST:
        values = np.linalg.eigvals(allowed / degrees[:, None])
    else:
        return None
    return float(np.sort(np.abs(values))[-2])
