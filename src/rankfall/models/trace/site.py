"""What a trace holds about one attention call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, final

from torch import Tensor, nn

from rankfall.models.interface.call import Call


@final
@dataclass(frozen=True, eq=False)
class Ran:
    """A linear map or norm that ran, with what went in and what came out."""

    kind: Literal["linear", "norm"]
    name: str
    module: nn.Module
    input: Tensor
    output: Tensor


@final
@dataclass(frozen=True, eq=False)
class Site:
    """One attention call in a traced pass.

    `arguments` are what the module was called with, by parameter name; `tokens_name` is the one that holds the
    tokens that ask, `context_name` the one that holds those asked, in cross-attention. `projection` is the first
    linear map after the call, W_O, which may lie inside the module or, as in BERT, after it.
    """

    call: Call
    arguments: Mapping[str, Any]
    tokens_name: str | None
    context_name: str | None
    before: tuple[Ran, ...]
    projection: Ran | None
    projection_inside: bool
    after: tuple[Ran, ...]

    @property
    def name(self) -> str:
        """The module's qualified name."""
        return self.call.name

    @property
    def index(self) -> int:
        """Attention calls before this one."""
        return self.call.index

    @property
    def tokens(self) -> Tensor:
        """The tokens that the module was given."""
        assert self.tokens_name is not None
        found: Tensor = self.arguments[self.tokens_name]
        return found
