"""What the two ways of computing the views give: three spectra and two sums of cosines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from rankfall.linalg.lapack import Matrix, Vector
from rankfall.linalg.scratch import Scratch
from rankfall.linalg.tridiagonal import Spectrum


@final
@dataclass(frozen=True)
class ViewSpectra:
    """Squared singular values of each view, and sums of |cosine| over ordered pairs i != j.

    Raw and unit tokens have the same cosines. Of `centred`, the value that is zero by construction is left out where
    there is one. `unit_without` is the unit view's spectrum without the token that was
    named, where it came for free; `unit_spread` is ||U - mean||_F, where it came for free.
    """

    raw: Spectrum
    unit: Spectrum
    centred: Spectrum
    unit_without: Spectrum | None
    cosines: float
    centred_cosines: float
    unit_spread: float | None = None


def host_float64(tokens: Tensor, scratch: Scratch | None = None) -> Matrix:
    """The tokens in main memory and float64, converted by NumPy: called from one of our threads, PyTorch would start
    a team of its own beside those that are at work already."""
    host = tokens.detach().cpu()
    given = (host.float() if host.dtype == torch.bfloat16 else host).numpy()
    wide = (Scratch() if scratch is None else scratch).matrix("tokens", *given.shape)
    wide[:] = given
    return wide


def squared_lengths(tokens: Matrix) -> Vector:
    """|x_i|^2."""
    return np.einsum("nd,nd->n", tokens, tokens)


def inverse_lengths(energies: Vector) -> Vector:
    """1 / |x_i| from the squared lengths, and zero for a zero token."""
    lengths = np.sqrt(energies)
    return np.divide(1.0, lengths, out=np.zeros_like(lengths), where=lengths > 0)
