"""What is recorded of tokens on their way through layers: mu exactly, other measures of tokens as float64 numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import final

import torch
from torch import Tensor

from rankfall.catalogue import MEASURES
from rankfall.dynamics.split import Split, joined
from rankfall.measures.base import measure
from rankfall.measures.profile import profile_of_equals

DEFAULT_MEASURES = tuple(one.name for one in MEASURES if one.simulated)
# Token matrices held until they are measured together take at most this many numbers.
HELD_NUMBERS = 4_000_000
# For mu alone, on a processor, no more than fits into its cache: fresh memory costs more than the arithmetic.
HELD_FOR_MU = 131_072
# A residual below this share of the common part is lost when both are added as float64 numbers.
FLOAT64_SHARE = math.log(1e-17)


@final
class MeasureTable:
    """Collects log mu, log relative mu and named measures of a batch, one row per recorded layer.

    mu and relative_mu come exactly from the split. All other measures are those of the tokens as float64 numbers:
    once tokens agree to the last digit, their rank is 1. `residual_effective_rank` and `residual_energy_rank` are
    those of what still distinguishes them, however small.
    """

    def __init__(self, names: tuple[str, ...], rows: int, batch: int, keep_tokens: bool) -> None:
        self.rows, self.batch = rows, batch
        self.names = tuple(name for name in names if name not in ("mu", "relative_mu"))
        for name in self.names:
            MEASURES[name]  # refuse an unknown name now, not when layers have run
        self.keep_tokens = keep_tokens
        self.layers: list[int] = []
        self.kept: list[Tensor] = []
        self._held: list[Split] = []
        self._held_numbers = 0
        # Tables made beforehand: small results kept one by one among large passing tensors would scatter the heap.
        self._logs = torch.empty(2, rows, batch, dtype=torch.float64)
        self._columns: dict[str, Tensor] = {}
        self._filled = 0

    def record(self, layers: Sequence[int], states: Split) -> None:
        """Take down these layers, whose states stand one behind the other: (layers * b) samples."""
        self.layers += layers
        if self.keep_tokens:
            self.kept.append(states.tokens().unflatten(0, (len(layers), -1)).cpu())
        self._held.append(states)
        self._held_numbers += states.residual.numel()
        if self._held_numbers >= (HELD_FOR_MU if not self.names and states.residual.is_cpu else HELD_NUMBERS):
            self._measure()

    @property
    def only_spread(self) -> bool:
        """Whether log mu and log relative mu are all that it asks of a layer."""
        return not self.names and not self.keep_tokens

    def record_spreads(self, layers: Sequence[int], spreads: Tensor) -> None:
        """Take down these layers by their log mu and log relative mu, (layers, 2, b)."""
        self._measure()
        self.layers += layers
        self._write(spreads.transpose(0, 1), {})

    def columns(self) -> dict[str, Tensor]:
        """Every measure as a (layers, b) float64 tensor on the CPU."""
        self._measure()
        columns = _spread_columns(*self._logs[:, : self._filled])
        return columns | {name: column[: self._filled] for name, column in self._columns.items()}

    def _measure(self) -> None:
        if not self._held:
            return
        states = joined(self._held)
        self._held, self._held_numbers = [], 0
        found: dict[str, Tensor] = {}
        if self.names:
            tokens, size = states.scaled_tokens(), states.log_size.exp()
            # Tokens that agree to the last digit need no decomposition: one of them tells everything.
            equal, apart = profile_of_equals(tokens), states.log_ratio >= FLOAT64_SHARE
            measured = {name: MEASURES[name].of(equal) for name in self.names}
            if bool(apart.any()):
                for name, values in measure(tokens[apart], self.names).items():
                    measured[name][apart] = values
            found = {name: measured[name] * size ** MEASURES[name].degree for name in self.names}
            residual = measure(states.centred(), ["effective_rank", "energy_rank"])
            found |= {f"residual_{name}": values for name, values in residual.items()}
        self._write(states.spreads().reshape(2, -1, self.batch), found)

    def _write(self, logs: Tensor, found: Mapping[str, Tensor]) -> None:
        """The next rows: log mu and log relative mu (2, rows, b), and further columns."""
        end = self._filled + logs.shape[1]
        self._logs[:, self._filled : end] = logs
        for name, values in found.items():
            table = self._columns.setdefault(name, torch.empty(self.rows, self.batch, dtype=torch.float64))
            table[self._filled : end] = values.reshape(-1, self.batch)
        self._filled = end


def _spread_columns(log_mu: Tensor, log_relative: Tensor) -> dict[str, Tensor]:
    return {
        "log10_mu": log_mu / math.log(10),
        "mu": log_mu.exp(),
        "log10_relative_mu": log_relative / math.log(10),
        "relative_mu": log_relative.exp(),
    }
