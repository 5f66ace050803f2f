"""What a recorded run of a model tells: attention calls, modules that ran, and how much of the attention was seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, final

from torch import Tensor, nn

from rankfall.models.recording.interface import Eager

Source = Literal["interface", "sdpa", "multihead", "softmax"]
"""How a call was seen: at the library's attention interface (everything), at torch's fused attention or its
multi-head attention (all but the weights), or at a softmax inside a module that bypasses these (weights and logits
only)."""

AttentionKind = Literal["self", "cross"]
"""Whether the keys are those of the queries' own tokens, or of others: a decoder's look at its encoder."""


@final
@dataclass(frozen=True, eq=False)
class Call:
    """One attention call. Tensors are the model's own, not copies: read them now or copy them.

    query (b, h, n, r)     key, value (b, g, m, r) with g dividing h, before groups are repeated
    mask                   added to the scores, or boolean; None means that every token sees every token, unless
                           `options` says `is_causal`
    weights (b, h, n, m)   what the model computed, where it computes them
    logits                 what went into a softmax (source `softmax` only)
    output (b, n, h, r)    what attention returned
    elsewhere              whether the keys are known to come from other tokens than the queries
    eager                  the function at the interface that computed it, where that is not torch's fused one
    given                  positional and keyword arguments of the module that made the call
    run                    passes of the model before this one
    """

    index: int
    name: str
    module: nn.Module
    source: Source
    query: Tensor | None = None
    key: Tensor | None = None
    value: Tensor | None = None
    mask: Tensor | None = None
    scaling: float | None = None
    weights: Tensor | None = None
    logits: Tensor | None = None
    output: Tensor | None = None
    elsewhere: bool = False
    eager: Eager | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    given: tuple[tuple[Any, ...], Mapping[str, Any]] = ((), {})
    run: int = 0

    @property
    def missing(self) -> tuple[str, ...]:
        """Which of query, key, value and weights could not be seen."""
        parts = {"query": self.query, "key": self.key, "value": self.value, "weights": self.weights}
        return tuple(name for name, part in parts.items() if part is None)


Kind = Literal["linear", "norm", "attention", "other"]


@final
@dataclass(frozen=True, eq=False)
class Ran:
    """A module that ran, the tensor that went in and the one that came out; `within` are the attention modules
    around it, outermost first, and other modules where attention is looked for in all."""

    kind: Kind
    name: str
    module: nn.Module
    input: Tensor
    output: Tensor
    within: tuple[nn.Module, ...] = ()


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
    """How much of a model's attention was seen.

    `expected` modules hold attention; `ran` of them ran; `calls` were seen, by source; the rest is named.
    """

    expected: int
    ran: int
    calls: dict[str, int]
    missed: tuple[Missed, ...]
    not_run: tuple[str, ...]

    @property
    def state(self) -> Literal["complete", "weights only", "partial", "none", "not run"]:
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
            return (
                "no module of this model holds attention that we know how to see: none calls torch's attention"
                " functions or the library's interface, and one that writes attention out is told by its class's name"
                " alone, in which the word attention must stand"
            )
        if self.ran == 0:
            return f"none of the {self.expected} attention modules ran on these inputs"
        parts = [f"{sum(self.calls.values())} calls of {self.ran} attention modules seen"]
        if self.calls.get("softmax", 0):
            parts.append(
                f"{self.calls['softmax']} of them only at their softmax, because the module writes attention out:"
                " weights and logits are there, queries, keys and values are not"
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

    def record(self) -> dict[str, Any]:
        """The coverage as `--json` prints it."""
        return {**asdict(self), "state": self.state, "reason": self.reason}
