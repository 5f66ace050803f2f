"""Views of many token matrices at once, some tokens left out, equal the views of each alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rankfall.measures.catalogue import ALL_MEASURES
from rankfall.measures.views.masked import masked_views
from rankfall.measures.views.three import VIEWS, views_with_and_without

SHAPES = [(1, 5), (2, 5), (5, 5), (6, 5), (7, 5), (40, 60), (61, 40)]


def made(kind: str, n: int, d: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=generator, dtype=torch.float64)
    if kind == "sink":
        x[0] *= 200
    elif kind == "shifted":
        x += 5 * torch.randn(d, generator=generator, dtype=torch.float64)
    elif kind == "huge":
        x *= 1e200
    elif kind == "with a zero":
        x[-1] = 0
    return x


@pytest.mark.parametrize("kind", ["plain", "sink", "shifted", "huge", "with a zero"])
@pytest.mark.parametrize(("n", "d"), SHAPES)
def test_each_sample_agrees_with_itself_alone(kind: str, n: int, d: int) -> None:
    x = torch.stack([made(kind, n, d, seed) for seed in (0, 1)])
    for apart in ((), (0,), (0, 1))[:n]:
        kept = torch.ones(2, n, dtype=torch.float64)
        kept[:, list(apart)] = 0
        profile = masked_views(x, kept)
        unsure = profile.smallest_in_doubt | profile.others_in_doubt
        for sample in range(2):
            whole, without = views_with_and_without(x[sample], apart)
            for index, view in enumerate(VIEWS):
                if unsure[2 * index + sample]:
                    continue
                expected = (without if apart else whole)[view]
                for one in ALL_MEASURES:
                    ours = float(one.of(profile)[2 * index + sample])
                    size = max(float(expected.size) ** one.degree, 1.0)
                    theirs = pytest.approx(float(one.of(expected)), rel=1e-8, abs=1e-10 * size)
                    assert ours == theirs, f"{view} {one.name} without {apart}"


def test_samples_may_differ_in_their_number_of_tokens() -> None:
    x = torch.stack([made("shifted", 12, 9, seed) for seed in range(3)])
    kept = torch.ones(3, 12, dtype=torch.float64)
    kept[1, 10:] = 0
    kept[2, 4:] = 0  # fewer than coordinates
    x[1, 11] = torch.nan  # padding may hold anything
    profile = masked_views(x, kept)
    for sample, count in enumerate((12, 10, 4)):
        expected = views_with_and_without(x[sample, :count], ())[0]
        for index, view in enumerate(VIEWS):
            for one in ALL_MEASURES:
                ours = float(one.of(profile)[3 * index + sample])
                assert ours == pytest.approx(float(one.of(expected[view])), rel=1e-8, abs=1e-10), f"{view} {one.name}"


def test_small_singular_values_are_doubted_not_guessed() -> None:
    x = made("plain", 20, 30)
    u, s, v = torch.linalg.svd(x, full_matrices=False)
    s[-1] = 1e-6 * s[0]
    profile = masked_views(((u * s) @ v)[None], torch.ones(1, 20, dtype=torch.float64))
    assert bool(profile.smallest_in_doubt[VIEWS.index("raw")])
    assert not bool(masked_views(x[None], torch.ones(1, 20, dtype=torch.float64)).smallest_in_doubt.any())


def test_nearly_one_direction_is_doubted() -> None:
    x = made("plain", 6, 9)[:1].expand(6, 9) + 1e-9 * made("plain", 6, 9, seed=1)
    profile = masked_views(x[None], torch.ones(1, 6, dtype=torch.float64))
    assert bool(profile.others_in_doubt[VIEWS.index("raw")])


def test_the_same_token_twice_makes_the_smallest_zero_without_doubt() -> None:
    x = made("plain", 20, 30)
    x[13] = x[4]
    kept = torch.ones(2, 20, dtype=torch.float64)
    kept[1, 4] = 0  # the other one is left out
    profile = masked_views(torch.stack([x, x]), kept)
    raw, unit = VIEWS.index("raw"), VIEWS.index("unit")
    assert profile.smallest_singular_value[[2 * raw, 2 * unit]].tolist() == [0.0, 0.0]
    assert profile.smallest_singular_value[2 * raw + 1] > 0.1
    assert not bool(profile.smallest_in_doubt.any())
    assert next(one for one in ALL_MEASURES if one.name == "rank").of(profile)[2 * raw] == 19
    wide = masked_views(x[None, :, :8], torch.ones(1, 20, dtype=torch.float64))
    assert wide.smallest_singular_value[raw] > 0.1  # more tokens than coordinates: a repeated one changes nothing
