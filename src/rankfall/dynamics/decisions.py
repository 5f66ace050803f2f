"""Choices between forms of a layer that depend on values: made now, noted, or assumed and checked later.

On a GPU every look at a value waits for all that was launched before. A layer chooses its form in a few places, each
time by `decide`. The choices of one layer, noted, are an assumption about the next: under it a layer looks at nothing
and can be captured, and whether the assumption held is itself a number on the device, read once for many layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import final

import torch
from torch import Tensor

Answers = tuple[bool, ...]
"""What a layer chose, in the order in which it asked."""


class NotAssumableError(RuntimeError):
    """A form whose shapes depend on values: it can only be computed with a look at them."""


@final
class Noted:
    """The answers that were given while they were noted."""

    def __init__(self) -> None:
        self.answers: list[bool] = []

    def decide(self, condition: Tensor) -> bool:
        """Look, and note what was seen."""
        self.answers.append(bool(condition))
        return self.answers[-1]


@final
class Assumed:
    """Answers given without a look; `held` becomes whether they are right, as a tensor."""

    def __init__(self, answers: Answers) -> None:
        self.answers, self.asked = answers, 0
        self._matches: list[Tensor] = []

    def decide(self, condition: Tensor) -> bool:
        """The assumed answer; the condition is kept to be compared with it."""
        if self.asked == len(self.answers):
            raise NotAssumableError("more questions than were assumed")
        answer = self.answers[self.asked]
        self.asked += 1
        self._matches.append(condition if answer else ~condition)
        return answer

    def held(self) -> Tensor:
        """Whether every answer was right: a boolean tensor without axes, on the device."""
        return torch.stack(self._matches).all()


_current: ContextVar[Noted | Assumed | None] = ContextVar("decisions", default=None)


def decide(condition: Tensor) -> bool:
    """Whether the condition, one boolean, is true; or what is assumed of it."""
    current = _current.get()
    return bool(condition) if current is None else current.decide(condition)


def require_looking(form: str) -> None:
    """Refuse, under an assumption, a form that cannot do without looking."""
    if isinstance(_current.get(), Assumed):
        raise NotAssumableError(form)


@contextmanager
def noting() -> Iterator[Noted]:
    """Note every answer given inside."""
    noted = Noted()
    token = _current.set(noted)
    try:
        yield noted
    finally:
        _current.reset(token)


@contextmanager
def assuming(answers: Answers) -> Iterator[Assumed]:
    """Give these answers inside, in their order."""
    assumed = Assumed(answers)
    token = _current.set(assumed)
    try:
        yield assumed
    finally:
        _current.reset(token)
