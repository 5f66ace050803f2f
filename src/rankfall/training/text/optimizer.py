"""AdamW and Muon on the rows of a stack, in place, without looking at any value: a graph can hold a step."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from rankfall.training.parameters import Layout, Slot
from rankfall.training.text.decoder import is_matrix

BETAS = (0.9, 0.95)
EPSILON = 1e-8
MOMENTUM = 0.95
"""Of Muon."""
LAST_RATE = 0.1
"""Share of the rate that is left at the end."""

# The odd polynomial a x + b x^3 + c x^5 of Muon: five times it brings singular values from (0, 1] close to one.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
SMALLEST_LENGTH = 1e-7
RMS = 0.2
"""Size of an AdamW update's numbers, to which orthogonal updates are scaled: rates then mean the same for both."""


def rate_factor(step: Tensor, steps: int, warm_up: float) -> Tensor:
    """() float64: the share of the rate at a step counted from one. Rises linearly, falls as a cosine to a tenth."""
    rising = max(1, round(warm_up * steps))
    count = step.double()
    share = ((count - rising) / max(1, steps - rising)).clamp(0.0, 1.0)
    falling = LAST_RATE + (1.0 - LAST_RATE) * 0.5 * (1.0 + torch.cos(math.pi * share))
    return torch.where(count <= rising, count / rising, falling)


def adamw_(
    rows: Tensor, grads: Tensor, first: Tensor, second: Tensor, step: Tensor, rates: Tensor, decay: Tensor
) -> Tensor:
    """Update the moments and return the change of the rows. rows (M, P), rates (M, 1), decay (P,)."""
    first.lerp_(grads, 1.0 - BETAS[0])
    second.mul_(BETAS[1]).addcmul_(grads, grads, value=1.0 - BETAS[1])
    count = step.double()
    correction, square_correction = ((1.0 - beta**count).to(rows.dtype) for beta in BETAS)
    spread = (second / square_correction).sqrt_().add_(EPSILON)
    return -rates * (first / correction / spread + decay * rows)


def orthogonal(matrices: Tensor) -> Tensor:
    """Matrices (M, a, b) with all singular values brought near one, by Newton and Schulz in the form of Muon."""
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.transpose(-2, -1) if tall else matrices
    if x.is_cuda:
        x = x.bfloat16()
    x = x / torch.linalg.matrix_norm(x, keepdim=True).clamp_min(SMALLEST_LENGTH)
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        gram = x @ x.transpose(-2, -1)
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.transpose(-2, -1) if tall else x).to(matrices.dtype)


def muon_(rows: Tensor, grads: Tensor, memory: Tensor, rates: Tensor, decay: float, slots: Sequence[Slot]) -> Tensor:
    """Update the momentum of matrices in `memory` (M, P) and return the change of the rows, zero elsewhere."""
    change = torch.zeros_like(rows)
    for slot in slots:
        here, shape = slice(slot.offset, slot.offset + slot.size), (-1, *slot.shape)
        gradient, momentum, weights = (part[:, here].view(shape) for part in (grads, memory, rows))
        momentum.lerp_(gradient, 1.0 - MOMENTUM)
        ahead = gradient.lerp(momentum, MOMENTUM)
        size = RMS * math.sqrt(max(slot.shape))
        change[:, here] = (-rates[..., None] * (size * orthogonal(ahead) + decay * weights)).flatten(1)
    return change


def matrices(layout: Layout) -> list[Slot]:
    """The weights that decay, and that Muon is for."""
    return [slot for slot in layout.slots if is_matrix(slot)]
