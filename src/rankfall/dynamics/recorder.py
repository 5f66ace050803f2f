"""Measures layer by layer, taken in blocks of layers so that one decomposition serves many and memory stays flat."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor

from rankfall.dynamics.split import Split
from rankfall.measures import find, measure

DEFAULT_MEASURES = ("rank", "effective_rank", "stable_rank", "mean_abs_cosine", "min_singular_value")
# Token matrices held until they are measured together take at most this many numbers.
HELD_NUMBERS = 4_000_000
# A residual below this share of the common part is lost when both are added as float64 numbers.
FLOAT64_SHARE = math.log(1e-17)


@final
class Recorder:
    """Collects log mu, log relative mu and named measures of a batch, one row per recorded layer.

    mu and relative_mu come exactly from the split. All other measures are those of the tokens as float64 numbers:
    once tokens agree to the last digit, their rank is 1. `residual_effective_rank` is the effective rank of what
    still distinguishes them, however small.
    """

    def __init__(self, names: tuple[str, ...], keep_tokens: bool) -> None:
        self.names = tuple(name for name in names if name not in ("mu", "relative_mu"))
        for name in self.names:
            find(name)
        self.keep_tokens = keep_tokens
        self.layers: list[int] = []
        self.log_mu: list[Tensor] = []
        self.log_relative_mu: list[Tensor] = []
        self.kept: list[Tensor] = []
        self._held: list[Split] = []
        self._held_numbers = 0
        self._columns: dict[str, list[Tensor]] = {}

    def record(self, layer: int, state: Split) -> None:
        """Take down one layer."""
        self.layers.append(layer)
        self.log_mu.append(state.log_mu())
        self.log_relative_mu.append(state.log_relative_mu())
        if self.keep_tokens:
            self.kept.append(state.tokens().cpu())
        if self.names:
            self._held.append(state)
            self._held_numbers += state.residual.numel()
            if self._held_numbers >= HELD_NUMBERS:
                self._measure()

    def columns(self) -> dict[str, Tensor]:
        """Every measure as a (layers, b) float64 tensor on the CPU."""
        self._measure()
        log_mu, log_relative = torch.stack(self.log_mu).cpu(), torch.stack(self.log_relative_mu).cpu()
        return {
            "log10_mu": log_mu / math.log(10),
            "mu": log_mu.exp(),
            "log10_relative_mu": log_relative / math.log(10),
            "relative_mu": log_relative.exp(),
            **{name: torch.cat(rows) for name, rows in self._columns.items()},
        }

    def _measure(self) -> None:
        if not self._held:
            return
        ratio = torch.stack([state.log_ratio for state in self._held])
        size = torch.stack([state.log_size for state in self._held]).exp()
        tokens = torch.stack([state.scaled_tokens() for state in self._held])
        residual = torch.stack([state.centred() for state in self._held])
        # Rows that agree to the last digit need no decomposition of all of them: one row tells everything.
        agree = (ratio < FLOAT64_SHARE).all()
        found = _of_equal_tokens(tokens, self.names) if bool(agree) else measure(tokens, self.names)
        for name in self.names:
            self._columns.setdefault(name, []).append((found[name] * size ** find(name).degree).cpu())
        shape = measure(residual, ["effective_rank"])["effective_rank"]
        self._columns.setdefault("residual_effective_rank", []).append(shape.cpu())
        self._held, self._held_numbers = [], 0


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
    return {name: known.get(name, one) for name in names}
