"""Reasons about head rank: whether heads use the rank they have, and what no layer of this shape can do."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rankfall.audit.verdict.reason import Reason
from rankfall.theory.head_class import HeadClass
from rankfall.theory.head_floor import mse_floor

# A head whose effective rank exceeds this share of its width uses what it has.
USED_SHARE = 0.5


def heads_reason(heads: Sequence[Mapping[str, Any]]) -> Reason | None:
    """Is head rank the bottleneck? The heads' use of their rank, and the bound of paper A for the shape."""
    known = [head for head in heads if head.get("qk_effective_rank") is not None]
    if not known:
        return None
    first = known[0]
    width, rank, count = int(first["width"]), int(first["head_dim"]), int(first["heads"])
    used = statistics.median(float(head["qk_effective_rank"]) / float(head["head_dim"]) for head in known)
    text = (
        f"each layer has {count} heads of rank {rank} in width {width} (H r / d = {count * rank / width:.2g}); the"
        f" median head spreads its query/key form over {used * rank:.1f} of {rank} directions, so heads"
    )
    text += " use the rank they have" if used > USED_SHARE else " have rank to spare on this measure"
    floor = mse_floor(HeadClass(dim=width, rank=min(rank, width), skip=True), count)
    if floor.mse > 0:
        text += (
            "; asked for the nearer of two points, no layer of this shape gets its squared error below"
            f" {floor.mse:.4f}, whatever its weights: without heads it is {floor.baseline:.4f}, with one head of full"
            f" rank 0, so for such tasks rank {rank} is the bottleneck"
        )
    else:
        text += "; the lower bound forbids nothing for this shape, so head rank need not be the bottleneck"
    numbers = {
        "width": width,
        "head_dim": rank,
        "heads": count,
        "used_share": used,
        "mse_lower_bound": floor.mse,
        "mse_without_heads": floor.baseline,
    }
    return Reason("head rank", text, numbers)
