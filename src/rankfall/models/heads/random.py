"""What the ranks of heads are by chance: the heads of the same architecture with random weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from rankfall.models.heads.ranks import HeadRecord, head_ranks
from rankfall.models.reset import fresh_copy
from rankfall.models.twin import separate_twin


def random_head_ranks(
    network: nn.Module, seed: int = 0, *, offset: int = 0, inputs: Mapping[str, Any] | None = None
) -> tuple[HeadRecord, ...]:
    """One record per head of the random twin, as `head_ranks` gives them for the model."""
    # Weights that are random only while blocks run are not what a probe reads: it needs a second model.
    twin = separate_twin(network, seed) if hasattr(network, "_from_config") else fresh_copy(network, seed)[0]
    return head_ranks(twin, offset=offset, inputs=inputs)


def by_layer(heads: Sequence[HeadRecord]) -> list[dict[str, Any]]:
    """The energy ranks of each layer's heads, as `--json` prints them: one row a layer."""
    layers: dict[tuple[int, str], list[float]] = {}
    for head in heads:
        layers.setdefault((head.layer, head.module), []).append(head.qk_energy_rank)
    return [{"layer": layer, "module": module, "qk_energy_rank": ranks} for (layer, module), ranks in layers.items()]
