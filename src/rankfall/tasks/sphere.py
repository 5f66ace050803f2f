"""Points drawn from unit spheres, and orthonormal frames."""

from __future__ import annotations

import torch
from torch import Tensor


def on_sphere(normals: Tensor) -> Tensor:
    """Each row scaled to length one: uniform on the sphere when the rows are standard normal."""
    return normals / torch.linalg.vector_norm(normals, dim=-1, keepdim=True)


def orthonormal_frame(normals: Tensor) -> Tensor:
    """Rows made orthonormal by Gram and Schmidt, twice per row: a uniform frame when the entries are standard normal.

    (..., k, d) -> (..., k, d), k <= d. A loop over the k rows: batched factorisations synchronise on GPUs.
    """
    rows: list[Tensor] = []
    for row in normals.unbind(dim=-2):
        for _ in range(2):
            for earlier in rows:
                row = row - (row * earlier).sum(dim=-1, keepdim=True) * earlier
        rows.append(on_sphere(row))
    return torch.stack(rows, dim=-2)
