"""Measuring tokens on the GPU that computes them, beside the model and without holding it up.

A model of many small layers keeps its GPU waiting for the host most of the time. Tokens are gathered, a few places at
once, and a recorded computation works on them in streams of its own. Large companies use the GPU better, small ones
are done sooner: companies get smaller towards the end, where nothing hides them. Numbers are looked at when they have
arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import final

import numpy as np
import torch
from torch import Tensor

from rankfall.linalg.device.tridiagonal import runs_here
from rankfall.linalg.lapack import Vector
from rankfall.measures.catalogue import ALL_MEASURES
from rankfall.measures.views.three import VIEWS
from rankfall.mechanism.checks import check_finite
from rankfall.models.depth.capture import Place
from rankfall.models.depth.companies import Company, Item, Mask, start
from rankfall.models.depth.mending import Mending, mend
from rankfall.models.depth.rows import Measured
from rankfall.models.depth.sinks import Sink

SMALLEST, LARGEST, LARGEST_OF_MANY = 2, 8, 16
"""Token matrices in one company: at least, and at most when few or MANY are to come."""
MANY = 64
SQUARES_AT_ONCE = 1 << 22
"""Entries of the matrices between tokens that a company may hold, in each of the half dozen forms needed."""
MENDERS = 4

Facts = dict[str, Vector]
Table = dict[str, dict[str, float]]

MEASURE_NAMES = tuple(one.name for one in ALL_MEASURES)


@final
@dataclass
class _Finding:
    values: Table
    sinks: tuple[Sink, ...]
    without: Table | None = None


@final
@dataclass
class DeviceRoute:
    """Takes tokens as the model gives them; `results` waits for everything.

    `names` and `real` are, for each text, the names of its tokens and which positions are real (None: all).
    `places` is how many are expected; a wrong number costs time, nothing else. `done` is called once for each text at
    each place.
    """

    names: Sequence[list[str]]
    real: Sequence[Tensor | None]
    without_sinks: bool
    places: int
    done: Callable[[], None] = lambda: None
    _waiting: list[Item] = field(default_factory=list)
    _companies: list[Company] = field(default_factory=list)
    _calm: int = 0
    """So many of the companies are back and lead to no more work."""
    _findings: dict[tuple[Place, int], _Finding] = field(default_factory=dict)
    _mendings: list[Mending] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._masks: list[Mask | None] = [
            None if one is None else one.cpu().numpy().astype(bool) for one in self.real
        ]
        self._left = self.places * len(self.names)
        self._most = LARGEST if self._left < MANY else LARGEST_OF_MANY
        self._size = self._size_of_next()
        self._menders = ThreadPoolExecutor(MENDERS, thread_name_prefix="rankfall-mend")

    @staticmethod
    def suits(tokens: Tensor) -> bool:
        """Whether these (b, n, d) tokens lie where the kernels run, and are no more than those take."""
        return tokens.is_floating_point() and runs_here(tokens.device, tokens.shape[-2])

    def take(self, place: Place, tokens: Tensor, first_text: int = 0) -> None:
        """Take a copy of the tokens (b, n, d) of some texts; at times, start the work on those that wait."""
        for text, copy in enumerate(tokens.detach().clone(), start=first_text):
            self._left -= 1
            self._add(Item(place, text, copy, self._masks[text]))
        self._look()

    def results(self) -> list[Measured]:
        """Everything measured."""
        self._start()
        while self._companies:
            self._read(self._companies.pop(0))
            if not self._companies:
                self._start()
        mend(self._mendings)
        return [
            Measured(place, text, found.values, found.without, found.sinks)
            for (place, text), found in self._findings.items()
        ]

    def close(self) -> None:
        """Let the threads go."""
        self._menders.shutdown(cancel_futures=True)

    def _add(self, item: Item) -> None:
        if self._waiting and self._waiting[0].tokens.shape != item.tokens.shape:
            self._start()
        self._waiting.append(item)
        if len(self._waiting) >= max(1, min(self._size, SQUARES_AT_ONCE // item.tokens.shape[0] ** 2)):
            self._start()

    def _size_of_next(self) -> int:
        """Half of what is still to come, rounded down to a power of two."""
        half = max(self._left // 2, SMALLEST)
        return min(self._most, 1 << (half.bit_length() - 1))

    def _start(self) -> None:
        if not self._waiting:
            return
        items, self._waiting = self._waiting, []
        self._size = self._size_of_next()
        self._companies.append(start(items))

    def _look(self) -> None:
        """Read early what leads to more work; the rest can wait until the model has ended."""
        while self._calm < len(self._companies) and self._companies[self._calm].is_back:
            company = self._companies[self._calm]
            facts = company.facts()
            again = self.without_sinks and facts["is_sink"].any()
            if again or facts["smallest_in_doubt"].any() or facts["others_in_doubt"].any():
                self._companies.pop(self._calm)
                self._read(company)
            else:
                self._calm += 1

    def _read(self, company: Company) -> None:
        facts = company.facts()
        by_sample = facts["values"].transpose(2, 1, 0)
        if not np.isfinite(by_sample[: len(company.items)]).all():
            check_finite(torch.stack([item.tokens for item in company.items]))
        tables: list[Table] = [
            {view: dict(zip(MEASURE_NAMES, values, strict=True)) for view, values in zip(VIEWS, sample, strict=True)}
            for sample in by_sample.tolist()
        ]
        for sample, item in enumerate(company.items):
            self._file(item, tables[sample], facts, sample)
        doubts = (facts["smallest_in_doubt"] + facts["others_in_doubt"])[:, : len(company.items)]
        for view, sample in np.argwhere(doubts).tolist():
            item, table = company.items[sample], tables[sample]
            self._mendings.append(Mending.begin(self._menders, item, table, view, facts, sample))

    def _file(self, item: Item, table: Table, facts: Facts, sample: int) -> None:
        if item.without_sinks:
            self._findings[item.place, item.text].without = table
            return
        sinks = self._sinks(item, facts, sample)
        self._findings[item.place, item.text] = _Finding(table, sinks)
        if sinks and self.without_sinks:
            rest = ~facts["is_sink"][sample].astype(bool) & (True if item.kept is None else item.kept)
            if rest.any():
                self._add(replace(item, kept=rest, without_sinks=True))
        self.done()

    def _sinks(self, item: Item, facts: Facts, sample: int) -> tuple[Sink, ...]:
        found = np.flatnonzero(facts["is_sink"][sample])
        if len(found) == 0:
            return ()
        # Positions count real tokens only.
        numbers = np.arange(item.tokens.shape[0]) if item.kept is None else np.cumsum(item.kept) - 1
        names = self.names[item.text]
        return tuple(
            Sink(
                text=item.text,
                position=int(numbers[at]),
                token=names[numbers[at]] if numbers[at] < len(names) else "",
                norm_ratio=float(facts["sink_ratio"][sample, at]),
                energy_share=float(facts["sink_share"][sample, at]),
                coordinate=int(facts["sink_coordinate"][sample, at]),
                coordinate_share=float(facts["sink_coordinate_share"][sample, at]),
            )
            for at in found.tolist()
        )
