"""Measured evidence beside the bound: what trained models reached on fresh data, interpolated, with its range.

A source says what error to expect of H heads of rank r at a width when a query and its keys must be compared in k
directions. The cells of paper A's protocol are one, language models (`text_evidence.py`) another, which knows nothing
of directions; a further one needs an object with the same members and one line in the catalogue.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Protocol, final

from rankfall.store.results import committed_summaries
from rankfall.training.cell import Cell

VARIED = ("rank", "multiplier", "seed", "data", "start", "warm_up_from")


@final
@dataclass(frozen=True)
class Estimate:
    """An error with the range in which it lies, and in words why it may not: what was asked beyond what was tried.

    NaN where nothing that was tried can stand for what was asked; `outside` then says why.
    """

    value: float
    low: float
    high: float
    outside: tuple[str, ...] = ()
    decides: bool = True
    """Whether it is near enough to what was tried to decide by it."""

    @property
    def known(self) -> bool:
        """Whether there is a number at all."""
        return not math.isnan(self.value)

    @classmethod
    def missing(cls, *why: str) -> Estimate:
        """No number, and why there is none."""
        return cls(math.nan, math.nan, math.nan, why, decides=False)


class Evidence(Protocol):
    """A kind of measurement."""

    @property
    def name(self) -> str:
        """What its columns begin with."""

    @property
    def by_directions(self) -> bool:
        """Whether what it says depends on the directions of a match."""

    @property
    def about(self) -> str:
        """What was measured and how it is interpolated, in a few sentences."""

    def estimate(self, heads: int, rank: int, directions: int, width: int | None = None) -> Estimate | None:
        """The error of that many heads of that rank in matches of so many directions, in a model of that width; None
        where nothing is known."""


@final
@dataclass(frozen=True)
class Setting:
    """Trained cells of one rank over width and one number of copies: the mean over seeds, and how far it may move."""

    ratio: float
    copies: int
    error: float
    margin: float
    seeds: int


@final
@dataclass(frozen=True)
class TrainedCells:
    """Cells of one task, width and depth: the error of the trained weights on data never trained on.

    Between cells the error is interpolated linearly, over r/k on each line of equal m = H r / k and over log m
    between lines. The range runs over the cells that enter, each with its margin: half the spread over seeds or, for
    one seed, two standard errors of its measured error.
    """

    by_directions: ClassVar[bool] = True
    name: str
    protocol: Cell
    """What all of them share; VARIED is what they do not."""

    @property
    def width(self) -> int:
        """The directions in which these cells compare points: all of them."""
        return self.protocol.dim

    @property
    def settings(self) -> tuple[Setting, ...]:
        """What was trained, by copies and then by rank."""
        return _settings(self.protocol)

    @property
    def about(self) -> str:
        found, of = self.settings, self.protocol
        if not found:
            return "No trained cells of this protocol are installed here."
        seeds = sorted({one.seeds for one in found})
        several = f"{seeds[0]} to {seeds[-1]} seeds each" if len(seeds) > 1 else f"{seeds[0]} seed each"
        typical, worst = self.left_out_errors()
        ratios, copies = [one.ratio for one in found], [one.copies for one in found]
        return (
            f"{len(found)} settings trained here, {several}: task {of.task}, {of.points} points on the sphere of "
            f"R^{of.dim}, {of.layers} layer with feed-forward and norm, r/k from {min(ratios):.3g} to "
            f"{max(ratios):.3g}, m = H r / k from {min(copies)} to {max(copies)}. Error on fresh data, where "
            "answering nothing costs 1; linear in r/k and in log m between cells; its range is that of the cells "
            f"around it. Leaving out each inner cell and predicting it misses by {typical:.2g} (median) and "
            f"{worst:.2g} (at most)."
        )

    def estimate(self, heads: int, rank: int, directions: int, width: int | None = None) -> Estimate | None:
        """Ranks above k count as k: a head has no more directions to compare than there are; the width is no part."""
        if not self.settings:
            return None
        used = min(rank, directions)
        return self.at(used / directions, heads * used / directions, directions)

    def at(self, ratio: float, copies: float, directions: int | None = None) -> Estimate:
        """The error at r/k and m, at the edge of what was trained where they lie beyond it."""
        settings = self.settings
        lines = sorted({one.copies for one in settings})
        ratios = [one.ratio for one in settings]
        outside = []
        if directions is not None and directions != self.width:
            outside.append(f"trained at k = {self.width}; at {directions} the error is taken to depend on r/k alone")
        if ratio < min(ratios):
            outside.append(f"r/k is below the smallest trained, {min(ratios):.3g}, whose error stands for it")
        if not lines[0] <= copies <= lines[-1]:
            outside.append(f"m is outside of what was trained, {lines[0]} to {lines[-1]}, whose end stands for it")
        place = math.log(min(max(copies, lines[0]), lines[-1]))
        parts = [
            (weight * along, cell)
            for line, weight in interpolation([math.log(one) for one in lines], place)
            for along, cell in self._along(lines[line], ratio)
        ]
        return Estimate(
            sum(weight * cell.error for weight, cell in parts),
            max(0.0, min(cell.error - cell.margin for _, cell in parts)),
            max(cell.error + cell.margin for _, cell in parts),
            tuple(outside),
        )

    def _along(self, copies: int, ratio: float) -> list[tuple[float, Setting]]:
        """The cells of one line on both sides of a ratio, with their weights."""
        cells = sorted((one for one in self.settings if one.copies == copies), key=lambda one: one.ratio)
        return [(weight, cells[index]) for index, weight in interpolation([one.ratio for one in cells], ratio)]

    def left_out_errors(self) -> tuple[float, float]:
        """Median and largest error of predicting each cell, not at the end of its line, from its two neighbours."""
        misses = []
        for copies in {one.copies for one in self.settings}:
            cells = sorted((one for one in self.settings if one.copies == copies), key=lambda one: one.ratio)
            for below, here, above in zip(cells, cells[1:], cells[2:], strict=False):
                share = (here.ratio - below.ratio) / (above.ratio - below.ratio)
                misses.append(abs((1 - share) * below.error + share * above.error - here.error))
        return (statistics.median(misses), max(misses)) if misses else (math.nan, math.nan)


def interpolation(places: Sequence[float], wanted: float) -> list[tuple[int, float]]:
    """Indices of the places on both sides of a value with the weights of linear interpolation; one at the ends."""
    if wanted <= places[0]:
        return [(0, 1.0)]
    for index in range(1, len(places)):
        if math.isclose(wanted, places[index], rel_tol=1e-12):
            return [(index, 1.0)]
        if wanted < places[index]:
            share = (wanted - places[index - 1]) / (places[index] - places[index - 1])
            return [(index - 1, 1 - share), (index, share)]
    return [(len(places) - 1, 1.0)]


@functools.cache
def _settings(protocol: Cell) -> tuple[Setting, ...]:
    """From the summaries that ship with the package."""
    shared = {name: value for name, value in asdict(protocol).items() if name not in VARIED}
    rows = committed_summaries().values()
    return settings_of([row for row in rows if all(row.get(name) == value for name, value in shared.items())])


def settings_of(rows: Sequence[Mapping[str, Any]]) -> tuple[Setting, ...]:
    """One setting for each rank and number of copies of finished cells; those trained on fresh data go before."""
    groups: dict[tuple[int, int], dict[str, list[Mapping[str, Any]]]] = {}
    for row in rows:
        if row["status"] == "done" and math.isfinite(row.get("mse_fresh") or math.nan):
            kinds = groups.setdefault((row["multiplier"], row["rank"]), {})
            kinds.setdefault(row["data"], []).append(row)
    made = []
    for (copies, rank), kinds in sorted(groups.items()):
        members = kinds.get("fresh") or next(iter(kinds.values()))
        errors = [float(row["mse_fresh"]) for row in members]
        sampling = 2 * max(float(row.get("mse_fresh_error") or 0.0) for row in members)
        margin = max(sampling, (max(errors) - min(errors)) / 2)
        made.append(Setting(rank / members[0]["dim"], copies, statistics.fmean(errors), margin, len(errors)))
    return tuple(made)


FARTHEST = TrainedCells("trained_error", Cell())
"""Paper A's own setting, one layer: every token outputs the point farthest from it."""


def listed(numbers: Sequence[int]) -> str:
    """As people write them: 1, 2 and 3."""
    *before, last = map(str, numbers)
    return f"{', '.join(before)} and {last}" if before else last
