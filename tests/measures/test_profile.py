"""Facts of a profile, the four views, and when the SVD is asked."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rankfall.catalogue import MEASURES
from rankfall.linalg.spectra import gram_eigenvalues
from rankfall.measures import profile as module
from rankfall.measures.base import measure
from rankfall.measures.measures import (
    EFFECTIVE_RANK,
    ENERGY_RANK,
    MEAN_ABS_COSINE,
    MIN_SINGULAR_VALUE,
    RANK,
    RANK_ONE_RESIDUAL,
)
from rankfall.measures.profile import VIEWS, Profile, profile_of_equals, views

SHAPES = [(1, 5), (2, 5), (5, 5), (6, 5), (7, 5), (40, 60), (61, 40)]
RELATIVE, ABSOLUTE = 1e-7, 1e-11
FACTS = [name for name, value in vars(Profile).items() if not name.startswith("_") and not callable(value)]


def made(kind: str, n: int, d: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=generator, dtype=torch.float64)
    mean = torch.randn(d, generator=generator, dtype=torch.float64)
    if kind == "sink":
        x[0] *= 200
    elif kind == "shifted":
        x += 5 * mean
    elif kind == "nearly equal":
        x = 1e-5 * x + mean
    elif kind == "huge":
        x *= 1e200
    elif kind == "with a zero":
        x[-1] = 0
    return x


def alone(x: Tensor) -> dict[str, Tensor]:
    lengths = x.norm(dim=-1, keepdim=True)
    unit = x / lengths.where(lengths > 0, 1.0)
    return {
        "raw": x,
        "unit": unit,
        "centred": x - x.mean(dim=-2, keepdim=True),
        "centred_unit": unit - unit.mean(dim=-2, keepdim=True),
    }


def assert_equal_to_each_alone(x: Tensor) -> None:
    found = views(x)
    assert tuple(found) == VIEWS
    for view, tokens in alone(x).items():
        expected = measure(tokens)
        for one in MEASURES:
            if (
                view.startswith("centred")
                and one.name in ("min_singular_value", "rank")
                and x.shape[-2] <= x.shape[-1]
            ):
                continue  # zero by construction: a test of its own
            ours, theirs = one.of(found[view]), expected[one.name]
            assert torch.allclose(ours, theirs, rtol=RELATIVE, atol=ABSOLUTE), f"{view} {one.name}"


@pytest.mark.parametrize("kind", ["plain", "sink", "shifted", "nearly equal", "with a zero"])
@pytest.mark.parametrize(("n", "d"), SHAPES)
def test_views_agree_with_each_alone(kind: str, n: int, d: int) -> None:
    assert_equal_to_each_alone(made(kind, n, d))
    assert_equal_to_each_alone(torch.stack([made(kind, n, d, seed) for seed in range(3)]))


@settings(max_examples=25, deadline=None, derandomize=True)
@given(n=st.integers(1, 12), d=st.integers(1, 12), seed=st.integers(0, 10**6))
def test_views_agree_on_random_sizes(n: int, d: int, seed: int) -> None:
    assert_equal_to_each_alone(made("shifted", n, d, seed))


def test_sizes_beyond_the_square_root_of_what_floats_hold() -> None:
    found, expected = views(made("huge", 9, 12)), views(made("plain", 9, 12))
    for view in VIEWS:
        for one in MEASURES:
            degree = 0 if view.endswith("unit") else one.degree
            ours, theirs = float(one.of(found[view])), float(one.of(expected[view])) * 1e200**degree
            assert ours == pytest.approx(theirs, rel=1e-12)


@pytest.mark.parametrize(("n", "d", "most", "centred"), [(6, 9, 6, 5), (9, 9, 9, 8), (10, 9, 9, 9), (1, 4, 1, 0)])
def test_the_most_that_a_rank_can_be_is_reached(n: int, d: int, most: int, centred: int) -> None:
    found = views(made("shifted", n, d))
    for view, profile in found.items():
        assert profile.most == (centred if view.startswith("centred") else most)
        assert float(RANK.of(profile)) == profile.most


def test_centred_tokens_lose_exactly_one_direction() -> None:
    found = views(made("shifted", 6, 9))["centred"]
    assert float(RANK.of(found)) == 5
    assert float(MIN_SINGULAR_VALUE.of(found)) == 0
    many = views(made("shifted", 10, 9))["centred"]
    assert float(RANK.of(many)) == 9
    assert float(MIN_SINGULAR_VALUE.of(many)) > 0.01
    single = views(made("shifted", 1, 9))["centred"]
    assert float(RANK.of(single)) == 0


def test_tokens_of_one_direction_have_nothing_left_in_the_centred_unit_view() -> None:
    x = torch.tensor([[0.1], [0.7], [1.3]], dtype=torch.float64) * made("plain", 1, 9)
    found = views(x)["centred_unit"]
    assert all(float(one.of(found)) == 0 for one in MEASURES)


def test_every_view_is_judged_by_the_rounding_that_the_tokens_came_with() -> None:
    x = made("plain", 8, 16).float()
    x[1] = x[0] * (1 + 1e-7)
    found = views(x)
    assert float(RANK.of(found["raw"])) == float(RANK.of(found["unit"])) == 7
    assert float(RANK.of(found["centred"])) == 6


@pytest.mark.parametrize("share", [1e-3, 3e-5, 1e-5, 1e-7, 1e-12])
def test_the_smallest_singular_value_where_squares_have_lost_it(share: float) -> None:
    x = made("plain", 30, 40)
    u, s, v = torch.linalg.svd(x, full_matrices=False)
    s[-1] = share * s[0]
    x = (u * s) @ v
    found = views(x)["raw"]
    # An SVD in float64 is off by 1e-16 of the largest itself.
    assert float(MIN_SINGULAR_VALUE.of(found)) == pytest.approx(float(s[-1]), rel=1e-6 + 1e-15 / share)
    assert float(RANK.of(found)) == 30
    assert float(RANK.of(views(x.float())["raw"])) == (30 if share > 40 * 1.2e-7 else 29)


def test_nearly_one_direction_is_measured_by_the_svd() -> None:
    x = made("plain", 6, 9)[:1].expand(6, 9) + 1e-9 * made("plain", 6, 9, seed=1)
    rest = torch.linalg.svdvals(x)[1:].square().sum().sqrt()
    assert float(RANK_ONE_RESIDUAL.of(views(x)["raw"])) == pytest.approx(float(rest), rel=1e-6)


def test_the_svd_is_asked_only_about_matrices_whose_squares_do_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, ...]] = []

    def watched(matrix: Tensor) -> Tensor:
        asked.append(tuple(matrix.shape))
        return torch.linalg.svdvals(matrix)

    monkeypatch.setattr(module, "singular_values", watched)
    healthy, singular = made("plain", 6, 9), made("plain", 6, 9, seed=1)
    singular[4] = singular[2] + singular[1]
    values = Profile(torch.stack([healthy, singular, healthy])).singular_values
    assert asked == [(1, 6, 9)]
    centred = views(healthy)["centred"].singular_values
    assert len(asked) == 1, "that centred tokens have one direction less is known without asking"
    assert float(centred[-1]) == 0.0
    assert torch.allclose(values[0], torch.linalg.svdvals(healthy) / healthy.abs().max(), rtol=1e-9)
    assert float(values[1, -1]) == 0.0, "a token that is a sum of others leaves a direction out"


@pytest.mark.parametrize(("n", "d"), [(6, 9), (9, 6), (12, 4), (6, 6)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_tokens_that_are_there_twice_need_no_svd(
    n: int, d: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(matrix: Tensor) -> Tensor:
        raise AssertionError("the SVD was asked")

    monkeypatch.setattr(module, "singular_values", refused)
    distinct = n // 2
    x = made("plain", n, d).to(dtype)[torch.arange(n) % distinct]
    for name, profile in views(x).items():
        few = int(name.startswith("centred") and distinct <= d)
        expected = torch.linalg.svdvals(profile.tokens)
        assert torch.allclose(profile.singular_values, expected, rtol=1e-6, atol=1e-12), name
        assert profile.singular_values.shape == (min(n, d),)
        zeros = min(n, d) - min(distinct - few, d)
        assert int((profile.singular_values == 0).sum()) == zeros, "exactly so many directions are left out"


@pytest.mark.parametrize("batch", [(), (1,), (4,), (2, 2)])
@pytest.mark.parametrize(("n", "d"), [(6, 9), (9, 6), (12, 4), (6, 6), (1, 3)])
def test_equal_tokens_of_large_matrices_are_found_first(
    n: int, d: int, batch: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same numbers, and every matrix is decomposed once, those with equal tokens as small as they are."""
    decomposed: list[torch.Size] = []

    def watched(gram: Tensor) -> Tensor:
        decomposed.append(gram.shape)
        return gram_eigenvalues(gram)

    monkeypatch.setattr(module, "gram_eigenvalues", watched)
    distinct = max(1, n // 2)
    x = torch.stack([made("shifted", n, d, seed) for seed in range(max(1, torch.Size(batch).numel()))])
    x[::2] = x[::2, torch.arange(n) % distinct]
    x = x.reshape(*batch, n, d)
    expected = {view: {one.name: one.of(profile) for one in MEASURES} for view, profile in views(x).items()}
    monkeypatch.setattr(module, "WORTH_LOOKING", 1)
    decomposed.clear()
    for view, profile in views(x).items():
        for one in MEASURES:
            found = one.of(profile)
            assert found.shape == batch
            assert torch.allclose(found, expected[view][one.name], rtol=1e-12, atol=1e-12), f"{view} {one.name}"
    if n > 1:
        sizes = [size for shape in decomposed for size in [shape[-1]] * shape[:-2].numel()]
        smaller, whole = min(distinct, d), min(n, d)
        half = (max(1, torch.Size(batch).numel()) + 1) // 2
        others = max(1, torch.Size(batch).numel()) - half
        assert sorted(sizes) == sorted(([smaller] * half + [whole] * others) * len(VIEWS))


def test_equal_tokens_that_leave_a_doubt_are_asked_of_the_svd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WORTH_LOOKING", 1)
    x = made("plain", 8, 12)
    x[4] = x[2] + x[1]
    x[5] = x[0]
    values = Profile(x).singular_values
    assert torch.allclose(values, torch.linalg.svdvals(x) / x.abs().max(), rtol=1e-9, atol=1e-14)
    assert int((values == 0).sum()) == 2


def test_what_the_squares_can_tell_follows_the_rounding_of_the_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[torch.Size] = []

    def watched(matrix: Tensor) -> Tensor:
        asked.append(matrix.shape)
        return torch.linalg.svdvals(matrix)

    monkeypatch.setattr(module, "singular_values", watched)
    left, _, right = torch.linalg.svd(made("plain", 6, 9), full_matrices=False)

    def tokens(smallest: float) -> Tensor:
        values = torch.tensor([1.0, 0.5, 0.2, 0.1, 0.05, smallest], dtype=torch.float64)
        return left * values @ right

    for dtype, told, doubted in (
        (torch.float32, 4e-5, 2e-5),
        (torch.float16, 4e-6, 2e-6),
        (torch.bfloat16, 2e-6, 0.5e-6),
    ):
        for smallest, times in ((told, 0), (doubted, 1)):
            asked.clear()
            found = Profile(tokens(smallest), epsilon=torch.finfo(dtype).eps)
            error = float(MIN_SINGULAR_VALUE.of(found)) / smallest - 1
            assert len(asked) == times, (dtype, smallest)
            assert abs(error) < max(1e-6, torch.finfo(dtype).eps / 8)


@pytest.mark.parametrize("batch", [(), (3,), (2, 2)])
@pytest.mark.parametrize(("n", "d"), [(1, 4), (4, 6), (9, 5)])
def test_every_fact_has_an_entry_for_each_matrix(batch: tuple[int, ...], n: int, d: int) -> None:
    x = torch.stack([made("shifted", n, d, seed) for seed in range(4)])[: max(1, torch.Size(batch).numel())]
    x = x.reshape(*batch, n, d)
    for profile in (*views(x).values(), profile_of_equals(x)):
        for name in FACTS:
            fact = getattr(profile, name)
            if isinstance(fact, Tensor):
                assert fact.shape[: len(batch)] == batch, name
                assert fact.dtype == torch.float64, name


@pytest.mark.parametrize(("n", "d"), [(1, 4), (4, 1), (4, 6), (9, 5)])
def test_equal_tokens_need_no_decomposition(n: int, d: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.stack([made("plain", 1, d, seed).expand(n, d) for seed in (0, 1)])
    x[1] = 0 * x[1] if n > 1 else x[1]
    expected = {one.name: one.of(Profile(x)) for one in MEASURES}
    monkeypatch.setattr(module, "gram_eigenvalues", None)
    monkeypatch.setattr(module, "singular_values", None)
    found = profile_of_equals(x)
    for one in MEASURES:
        assert torch.allclose(one.of(found), expected[one.name], rtol=1e-12, atol=1e-7), one.name


def test_many_tokens_have_the_same_cosines_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    x = made("shifted", 23, 4)
    whole = Profile(x).absolute_cosine_sum
    monkeypatch.setattr(module, "CACHED_NUMBERS", 5 * 13)
    assert torch.allclose(Profile(x).absolute_cosine_sum, whole, rtol=1e-13)


@pytest.mark.parametrize("power", [10, 20, 30, 50, 400, 600, 900])
@pytest.mark.parametrize(("n", "d"), [(1, 1), (2, 1), (2, 2), (3, 8), (8, 3), (9, 9), (40, 60), (61, 40), (300, 320)])
def test_one_huge_token_changes_no_direction(n: int, d: int, power: int) -> None:
    """A power of two changes no digit of a token, so nothing of the unit views may change but by rounding."""
    x = made("plain", n, d)
    huge = x.clone()
    huge[n // 2] *= 2.0**power
    found, expected = views(huge), views(x)
    for view in ("unit", "centred_unit"):
        for one in MEASURES:
            ours, theirs = float(one.of(found[view])), float(one.of(expected[view]))
            assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-12), f"{view} {one.name}"
    unit = (x / x.norm(dim=-1, keepdim=True)).numpy()
    for one in (EFFECTIVE_RANK, ENERGY_RANK, MEAN_ABS_COSINE):
        assert float(one.of(found["unit"])) == pytest.approx(one.reference(unit), rel=1e-9)
    assert float(MEAN_ABS_COSINE(huge)) == pytest.approx(MEAN_ABS_COSINE.reference(unit), rel=1e-9, abs=1e-12)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    n=st.integers(1, 70),
    d=st.integers(1, 70),
    seed=st.integers(0, 10**6),
    dtype=st.sampled_from([torch.float64, torch.float32]),
)
def test_equal_tokens_leave_nothing_when_centred(n: int, d: int, seed: int, dtype: torch.dtype) -> None:
    x = made("plain", 1, d, seed).to(dtype).expand(n, d)
    found = views(x)
    for one in MEASURES:
        for view in ("centred", "centred_unit"):
            assert float(one.of(found[view])) == (1 if n == 1 and one is MEAN_ABS_COSINE else 0), f"{view} {one.name}"
        if one.name in ("mu", "relative_mu"):
            assert float(one.of(found["raw"])) == float(one.of(found["unit"])) == 0
    assert float(RANK.of(found["raw"])) == float(RANK.of(found["unit"])) == 1
