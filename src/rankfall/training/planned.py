"""What a dry run tells of a plan: a row for each shape, seeds joined, with every setting in which cells differ."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from rankfall.training.kinds import TrainingCell, kind_of, stack_bytes
from rankfall.training.plan import Group

SIZES = ("task", "dim", "width", "layers", "heads", "multiplier", "steps")
"""Told of every row, whether or not rows differ in them."""


def planned_rows(
    stacks: Sequence[Group], seconds: Sequence[float], device: str, folder: Path | None = None
) -> list[dict[str, Any]]:
    """One record for all stacks whose cells differ in nothing but their seeds; operations and seconds of all of them,
    memory of the largest, the other costs of one cell. A setting of which a stack holds several values lists them."""
    varying = _varying([cell for group in stacks for cell in group])
    joined: dict[frozenset[tuple[tuple[str, Any], ...]], list[tuple[Group, float]]] = {}
    for group, time in zip(stacks, seconds, strict=True):
        shapes = frozenset(tuple({**_settings(cell), "seed": None}.items()) for cell in group)
        joined.setdefault(shapes, []).append((group, time))
    return [_row(own, varying, device, folder) for own in joined.values()]


def _row(
    stacks: Sequence[tuple[Group, float]], varying: Sequence[str], device: str, folder: Path | None
) -> dict[str, Any]:
    cells = [_settings(cell) for group, _ in stacks for cell in group]
    costs = [kind_of(group[0]).costs(group, folder) for group, _ in stacks]
    sizes = {name: _listed(cells, name) for name in SIZES if name in cells[0]}
    told = {name: _listed(cells, name) for name in varying if name not in (*sizes, *costs[0], "rank", "seed")}
    return {
        "cells": len(cells),
        "seeds": spans([cell["seed"] for cell in cells]),
        **sizes,
        "ranks": ", ".join(map(str, sorted({cell["rank"] for cell in cells}))),
        **told,
        **costs[0],
        "flops": sum(one["flops"] for one in costs),
        "stacks": len(stacks),
        "memory_gib": max(stack_bytes(group, device) for group, _ in stacks) / 2**30,
        "seconds": sum(time for _, time in stacks),
    }


def spans(numbers: Sequence[int]) -> str:
    """Distinct whole numbers in words, three or more in a row by their ends: `0 to 4, 7`."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts = [[f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run) for run in runs]
    return ", ".join(part for own in parts for part in own)


def _varying(cells: Sequence[TrainingCell]) -> list[str]:
    """Settings in which cells differ, in the order of their fields; cells of several kinds differ in all that one of
    them lacks."""
    known = [_settings(cell) for cell in cells]
    names = dict.fromkeys(name for one in known for name in one)
    return [name for name in names if len({repr(one.get(name)) for one in known}) > 1]


def _listed(cells: Sequence[dict[str, Any]], name: str) -> Any:
    """The value that all cells have, or all values in words; none where they have no such setting."""
    values = list(dict.fromkeys(cell.get(name) for cell in cells))
    return values[0] if len(values) == 1 else ", ".join(map(str, values))


def _settings(cell: TrainingCell) -> dict[str, Any]:
    """All of them, those at their defaults too."""
    return dataclasses.asdict(cast(Any, cell))
