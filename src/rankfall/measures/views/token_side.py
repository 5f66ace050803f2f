"""The views of no more tokens than coordinates: Gram matrices between tokens."""

from __future__ import annotations

import numpy as np

from rankfall.linalg.lapack import Matrix, Vector, tridiagonalise
from rankfall.linalg.pairs import Reduced, mirror, reduce_along, reflect
from rankfall.linalg.scratch import Scratch
from rankfall.linalg.tridiagonal import Spectrum
from rankfall.measures.views.spectra import ViewSpectra

# A difference below this share of its terms has lost more than six of its sixteen digits.
CANCELS = 1e-6


def token_side(
    inverse: Vector,
    centred: Matrix,
    mean: Vector,
    single: int | None = None,
    unit_known: Spectrum | None = None,
    scratch: Scratch | None = None,
) -> ViewSpectra:
    """Spectra of (n, d) tokens, n <= d, from G_c = C C^T alone.

    With C = X - 1 m^T: X X^T = G_c + (C m) 1^T + 1 (C m)^T + |m|^2 1 1^T. Starting from the centred product loses
    nothing when the tokens are nearly equal; the other way round everything would cancel. `inverse` are the tokens'
    inverse lengths, `single` names a token without which the unit view is wanted too, and `unit_known` is the unit
    view's spectrum, where it is known already.
    """
    scratch = Scratch() if scratch is None else scratch
    n = len(centred)
    gram = np.matmul(centred, centred.T, out=scratch.matrix("gram", n, n))
    shift, energy = centred @ mean, float(mean @ mean)
    raw, centred_values = _raw_and_centred(gram, shift, energy, scratch)
    centred_cosines = _cosine_sum(gram, scratch)
    unit = _cosines(gram, shift, energy, inverse)
    sum_of_cosines, unit_spread = _off_diagonal(unit, scratch), _spread(unit)
    unit_values, unit_without = (unit_known, None) if unit_known is not None else _unit_spectra(unit, single, scratch)
    return ViewSpectra(
        raw=raw,
        unit=unit_values,
        centred=centred_values,
        unit_without=unit_without,
        cosines=sum_of_cosines,
        unit_spread=unit_spread,
        centred_cosines=centred_cosines,
    )


def _raw_and_centred(gram: Matrix, shift: Vector, mean_energy: float, scratch: Scratch) -> tuple[Spectrum, Spectrum]:
    """Spectra of G_c + s 1^T + 1 s^T + e 1 1^T and of G_c, which is zero along 1, by one reduction along 1."""
    n = len(gram)
    v = mirror(np.ones(n))
    bordered = reflect(gram, v, scratch)
    # The reflection takes 1 to -sqrt(n) e_1, and the exact first row of the centred part is zero.
    border = -np.sqrt(n) * (shift - 2.0 * (v @ shift) * v)
    bordered[:, 0] = border
    bordered[0, 0] = n * mean_energy
    reduced = Reduced(*tridiagonalise(bordered))
    return reduced.spectrum(), reduced.spectrum_without()


def _cosines(gram: Matrix, shift: Vector, energy: float, inverse: Vector) -> Matrix:
    """The unit tokens' Gram matrix, written over the centred tokens'."""
    gram += shift[:, None]
    gram += shift + energy
    gram *= inverse[:, None]
    gram *= inverse
    return gram


def _unit_spectra(cosines: Matrix, single: int | None, scratch: Scratch) -> tuple[Spectrum, Spectrum | None]:
    """Spectra with and without one token; the cosines may be overwritten."""
    if single is None:
        return Reduced(*tridiagonalise(cosines.T)).spectrum(), None
    axis = np.zeros(len(cosines))
    axis[single] = 1.0
    reduced = reduce_along(cosines, axis, scratch)
    return reduced.spectrum(), reduced.spectrum_without()


def _cosine_sum(gram: Matrix, scratch: Scratch) -> float:
    """Sum of |cosine| over ordered pairs, without forming the cosines."""
    lengths = np.sqrt(np.diagonal(gram))
    inverse = np.divide(1.0, lengths, out=np.zeros_like(lengths), where=lengths > 0)
    return float(inverse @ (_absolute(gram, scratch) @ inverse) - (inverse > 0).sum())


def _spread(cosines: Matrix) -> float | None:
    """||U - mean||_F from U U^T: tr - 1^T U U^T 1 / n, unless that would cancel."""
    trace = float(np.trace(cosines))
    square = trace - float(cosines.sum()) / len(cosines)
    return float(np.sqrt(square)) if square > CANCELS * trace else None


def _off_diagonal(cosines: Matrix, scratch: Scratch) -> float:
    return float(_absolute(cosines, scratch).sum() - np.abs(np.diagonal(cosines)).sum())


def _absolute(matrix: Matrix, scratch: Scratch) -> Matrix:
    absolute: Matrix = np.abs(matrix, out=scratch.matrix("absolute", *matrix.shape))
    return absolute
