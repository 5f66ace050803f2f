"""Tasks that models are trained on: what is drawn, what is asked, all from counted random streams."""

from __future__ import annotations

from dataclasses import fields

from rankfall.errors import RequestError
from rankfall.tasks.base import Sample, Task
from rankfall.tasks.biased import Biased
from rankfall.tasks.farthest import Farthest
from rankfall.tasks.in_context import InContext
from rankfall.tasks.nearest import Nearest
from rankfall.tasks.orthonormal import Orthonormal
from rankfall.tasks.streams import EVALUATION, TRAINING, Draws

ALL_TASKS: tuple[type[Task], ...] = (Farthest, Nearest, Orthonormal, Biased, InContext)


def parse_task(text: str) -> Task:
    """A task from its name, or `name:number` where it takes one."""
    name, colon, number = text.partition(":")
    for kind in ALL_TASKS:
        if kind.name == name and not colon:
            return kind()
        if kind.name == name and number.isdecimal() and (parameters := fields(kind)):
            return kind(**{parameters[0].name: int(number)})
    numbered = ", ".join(f"{kind.name}:{field.name.upper()}" for kind in ALL_TASKS for field in fields(kind))
    raise RequestError(
        required=f"a task among {', '.join(kind.name for kind in ALL_TASKS)} (also {numbered})",
        got=text,
        remedy="for example farthest",
    )


__all__ = [
    "ALL_TASKS",
    "EVALUATION",
    "TRAINING",
    "Biased",
    "Draws",
    "Farthest",
    "InContext",
    "Nearest",
    "Orthonormal",
    "Sample",
    "Task",
    "parse_task",
]
