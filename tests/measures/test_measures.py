"""Measures: closed forms, declared ranges and invariances, Gram against SVD, refusals."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankfall.errors import RequestError
from rankfall.linalg.spectra import gram_eigenvalues, singular_values, smaller_gram
from rankfall.measures.base import Measure
from rankfall.measures.catalogue import ALL_MEASURES, find, measure

F64 = torch.float64
NAMES = [one.name for one in ALL_MEASURES]
sizes = st.tuples(st.integers(1, 9), st.integers(1, 9))


def tokens_of(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def orthogonal(seed: int, d: int) -> torch.Tensor:
    return torch.linalg.qr(tokens_of(seed, d, d)).Q


CHANGES = {
    "permutation": lambda x, seed: x[torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))],
    "rotation": lambda x, seed: x @ orthogonal(seed, x.shape[-1]),
    "scale": lambda x, seed: x * 37.5,
    "translation": lambda x, seed: x + tokens_of(seed, x.shape[-1]),
}


@pytest.mark.parametrize("one", ALL_MEASURES, ids=NAMES)
@settings(max_examples=25, deadline=None, derandomize=True)
@given(seed=st.integers(0, 1000), size=sizes)
def test_declared_range_and_invariances(one: Measure, seed: int, size: tuple[int, int]) -> None:
    tokens = tokens_of(seed, *size)
    value = float(measure(tokens, [one.name])[one.name])
    least, greatest = one.range(*size)
    assert least - 1e-12 <= value <= greatest * (1 + 1e-12)
    for invariance in one.invariances:
        changed = float(measure(CHANGES[invariance](tokens, seed), [one.name])[one.name])
        assert changed == pytest.approx(value, rel=1e-8, abs=1e-8), invariance
    scaled = float(measure(tokens * 4, [one.name])[one.name])
    assert scaled == pytest.approx(value * 4**one.degree, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("one", ALL_MEASURES, ids=NAMES)
def test_undeclared_invariances_are_really_absent(one: Measure) -> None:
    tokens = tokens_of(0, 5, 7)
    for invariance in CHANGES.keys() - one.invariances:
        if (one.name, invariance) == ("rank", "translation"):
            continue  # the rank of generic tokens survives a shift; that of special ones does not (next test)
        changed = float(measure(CHANGES[invariance](tokens, 1), [one.name])[one.name])
        assert changed != pytest.approx(float(measure(tokens, [one.name])[one.name]), rel=1e-6)


def test_rank_is_not_translation_invariant() -> None:
    tokens = torch.ones(3, 4, dtype=F64)
    assert float(measure(tokens)["rank"]) == 1
    assert float(measure(tokens - 1)["rank"]) == 0


def test_orthonormal_rows() -> None:
    n, d = 4, 9
    values = measure(orthogonal(0, d)[:n])
    expected = {
        "mu": math.sqrt(n - 1),
        "relative_mu": math.sqrt((n - 1) / n),
        "rank": n,
        "effective_rank": n,
        "stable_rank": n,
        "participation_ratio": n,
        "mean_abs_cosine": 0,
        "min_singular_value": 1,
        "max_singular_value": 1,
        "rank_one_residual": math.sqrt(n - 1),
        "largest_token_share": 1 / n,
    }
    assert {name: float(value) for name, value in values.items()} == pytest.approx(expected, abs=1e-12)


def test_identical_rows() -> None:
    n, length = 6, 5.0
    tokens = torch.tensor([[3.0, 4.0]], dtype=F64).expand(n, 2)
    expected = {
        "mu": 0,
        "relative_mu": 0,
        "rank": 1,
        "effective_rank": 1,
        "stable_rank": 1,
        "participation_ratio": 1,
        "mean_abs_cosine": 1,
        "min_singular_value": 0,
        "max_singular_value": length * math.sqrt(n),
        "rank_one_residual": 0,
        "largest_token_share": 1 / n,
    }
    assert {name: float(value) for name, value in measure(tokens).items()} == pytest.approx(expected, abs=1e-7)


def test_two_clusters() -> None:
    """Three tokens at e1 and one at e2: squared singular values 3 and 1."""
    tokens = torch.tensor([[1.0, 0], [1, 0], [1, 0], [0, 1]], dtype=F64)
    share = torch.tensor([0.75, 0.25], dtype=F64)
    expected = {
        "mu": math.sqrt(4 - (0.75**2 + 0.25**2) * 4),
        "relative_mu": math.sqrt(1 - (0.75**2 + 0.25**2)),
        "rank": 2,
        "effective_rank": math.exp(-float((share * share.log()).sum())),
        "stable_rank": 4 / 3,
        "participation_ratio": 16 / 10,
        "mean_abs_cosine": 0.5,
        "min_singular_value": 1,
        "max_singular_value": math.sqrt(3),
        "rank_one_residual": 1,
        "largest_token_share": 0.25,
    }
    assert {name: float(value) for name, value in measure(tokens).items()} == pytest.approx(expected, abs=1e-12)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(seed=st.integers(0, 1000), size=sizes)
def test_gram_and_svd_agree(seed: int, size: tuple[int, int]) -> None:
    tokens = tokens_of(seed, *size)
    by_gram = gram_eigenvalues(smaller_gram(tokens)).flip(-1)
    by_svd = singular_values(tokens).square()
    assert torch.allclose(by_gram, by_svd, rtol=1e-10, atol=1e-13 * float(by_svd[0]))


def test_small_singular_values_take_the_svd() -> None:
    """At 1e-11 of the largest a Gram matrix reports noise; the measure must not."""
    left, right = orthogonal(1, 6), orthogonal(2, 8)
    true = torch.tensor([1.0, 1e-2, 1e-4, 1e-6, 1e-9, 1e-11], dtype=F64)
    tokens = left @ torch.diag(true) @ right[:6]
    by_gram = gram_eigenvalues(smaller_gram(tokens))[0].sqrt()
    assert abs(float(by_gram) / 1e-11 - 1) > 0.5
    values = measure(tokens)
    assert float(values["min_singular_value"]) == pytest.approx(1e-11, rel=1e-3)
    assert float(values["rank"]) == 6
    assert float(values["rank_one_residual"]) == pytest.approx(math.sqrt(1e-4 + 1e-8 + 1e-12), rel=1e-9)


def test_rank_is_judged_by_the_dtype_that_came() -> None:
    spectrum = torch.diag(torch.tensor([1.0, 1e-3, 1e-9], dtype=F64))
    assert float(measure(spectrum)["rank"]) == 3
    assert float(measure(spectrum.float())["rank"]) == 2


def test_batch_equals_one_by_one() -> None:
    tokens = tokens_of(3, 2, 3, 7, 5)
    tokens[1, 2, 1:] = tokens[1, 2, :1]  # one collapsed sample among healthy ones
    together = measure(tokens)
    for name, values in together.items():
        assert values.shape == (2, 3)
        alone = torch.stack([measure(sample)[name] for sample in tokens.flatten(0, 1)]).reshape(2, 3)
        assert torch.allclose(values, alone, atol=1e-12), name


@pytest.mark.parametrize("factor", [1e-200, 1e-30, 1e30, 1e200])
def test_any_size_of_tokens(factor: float) -> None:
    tokens = tokens_of(4, 5, 6)
    for one in ALL_MEASURES:
        expected = float(measure(tokens, [one.name])[one.name]) * factor**one.degree
        assert float(measure(tokens * factor, [one.name])[one.name]) == pytest.approx(expected, rel=1e-9)


def test_zero_and_single_tokens_are_not_nan() -> None:
    assert all(float(value) == 0 for value in measure(torch.zeros(3, 4)).values())
    single = measure(torch.ones(1, 4))
    assert float(single["mean_abs_cosine"]) == 1
    assert float(single["mu"]) == 0
    assert float(single["effective_rank"]) == pytest.approx(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_low_precision_tokens_are_measured_in_float64(dtype: torch.dtype) -> None:
    tokens = tokens_of(5, 6, 4).to(dtype)
    for name, value in measure(tokens).items():
        assert value.dtype == F64
        if name != "rank":
            assert float(value) == pytest.approx(float(measure(tokens.double())[name]), rel=1e-12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: measure(torch.full((2, 3), math.nan)), r"finite tokens; got nan at index \(0, 0\)"),
        (lambda: measure(torch.tensor([[1.0, math.inf]])), r"finite tokens; got inf at index \(0, 1\)"),
        (lambda: measure(torch.ones(0, 3)), "at least one token"),
        (lambda: measure(torch.ones(3, 0)), "one coordinate"),
        (lambda: measure(torch.ones(3)), r"shape \(..., n, d\)"),
        (lambda: measure(torch.ones(2, 3), ["rnk"]), "a measure among mu, relative_mu"),
        (lambda: find("x"), "for example effective_rank"),
    ],
)
def test_refusals(make, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        make()
