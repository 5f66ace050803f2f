"""The views of more tokens than coordinates: second-moment matrices between coordinates."""

from __future__ import annotations

import numpy as np

from rankfall.linalg.lapack import Matrix, Vector
from rankfall.linalg.pairs import reduce_along
from rankfall.linalg.tridiagonal import Spectrum
from rankfall.measures.views.spectra import ViewSpectra, inverse_lengths, squared_lengths

# Cosines of this many tokens with all later ones are held at once.
ROWS_AT_ONCE = 256


def feature_side(
    inverse: Vector,
    centred: Matrix,
    mean: Vector,
    single: int | None = None,
    unit_known: Spectrum | None = None,
) -> ViewSpectra:
    """Spectra of (n, d) tokens, n > d: X^T X = C^T C + n m m^T, so raw and centred share one reduction along m.

    The arguments are those of `token_side`.
    """
    n = len(centred)
    unit = (centred + mean) * inverse[:, None]
    moments = reduce_along(centred.T @ centred, mean)
    unit_values, unit_without = (unit_known, None) if unit_known is not None else _unit_spectra(unit, single)
    cosines, centred_cosines = cosine_sums(centred, mean, inverse)
    return ViewSpectra(
        raw=moments.spectrum(added=n * float(mean @ mean)),
        unit=unit_values,
        centred=moments.spectrum(),
        unit_without=unit_without,
        cosines=cosines,
        centred_cosines=centred_cosines,
    )


def _unit_spectra(unit: Matrix, single: int | None) -> tuple[Spectrum, Spectrum | None]:
    # Without one unit token u the moments are U^T U - u u^T: the same reduction along u serves both.
    if single is None:
        return reduce_along(unit.T @ unit, np.zeros(unit.shape[1])).spectrum(), None
    reduced = reduce_along(unit.T @ unit, unit[single])
    return reduced.spectrum(), reduced.spectrum(added=-float(unit[single] @ unit[single]))


def cosine_sums(centred: Matrix, mean: Vector, inverse: Vector) -> tuple[float, float]:
    """Sums of |cosine| over ordered pairs, before and after centring, from one pass over blocks of C C^T.

    Each block is counted once and doubled: pairs (i, j) with i in the block and j after it, or both inside.
    """
    shift = centred @ mean
    energy = float(mean @ mean)
    inverse_centred = inverse_lengths(squared_lengths(centred))
    before = after = 0.0
    for start in range(0, len(centred), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        inside = min(ROWS_AT_ONCE, len(centred) - start)
        block = centred[rows] @ centred[start:].T
        after += _pairs(block, inverse_centred[rows], inverse_centred[start:], inside)
        block += shift[rows, None]
        block += shift[None, start:] + energy
        before += _pairs(block, inverse[rows], inverse[start:], inside)
    return before, after


def _pairs(block: Matrix, left: Vector, right: Vector, inside: int) -> float:
    """Twice the weighted |block|, except the square that holds pairs in both orders; the diagonal left out."""
    weighted = left @ np.abs(block)
    square = np.abs(block[:, :inside])
    diagonal = float((np.diagonal(square) * left * right[:inside]).sum())
    return float(weighted[:inside] @ right[:inside] + 2.0 * (weighted[inside:] @ right[inside:])) - diagonal
