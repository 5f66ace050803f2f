"""When a monitor warns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final


class RankWarning(UserWarning):
    """Tokens are collapsing, or a few of them dwarf the rest."""


@final
@dataclass(frozen=True)
class Alarms:
    """Thresholds. Collapse is judged on tokens of length one, so that a sink cannot hide or feign it."""

    relative_mu: float = 0.1
    effective_rank: float = 2.0
    norm_ratio: float = 5.0

    def heard(self, values: Mapping[str, float]) -> dict[str, str]:
        """What to warn about, by kind, in words with the number and the threshold."""
        found: dict[str, str] = {}
        if values.get("nonfinite"):
            return {"nonfinite": "tokens are not finite"}
        if values["relative_mu"] < self.relative_mu:
            found["collapse"] = f"relative mu {values['relative_mu']:.3g} is below {self.relative_mu:g}"
        elif values["effective_rank"] < self.effective_rank:
            found["collapse"] = f"effective rank {values['effective_rank']:.3g} is below {self.effective_rank:g}"
        if values["norm_ratio"] > self.norm_ratio:
            found["sink"] = (
                f"the longest token is {values['norm_ratio']:.3g} times the median"
                f" (threshold {self.norm_ratio:g}), token {int(values['longest_token'])} of the sequence"
            )
        return found
