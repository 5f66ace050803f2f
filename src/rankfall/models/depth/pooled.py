"""RankMe and the slope of the spectrum over all texts of an audit together, at the end of the model.

Ranks of one passage are bounded by its tokens; those of a dataset are what the literature compares models by (RankMe,
Garrido et al. 2023; alpha-ReQ, Agrawal et al. 2022). Vectors are taken as they are, neither scaled nor centred, but
for the slope, which is that of their covariance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from rankfall.measures.base import as_tokens
from rankfall.measures.measures import ALPHA, EFFECTIVE_RANK, ENERGY_RANK
from rankfall.measures.profile import views
from rankfall.models.depth.capture import Part, Place
from rankfall.models.depth.rows import DepthRow, Values

Vectors = Literal["tokens", "text_means"]

# More vectors are drawn from at random: one decomposition of this size takes about a second.
MOST_VECTORS = 2048
# The mean tokens of fewer texts than this span too little to be compared.
FEWEST_TEXTS = 16


@final
@dataclass(frozen=True)
class Pooled:
    """Vectors (rows, width) of all texts together at one place; `drawn_from` is how many there were.

    `stack` names the blocks that gave them where the model ran through several stacks; it is empty where it did not.
    """

    layer: int
    part: Part
    vectors: Vectors
    rows: int
    drawn_from: int
    width: int
    rankme: float
    alpha: float
    energy_rank: float
    most: int
    stack: str = ""

    def record(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return asdict(self)

    def told(self) -> str:
        """In one sentence."""
        where = "before the final norm" if self.part == "before_final_norm" else f"after layer {self.layer}"
        where += f" of {self.stack}" if self.stack else ""
        ending = "" if self.rows == 1 else "s"
        what = (
            f"token{ending} of all inputs together" if self.vectors == "tokens" else f"mean token{ending} of inputs"
        )
        drawn = "" if self.rows == self.drawn_from else f" (drawn from {self.drawn_from})"
        return (
            f"{self.rows} {what}{drawn}, {where}: RankMe {self.rankme:.1f} of at most {self.most}, energy rank"
            f" {self.energy_rank:.1f}, alpha {self.alpha:.2f}"
        )


@final
class Pool:
    """Takes tokens as a model hands them over; keeps those of the newest boundary and of the final norm's input."""

    def __init__(self, real: Sequence[Tensor | None]) -> None:
        self._real = real
        self._first = 0
        self._ends: dict[Place, list[Tensor]] = {}
        self._done: dict[Place, list[Tensor]] = {}

    def take(self, place: Place, tokens: Float[Tensor, "b n d"]) -> None:
        """Copy the real tokens of every text; what stands inside blocks is left."""
        if place.part not in ("boundary", "before_final_norm"):
            return
        self._ends = {
            earlier: kept
            for earlier, kept in self._ends.items()
            if earlier.layer == place.layer and earlier.part == "before_final_norm" and place.part == "boundary"
        }
        self._ends[place] = [self._kept(text, given) for text, given in enumerate(tokens.detach(), self._first)]

    def _kept(self, text: int, tokens: Float[Tensor, "n d"]) -> Float[Tensor, "m d"]:
        """The real tokens; a stack of another part of the model has tokens of its own, all real."""
        real = self._real[text] if text < len(self._real) else None
        return tokens[real] if real is not None and len(real) == len(tokens) else tokens.clone()

    def next_texts(self) -> None:
        """What is taken from now on are the texts after those that were taken so far, whose run is over."""
        for place, texts in self._ends.items():
            self._done.setdefault(place, []).extend(texts)
        self._first += max((len(texts) for texts in self._ends.values()), default=0)
        self._ends = {}

    def rows(self, seed: int = 0, measured: Sequence[DepthRow] = (), stack: str = "") -> tuple[Pooled, ...]:
        """All tokens, and the means of the texts where there are enough, at each end; `seed` draws from too many.

        `measured` are rows of the same texts: the numbers of a single one are there already. `stack` names
        the blocks, where there are others.
        """
        self.next_texts()
        found = []
        known = {(row.layer, row.part): row.values for row in measured if row.texts == 1}
        for place, texts in self._done.items():
            values = known.get((place.layer, place.part)) if len(texts) == 1 else None
            found.append(_pooled(place, "tokens", torch.cat(texts), seed, values))
            if len(texts) >= FEWEST_TEXTS:
                means = torch.stack([one.double().mean(dim=0) for one in texts])
                found.append(_pooled(place, "text_means", means, seed))
        return tuple(replace(one, stack=stack) for one in found)


def _pooled(
    place: Place, kind: Vectors, vectors: Float[Tensor, "n d"], seed: int, known: Values | None = None
) -> Pooled:
    count = len(vectors)
    if count > MOST_VECTORS:
        drawn = np.sort(np.random.default_rng(seed).choice(count, MOST_VECTORS, replace=False))
        vectors, known = vectors[torch.from_numpy(drawn).to(vectors.device)], None
    rows, width = vectors.shape
    values = _values(vectors) if known is None else known
    return Pooled(
        layer=place.layer,
        part=place.part,
        vectors=kind,
        rows=rows,
        drawn_from=count,
        width=width,
        rankme=values["raw"][EFFECTIVE_RANK.name],
        alpha=values["centred"][ALPHA.name],
        energy_rank=values["raw"][ENERGY_RANK.name],
        most=min(rows, width),
    )


def _values(vectors: Float[Tensor, "n d"]) -> Values:
    seen = views(as_tokens(vectors), ("raw", "centred"))
    asked = {"raw": (EFFECTIVE_RANK, ENERGY_RANK), "centred": (ALPHA,)}
    return {view: {one.name: float(one.of(seen[view])) for one in some} for view, some in asked.items()}
