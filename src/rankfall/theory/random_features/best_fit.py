"""The best combination of many random heads (A-rf): preconditioned conjugate gradients on the vote kernel.

Small sets are solved densely. For large ones the kernel is only ever multiplied by, in float32, and the solution is
refined until the float64 residual is small.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rankfall.errors import require_count
from rankfall.progress import Progress, silent
from rankfall.theory.hardmax import target_overlap
from rankfall.theory.harmonics import sign_spectrum
from rankfall.theory.random_features.kernel import VoteKernel

Operator = Callable[[Tensor], Tensor]

DENSE_UP_TO = 1024
"""A dense float64 solve is quicker than anything else up to here."""

EXACT_UP_TO = 64
"""Lanczos steps for dense kernels: with fewer heads than this the extreme eigenvalues are exact."""

WIDEST = 32
"""Up to here d^2 features pay: the d^2 x d^2 factor costs H d^4 once. Wider, H/d^2 is small, so is the condition."""


TOLERANCE = 1e-7
"""Of the float64 residual, relative to the target."""

MOST_STEPS = 500
"""Of conjugate gradients, before the residual is computed anew in float64."""


@dataclass(frozen=True)
class Fit:
    """The best combination of a set of heads.

    `error`: exact E||output - f||^2 of `weights`, from a float64 residual. `excess`: how far above the best possible
    error it may be, ||r||^2/lambda_min. `residual`: ||b - C a|| / ||b||. `condition`: largest over smallest
    eigenvalue of the vote kernel G (Ritz values, so an estimate from below; exact up to 64 heads).
    """

    heads: int
    weights: Tensor
    error: float
    excess: float
    residual: float
    condition: float
    iterations: int
    refinements: int


def fit(queries: Tensor, keys: Tensor, *, progress: Progress = silent) -> Fit:
    """The best weights of these unit queries and keys (h, d), on whatever device they live."""
    (found,) = error_curve(queries, keys, [len(queries)], progress=progress)
    return found


def error_curve(queries: Tensor, keys: Tensor, counts: Sequence[int], *, progress: Progress = silent) -> list[Fit]:
    """The same for the first so many heads each: tiles are made once, so the curve costs little more than its end."""
    kernel = VoteKernel(queries, keys)
    for count in counts:
        require_count("the number of heads", count, most=len(kernel), remedy="draw more heads")
    return [_fit(kernel, count, progress) for count in counts]


def _fit(kernel: VoteKernel, heads: int, progress: Progress) -> Fit:
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
        step = conjugate_gradients(system, precondition, rest, stop=0.3 * TOLERANCE * scale, progress=progress)
        weights = weights + step.solution
        iterations += step.iterations
        progress(f"{heads} heads: float64 residual", 1.0)
        rest = overlap - system(weights, exact=True)
        residual = float(torch.linalg.vector_norm(rest)) / scale
        if residual <= TOLERANCE or refinements == 3:
            break
        refinements += 1
    low, high = extreme_eigenvalues(kernel.times, heads, queries.device)
    error = float(1 - weights @ overlap - weights @ rest)
    excess = (residual * scale) ** 2 / (0.5 * low)
    return Fit(heads, weights, error, excess, residual, high / low, iterations, refinements)


def _dense(votes: Tensor, overlap: Tensor) -> Fit:
    smallest, largest = extreme_eigenvalues(lambda x: votes @ x, len(overlap), votes.device, EXACT_UP_TO)
    full = 0.5 * (1 + votes)
    full.diagonal().add_(1e-12)
    weights = torch.cholesky_solve(overlap[:, None], torch.linalg.cholesky(full))[:, 0]
    rest = overlap - full @ weights
    residual = float(torch.linalg.vector_norm(rest) / torch.linalg.vector_norm(overlap))
    low = max(smallest, 1e-12)
    error = float(1 - weights @ overlap - weights @ rest)
    excess = float(rest @ rest) / (0.5 * low)
    return Fit(len(overlap), weights, error, excess, residual, largest / low, 0, 0)


@dataclass(frozen=True)
class Solved:
    """The solution, and the number of products with the operator that it took."""

    solution: Tensor
    iterations: int


def conjugate_gradients(
    operator: Operator,
    precondition: Operator,
    right: Tensor,
    *,
    stop: float,
    progress: Progress = silent,
) -> Solved:
    """Solve operator(x) = right until the recursive residual is at most `stop`, starting from zero.

    With a float32 operator the recursive residual drifts from the true one; the caller measures the true one and
    refines.
    """
    solution = torch.zeros_like(right)
    residual = right.clone()
    corrected = precondition(residual)
    direction = corrected.clone()
    product = residual @ corrected
    first = float(torch.linalg.vector_norm(residual))
    for iteration in range(1, MOST_STEPS + 1):
        image = operator(direction)
        length = product / (direction @ image)
        solution += length * direction
        residual -= length * image
        size = float(torch.linalg.vector_norm(residual))
        progress(f"{len(right)} heads: step {iteration}, residual {size / first:.1e}", 0.0)
        if size <= stop:
            return Solved(solution, iteration)
        corrected = precondition(residual)
        following = residual @ corrected
        direction = corrected + (following / product) * direction
        product = following
    return Solved(solution, MOST_STEPS)


def extreme_eigenvalues(operator: Operator, size: int, device: torch.device, steps: int = 16) -> tuple[float, float]:
    """Smallest and largest Ritz value after some Lanczos steps with full reorthogonalisation.

    They lie inside the spectrum, so their ratio is a lower estimate of the condition number.
    """
    steps = min(steps, size)
    generator = torch.Generator().manual_seed(1)
    start = torch.randn(size, generator=generator, dtype=torch.float64).to(device)
    basis = [start / torch.linalg.vector_norm(start)]
    diagonal: list[float] = []
    beside: list[float] = []
    for step in range(steps):
        image = operator(basis[-1])
        diagonal.append(float(basis[-1] @ image))
        block = torch.stack(basis)
        image = image - block.mT @ (block @ image)
        image = image - block.mT @ (block @ image)
        length = float(torch.linalg.vector_norm(image))
        if step + 1 == steps or length < 1e-10:
            break
        beside.append(length)
        basis.append(image / length)
    inner = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
    for place, value in enumerate(beside):
        inner[place, place + 1] = inner[place + 1, place] = value
    values = torch.linalg.eigvalsh(inner)
    return float(values[0]), float(values[-1])


class LowDegrees:
    """Solves with M = 1 1^T + eta_1^4 (Q Q^T * K K^T) + (1 - eta_1^4) I, of rank 1 + d^2 above a multiple of I.

    (2/pi) asin(x) = sum_l eta_l^2 P_l(x), so degree one on both sides of G is eta_1^4 <q,q'><k,k'>, the Gram matrix
    of the features k q^T; all other degrees together are treated as the identity, which they resemble as long as
    heads are fewer than their dimensions. No H x d^2 matrix is stored: features act as two thin products.
    """

    def __init__(self, queries: Tensor, keys: Tensor) -> None:
        heads, dim = queries.shape
        self._queries, self._keys = queries, keys
        self._wide = dim > WIDEST
        energy = float(sign_spectrum(dim, 3).energies[0])
        self._weight = 0.0 if self._wide else energy
        self._rest = 1.0 - self._weight**2
        size = 1 if self._wide else 1 + dim * dim
        gram = torch.zeros(size, size, dtype=torch.float64, device=queries.device)
        for start in range(0, heads, 4096):
            block = self._features(slice(start, start + 4096))
            gram += block.mT @ block
        gram.diagonal().add_(self._rest)
        self._factor = torch.linalg.cholesky(gram)

    def _features(self, rows: slice) -> Tensor:
        queries, keys = self._queries[rows], self._keys[rows]
        ones = queries.new_ones(queries.shape[0], 1)
        if self._wide:
            return ones
        outer = self._weight * (keys[:, :, None] * queries[:, None, :]).flatten(1)
        return torch.cat([ones, outer], dim=1)

    def solve(self, residual: Tensor) -> Tensor:
        """M^{-1} r by Woodbury's identity."""
        together = residual.sum()[None]
        if not self._wide:
            moments = self._weight * (self._keys.mT @ (residual[:, None] * self._queries))
            together = torch.cat([together, moments.flatten()])
        inner = torch.cholesky_solve(together[:, None], self._factor)[:, 0]
        back = inner[0].expand_as(residual)
        if not self._wide:
            dim = self._queries.shape[1]
            back = back + self._weight * ((self._keys @ inner[1:].view(dim, dim)) * self._queries).sum(-1)
        return (residual - back) / self._rest
