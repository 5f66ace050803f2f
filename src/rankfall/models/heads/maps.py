"""The linear maps of one attention layer, head by head, wherever they came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

from torch import Tensor, nn

from rankfall.linalg.factored import Factored
from rankfall.models.heads.latents import Latents
from rankfall.models.recording.events import AttentionKind


@final
@dataclass(frozen=True, eq=False)
class HeadMaps:
    """Weights of one layer in float64, tokens as rows: q = x query + query_bias.

    query (h, d, r)     key (g, c, r)     value (g, c, v)     output (h, v, o), or None where W_O was not found
    `checks` are self-checks by name, as relative errors; `notes` say what the numbers leave out. `gate` (h, v) is
    the median over tokens of what multiplies attention's output before W_O; `output` has it in it. `kind` is
    None where nothing was run.
    """

    layer: int
    name: str
    source: str
    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor | None
    offset: int = 0
    rotary: bool | None = None
    qk_norm: bool = False
    checks: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    latents: Latents = field(default_factory=Latents)
    gate: Tensor | None = None
    kind: AttentionKind | None = None

    @property
    def groups(self) -> int:
        """Query heads that share one key head."""
        return self.query.shape[0] // self.key.shape[0]

    def query_key_forms(self) -> Factored:
        """W_Q W_K^T of every head: the score of token x for token y is y W_Q W_K^T x (without biases and scale)."""
        key = self.key.repeat_interleave(self.groups, dim=0)
        return Factored(*_same_height(self.query, key))

    def value_output_forms(self) -> Factored | None:
        """W_V W_O of every head: what a token contributes where it is attended to."""
        if self.output is None:
            return None
        value = self.value.repeat_interleave(self.query.shape[0] // self.value.shape[0], dim=0)
        return Factored(*_same_height(value, self.output.mT))


def _same_height(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Zero rows make two factors equally high without changing any singular value of their product."""
    height = max(left.shape[-2], right.shape[-2])

    def padded(factor: Tensor) -> Tensor:
        return nn.functional.pad(factor, (0, 0, 0, height - factor.shape[-2]))

    return padded(left), padded(right)
