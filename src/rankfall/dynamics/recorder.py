"""Measures layer by layer, taken in blocks of layers so that one decomposition serves many and memory stays flat."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from rankfall.dynamics.split import Split, joined
from rankfall.measures import find, measure

DEFAULT_MEASURES = ("rank", "effective_rank", "stable_rank", "mean_abs_cosine", "min_singular_value")
# Token matrices held until they are measured together take at most this many numbers.
HELD_NUMBERS = 4_000_000
# For mu alone no more than fits into a processor's cache: fresh memory costs more than the arithmetic.
HELD_FOR_MU = 131_072
# A residual below this share of the common part is lost when both are added as float64 numbers.
FLOAT64_SHARE = math.log(1e-17)


@final
class Recorder:
    """Collects log mu, log relative mu and named measures of a batch, one row per recorded layer.

    mu and relative_mu come exactly from the split. All other measures are those of the tokens as float64 numbers:
    once tokens agree to the last digit, their rank is 1. `residual_effective_rank` is the effective rank of what
    still distinguishes them, however small.
    """

    def __init__(self, names: tuple[str, ...], rows: int, batch: int, keep_tokens: bool) -> None:
        self.rows, self.batch = rows, batch
        self.names = tuple(name for name in names if name not in ("mu", "relative_mu"))
        for name in self.names:
            find(name)
        self.keep_tokens = keep_tokens
        self.layers: list[int] = []
        self.kept: list[Tensor] = []
        self._held: list[Split] = []
        self._held_numbers, self._most_held = 0, HELD_NUMBERS if self.names else HELD_FOR_MU
        # One table made beforehand: small results kept one by one among large passing tensors would scatter the heap.
        self._columns: dict[str, Tensor] = {}
        self._filled = 0

    def record(self, layers: Sequence[int], states: Split) -> None:
        """Take down these layers, whose states stand one behind the other: (layers * b) samples."""
        self.layers += layers
        if self.keep_tokens:
            self.kept.append(states.tokens().unflatten(0, (len(layers), -1)).cpu())
        self._held.append(states)
        self._held_numbers += states.residual.numel()
        if self._held_numbers >= self._most_held:
            self._measure()

    def columns(self) -> dict[str, Tensor]:
        """Every measure as a (layers, b) float64 tensor on the CPU."""
        self._measure()
        return {name: column[: self._filled] for name, column in self._columns.items()}

    def _measure(self) -> None:
        if not self._held:
            return
        states = joined(self._held)
        self._held, self._held_numbers = [], 0
        log_mu, log_relative = states.log_spread()
        found = {
            "log10_mu": log_mu / math.log(10),
            "mu": log_mu.exp(),
            "log10_relative_mu": log_relative / math.log(10),
            "relative_mu": log_relative.exp(),
        }
        if self.names:
            tokens, size = states.scaled_tokens(), states.log_size.exp()
            # Tokens that agree to the last digit need no decomposition: one of them tells everything.
            measured, apart = _of_equal_tokens(tokens, self.names), states.log_ratio >= FLOAT64_SHARE
            if bool(apart.any()):
                for name, values in measure(tokens[apart], self.names).items():
                    measured[name][apart] = values
            found |= {name: measured[name] * size ** find(name).degree for name in self.names}
            found["residual_effective_rank"] = measure(states.centred(), ["effective_rank"])["effective_rank"]
        end = self._filled + states.batch // self.batch
        for name, values in found.items():
            table = self._columns.setdefault(name, torch.empty(self.rows, self.batch, dtype=torch.float64))
            table[self._filled : end] = values.reshape(-1, self.batch)
        self._filled = end


def _of_equal_tokens(tokens: Tensor, names: tuple[str, ...]) -> dict[str, Tensor]:
    """The measures of n equal tokens: rank one, with the singular value sqrt(n) |m|."""
    n, d = tokens.shape[-2:]
    row = tokens[..., 0, :]
    one = torch.ones_like(row[..., 0])
    strongest = n**0.5 * torch.linalg.vector_norm(row, dim=-1)
    known = {
        "max_singular_value": strongest,
        "min_singular_value": strongest if min(n, d) == 1 else 0 * one,
        "rank_one_residual": 0 * one,
        "largest_token_share": one / n,
    }
    return {name: known.get(name, one).clone() for name in names}
