"""Best weights of up to 2^16 heads: conjugate gradients on the structure of the kernel, with float64 refinement.

Why not a dense solve: at 2^16 heads the float64 matrix is 32 GiB and its Cholesky factor takes 10^14 operations. The
kernel is far better than generic: (2/pi) asin has a square-root singularity at one, so its high degrees carry
enough energy to keep the smallest eigenvalue near 0.1 to 0.6, and the few large eigenvalues belong to the constant
and to degree (1,1), which the preconditioner removes. Some tens of products with float32 tiles then suffice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rankfall.errors import require
from rankfall.theory.hardmax import target_overlap
from rankfall.theory.random_features.kernel import VoteKernel
from rankfall.theory.random_features.krylov import conjugate_gradients, extreme_eigenvalues
from rankfall.theory.random_features.preconditioner import LowDegrees

DENSE_UP_TO = 1024
"""A dense float64 solve is quicker than anything else up to here."""

Report = Callable[[str, float], None]


def _silent(what: str, share: float) -> None:
    """No progress shown."""


@dataclass(frozen=True)
class Fit:
    """The best combination of a set of heads.

    `error`: exact E||output - f||^2 of `weights`, from a float64 residual. `excess`: how far above the best possible
    error it may be, ||r||^2/lambda_min. `residual`: ||b - C a|| / ||b||. `condition`: largest over smallest
    eigenvalue of the vote kernel G (Ritz values, so an estimate from below; exact for dense solves).
    """

    heads: int
    weights: Tensor
    error: float
    excess: float
    residual: float
    condition: float
    iterations: int
    refinements: int


def fit(
    queries: Tensor,
    keys: Tensor,
    *,
    tolerance: float = 1e-7,
    cache_bytes: int | None = None,
    progress: Report = _silent,
) -> Fit:
    """The best weights of these unit queries and keys (h, d), on whatever device they live."""
    kernel = VoteKernel(queries, keys, cache_bytes)
    return _fit(kernel, len(kernel), tolerance, progress)


def error_curve(
    queries: Tensor,
    keys: Tensor,
    counts: Sequence[int],
    *,
    tolerance: float = 1e-7,
    cache_bytes: int | None = None,
    progress: Report = _silent,
) -> list[Fit]:
    """The same for the first 1, 2, 4, ... of the heads: tiles are made once, so the curve costs little more than
    its end.
    """
    kernel = VoteKernel(queries, keys, cache_bytes)
    for count in counts:
        require(
            1 <= count <= len(kernel),
            required=f"head counts between 1 and {len(kernel)}",
            got=count,
            remedy="draw more heads or ask for fewer",
        )
    return [_fit(kernel, count, tolerance, progress) for count in counts]


def _fit(kernel: VoteKernel, heads: int, tolerance: float, progress: Report) -> Fit:
    queries, keys = kernel.queries[:heads], kernel.keys[:heads]
    overlap = target_overlap((queries * keys).sum(-1), queries.shape[1])
    if heads <= DENSE_UP_TO:
        return _dense(kernel.dense(heads), overlap)
    preconditioner = LowDegrees(queries, keys)

    def system(x: Tensor, exact: bool = False) -> Tensor:
        return 0.5 * (x.sum() + kernel.times(x, exact=exact))

    def precondition(x: Tensor) -> Tensor:
        return 2 * preconditioner.solve(x)

    weights = torch.zeros_like(overlap)
    rest = overlap.clone()
    scale = float(torch.linalg.vector_norm(overlap))
    iterations = refinements = 0
    while True:
        step = conjugate_gradients(system, precondition, rest, stop=0.3 * tolerance * scale, progress=progress)
        weights = weights + step.solution
        iterations += step.iterations
        progress(f"{heads} heads: float64 residual", 1.0)
        rest = overlap - system(weights, exact=True)
        residual = float(torch.linalg.vector_norm(rest)) / scale
        if residual <= tolerance or refinements == 3:
            break
        refinements += 1
    low, high = extreme_eigenvalues(kernel.times, heads, queries.device)
    error = float(1 - weights @ overlap - weights @ rest)
    excess = (residual * scale) ** 2 / (0.5 * low)
    return Fit(heads, weights, error, excess, residual, high / low, iterations, refinements)


def _dense(votes: Tensor, overlap: Tensor) -> Fit:
    values = torch.linalg.eigvalsh(votes)
    full = 0.5 * (1 + votes)
    full.diagonal().add_(1e-12)
    weights = torch.cholesky_solve(overlap[:, None], torch.linalg.cholesky(full))[:, 0]
    rest = overlap - full @ weights
    residual = float(torch.linalg.vector_norm(rest) / torch.linalg.vector_norm(overlap))
    low = max(float(values[0]), 1e-12)
    error = float(1 - weights @ overlap - weights @ rest)
    excess = float(rest @ rest) / (0.5 * low)
    return Fit(len(overlap), weights, error, excess, residual, float(values[-1]) / low, 0, 0)
