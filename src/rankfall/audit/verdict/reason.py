"""One reason of a verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final


@final
@dataclass(frozen=True)
class Reason:
    """A sentence, what it is about, and the numbers it rests on."""

    topic: str
    text: str
    numbers: Mapping[str, Any] = field(default_factory=dict)
