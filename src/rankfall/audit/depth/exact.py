"""Spectra of single token matrices mended on the host, where squares of singular values cannot tell small ones."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rankfall.linalg.lapack import Matrix, Vector
from rankfall.linalg.smallest import smallest_singular_value

Doubt = Literal["smallest", "several"]
"""Of the smallest singular value alone, or of others too."""


def mended(
    tokens: Tensor, kept: npt.NDArray[np.bool_] | None, view: str, eigenvalues: Vector, doubt: Doubt
) -> Vector:
    """The squared singular values of this view of the tokens (n, d) that are kept, with none left in doubt.

    `eigenvalues` are those found, smallest first, zeros in front for tokens left out. For a thread beside the model:
    everything here that takes long lets go of the interpreter.
    """
    matrix = _view(tokens, kept, view)
    found = None
    if doubt == "smallest":
        found = smallest_singular_value(matrix, float(np.sqrt(eigenvalues[-1])))
    result = eigenvalues.copy()
    if found is not None:
        result[-min(matrix.shape)] = found**2
    else:
        exact = np.linalg.svd(matrix, compute_uv=False)
        result[-len(exact) :] = exact[::-1] ** 2
    return result


def _view(tokens: Tensor, kept: npt.NDArray[np.bool_] | None, view: str) -> Matrix:
    """Raw and centred ones divided by the largest entry, as the spectra are."""
    host = tokens.cpu()
    x = (host.float() if host.dtype == torch.bfloat16 else host).numpy().astype(np.float64)
    x = x if kept is None else x[kept]
    x /= np.abs(x).max() or 1.0
    if view == "centred":
        return x - x.mean(axis=0)
    if view == "unit":
        lengths = np.linalg.norm(x, axis=1, keepdims=True)
        return x / np.where(lengths > 0, lengths, 1.0)
    return x
