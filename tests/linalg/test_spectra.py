"""Spectra by the Gram matrix and by the SVD agree, and threads change nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sampling import normal
from threadpoolctl import threadpool_info

from rankfall.linalg import spectra
from rankfall.linalg.factored import Factored, _by_gram
from rankfall.linalg.spectra import (
    by_eigenvalues,
    distinct_rows,
    gram_eigenvalues,
    rows_may_repeat,
    singular_values,
    smaller_gram,
)
from rankfall.system import blas_threads


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(seed=st.integers(0, 1000), n=st.integers(1, 9), d=st.integers(1, 9))
def test_gram_and_svd_agree(seed: int, n: int, d: int) -> None:
    tokens = normal(seed, n, d)
    by_gram = gram_eigenvalues(smaller_gram(tokens)).flip(-1)
    by_svd = singular_values(tokens).square()
    assert torch.allclose(by_gram, by_svd, rtol=1e-10, atol=1e-13 * float(by_svd[0]))


@pytest.mark.parametrize(("n", "d"), [(1, 4), (5, 3), (20, 33)])
@pytest.mark.parametrize("batch", [(), (1,), (3,), (2, 2)])
@pytest.mark.usefixtures("two_threads")
def test_threads_change_nothing(n: int, d: int, batch: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = normal(0, *batch, n, d)
    gram = smaller_gram(tokens)
    before, threads = gram.clone(), [one["num_threads"] for one in threadpool_info()]
    expected = gram_eigenvalues(gram), singular_values(tokens)
    monkeypatch.setattr(spectra, "WORTH_A_THREAD", 0)
    found = gram_eigenvalues(gram), singular_values(tokens)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == (*batch, min(n, d))
        assert torch.allclose(ours, theirs, rtol=1e-12, atol=1e-12)
    assert torch.equal(gram, before), "the input is left alone"
    assert [one["num_threads"] for one in threadpool_info()] == threads, "BLAS has its threads back"


def test_tokens_of_any_precision_are_decomposed_in_float64() -> None:
    tokens = normal(0, 3, 4).to(torch.bfloat16)
    assert torch.equal(singular_values(tokens), singular_values(tokens.double()))
    assert smaller_gram(tokens).dtype == torch.float64


@pytest.mark.parametrize("smallest", [1.0, 1e-9, 0.0])
def test_eigenvalues_of_twice_the_size_lose_no_digits(smallest: float) -> None:
    left, _, right = torch.linalg.svd(normal(0, 2, 7, 7))
    values = torch.tensor([3.0, 2.0, 1.0, 0.5, 0.1, 1e-3, smallest], dtype=torch.float64).sort(descending=True).values
    found = by_eigenvalues(left * values @ right)
    assert torch.allclose(found, values.expand(2, 7), rtol=0, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_equal_rows_are_noticed(dtype: torch.dtype) -> None:
    tokens = normal(0, 4, 60, 33).to(dtype).double()
    tokens[1, 59] = tokens[1, 0]
    tokens[2, 30:] = tokens[2, :30]
    tokens[3] = 0
    assert rows_may_repeat(tokens).tolist() == [False, True, True, True]
    assert rows_may_repeat(tokens[:, :1]).tolist() == [False] * 4


@pytest.mark.usefixtures("two_threads")
def test_the_limit_of_threads_ends_with_the_last_that_needs_it() -> None:
    def now() -> list[int]:
        return [one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"]

    before = now()
    inside, first_left, seen = threading.Event(), threading.Event(), []

    def second() -> None:
        with blas_threads(2):
            inside.set()
            assert first_left.wait(timeout=60)
            seen.append(now())

    thread = threading.Thread(target=second)
    with blas_threads(1):
        thread.start()
        assert inside.wait(timeout=60)
    first_left.set()
    thread.join()
    assert seen == [[1] * len(before)], "the first one's number, after it has left"
    assert now() == before


@pytest.mark.usefixtures("two_threads")
def test_matrices_are_taken_on_as_many_threads_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spectra, "WORTH_A_THREAD", 0)
    gram = smaller_gram(normal(0, 5, 4, 6))
    used: list[str] = []

    def watched(some: np.ndarray) -> np.ndarray:
        used.append(threading.current_thread().name)
        return np.asarray(eigvalsh(some))

    eigvalsh = np.linalg.eigvalsh
    monkeypatch.setattr(spectra.np.linalg, "eigvalsh", watched)
    both = [gram_eigenvalues(gram, threads) for threads in (1, None)]
    assert torch.equal(*both)
    assert used[0] == threading.current_thread().name, "one thread is this one"
    assert len(used) == 3


def test_rows_that_repeat_are_one_longer_row() -> None:
    tokens = normal(0, 5, 3)
    repeated = tokens[[0, 1, 1, 2, 3, 4, 1]]
    rows = distinct_rows(repeated)
    assert rows.shape == (5, 3)
    assert torch.allclose(singular_values(rows), singular_values(repeated), rtol=1e-13)


@pytest.mark.parametrize("kind", ["plain", "deficient", "steep", "zero"])
def test_products_by_their_gram_matrices_as_by_their_triangular_factors(kind: str) -> None:
    left, right = normal(0, 2, 3, 20, 6)
    if kind == "deficient":
        right[..., 3:] = right[..., :3]
    elif kind == "steep":
        right = right * torch.logspace(0, -9, 6, dtype=torch.float64)
    elif kind == "zero":
        right = right * 0
    expected = Factored(left, right).singular_values()
    largest = torch.linalg.matrix_norm(left, 2) * torch.linalg.matrix_norm(right, 2)
    error = (_by_gram(left, right) - expected).abs().amax(dim=-1)
    assert bool((error <= 1e-6 * largest + 1e-100).all())
