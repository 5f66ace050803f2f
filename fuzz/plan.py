"""Which inputs there are: a kind, the seed and a number give one, in every process the same."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

from fuzz import commands, grids, models, stores
from fuzz.case import Case

CORPUS = Path(__file__).with_name("corpus.jsonl")
SHARES = {"commands": 0.6, "grids": 0.25, "stores": 0.1, "models": 0.05}
AT_ONCE = 250
"""Inputs of one child, after which a fresh one begins."""


@dataclass(frozen=True)
class Part:
    """Inputs of one kind that follow each other, for one child."""

    kind: str
    numbers: range


@dataclass(frozen=True)
class Inputs:
    """All inputs of a seed; `runs` are the folders of the template's store, `kept` the corpus."""

    seed: int
    runs: tuple[str, ...]
    kept: tuple[Case, ...]

    def case(self, kind: str, number: int) -> Case:
        """The input of a kind with a number."""
        draw = random.Random(f"{kind} {self.seed} {number}")
        if kind == "corpus":
            return self.kept[number]
        if kind == "stores":
            return stores.store(draw, self.runs)
        return {"commands": commands.command, "grids": grids.grid, "models": models.model}[kind](draw)


def corpus() -> tuple[Case, ...]:
    """Past failures."""
    return tuple(Case.of(json.loads(line)) for line in CORPUS.read_text().splitlines())


def parts(count: int, first: int = 0, kind: str | None = None, kept: int = 0) -> list[Part]:
    """The corpus, then `count` inputs in their shares or of one kind, in parts of which children do one each.

    The parts of all kinds take turns, so that a run that is stopped has seen some of each.
    """
    shares = SHARES if kind is None else {kind: 1.0}
    planned = [_split("corpus", range(kept))]
    planned += [_split(name, range(first, first + round(count * share))) for name, share in shares.items()]
    placed = [(index / len(one), part) for one in planned for index, part in enumerate(one)]
    return [part for _, part in sorted(placed, key=lambda pair: pair[0])]


def _split(kind: str, numbers: range) -> list[Part]:
    return [Part(kind, numbers[start : start + AT_ONCE]) for start in range(0, len(numbers), AT_ONCE)]
