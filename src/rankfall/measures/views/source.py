"""Where the views of a token matrix come from, for those who need them after working memory was used for others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt
from torch import Tensor

from rankfall.linalg.lapack import Matrix
from rankfall.measures.views.spectra import host_float64, inverse_lengths, squared_lengths


@final
@dataclass(frozen=True, eq=False)
class Source:
    """Tokens (n, d), of which only the rows `keep` count (None: all); views are of the tokens divided by `size`."""

    tokens: Tensor
    size: float
    keep: npt.NDArray[np.int64] | None = None

    def raw(self) -> Matrix:
        """As they are."""
        x = host_float64(self.tokens) / self.size
        return x if self.keep is None else x[self.keep]

    def unit(self) -> Matrix:
        """Each divided by its length; a zero token stays zero."""
        x = self.raw()
        return x * inverse_lengths(squared_lengths(x))[:, None]

    def centred(self) -> Matrix:
        """Without their mean."""
        x = self.raw()
        return x - x.mean(axis=0)
