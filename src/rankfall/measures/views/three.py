"""Three views of one token matrix: as it is, with tokens of length one, and centred.

raw      X
unit     each token divided by its length (a zero token stays zero)
centred  X minus its mean token

The views share what can be shared: one product of the centred tokens gives all Gram matrices between tokens, and raw
and centred share one reduction to tridiagonal form (`rankfall.linalg.pairs`). Everything is in float64.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from rankfall.attention.checks import check_finite, check_tokens
from rankfall.errors import require
from rankfall.linalg.lapack import Matrix, Vector
from rankfall.measures.profile import Profile
from rankfall.measures.views.feature_side import feature_side
from rankfall.measures.views.prepared import PreparedProfile
from rankfall.measures.views.spectra import host_float64, inverse_lengths, squared_lengths
from rankfall.measures.views.token_side import token_side

VIEWS = ("raw", "unit", "centred")

# Products of numbers below this, and of their inverses, stay far from the ends of float64.
SAFE = 1e60

Views = Mapping[str, Profile]


def views(tokens: Tensor) -> Views:
    """Profiles of the three views of one token matrix (n, d); measures are read off with `Measure.of`."""
    return views_with_and_without(tokens, ())[0]


def views_with_and_without(tokens: Tensor, apart: Sequence[int]) -> tuple[Views, Views | None]:
    """The three views of all tokens (n, d), and of the tokens without those at the positions `apart`.

    The second is None when nothing is apart or nothing would be left. Taking out a single token, as an attention
    sink asks for, shares the unit view's reduction.
    """
    check_tokens(tokens)
    require(
        tokens.ndim == 2,
        required="one token matrix (n, d)",
        got=f"shape {tuple(tokens.shape)}",
        remedy="measure the matrices of a batch one by one",
    )
    epsilon = torch.finfo(tokens.dtype).eps
    x = host_float64(tokens)
    largest = max(float(x.max()), -float(x.min()))
    if not np.isfinite(largest):
        check_finite(tokens)
    # Scaling keeps squares from over- and underflowing; most tokens need none.
    size = 1.0 if 1 / SAFE < largest < SAFE or largest == 0 else largest
    x = x if size == 1.0 else x / size
    keep = np.delete(np.arange(len(x)), np.asarray(apart, dtype=np.int64))
    if len(keep) in (0, len(x)):
        return _three(x, size, epsilon)[0], None
    single = int(apart[0]) if len(apart) == 1 and _one_side(len(x), x.shape[1]) else None
    whole, unit_without = _three(x, size, epsilon, single=single)
    return whole, _three(x[keep], size, epsilon, unit_known=unit_without)[0]


def _one_side(n: int, d: int) -> bool:
    """Whether n and n - 1 tokens are computed on the same side, so that their spectra have the lengths expected."""
    return (n <= d) == (n - 1 <= d)


def _three(
    x: Matrix, size: float, epsilon: float, *, single: int | None = None, unit_known: Vector | None = None
) -> tuple[Views, Vector | None]:
    n, d = x.shape
    mean = x.mean(axis=0)
    centred = x - mean
    energies = squared_lengths(x)
    inverse = inverse_lengths(energies)
    unit = x * inverse[:, None]
    side = token_side if n <= d else feature_side
    found = side(inverse, centred, mean, single, unit_known)
    unit_spread = found.unit_spread
    centred_energies = squared_lengths(centred)
    spread = float(np.sqrt(centred_energies.sum()))
    made = {
        "raw": PreparedProfile(
            x, found.raw, found.cosines, energies=energies, spread=spread, size=size, epsilon=epsilon
        ),
        "unit": PreparedProfile(
            unit,
            found.unit,
            found.cosines,
            energies=energies * inverse**2,
            spread=unit_spread if unit_spread is not None else float(np.linalg.norm(unit - unit.mean(axis=0))),
            size=1.0,
            epsilon=epsilon,
        ),
        "centred": PreparedProfile(
            centred,
            found.centred,
            found.centred_cosines,
            energies=centred_energies,
            spread=spread,
            size=size,
            epsilon=epsilon,
            structural_zeros=1 if n <= d else 0,
        ),
    }
    return made, found.unit_without
