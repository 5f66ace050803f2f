"""The kernels for many eigenvalue problems at once, in Triton's interpreter, against LAPACK."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from rankfall.linalg import batched
from rankfall.linalg.device import tridiagonal
from rankfall.linalg.device.packing import packed, unpacked
from rankfall.linalg.device.recording import Recording

# Of the largest eigenvalue; float64 rounding over a few dozen steps.
TOLERANCE = 4e-15


def grams(kind: str, batch: int, n: int) -> Tensor:
    generator = torch.Generator().manual_seed(n)
    x = torch.randn(batch, n, n + 2, generator=generator, dtype=torch.float64)
    if kind == "steep":
        x = x * torch.logspace(0, -7, n + 2, dtype=torch.float64)
    elif kind == "with zeros":
        x[:, ::2] = 0
    elif kind == "equal":
        x = x[:, :1].expand(batch, n, n + 2)
    elif kind == "zero":
        x = torch.zeros_like(x)
    return x @ x.mT


def dense(diagonal: Tensor, off: Tensor) -> Tensor:
    beside = off[:, :-1]
    return torch.diag_embed(diagonal) + torch.diag_embed(beside, 1) + torch.diag_embed(beside, -1)


def error(found: Tensor, expected: Tensor) -> float:
    return float(((found - expected).abs().amax(dim=-1) / expected.abs().amax(dim=-1).clamp_min(1e-300)).max())


@pytest.mark.parametrize("n", [1, 2, 3, 8, 13])
def test_the_kernel_keeps_the_spectrum(n: int) -> None:
    matrices = grams("plain", 3, n)
    reduced = dense(*tridiagonal.tridiagonalise(matrices.clone()))
    assert error(torch.linalg.eigvalsh(reduced), torch.linalg.eigvalsh(matrices)) < TOLERANCE


@pytest.mark.parametrize("kind", ["steep", "with zeros", "equal", "zero"])
def test_the_kernel_keeps_odd_spectra(kind: str) -> None:
    matrices = grams(kind, 2, 9)
    reduced = dense(*tridiagonal.tridiagonalise(matrices.clone()))
    assert error(torch.linalg.eigvalsh(reduced), torch.linalg.eigvalsh(matrices)) < TOLERANCE


def test_the_kernel_leaves_the_first_coordinate_alone() -> None:
    matrices = grams("plain", 2, 10)
    reduced = dense(*tridiagonal.tridiagonalise(matrices.clone()))
    rest = torch.linalg.eigvalsh(matrices[:, 1:, 1:])
    assert error(torch.linalg.eigvalsh(reduced[:, 1:, 1:]), rest) < TOLERANCE


def test_launches_are_cut_where_columns_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tridiagonal, "COLUMNS_BETWEEN_CUTS", 4)
    matrices = grams("plain", 1, 21)
    reduced = dense(*tridiagonal.tridiagonalise(matrices.clone()))
    assert error(torch.linalg.eigvalsh(reduced), torch.linalg.eigvalsh(matrices)) < TOLERANCE


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_counting_finds_all_eigenvalues(n: int) -> None:
    generator = torch.Generator().manual_seed(n)
    diagonal, off = torch.randn(2, 3, n, generator=generator, dtype=torch.float64)
    off[1] = 0  # falls apart
    off[2] *= 1e-9  # nearly does
    found = tridiagonal.tridiagonal_eigenvalues(diagonal, off)
    assert error(found, torch.linalg.eigvalsh(dense(diagonal, off))) < TOLERANCE


def test_counting_tells_close_pairs_apart() -> None:
    # Wilkinson's matrix: its largest eigenvalues agree to ten digits and more.
    n = 15
    diagonal = torch.arange(n, dtype=torch.float64).sub(n // 2).abs()[None] * 1e60
    off = torch.full((1, n), 1e60, dtype=torch.float64)
    found = tridiagonal.tridiagonal_eigenvalues(diagonal, off)
    assert error(found, torch.linalg.eigvalsh(dense(diagonal, off))) < TOLERANCE
    assert (
        float(tridiagonal.tridiagonal_eigenvalues(torch.zeros(1, 4).double(), torch.zeros(1, 4).double()).abs().max())
        < 1e-15
    )


def test_off_gpus_lapack_does_the_same() -> None:
    matrices = grams("plain", 2, 7)
    diagonal, off = batched.tridiagonalise(matrices.clone())
    by_kernel, off_by_kernel = tridiagonal.tridiagonalise(matrices.clone())
    torch.testing.assert_close(diagonal, by_kernel, rtol=1e-12, atol=1e-12)
    # The sign of an off-diagonal entry is a convention.
    torch.testing.assert_close(off[:, :-1].abs(), off_by_kernel[:, :-1].abs(), rtol=1e-12, atol=1e-12)
    values = batched.tridiagonal_eigenvalues(diagonal, off)
    assert error(values, torch.linalg.eigvalsh(matrices)) < TOLERANCE


def test_the_kernels_are_for_gpus_only() -> None:
    assert not tridiagonal.runs_here(torch.device("cpu"), 8)


def test_what_is_packed_can_be_unpacked() -> None:
    parts = {"a": torch.arange(6).reshape(2, 3), "b": torch.tensor([True, False]), "c": torch.tensor(2.5)}
    shapes = {name: tuple(part.shape) for name, part in parts.items()}
    found = unpacked(packed(parts).numpy(), shapes)
    for name, part in parts.items():
        assert np.array_equal(found[name], part.numpy())


def test_off_gpus_a_recording_computes_anew() -> None:
    given = torch.ones(3)
    recording = Recording(lambda: given * 2, torch.device("cpu"))
    given += 1
    assert recording.run().tolist() == [4.0, 4.0, 4.0]
