"""The protocol of paper A's experiments in the straightforward way: modules, one model at a time, one copy at a time.

Written from the protocol for comparison. Nothing of the engine is used, so that it is also an independent oracle.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ScaledUnitNorm(nn.Module):
    """Each token to unit length, times one learned number."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * x / x.norm(dim=-1, keepdim=True)


class AveragedAttention(nn.Module):
    """The mean of m standard attentions of d/r heads."""

    def __init__(self, dim: int, rank: int, multiplier: int) -> None:
        super().__init__()
        self.copies = nn.ModuleList(
            nn.MultiheadAttention(dim, dim // rank, batch_first=True) for _ in range(multiplier)
        )

    def forward(self, x: Tensor) -> Tensor:
        return sum(copy(x, x, x, need_weights=False)[0] for copy in self.copies) / len(self.copies)


class PlainLayer(nn.Module):
    """Post-norm, ReLU feed-forward with bias, no dropout."""

    def __init__(self, dim: int, rank: int, multiplier: int, feed_forward: int) -> None:
        super().__init__()
        self.attention = AveragedAttention(dim, rank, multiplier)
        self.rise, self.fall = nn.Linear(dim, feed_forward), nn.Linear(feed_forward, dim)
        self.attention_norm, self.feed_forward_norm = ScaledUnitNorm(), ScaledUnitNorm()

    def forward(self, x: Tensor) -> Tensor:
        x = self.attention_norm(x + self.attention(x))
        return self.feed_forward_norm(x + self.fall(self.rise(x).relu()))


class PlainEncoder(nn.Sequential):
    """L layers."""

    def __init__(self, dim: int, rank: int, multiplier: int, layers: int, feed_forward: int = 2048) -> None:
        super().__init__(*(PlainLayer(dim, rank, multiplier, feed_forward) for _ in range(layers)))


def farthest_batch(batch: int, points: int, dim: int, device: str) -> tuple[Tensor, Tensor]:
    """Points on the sphere and, for each, the farthest other."""
    x = nn.functional.normalize(torch.randn(batch, points, dim, device=device), dim=-1)
    index = (x @ x.mT).argmin(dim=-1, keepdim=True)
    return x, x.gather(1, index.expand_as(x))


class PlainTrainer:
    """One step after another of one model."""

    def __init__(self, model: nn.Module, batch: int, points: int, dim: int, device: str, rate: float = 0.01) -> None:
        self.model = model.to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.0)
        self.sizes = (batch, points, dim, device)
        self.losses: list[float] = []

    def step(self) -> None:
        x, target = farthest_batch(*self.sizes)
        loss = (self.model(x) - target).square().sum(dim=-1).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())
