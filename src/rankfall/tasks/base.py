"""What a task is: sequences from counted random streams, what each token must output, what counts."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from rankfall.catalogue import TASKS
from rankfall.errors import require_count
from rankfall.registry import made

TRAINING, EVALUATION = 0, 1
"""Purposes: numbers drawn for one are independent of numbers drawn for the other."""

_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Four random 32-bit words for each counter, held in int64 tensors that broadcast against each other.

    A product of two 32-bit words may pass 2^63; int64 wraps around, and the two halves are still right once masked.
    """
    # Masked at once: a compiler that knows a counter to be small, an index, would multiply it in 32 bits.
    c0, c1, c2, c3 = (word & _WORD for word in counter)
    k0, k1 = key
    for _ in range(_ROUNDS):
        first, second = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            ((second >> 32) & _WORD) ^ c1 ^ k0,
            second & _WORD,
            ((first >> 32) & _WORD) ^ c3 ^ k1,
            first & _WORD,
        )
        k0, k1 = (k0 + _WEYL[0]) & _WORD, (k1 + _WEYL[1]) & _WORD
    return c0, c1, c2, c3


@dataclass(frozen=True)
class Draws:
    """Where in which streams to draw: the results have leading axes (stream, step)."""

    seeds: Tensor
    """(s,) int64, one seed per stream."""
    steps: Tensor
    """(t,) int64, the steps whose numbers are wanted."""
    purpose: int
    dtype: torch.dtype

    def normal(self, channel: int, *shape: int) -> Tensor:
        """Standard normal numbers, (s, t, *shape); draws on different channels are independent.

        Box-Muller in float64 from 32-bit words, rounded to `dtype` at the end, so that float32 runs see the same
        data as float64 runs up to rounding.
        """
        size = math.prod(shape)
        blocks = torch.arange((size + 3) // 4, device=self.seeds.device)
        seeds, steps = self.seeds[:, None, None], self.steps[None, :, None]
        where = torch.full_like(blocks, 2 * channel + self.purpose)
        words = philox((blocks, where, steps, steps >> 32), (seeds & _WORD, (seeds >> 32) & _WORD))
        numbers = torch.cat([*_box_muller(words[0], words[1]), *_box_muller(words[2], words[3])], dim=-1)
        return numbers[..., :size].to(self.dtype).reshape(len(self.seeds), len(self.steps), *shape)


def _box_muller(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    # The half keeps the logarithm's argument off zero.
    radius = (-2.0 * ((first.double() + 0.5) * 2.0**-32).log()).sqrt()
    angle = second.double() * (2.0 * math.pi * 2.0**-32)
    return radius * angle.cos(), radius * angle.sin()


def on_sphere(normals: Tensor) -> Tensor:
    """Each row scaled to length one: uniform on the sphere when the rows are standard normal."""
    return normals / torch.linalg.vector_norm(normals, dim=-1, keepdim=True)


def orthonormal_frame(normals: Tensor) -> Tensor:
    """Rows made orthonormal by Gram and Schmidt, twice per row: a uniform frame when the entries are standard normal.

    (..., k, d) -> (..., k, d), k <= d. A loop over the k rows: batched factorisations synchronise on GPUs.
    """
    rows: list[Tensor] = []
    for row in normals.unbind(dim=-2):
        for _ in range(2):
            for earlier in rows:
                row = row - (row * earlier).sum(dim=-1, keepdim=True) * earlier
        rows.append(on_sphere(row))
    return torch.stack(rows, dim=-2)


@dataclass(frozen=True)
class Sample:
    """Sequences and what is wanted of them, with leading axes (stream, step)."""

    inputs: Tensor
    """(s, t, batch, tokens, dim)"""
    targets: Tensor
    """Same shape; anything where nothing is scored."""


@dataclass(frozen=True)
class Task(ABC):
    """One task. Subclasses are frozen dataclasses that hold parameters only; any number of points, any width."""

    name: ClassVar[str]
    summary: ClassVar[str]
    causal: ClassVar[bool] = False
    """Tokens hold later answers, so that only a causal mask makes the task honest."""

    @classmethod
    @abstractmethod
    def examples(cls) -> Sequence[tuple[Self, int, int]]:
        """Instances with points and dim: the tests draw from each and train on it."""

    def check(self, points: int, dim: int) -> None:
        """Raise a `RequestError` where the task does not exist for these sizes; by default from two of each on."""
        require_count("points", points, least=2)
        require_count("dim", dim, least=2)

    def tokens(self, points: int) -> int:
        """Tokens of one sequence."""
        return points

    def context(self, points: int) -> int:
        """The first so many tokens are keys; all are queries."""
        return self.tokens(points)

    @abstractmethod
    def scored(self, points: int, dim: int) -> Tensor:
        """(tokens, dim) weights in {0, 1}: which coordinates of which tokens the loss looks at."""

    @abstractmethod
    def sample(self, draws: Draws, batch: int, points: int, dim: int) -> Sample:
        """Draw `batch` sequences for each stream and step."""


class SeparateQueries(Task):
    """Tokens are N points, then N queries, which alone are scored; no query is a key, being its own nearest point."""

    def tokens(self, points: int) -> int:
        return 2 * points

    def context(self, points: int) -> int:
        return points

    def scored(self, points: int, dim: int) -> Tensor:
        return torch.cat([torch.zeros(points, dim), torch.ones(points, dim)])

    @staticmethod
    def sequence(points: Tensor, queries: Tensor, answers: Tensor) -> Sample:
        """Points, then queries, with the queries' answers."""
        return Sample(torch.cat([points, queries], dim=-2), torch.cat([torch.zeros_like(points), answers], dim=-2))


def parse_task(text: str) -> Task:
    """The task that an argument such as `farthest` or `biased:9` names."""
    return made(TASKS, text)
