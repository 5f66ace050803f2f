"""Something to compare a number with: random weights, shuffled tokens, random tokens."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import nn

from rankfall.models.depth.measure import measure_depth
from rankfall.models.depth.rows import DepthRow
from rankfall.models.reset import fresh_copy, not_reset
from rankfall.models.texts import Batch, shuffled, with_random_tokens


@final
@dataclass(frozen=True)
class Control:
    """Depth rows of one control; `reason` says why there are none."""

    name: str
    meaning: str
    rows: tuple[DepthRow, ...] = ()
    reason: str | None = None

    def record(self) -> dict[str, Any]:
        """The control as `--json` prints it."""
        depth = [row.record() for row in self.rows]
        return {"name": self.name, "meaning": self.meaning, "depth": depth, "reason": self.reason}


def run_controls(network: nn.Module, batch: Batch, *, seed: int = 0) -> tuple[Control, ...]:
    """The three controls on the same texts."""
    vocabulary = _vocabulary(network) if batch.calling is None else batch.calling.vocabulary
    made = [_random_weights(network, batch, seed)]
    shuffle = "the same tokens in random order"
    made.append(_measured("shuffled_tokens", shuffle, network, shuffled(batch, seed), seed))
    uniform = "tokens drawn uniformly from the vocabulary"
    if vocabulary is not None:
        drawn = with_random_tokens(batch, vocabulary, seed)
        made.append(_measured("random_tokens", uniform, network, drawn, seed))
    else:
        made.append(Control("random_tokens", uniform, reason="the model has no table of token embeddings"))
    return tuple(made)


def _vocabulary(network: Any) -> int | None:
    """How many tokens the model has embeddings for."""
    table = network.get_input_embeddings() if hasattr(network, "get_input_embeddings") else None
    return getattr(table, "num_embeddings", None)


def _random_weights(network: nn.Module, batch: Batch, seed: int) -> Control:
    meaning = "the same architecture with freshly initialised weights"
    try:
        if hasattr(network, "_from_config"):
            twin = random_twin(network, seed)
        else:
            twin, left = fresh_copy(network, seed)
            meaning += not_reset(left)
    except Exception as error:
        return Control("random_weights", meaning, reason=f"{type(error).__name__}: {str(error)[:120]}")
    return _measured("random_weights", meaning, twin, batch, seed)


def random_twin(network: nn.Module, seed: int = 0) -> nn.Module:
    """A model of the same class and configuration with its library's own initialisation."""
    config: Any = network.config
    kind: Any = type(network)
    parameter = next(network.parameters())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        twin = kind._from_config(copy.deepcopy(config), dtype=parameter.dtype)
    return twin.to(parameter.device).eval()


def _measured(name: str, meaning: str, network: nn.Module, batch: Batch, seed: int) -> Control:
    rows = measure_depth(network, batch.calls(network), real=batch.kept(), names=batch.names, seed=seed)
    return Control(name, meaning, tuple(rows))
