"""Named items of one kind: what an argument may say, found without importing what it names.

A registry maps a spelling, such as `window:WIDTH` or `layer[:EPSILON]`, to the place of an item, such as
`rankfall.masks.local:Window`. Names, choices and completions come from the spellings alone, so that `--help` stays
light; an item is imported when it is used.
"""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from typing import Any, Generic, TypeVar, cast, final

from rankfall.errors import RequestError

Item = TypeVar("Item")
Made = TypeVar("Made")


@final
class Registry(Generic[Item]):
    """Items of one kind in the order in which they are offered. `example` ends the refusal of an unknown name."""

    def __init__(self, kind: str, places: Mapping[str, str], *, example: str) -> None:
        self.kind = kind
        self.example = example
        self._spellings = {re.split(r"[:\[]", spelling)[0]: spelling for spelling in places}
        self._places = dict(zip(self._spellings, places.values(), strict=True))

    @property
    def names(self) -> tuple[str, ...]:
        """Every name, without parameters."""
        return tuple(self._places)

    @property
    def choices(self) -> str:
        """Every spelling in words, as help texts give it."""
        *most, last = self._spellings.values()
        return f"{', '.join(most)} or {last}" if most else last

    def check(self, name: str) -> None:
        """Refuse a name that is not listed, without importing what is."""
        self._known(name)

    def spelling(self, name: str) -> str:
        """How an argument names the item, parameters in capitals."""
        return self._spellings[self._known(name)]

    def complete(self, incomplete: str) -> list[str]:
        """The names that begin so, for the shell."""
        return [name for name in self.names if name.startswith(incomplete)]

    def near(self, name: str) -> str | None:
        """The listed name that this one may be a misspelling of, if there is one."""
        return next(iter(difflib.get_close_matches(name, self.names, n=1)), None)

    def __getitem__(self, name: str) -> Item:
        module, _, attribute = self._places[self._known(name)].partition(":")
        return cast(Item, getattr(importlib.import_module(module), attribute))

    def __iter__(self) -> Iterator[Item]:
        return (self[name] for name in self.names)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def _known(self, name: str) -> str:
        if name in self._places:
            return name
        near = self.near(name)
        remedy = f"did you mean {near}?" if near else f"for example {self.example}"
        article = "an" if self.kind[0] in "aeiou" else "a"
        known = ", ".join(self._spellings.values())
        raise RequestError(required=f"{article} {self.kind} among {known}", got=name or "nothing", remedy=remedy)


def made(registry: Registry[type[Made]], text: str) -> Made:
    """The item that an argument such as `causal`, `window:4` or `random:0.2:7` names, built from its numbers."""
    name, *values = text.strip().split(":")
    kind: Any = registry[name]
    parameters = fields(kind)
    least = sum(one.default is MISSING for one in parameters)
    if not least <= len(values) <= len(parameters):
        raise RequestError(
            required=f"a {registry.kind} written {registry.spelling(name)}",
            got=text,
            remedy=f"give {_count(least, len(parameters))}",
        )
    given = zip(parameters, values, strict=False)
    return cast(Made, kind(*(_number(registry, one.type, value, text) for one, value in given)))


def _count(least: int, most: int) -> str:
    if least == most:
        return {0: "no number", 1: "one number"}.get(most, f"{most} numbers")
    return f"{least} to {most} numbers"


def _number(registry: Registry[Any], kind: object, value: str, text: str) -> float | int:
    try:
        return float(value) if kind == "float" else int(value)
    except ValueError:
        raise RequestError(
            required=f"numbers in {registry.spelling(text.strip().partition(':')[0])}",
            got=text,
            remedy=f"write a {'number' if kind == 'float' else 'whole number'} instead of {value!r}",
        ) from None
