"""Where tokens start."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from rankfall.dynamics.weights import generator_for
from rankfall.errors import require, require_count


def random_tokens(seeds: Sequence[int], n: int, d: int) -> Float[Tensor, "b n d"]:
    """Tokens uniform on the unit sphere, one matrix per seed."""
    require_count("the number of tokens", n)
    require_count("the dimension", d)
    drawn = [torch.randn(n, d, generator=generator_for(seed, 0), dtype=torch.float64) for seed in seeds]
    tokens = torch.stack(drawn)
    return tokens / torch.linalg.vector_norm(tokens, dim=-1, keepdim=True)


def counterexample_tokens(seeds: Sequence[int], n: int, d: int) -> Float[Tensor, "b n d"]:
    """Two tokens in the basin of the rank-2 equilibrium of the counterexample's value matrix [[1, w], [0, 1]], w = 2.

    Token 1 tends to (0, 1) like 1/(w t); token 2 tends to (-1/w, -sqrt(1 - 1/w^2)) from an arc around that point.
    """
    require(
        n == d == 2,
        required="two tokens of dimension 2 for the counterexample",
        got=f"{n} tokens of dimension {d}",
        remedy="give --tokens 2 --dim 2, or build larger ones with `rankfall equilibrium`",
    )
    spread = torch.stack([torch.rand(2, generator=generator_for(seed, 0), dtype=torch.float64) for seed in seeds])
    first = torch.pi / 2 - 0.2 * spread[:, 0]
    second = torch.pi + torch.pi / 3 + 0.3 * (2 * spread[:, 1] - 1)
    angles = torch.stack([first, second], dim=-1)
    return torch.stack([angles.cos(), angles.sin()], dim=-1)
