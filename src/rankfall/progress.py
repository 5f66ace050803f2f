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


def widened(progress: Progress, start: float, end: float, margin: float) -> Progress:
    """The same, where what lies from `start` to `end` takes all of the time but `margin` at either side."""

    def inner(what: str, share: float) -> None:
        if share <= start:
            progress(what, margin * share / start)
        elif share < end:
            progress(what, margin + (1 - 2 * margin) * (share - start) / (end - start))
        else:
            progress(what, 1 - margin * (1 - share) / (1 - end))

    return inner
