"""When a monitor warns, and when it takes a warning back."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import final

from rankfall.errors import require
from rankfall.models.thresholds import THRESHOLDS

KINDS = ("collapse", "massive_token")
"""Alarms that are logged as scalars, 1 while they last; tokens that are not finite are a scalar already."""


class RankWarning(UserWarning):
    """Tokens are collapsing, a few of them dwarf the rest, or something could not be measured."""


@final
@dataclass(frozen=True)
class Alarms:
    """Thresholds. Collapse is judged on tokens of length one, so that a massive token cannot hide or feign it.

    An alarm that was raised lasts until the value is better than its threshold by the factor `recovery`, so that one
    that wavers about the threshold is told once; after that it can be raised again.
    """

    relative_mu: float = THRESHOLDS.collapsed_relative_mu
    energy_rank: float = THRESHOLDS.collapsed_energy_rank
    norm_ratio: float = THRESHOLDS.massive_norm_ratio
    recovery: float = 1.25

    def __post_init__(self) -> None:
        require(self.recovery >= 1, required="a recovery of at least 1", got=self.recovery, remedy="1 is no margin")

    def raised(self, values: Mapping[str, float], before: Collection[str] = ()) -> dict[str, str]:
        """Which alarms stand, by kind, in words with the number and the threshold; `before` are those that stood."""
        found: dict[str, str] = {}
        if values.get("nonfinite"):
            found["nonfinite"] = "tokens are not finite"
        if "relative_mu" not in values:
            return {**dict.fromkeys(before, "cannot be judged"), **found}
        floor = self.recovery if "collapse" in before else 1.0
        ceiling = self.recovery if "massive_token" in before else 1.0
        if values["relative_mu"] < floor * self.relative_mu:
            found["collapse"] = f"relative mu {values['relative_mu']:.3g} is below {floor * self.relative_mu:g}"
        elif values["energy_rank"] < floor * self.energy_rank:
            found["collapse"] = f"energy rank {values['energy_rank']:.3g} is below {floor * self.energy_rank:g}"
        if values["norm_ratio"] > self.norm_ratio / ceiling:
            found["massive_token"] = (
                f"the longest token is {values['norm_ratio']:.3g} times the median"
                f" (threshold {self.norm_ratio / ceiling:g}), token {int(values['longest_token'])} of the sequence"
            )
        return found
