"""From any start to a nearby equilibrium: damped Newton steps on the product of spheres, by least squares.

At tokens X the step moves each token by tau_i in its tangent space, least squares of
    |(J - I) tau + T (F(X) - X)|^2 + damping |tau|^2,    T takes tangent coordinates.
The damping is proportional to the residual (Levenberg and Marquardt), so that the last steps are Newton's and
convergence is quadratic even where equilibria are not isolated, as on the spheres of fixed points of family star.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from rankfall.equilibria.layer import NormalisedLayer
from rankfall.equilibria.stability import jacobian, tangent_bases
from rankfall.errors import require, require_count
from rankfall.mechanism.checks import check_finite

LARGEST = 3000
# The residual at which tokens count as an equilibrium; steps go on to a hundredth of it.
TOLERANCE = 1e-12
TRIALS = 12
FIRST_DAMPING = 1e-2
EASE = 0.1
TIGHTEN = 10.0
# A damped step that leaves more than this share of the distance is compared with an undamped one.
WORTHWHILE = 0.1


@final
@dataclass(frozen=True)
class Polished:
    """Where Newton's method ended: tokens, residual, steps taken, and how far the farthest token moved in all."""

    tokens: Float[Tensor, "n d"]
    residual: float
    steps: int
    converged: bool
    moved: float


def polish(layer: NormalisedLayer, start: Float[Tensor, "n d"], *, most_steps: int = 50) -> Polished:
    """The equilibrium that Newton's method reaches from `start`, whose tokens are normalised first."""
    layer.check(start)
    size, remedy = layer.count * layer.freedom, "Newton's method needs fewer tokens or a smaller width"
    require_count("tokens times sphere dimension", size, least=0, most=LARGEST, remedy=remedy)
    check_finite(start)
    first = tokens = layer.settled(start.double())
    require(
        not layer.on_spheres or bool((torch.linalg.vector_norm(tokens, dim=-1) > 0).all()),
        required="tokens that differ from zero",
        got="a zero token",
        remedy="the norm leaves a zero token at zero, off the sphere",
    )
    left, damping, steps = _distance(layer, tokens), FIRST_DAMPING, 0
    while layer.residual(tokens) > TOLERANCE * 1e-2 and steps < most_steps and layer.freedom:
        better = _damped_step(layer, tokens, left, damping)
        if better is None:
            break
        tokens, left, damping = better
        steps += 1
    residual = layer.residual(tokens)
    moved = float(torch.linalg.vector_norm(tokens - first, dim=-1).amax()) / layer.length
    return Polished(tokens, residual, steps, residual <= TOLERANCE, moved)


def _distance(layer: NormalisedLayer, tokens: Tensor) -> float:
    return float(torch.linalg.vector_norm(layer.step(tokens) - tokens))


def _damped_step(
    layer: NormalisedLayer, tokens: Tensor, left: float, damping: float
) -> tuple[Tensor, float, float] | None:
    bases = tangent_bases(layer, tokens)
    gap = torch.einsum("nd,nfd->nf", layer.step(tokens) - tokens, bases).reshape(-1)
    eye = torch.eye(len(gap), dtype=tokens.dtype)
    system = jacobian(layer, tokens, onto=bases) - eye

    def attempt(matrix: Tensor, target: Tensor) -> tuple[Tensor, float]:
        move = torch.linalg.lstsq(matrix, target[:, None], driver="gels").solution[:, 0]
        shift = torch.einsum("nf,nfd->nd", move.reshape(layer.count, layer.freedom), bases)
        tried = layer.settled(tokens + shift)
        return tried, _distance(layer, tried)

    padded = torch.cat([-gap, torch.zeros_like(gap)])
    found: tuple[Tensor, float, float] | None = None
    for _ in range(TRIALS):
        tried, after = attempt(torch.cat([system, (damping * left) ** 0.5 * eye]), padded)
        if after < left:
            found = tried, after, damping * EASE
            break
        damping *= TIGHTEN
    if found is None or found[1] > WORTHWHILE * left:
        # Far from normal, J - I has tiny singular values that are not neutral; damping would crawl along them.
        tried, after = attempt(system, -gap)
        if after < (left if found is None else found[1]):
            found = tried, after, damping * EASE
    return found
