"""What a task is: how to draw sequences of tokens, what each asked token must output, and what counts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from rankfall.tasks.streams import Draws


@dataclass(frozen=True)
class Sample:
    """Sequences and what is wanted of them, with leading axes (stream, step)."""

    inputs: Tensor
    """(s, t, batch, tokens, dim)"""
    targets: Tensor
    """Same shape; anything where nothing is asked."""


@dataclass(frozen=True)
class Task(ABC):
    """One task. Subclasses are frozen dataclasses that hold parameters only; any number of points, any width."""

    name: ClassVar[str]
    summary: ClassVar[str]
    causal: ClassVar[bool] = False
    """Tokens hold later answers, so that only a causal mask makes the task honest."""

    @abstractmethod
    def check(self, points: int, dim: int) -> None:
        """Raise a `RequestError` where the task does not exist for these sizes."""

    def tokens(self, points: int) -> int:
        """Tokens of one sequence."""
        return points

    def context(self, points: int) -> int:
        """The first so many tokens may be attended to; the rest only ask."""
        return self.tokens(points)

    @abstractmethod
    def asked(self, points: int, dim: int) -> Tensor:
        """(tokens, dim) weights in {0, 1}: which coordinates of which tokens the loss looks at."""

    @abstractmethod
    def sample(self, draws: Draws, batch: int, points: int, dim: int) -> Sample:
        """Draw `batch` sequences for each stream and step."""
