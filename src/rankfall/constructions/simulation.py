"""Run a construction on random points and estimate its error, in bounded memory and with a standard error."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rankfall.constructions.base import Construction, Points
from rankfall.constructions.network import Network
from rankfall.errors import require_count
from rankfall.theory.targets import orthonormal_points, uniform_sphere

ENTRIES_AT_ONCE = 4_000_000


@dataclass(frozen=True)
class Estimate:
    """A mean squared error, the share of wrong answers, and the standard error of the first."""

    mse: float
    standard_error: float
    wrong: float
    samples: int


def draw_points(law: Points, shape: tuple[int, int, int], generator: torch.Generator) -> Tensor:
    """Points (b, n, d) by the name of their law."""
    return orthonormal_points(shape, generator) if law == "orthonormal" else uniform_sphere(shape, generator)


def simulate(
    construction: Construction,
    samples: int,
    seed: int,
    *,
    law: Points = "orthonormal",
    networks: int = 1,
) -> Estimate:
    """E||network - target||^2 over fresh points and queries.

    Constructions with random heads are drawn `networks` times, and the standard error is then the one between
    networks; with one network it is the one between samples and says nothing about other draws of the heads.
    """
    require_count("samples", samples, least=2)
    require_count("networks", networks)
    generator = torch.Generator().manual_seed(seed)
    means, wrongs = [], []
    spread = 0.0
    for _ in range(networks):
        network = construction.build(generator)
        errors = torch.cat(
            [
                _errors(construction, network, law, size, generator)
                for size in _batches(construction, network, samples)
            ]
        )
        means.append(errors.mean())
        wrongs.append((errors > 1e-6).double().mean())
        spread = float(errors.std()) / math.sqrt(samples)
    mse, wrong = torch.stack(means), float(torch.stack(wrongs).mean())
    if networks > 1:
        spread = float(mse.std()) / math.sqrt(networks)
    return Estimate(float(mse.mean()), spread, wrong, samples * networks)


def _errors(
    construction: Construction, network: Network, law: Points, samples: int, generator: torch.Generator
) -> Tensor:
    points = draw_points(law, (samples, construction.points, construction.dim), generator)
    queries = uniform_sphere((samples, 1, construction.dim), generator)
    return (network(points, queries) - construction.target(points, queries)).square().sum(dim=(-1, -2))


def _batches(construction: Construction, network: Network, samples: int) -> list[int]:
    """Batch sizes such that no intermediate of any layer holds more than ENTRIES_AT_ONCE numbers."""
    n = construction.points
    per_sample = max(
        one.heads.heads * (n + 1) * max(one.heads.rank, one.heads.value_rank, n) for one in network.layers
    )
    size = max(1, min(samples, ENTRIES_AT_ONCE // per_sample))
    full, rest = divmod(samples, size)
    return [size] * full + ([rest] if rest else [])
