"""Working memory that is used again and again.

A matrix of a megabyte or more that is allocated and freed each time is also handed out by the system page by page
each time; for the sizes measured here that cost a sixth of all the work.
"""

from __future__ import annotations

from typing import final

import numpy as np

from rankfall.linalg.lapack import Matrix, Vector


@final
class Scratch:
    """Matrices by name; asking again for a name gives the same memory, whatever it holds. Not for several threads."""

    def __init__(self) -> None:
        self._held: dict[str, Vector] = {}

    def matrix(self, name: str, rows: int, columns: int) -> Matrix:
        """An uninitialised (rows, columns) float64 matrix in row order."""
        size = rows * columns
        held = self._held.get(name)
        if held is None or held.size < size:
            held = self._held[name] = np.empty(size)
        return held[:size].reshape(rows, columns)
