"""Spectra of single token matrices mended on the host, where squares of singular values cannot tell small ones."""

from __future__ import annotations

from typing import Literal

import numpy as np

from rankfall.linalg.lapack import Vector
from rankfall.linalg.smallest import smallest_singular_value
from rankfall.measures.views.source import Source

Doubt = Literal["smallest", "several"]
"""Of the smallest singular value alone, or of others too."""


def mended(source: Source, view: str, eigenvalues: Vector, doubt: Doubt) -> Vector:
    """The squared singular values of this view of the tokens, with none left in doubt.

    `eigenvalues` are those found, smallest first, zeros in front for tokens left out. For a thread beside the model:
    everything here that takes long lets go of the interpreter.
    """
    matrix = {"raw": source.raw, "unit": source.unit, "centred": source.centred}[view]()
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
