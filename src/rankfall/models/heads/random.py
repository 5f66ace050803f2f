"""What the ranks of heads are by chance: the heads of the same architecture with random weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from rankfall.errors import RequestError
from rankfall.models.controls.reset import fresh_weights
from rankfall.models.controls.twin import RandomBlocks, separate_twin
from rankfall.models.heads.ranks import head_ranks
from rankfall.models.heads.record import HeadRecord


def random_head_ranks(
    network: nn.Module, seed: int = 0, *, offset: int = 0, inputs: Mapping[str, Any] | None = None
) -> tuple[HeadRecord, ...]:
    """One record per head of the random twin, as `head_ranks` gives them for the model.

    Each block has its random weights while its heads are read, as in the control of the tokens: there is no second
    model, unless some parameters are initialised nowhere but where one is built.
    """
    if not hasattr(network, "_from_config"):
        with fresh_weights(network, seed):
            return head_ranks(network, offset=offset, inputs=inputs)
    try:
        return head_ranks(network, offset=offset, inputs=inputs, chance=RandomBlocks(network, seed))
    except RequestError:
        return head_ranks(separate_twin(network, seed), offset=offset, inputs=inputs)


def by_layer(heads: Sequence[HeadRecord]) -> list[dict[str, Any]]:
    """The energy ranks of each layer's heads, as `--json` prints them: one row a layer."""
    layers: dict[tuple[int, str], list[float]] = {}
    for head in heads:
        layers.setdefault((head.layer, head.module), []).append(head.qk_energy_rank)
    return [{"layer": layer, "module": module, "qk_energy_rank": ranks} for (layer, module), ranks in layers.items()]
