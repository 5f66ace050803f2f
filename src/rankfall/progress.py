"""How long work says how far it is: one function of what is being done and the share that is done."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, float], None]
"""Called with what is being done now and the share of the whole that is done, from 0 to 1."""


def silent(what: str, share: float) -> None:
    """Nobody is told."""


def part(progress: Progress, start: float, end: float, what: str | None = None) -> Progress:
    """The progress of a part that takes the whole from `start` to `end`, under a name of its own if one is given."""

    def inner(inside: str, share: float) -> None:
        progress(inside if what is None else f"{what}: {inside}", start + (end - start) * share)

    return inner


def counted(progress: Progress, what: str, total: int) -> Callable[[int], None]:
    """A function of steps taken, for work that counts its steps instead of its share."""
    done = 0

    def advance(steps: int) -> None:
        nonlocal done
        done += steps
        progress(what, min(1.0, done / total) if total else 1.0)

    return advance
