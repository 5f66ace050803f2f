"""The mechanism: heads whose query/key rank, value rank and count are independent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankfall.masks import parse_mask
from rankfall.mechanism.heads import attention as attend

if TYPE_CHECKING:
    from torch import Tensor

    from rankfall.masks import Mask
    from rankfall.mechanism.attend import Kind
    from rankfall.mechanism.heads import Heads


def attention(
    heads: Heads,
    tokens: Tensor,
    context: Tensor | None = None,
    mask: str | Mask | Tensor | None = None,
    *,
    score_bias: Tensor | None = None,
    kind: Kind = "softmax",
) -> Tensor:
    """Attend from (..., n, d) tokens to (..., m, c) context (default: the tokens): (..., n, o), summed over heads.

    `mask` is a name such as `window:16`, a mask, or a boolean (n, m) matrix; under a band of width w the cost is n
    times w. `kind`: softmax or hardmax.
    """
    chosen = parse_mask(mask) if isinstance(mask, str) else mask
    return attend(heads, tokens, context, chosen, score_bias=score_bias, kind=kind)
