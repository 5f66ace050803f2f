"""What a control of the page may be set to: one description serves the widget, the link and its check."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, final

from rankfall.errors import RequestError

Setting: TypeAlias = str | int | float


@final
@dataclass(frozen=True)
class Knob:
    """A number within its steps' ends. A link may name any number between them; the slider then has it as a step."""

    key: str
    label: str
    steps: tuple[float, ...]

    def parse(self, text: str, like: Setting) -> Setting:
        """The number that the text writes, a whole one where the default is whole."""
        number = int(text) if isinstance(like, int) else float(text)
        if not self.steps[0] <= number <= self.steps[-1]:
            raise ValueError
        return number

    def stops(self, value: float) -> list[float]:
        """The slider's steps, with the given value among them."""
        return sorted({*self.steps, value})


@final
@dataclass(frozen=True)
class Choice:
    """One of several names."""

    key: str
    label: str
    names: tuple[str, ...]

    def parse(self, text: str, like: Setting) -> Setting:
        """The name itself, if it is one of them."""
        if text not in self.names:
            raise ValueError
        return text


@final
@dataclass(frozen=True)
class Words:
    """Text of a grammar of its own, which `check` refuses with an error."""

    key: str
    label: str
    check: Callable[[str], object]

    def parse(self, text: str, like: Setting) -> Setting:
        """The text, once checked."""
        try:
            self.check(text)
        except RequestError as error:
            raise ValueError from error
        return text


Control: TypeAlias = Knob | Choice | Words


def knob(default: float, key: str, label: str, steps: Sequence[float]) -> Any:
    """A numeric field of a state."""
    return field(default=default, metadata={"control": Knob(key, label, tuple(steps))})


def choice(default: str, key: str, label: str, names: Sequence[str]) -> Any:
    """A field with one of several names."""
    return field(default=default, metadata={"control": Choice(key, label, tuple(names))})


def words(default: str, key: str, label: str, check: Callable[[str], object]) -> Any:
    """A field of checked text."""
    return field(default=default, metadata={"control": Words(key, label, check)})


def whole(first: int, last: int, step: int = 1) -> tuple[int, ...]:
    """Every so many whole numbers, both ends included."""
    return tuple(range(first, last + 1, step))
