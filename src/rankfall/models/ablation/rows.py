"""What an ablation measures: a row for the tokens of one text at one layer under one variant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, final, get_args

import torch
from torch import Tensor

from rankfall.catalogue import MEASURES as ALL_MEASURES
from rankfall.measures.base import NUMBERS_AT_ONCE
from rankfall.measures.profile import Profile
from rankfall.norms import UnitNorm

Scaling = Literal["raw", "matched"]
"""raw: tokens as they come. matched: before each layer all tokens are multiplied by one number, so that their
Frobenius norm is what the layer got in the real model; without it a missing norm lets them grow until softmax
saturates."""

SCALINGS: tuple[Scaling, ...] = get_args(Scaling)


@final
@dataclass(frozen=True)
class AblationRow:
    """The tokens of one text at one layer under one variant; measures are None where the tokens overflowed, or where
    they were not asked for.

    Layer 0 is what enters the first block. A mask of None is the model's own.
    """

    variant: str
    scaling: Scaling
    temperature: float
    mask: str | None
    mu: float | None
    relative_mu: float | None
    rank: float | None
    effective_rank: float | None
    energy_rank: float | None
    mean_abs_cosine: float | None
    min_singular_value: float | None
    text: int
    layer: int
    unit_relative_mu: float | None = None
    unit_energy_rank: float | None = None

    def record(self) -> dict[str, Any]:
        """The row as `--json` prints it."""
        row = asdict(self)
        return {
            name: value for name, value in row.items() if value is not None or name not in (*BY_SVD, "energy_rank")
        }


# What decides whether a variant collapses, as for the model itself: of tokens scaled to length one.
OF_UNIT_TOKENS = {"unit_relative_mu": "relative_mu", "unit_energy_rank": "energy_rank"}
OF_TOKENS = ("mu", "relative_mu", "rank", "effective_rank", "energy_rank", "mean_abs_cosine", "min_singular_value")
MEASURES = (*OF_TOKENS, *OF_UNIT_TOKENS)
# Of collapsed tokens these need a singular value decomposition, which takes longer than everything else together.
BY_SVD = ("rank", "effective_rank", "min_singular_value")
QUICK = tuple(name for name in MEASURES if name not in BY_SVD)
# What an audit reads: of the energy ranks the one that decides.
AUDITED = tuple(name for name in QUICK if name != "energy_rank")
# These need no decomposition at all.
PLAIN = tuple(name for name in AUDITED if name != "unit_energy_rank")
# Decompositions grow with the cube of the smaller side: beyond this they are made at both ends and in the middle.
EVERY_LAYER_BELOW = 1024
LARGE_LAYERS = 3


def measures_at(layer: int, layers: int, tokens: Tensor, measures: Sequence[str]) -> Sequence[str]:
    """All that is asked for, or without what needs a decomposition, where that is large and was made nearby."""
    spread = {round(place * layers / (LARGE_LAYERS - 1)) for place in range(LARGE_LAYERS)}
    if min(tokens.shape[-2:]) <= EVERY_LAYER_BELOW or layer in spread:
        return measures
    return [name for name in measures if name in PLAIN]


def rows_of(
    states: Sequence[Tensor],
    labels: Sequence[Mapping[str, Any]],
    texts: Sequence[int],
    layer: int,
    measures: Sequence[str],
) -> list[AblationRow]:
    """One row for every state and text, measured together; tokens that overflowed have no measures."""
    if not states:
        return []
    nothing: dict[str, float | None] = dict.fromkeys(MEASURES)
    # What enters the first block is one tensor under every setting.
    kept = {id(state): state for state in states}
    every = [one for state in kept.values() for one in state[: len(texts)]]
    finite = [bool(one.isfinite().all()) for one in every]
    found: list[dict[str, float | None]] = [dict(nothing) for _ in every]
    alive = [place for place, whole in enumerate(finite) if whole]
    at_once = max(1, NUMBERS_AT_ONCE // every[0].numel())
    for some in (alive[first : first + at_once] for first in range(0, len(alive), at_once)):
        tokens = torch.stack([every[place] for place in some])
        values = _values(tokens, measures)
        for name, column in values.items():
            for place, value in zip(some, column.tolist(), strict=True):
                found[place][name] = value
    first = {name: place * len(texts) for place, name in enumerate(kept)}
    return [
        AblationRow(**label, **found[first[id(state)] + place], text=text, layer=layer)  # type: ignore[arg-type]
        for state, label in zip(states, labels, strict=True)
        for place, text in enumerate(texts)
    ]


def _values(tokens: Tensor, measures: Sequence[str]) -> dict[str, Tensor]:
    """The measures of tokens (k, n, d) as they are, and of those scaled to length one."""
    raw, unit = Profile(tokens), Profile(UnitNorm()(tokens.double()))
    if "mean_abs_cosine" in measures and bool((unit.lengths * unit.size[..., None] > 0.5).all()):
        # The same cosines, from the Gram matrix that is needed for the others; tokens too short to scale have none.
        raw.absolute_cosine_sum = unit.absolute_cosine_sum
    found = {name: ALL_MEASURES[name].of(raw) for name in OF_TOKENS if name in measures}
    return found | {name: ALL_MEASURES[of].of(unit) for name, of in OF_UNIT_TOKENS.items() if name in measures}
