"""How much of a model's attention was seen, compared with what was there to see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

State = Literal["complete", "weights only", "partial", "none", "not run"]


@final
@dataclass(frozen=True)
class Missed:
    """An attention module that ran more often than it was seen."""

    name: str
    kind: str
    runs: int
    calls: int


@final
@dataclass(frozen=True)
class Coverage:
    """`expected` modules hold attention; `ran` of them ran; `calls` were seen, by source; the rest is named."""

    expected: int
    ran: int
    calls: dict[str, int]
    missed: tuple[Missed, ...]
    not_run: tuple[str, ...]

    @property
    def state(self) -> State:
        """`complete`: every run of every attention module was seen with its queries, keys and values."""
        seen = sum(self.calls.values())
        if self.ran == 0:
            return "not run" if self.expected else "none"
        if self.missed:
            return "partial" if seen else "none"
        return "weights only" if self.calls.get("softmax", 0) else "complete"

    @property
    def complete(self) -> bool:
        """Nothing that ran was missed, in whole or in part."""
        return self.state == "complete"

    @property
    def reason(self) -> str:
        """The state in one sentence, naming what is missing."""
        if self.expected == 0:
            return "no module of this model holds attention that we know how to see"
        if self.ran == 0:
            return f"none of the {self.expected} attention modules ran on these inputs"
        parts = [f"{sum(self.calls.values())} calls of {self.ran} attention modules seen"]
        if self.calls.get("softmax", 0):
            parts.append(
                f"{self.calls['softmax']} of them only at their softmax, because the module bypasses the attention"
                " interface: weights and logits are there, queries, keys and values are not"
            )
        if self.missed:
            first = self.missed[0]
            parts.append(
                f"{len(self.missed)} modules ran unseen, the first {first.name} ({first.kind}):"
                f" {first.runs} runs, {first.calls} calls"
            )
        if self.not_run:
            parts.append(f"{len(self.not_run)} attention modules did not run, the first {self.not_run[0]}")
        return "; ".join(parts)
