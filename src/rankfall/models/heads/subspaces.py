"""Which directions of the tokens heads look along: spectra of their forms, and how far their spaces overlap.

The query space of a head is the span of W_Q, the key space that of W_K, both in the tokens that attention is given.
Two spaces of dimensions a and b overlap by the mean squared cosine of their principal angles, |A^T B|^2 / min(a, b)
for orthonormal bases A and B: 1 where one lies in the other, 0 where they are orthogonal, max(a, b) / d by chance.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal, final

import torch
from torch import Tensor

from rankfall.models.heads.maps import HeadMaps
from rankfall.models.heads.spectra import HeadSpectrum

Sides = Literal["query", "key", "query and key"]

# Bases of all layers, and products of all pairs: beyond, a layer is compared with itself and the next one only.
MOST_NUMBERS = 1 << 28
MOST_PRODUCTS = 2e12
EPSILON = torch.finfo(torch.float32).eps


@final
@dataclass(frozen=True)
class SpaceOverlap:
    """Overlap of the heads of one layer with those of another, or with each other.

    `mean` is over all pairs of different heads (of a head's query space and its own key space too), `chance` what
    random spaces of these dimensions have; `largest` is that of the pair `head`, `other_head`, and `smallest_angle`
    the first principal angle of that pair, in degrees.
    """

    sides: Sides
    layer: int
    other_layer: int
    module: str
    other_module: str
    mean: float
    chance: float
    largest: float
    head: int
    other_head: int
    smallest_angle: float

    def record(self) -> dict[str, Any]:
        """The pair of layers as `--json` prints it."""
        return asdict(self)


@final
@dataclass(frozen=True, eq=False)
class _Spaces:
    """Orthonormal bases of one layer's heads: query (h, d, r), key (g, c, r); zero columns where rank is lacking."""

    layer: int
    name: str
    query: Tensor
    key: Tensor


class HeadSpaces:
    """Takes the maps of one layer after another; keeps spectra and bases in float32."""

    def __init__(self) -> None:
        self.spectra: list[HeadSpectrum] = []
        self._spaces: list[_Spaces] = []

    def take(self, maps: HeadMaps) -> None:
        """One layer."""
        for head, values in enumerate(maps.query_key_forms().singular_values().tolist()):
            self.spectra.append(HeadSpectrum(maps.layer, head, maps.name, tuple(values)))
        self._spaces.append(_Spaces(maps.layer, maps.name, basis(maps.query), basis(maps.key)))

    def overlaps(self) -> list[SpaceOverlap]:
        """Every layer with itself and those after it, in the order in which they run."""
        sides: tuple[Sides, ...] = ("query", "key", "query and key")
        found = (_compared(one, other, side) for one, other in self._pairs() for side in sides)
        return [one for one in found if one is not None]

    def _pairs(self) -> Iterator[tuple[_Spaces, _Spaces]]:
        layers = len(self._spaces)
        numbers = sum(one.query.numel() + one.key.numel() for one in self._spaces)
        products = numbers * sum(one.query.shape[0] * one.query.shape[2] for one in self._spaces)
        reach = layers if numbers <= MOST_NUMBERS and products <= MOST_PRODUCTS else 2
        for at, one in enumerate(self._spaces):
            for other in self._spaces[at : at + reach]:
                yield one, other


def basis(maps: Tensor) -> Tensor:
    """Orthonormal columns that span the columns of each map (h, d, r); zeros where it has less rank than columns."""
    left, values, _ = torch.linalg.svd(maps.double(), full_matrices=False)
    there = values > maps.shape[-2] * EPSILON * values[:, :1]
    return (left * there[:, None, :]).float()


def principal_cosines(one: Tensor, other: Tensor) -> Tensor:
    """Cosines of the principal angles between the spans of two bases (d, a) and (d, b), largest first."""
    return torch.linalg.svdvals(one.double().mT @ other.double()).clamp(0.0, 1.0)


def _compared(one: _Spaces, other: _Spaces, sides: Sides) -> SpaceOverlap | None:
    ours = one.key if sides == "key" else one.query
    theirs = other.query if sides == "query" else other.key
    if ours.shape[1] != theirs.shape[1]:
        # Keys of other tokens, of another width.
        return None
    overlaps, chance = _mean_squared_cosines(ours, theirs)
    if one is other and sides != "query and key":
        if len(ours) == 1:
            return None
        overlaps.fill_diagonal_(math.nan)
    counted = overlaps[~overlaps.isnan()]
    place = int(overlaps.nan_to_num(nan=-1.0).argmax())
    head, other_head = divmod(place, overlaps.shape[1])
    cosine = float(principal_cosines(ours[head], theirs[other_head])[0])
    return SpaceOverlap(
        sides,
        one.layer,
        other.layer,
        one.name,
        other.name,
        mean=float(counted.mean()),
        chance=chance,
        largest=float(overlaps[head, other_head]),
        head=head,
        other_head=other_head,
        smallest_angle=math.degrees(math.acos(cosine)),
    )


def _mean_squared_cosines(ours: Tensor, theirs: Tensor) -> tuple[Tensor, float]:
    """(h, g) of all pairs, and what it is by chance in the mean."""
    flat = [bases.transpose(1, 2).flatten(0, 1) for bases in (ours, theirs)]
    products = (flat[0] @ flat[1].mT).unflatten(0, ours.shape[::2]).unflatten(-1, theirs.shape[::2])
    ranks = [bases.square().sum(dim=(1, 2)) for bases in (ours, theirs)]
    smaller = torch.minimum(ranks[0][:, None], ranks[1]).clamp_min(1.0)
    larger = torch.maximum(ranks[0][:, None], ranks[1])
    return products.square().sum(dim=(1, 3)) / smaller, float(larger.mean()) / ours.shape[1]
