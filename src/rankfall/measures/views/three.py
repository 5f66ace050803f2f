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

from rankfall.errors import require
from rankfall.linalg.lapack import Matrix
from rankfall.linalg.scratch import Scratch
from rankfall.linalg.tridiagonal import Spectrum
from rankfall.measures.views.feature_side import feature_side
from rankfall.measures.views.prepared import Prepared
from rankfall.measures.views.source import Source
from rankfall.measures.views.spectra import host_float64, inverse_lengths, squared_lengths
from rankfall.measures.views.together import PreparedProfile
from rankfall.measures.views.token_side import token_side
from rankfall.mechanism.checks import check_finite, check_tokens

VIEWS = ("raw", "unit", "centred")

# Products of numbers below this, and of their inverses, stay far from the ends of float64.
SAFE = 1e60

Views = Mapping[str, PreparedProfile]


def views(tokens: Tensor) -> Views:
    """Profiles of the three views of one token matrix (n, d); measures are read off with `Measure.of`."""
    return views_with_and_without(tokens, ())[0]


def views_with_and_without(
    tokens: Tensor, apart: Sequence[int], scratch: Scratch | None = None
) -> tuple[Views, Views | None]:
    """The three views of all tokens (n, d), and of the tokens without those at the positions `apart`.

    The second is None when nothing is apart or nothing would be left. Taking out a single token, as an attention
    sink asks for, shares the unit view's reduction. `scratch` is working memory to use again; the profiles hold none
    of it, but need `tokens` unchanged until they are read.
    """
    check_tokens(tokens)
    require(
        tokens.ndim == 2,
        required="one token matrix (n, d)",
        got=f"shape {tuple(tokens.shape)}",
        remedy="measure the matrices of a batch one by one",
    )
    scratch = Scratch() if scratch is None else scratch
    x = host_float64(tokens, scratch)
    largest = max(float(x.max()), -float(x.min()))
    if not np.isfinite(largest):
        check_finite(tokens)
    # Scaling keeps squares from over- and underflowing; most tokens need none.
    size = 1.0 if 1 / SAFE < largest < SAFE or largest == 0 else largest
    if size != 1.0:
        x /= size
    n, d = x.shape
    keep = np.delete(np.arange(n), np.asarray(apart, dtype=np.int64))
    source = Source(tokens, size)
    if len(keep) in (0, n):
        return _three(x, source, scratch)[0], None
    single = int(apart[0]) if len(apart) == 1 and _one_side(n, d) else None
    whole, unit_without = _three(x, source, scratch, single=single)
    rest = np.take(x, keep, axis=0, out=scratch.matrix("kept tokens", len(keep), d), mode="clip")
    return whole, _three(rest, Source(tokens, size, keep), scratch, unit_known=unit_without)[0]


def _one_side(n: int, d: int) -> bool:
    """Whether n and n - 1 tokens are computed on the same side, so that their spectra have the lengths expected."""
    return (n <= d) == (n - 1 <= d)


def _three(
    x: Matrix,
    source: Source,
    scratch: Scratch,
    *,
    single: int | None = None,
    unit_known: Spectrum | None = None,
) -> tuple[Views, Spectrum | None]:
    shape = n, d = x.shape
    mean = x.mean(axis=0)
    centred = np.subtract(x, mean, out=scratch.matrix("centred", n, d))
    energies = squared_lengths(x)
    inverse = inverse_lengths(energies)
    if n <= d:
        found = token_side(inverse, centred, mean, single, unit_known, scratch)
    else:
        found = feature_side(inverse, centred, mean, single, unit_known)
    unit_spread = found.unit_spread
    if unit_spread is None:
        unit = source.unit()
        unit_spread = float(np.linalg.norm(unit - unit.mean(axis=0)))
    centred_energies = squared_lengths(centred)
    spread = float(np.sqrt(centred_energies.sum()))
    parts = {
        "raw": Prepared(source.raw, shape, found.raw, found.cosines, energies, spread, source.size),
        "unit": Prepared(source.unit, shape, found.unit, found.cosines, energies * inverse**2, unit_spread, size=1.0),
        "centred": Prepared(
            source.centred, shape, found.centred, found.centred_cosines, centred_energies, spread, source.size,
            structural_zeros=1 if n <= d else 0,
        ),
    }  # fmt: skip
    epsilon = torch.finfo(source.tokens.dtype).eps
    return {view: PreparedProfile([part], epsilon) for view, part in parts.items()}, found.unit_without
