"""One kind of error for a request that cannot be met: what was required, what came, what to do."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

# Control characters (C0, delete, C1), marks and overrides of writing direction, separators of lines and paragraphs:
# printed, they move the cursor, recolour the terminal or show a text in another order than it has.
CONTROLS = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069\\ufeff]")
SPACES = re.compile("[\\t\\n\\v\\f\\r\\x85\\u2028\\u2029]+")


def printable(text: object) -> str:
    """The text on one line, without anything that would control a terminal; for all that came from outside."""
    return CONTROLS.sub("", SPACES.sub(" ", str(text)).encode("utf-8", "replace").decode())


def printable_lines(text: str) -> str:
    """The same for a whole page, whose lines and tabs stay."""
    return CONTROLS.sub(lambda one: one[0] if one[0] in "\n\t" else "", text)


MOST_SHOWN = 400
"""Characters of what came that a refusal repeats, and half of what its other parts may have."""
LARGEST = 2**31 - 1
"""No count here can be larger, whatever it counts: tensors of that many rows fit no memory."""

MOST_HEADS = 10**300
"""Heads that a bound only computes with may be many more; as a float this is still finite."""


def brief(value: object, most: int = MOST_SHOWN) -> str:
    """The value as text of at most so many characters; of a longer one the beginning, and how long it is."""
    text = str(value)
    return text if len(text) <= most else f"{text[: most - 40]}... ({len(text):,} characters)"


class RequestError(ValueError):
    """A wrong request. Its message is one line in three parts, and the command line prints nothing else."""

    def __init__(self, *, required: str, got: object, remedy: str) -> None:
        parts = (brief(required, 2 * MOST_SHOWN), brief(got), brief(remedy, 2 * MOST_SHOWN))
        super().__init__(printable("required {}; got {}; {}".format(*parts)))
        self.required = required
        self.got = got
        self.remedy = remedy


def reason_of(error: Exception) -> str:
    """The error in one line, for a table of what could not be done."""
    if isinstance(error, RequestError):
        return str(error)
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def require(condition: bool, *, required: str, got: object, remedy: str) -> None:
    """Raise a `RequestError` unless the condition holds."""
    if not condition:
        raise RequestError(required=required, got=got, remedy=remedy)


def require_one_of(what: str, value: str, choices: Iterable[str]) -> None:
    """One of a few names that are no registry of their own."""
    known = tuple(choices)
    require(value in known, required=f"{what} among {', '.join(known)}", got=value, remedy=f"for example {known[0]}")


def require_count(
    name: str, value: int, *, least: int = 1, most: int | None = LARGEST, remedy: str | None = None
) -> int:
    """A whole number not below `least` and not above `most`; the commonest check of all. None: as large as it is."""
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


def require_seed(value: int, name: str = "the seed") -> int:
    """A whole number that every generator takes as a seed."""
    return require_count(name, value, least=0, most=2**63 - 1, remedy="0, 1, 2 are independent streams")


def require_number(
    name: str, value: float, *, above: float | None = None, least: float | None = None, most: float | None = None
) -> float:
    """A finite number in a range: NaN and the infinities are none."""
    low = f" above {above:g}" if above is not None else f" of at least {least:g}" if least is not None else ""
    high = "" if most is None else f"{' and' if low else ' of'} at most {most:g}"
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < math.inf
    require(
        number
        and (above is None or value > above)
        and (least is None or value >= least)
        and (most is None or value <= most),
        required=f"{name} to be a finite number{low}{high}",
        got=value,
        remedy=f"give another {name.removeprefix('the ')}",
    )
    return value
