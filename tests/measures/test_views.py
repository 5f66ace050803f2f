"""The three views measured together equal each view measured alone, whatever the tokens look like."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rankfall.errors import RequestError
from rankfall.linalg.scratch import Scratch
from rankfall.measures.catalogue import ALL_MEASURES, measure
from rankfall.measures.views.three import views, views_with_and_without
from rankfall.measures.views.together import together

SHAPES = [(1, 5), (2, 5), (5, 5), (6, 5), (7, 5), (40, 60), (61, 40)]
RELATIVE, ABSOLUTE = 1e-7, 1e-11


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
    return {"raw": x, "unit": x / lengths.where(lengths > 0, 1.0), "centred": x - x.mean(dim=0)}


def assert_equal_to_each_alone(found: dict, x: Tensor) -> None:
    for view, tokens in alone(x).items():
        expected = measure(tokens)
        for one in ALL_MEASURES:
            if view == "centred" and one.name in ("min_singular_value", "rank") and len(x) <= x.shape[1]:
                continue  # zero by construction: the next test
            ours, theirs = float(one.of(found[view])), float(expected[one.name])
            assert ours == pytest.approx(theirs, rel=RELATIVE, abs=ABSOLUTE), f"{view} {one.name}"


@pytest.mark.parametrize("kind", ["plain", "sink", "shifted", "nearly equal", "with a zero"])
@pytest.mark.parametrize(("n", "d"), SHAPES)
def test_views_agree_with_each_alone(kind: str, n: int, d: int) -> None:
    x = made(kind, n, d)
    for apart in ((), (0,), (0, 1))[: n + 1]:
        whole, without = views_with_and_without(x, apart)
        assert_equal_to_each_alone(whole, x)
        keep = [index for index in range(n) if index not in apart]
        if apart and keep:
            assert_equal_to_each_alone(without, x[keep])
        else:
            assert without is None


@settings(max_examples=25, deadline=None, derandomize=True)
@given(n=st.integers(1, 12), d=st.integers(1, 12), seed=st.integers(0, 10**6), sink=st.integers(0, 11))
def test_views_agree_on_random_sizes(n: int, d: int, seed: int, sink: int) -> None:
    x = made("shifted", n, d, seed)
    whole, without = views_with_and_without(x, [sink % n])
    assert_equal_to_each_alone(whole, x)
    if without is not None:
        assert_equal_to_each_alone(without, torch.cat([x[: sink % n], x[sink % n + 1 :]]))


def test_sizes_beyond_the_square_root_of_what_floats_hold() -> None:
    found = views(made("huge", 9, 12))
    expected = views(made("plain", 9, 12))
    for one in ALL_MEASURES:
        ours, theirs = float(one.of(found["raw"])), float(one.of(expected["raw"])) * 1e200**one.degree
        assert ours == pytest.approx(theirs, rel=1e-12)


def test_centred_tokens_lose_exactly_one_direction() -> None:
    by_name = {one.name: one for one in ALL_MEASURES}
    found = views(made("shifted", 6, 9))["centred"]
    assert float(by_name["rank"].of(found)) == 5
    assert float(by_name["min_singular_value"].of(found)) == 0


def test_float32_tokens_are_judged_by_float32_rounding() -> None:
    x = made("plain", 8, 16).float()
    x[1] = x[0] * (1 + 1e-7)
    assert float(next(one for one in ALL_MEASURES if one.name == "rank").of(views(x)["raw"])) == 7


@pytest.mark.parametrize("share", [1e-3, 3e-5, 1e-5, 1e-7])
def test_the_smallest_singular_value_where_squares_have_lost_it(share: float) -> None:
    by_name = {one.name: one for one in ALL_MEASURES}
    x = made("plain", 30, 40)
    u, s, v = torch.linalg.svd(x, full_matrices=False)
    s[-1] = share * s[0]
    x = (u * s) @ v
    found = views(x)["raw"]
    assert float(by_name["min_singular_value"].of(found)) == pytest.approx(float(s[-1]), rel=1e-6)
    assert float(by_name["rank"].of(found)) == 30
    assert float(by_name["rank"].of(views(x.float())["raw"])) == (30 if share > 40 * 1.2e-7 else 29)


def test_profiles_outlive_the_working_memory_they_were_made_in() -> None:
    scratch = Scratch()
    x, other = made("sink", 40, 60), made("shifted", 50, 60)
    whole, without = views_with_and_without(x, [0], scratch)
    views_with_and_without(other, [1], scratch)
    assert_equal_to_each_alone(whole, x)
    assert_equal_to_each_alone(without, x[1:])


def test_nearly_one_direction_is_measured_by_the_svd() -> None:
    by_name = {one.name: one for one in ALL_MEASURES}
    x = made("plain", 6, 9)[:1].expand(6, 9) + 1e-9 * made("plain", 6, 9, seed=1)
    rest = torch.linalg.svdvals(x)[1:].square().sum().sqrt()
    assert float(by_name["rank_one_residual"].of(views(x)["raw"])) == pytest.approx(float(rest), rel=1e-6)


@pytest.mark.parametrize(("n", "d"), SHAPES)
def test_views_read_together_are_the_same_as_one_by_one(n: int, d: int) -> None:
    found = views(made("sink", n, d))
    batch = together(found.values())
    for one in ALL_MEASURES:
        assert one.of(batch).tolist() == [float(one.of(profile)) for profile in found.values()]
    assert torch.equal(batch.singular_values, torch.cat([profile.singular_values for profile in found.values()]))
    assert torch.equal(batch.eigenvalues, torch.cat([profile.eigenvalues for profile in found.values()]))


def test_nan_and_wrong_shapes_are_refused() -> None:
    with pytest.raises(RequestError, match="finite tokens"):
        views(torch.full((3, 4), float("nan")))
    with pytest.raises(RequestError, match="one token matrix"):
        views(torch.zeros(2, 3, 4))
