"""Matrix products of a batch of one, without the cost of a batch."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def product(left: Float[Tensor, "*left n k"], right: Float[Tensor, "*right k m"]) -> Float[Tensor, "... n m"]:
    """left @ right. A single pair goes to the plain product, which starts several times faster than a batched one."""
    if left.ndim == right.ndim == 3 and left.shape[0] == right.shape[0] == 1:
        return torch.mm(left[0], right[0])[None]
    return left @ right
