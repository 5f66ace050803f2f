"""Values that a GPU could not be sure of, done over on the host while the model goes on."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from itertools import groupby
from typing import final

import numpy as np
import torch

from rankfall.linalg.lapack import Vector
from rankfall.measures.catalogue import ALL_MEASURES
from rankfall.measures.views.source import Source
from rankfall.measures.views.three import VIEWS
from rankfall.models.depth.companies import Item
from rankfall.models.depth.exact import Doubt, mended
from rankfall.models.depth.facts import OF_A_PROFILE, profile_again


@final
@dataclass(frozen=True, eq=False)
class Mending:
    """One view of one item: `table` gets its values when the spectrum is there."""

    item: Item
    table: dict[str, dict[str, float]]
    view: str
    facts: dict[str, Vector]
    eigenvalues: Future[Vector]

    @classmethod
    def begin(
        cls,
        threads: Executor,
        item: Item,
        table: dict[str, dict[str, float]],
        view: int,
        facts: dict[str, Vector],
        sample: int,
    ) -> Mending:
        """Start the work on this view (its number) of the item, which is sample number `sample` of the facts."""
        doubt: Doubt = "several" if facts["others_in_doubt"][view, sample] else "smallest"
        found = facts["eigenvalues"][view, sample].copy()
        keep = None if item.kept is None else np.flatnonzero(item.kept)
        source = Source(item.tokens, float(facts["size"][VIEWS.index("raw"), sample]), keep)
        spectrum = threads.submit(mended, source, VIEWS[view], found, doubt)
        return cls(item, table, VIEWS[view], {name: facts[name][view, sample] for name in OF_A_PROFILE}, spectrum)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.item.tokens.shape)


def mend(mendings: Sequence[Mending]) -> None:
    """Wait for all spectra, and write the values of all measures into the tables: together, which takes less long."""
    for (_, width), group in groupby(sorted(mendings, key=lambda one: one.shape), key=lambda one: one.shape):
        alike = list(group)
        facts = {name: np.stack([one.facts[name] for one in alike]) for name in OF_A_PROFILE}
        spectra = np.stack([one.eigenvalues.result() for one in alike])
        epsilon = torch.finfo(alike[0].item.tokens.dtype).eps
        profile = profile_again(facts, spectra, width, epsilon)
        for measure in ALL_MEASURES:
            for one, value in zip(alike, measure.of(profile).tolist(), strict=True):
                one.table[one.view][measure.name] = value
