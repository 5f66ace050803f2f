"""How a model is started and driven, apart from what it is: warm-up, scale of initial weights, rates per group."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Recipe:
    """Multipliers on top of the cell's own learning rate and PyTorch's default initialisation."""

    warm_up: float = 0.05
    """Share of the run over which the learning rate rises linearly."""
    branch_scale: float = 1.0
    """Initial scale of the last linear map of each residual branch, divided by sqrt(2L) when `by_depth`."""
    by_depth: bool = False
    rates: dict[str, float] = field(default_factory=dict)
    """Learning rate of parameters by name, relative to the cell's; 1 where absent."""
    clip: float | None = None
    """Largest gradient norm of a model; longer gradients are scaled down to it."""
    betas: tuple[float, float] = (0.9, 0.95)
    epsilon: float = 1e-8


ALL_RECIPES: dict[str, Recipe] = {
    "published": Recipe(),
    "stable": Recipe(warm_up=0.1, clip=1.0),
}
