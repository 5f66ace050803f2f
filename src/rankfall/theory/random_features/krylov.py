"""Conjugate gradients and Lanczos on a symmetric positive definite operator that is only ever multiplied by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Operator = Callable[[Tensor], Tensor]


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
    limit: int = 500,
    progress: Callable[[str, float], None] | None = None,
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
    for iteration in range(1, limit + 1):
        image = operator(direction)
        length = product / (direction @ image)
        solution += length * direction
        residual -= length * image
        size = float(torch.linalg.vector_norm(residual))
        if progress is not None:
            progress(f"{len(right)} heads: step {iteration}, residual {size / first:.1e}", 0.0)
        if size <= stop:
            return Solved(solution, iteration)
        corrected = precondition(residual)
        following = residual @ corrected
        direction = corrected + (following / product) * direction
        product = following
    return Solved(solution, limit)


def extreme_eigenvalues(operator: Operator, size: int, device: torch.device, steps: int = 24) -> tuple[float, float]:
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
