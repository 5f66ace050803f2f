"""Eigenvalues by threads equal those of one call."""

from __future__ import annotations

import pytest
import torch

from rankfall.linalg.symmetric import SMALLEST, symmetric_eigenvalues


@pytest.mark.parametrize("size", [1, 5, SMALLEST, SMALLEST + 13])
@pytest.mark.parametrize("batch", [(), (1,), (3,), (2, 2)])
def test_threads_change_nothing(size: int, batch: tuple[int, ...]) -> None:
    draws = torch.randn(*batch, size, size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    matrices = draws + draws.mT
    before, threads = matrices.clone(), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        found = symmetric_eigenvalues(matrices)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(matrices, before), "the input is left alone"
    assert torch.allclose(found, torch.linalg.eigvalsh(matrices), atol=1e-10)
