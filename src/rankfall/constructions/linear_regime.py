"""A-thm7, better than the majority vote: d rank-1 heads whose scores are so small that softmax is linear."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch

from rankfall.constructions.base import Construction, Example, Network, Prediction
from rankfall.constructions.votes import frame_codes, sign_codes, two_layer_network
from rankfall.errors import require, require_count
from rankfall.theory.one_head import full_rank_error, many_points_asymptotic


@final
@dataclass(frozen=True)
class LinearRegime(Construction):
    """Head j compares coordinate j with a small gain b: softmax(b z) = (1 + b (z - mean z))/N + O(b^2), so that the
    votes of d heads add up to <x_i, y>, up to a constant. Exact as b -> 0, with d heads and not with many.

    `mirrored` adds for every head (q, k) one (q, -k) of weight -1: the even terms cancel. `order` says how the error
    falls: with b (N >= 3) or b^2 (mirrored, or N = 2, where softmax is odd in b). `code_rank` is the rank of layer
    2's head: 1 for two points, N - 1 or N for more; with less, points can no longer be told apart (A-conj8).
    `second_gain` is infinite for hardmax; otherwise the whole equals ONE full-rank head of inverse temperature
    `effective_inverse_temperature`.
    """

    name: ClassVar[str] = "linear-regime"
    statement: ClassVar[str] = "A-thm7"
    says: ClassVar[str] = "d rank-1 heads and one more compute the nearest of two points to any accuracy"

    dim: int
    points: int = 2
    gain: float = 0.01
    mirrored: bool = False
    code_rank: int | None = None
    second_gain: float = math.inf

    def __post_init__(self) -> None:
        require_count("dim", self.dim, least=2)
        require_count("points", self.points, least=2)
        require(
            0 < self.gain < math.inf and self.second_gain > 0,
            required="positive gains, the first finite",
            got=f"{self.gain} and {self.second_gain}",
            remedy="0.01 is small enough for most uses",
        )
        if self.code_rank is not None:
            remedy = "one-hot codes, of as many coordinates as points, already tell all points apart"
            require_count("code_rank", self.code_rank, most=self.points, remedy=remedy)

    @property
    def rank_of_codes(self) -> int:
        """The rank of layer 2."""
        if self.code_rank is not None:
            return self.code_rank
        return 1 if self.points == 2 else self.points

    @property
    def order(self) -> int:
        """The error's power of the gain, with hardmax in layer 2."""
        return 2 if self.mirrored or self.points == 2 else 1

    @property
    def effective_inverse_temperature(self) -> float:
        """c of the full-rank head (A-fact) that the two layers approach as the gain goes to zero."""
        # Each of the d heads moves weight b (z_i - mean)/N towards point i; codes +-1 count each such move twice.
        per_head = 1 / self.points if self.rank_of_codes >= self.points - 1 and not self._signs else 2 / self.points
        return self.gain * self.second_gain * per_head / self.dim

    @property
    def _signs(self) -> bool:
        return self.points == 2 and self.rank_of_codes == 1

    @classmethod
    def examples(cls) -> Sequence[Example]:
        return [
            Example(cls(8, gain=0.001), samples=3_000),
            Example(cls(8, gain=0.01, second_gain=8 * 30 / 0.01, code_rank=2)),
            Example(cls(16, gain=0.01, second_gain=16 * 10 / 0.01)),
            Example(cls(16, points=8, gain=0.01, mirrored=True), samples=3_000),
            Example(cls(16, points=8, gain=0.01, mirrored=True, code_rank=7), samples=3_000),
        ]

    def build(self, generator: torch.Generator | None = None, dtype: torch.dtype = torch.float64) -> Network:
        eye = torch.eye(self.dim, dtype=dtype)
        weight = torch.full((self.dim,), 1 / self.dim, dtype=dtype)
        query, key = eye, eye
        if self.mirrored:
            query, key = torch.cat([eye, eye]), torch.cat([eye, -eye])
            weight = torch.cat([weight, -weight]) / 2
        codes = sign_codes(dtype) if self._signs else frame_codes(self.points, self.rank_of_codes, generator, dtype)
        hard = math.isinf(self.second_gain)
        return two_layer_network(
            query,
            key,
            weight,
            codes,
            gain=self.gain,
            kind="softmax",
            second_gain=1.0 if hard else self.second_gain,
            second_kind="hardmax" if hard else "softmax",
        )

    def predicted_error(self) -> Prediction:
        require(
            self.points == 2 or self.rank_of_codes >= self.points - 1,
            required="codes of rank at least N - 1 for a prediction",
            got=f"rank {self.rank_of_codes} for {self.points} points",
            remedy="run the construction instead: no formula is known",
        )
        when = f"gain -> 0, error of order gain^{self.order}"
        if math.isinf(self.second_gain):
            return Prediction(0.0, "limit", when)
        c = self.effective_inverse_temperature
        if self.points == 2:
            return Prediction(full_rank_error(self.dim, c), "limit", when)
        return Prediction(
            many_points_asymptotic(self.dim, c, self.points), "asymptotic", f"{when}, c = {c:.3g} large"
        )
