"""What a layer does besides attending: the norm, where it stands, and how much of the old tokens it keeps."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import final

from rankfall.attention.norms import PLACEMENTS, NoNorm, Norm, Placement
from rankfall.errors import require


@final
@dataclass(frozen=True)
class Rule:
    """post: X' = norm(residual X + A X W_V); pre: X' = residual X + A norm(X) W_V (A computed from norm(X) too)."""

    norm: Norm = field(default_factory=NoNorm)
    placement: Placement = "post"
    residual: float = 0.0

    def __post_init__(self) -> None:
        require(
            self.placement in PLACEMENTS,
            required=f"a placement among {', '.join(PLACEMENTS)}",
            got=self.placement,
            remedy="post is what both papers use",
        )
        require(
            math.isfinite(self.residual),
            required="a finite residual weight",
            got=self.residual,
            remedy="0 for none, 1 for a usual skip connection",
        )


PURE_ATTENTION = Rule()
