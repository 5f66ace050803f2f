"""A model ready to be audited."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from torch import nn


@final
@dataclass(frozen=True, eq=False)
class LoadedModel:
    """The network, its tokenizer if it has one, where it came from, and what was ignored on the way."""

    network: nn.Module
    tokenizer: Any | None
    name: str
    source: str
    notes: tuple[str, ...] = ()

    @property
    def parameters(self) -> int:
        """How many numbers the network holds, shared ones once."""
        return sum(parameter.numel() for parameter in self.network.parameters())
