"""One kind of error for a request that cannot be met: what was required, what came, what to do."""

from __future__ import annotations

import re
from collections.abc import Iterable

# Control characters (C0, delete, C1), marks and overrides of writing direction, separators of lines and paragraphs:
# printed, they move the cursor, recolour the terminal or show a text in another order than it has.
CONTROLS = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069\\ufeff]")
SPACES = re.compile("[\\t\\n\\v\\f\\r\\x85\\u2028\\u2029]+")


def printable(text: object) -> str:
    """The text on one line, without anything that would control a terminal; for all that came from outside."""
    return CONTROLS.sub("", SPACES.sub(" ", str(text)).encode("utf-8", "replace").decode())


class RequestError(ValueError):
    """A wrong request. Its message is one line in three parts, and the command line prints nothing else."""

    def __init__(self, *, required: str, got: object, remedy: str) -> None:
        super().__init__(printable(f"required {required}; got {got}; {remedy}"))
        self.required = required
        self.got = got
        self.remedy = remedy


def require(condition: bool, *, required: str, got: object, remedy: str) -> None:
    """Raise a `RequestError` unless the condition holds."""
    if not condition:
        raise RequestError(required=required, got=got, remedy=remedy)


def require_one_of(what: str, value: str, choices: Iterable[str]) -> None:
    """One of a few names that are no registry of their own."""
    known = tuple(choices)
    require(value in known, required=f"{what} among {', '.join(known)}", got=value, remedy=f"for example {known[0]}")


def require_count(
    name: str, value: int, *, least: int = 1, most: int | None = None, remedy: str | None = None
) -> int:
    """A whole number not below `least` and not above `most`; the commonest check of all."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    require(
        whole and value >= least,
        required=f"{name} to be a whole number of at least {least}",
        got=value,
        remedy=f"give {name} as {least} or more",
    )
    require(
        most is None or value <= most,
        required=f"{name} to be at most {most}",
        got=value,
        remedy=remedy or f"give {name} as {least} to {most}",
    )
    return value
