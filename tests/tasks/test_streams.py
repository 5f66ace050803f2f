"""Counted random numbers: the published test vectors of Philox, moments, and independence of place."""

from __future__ import annotations

import pytest
import torch

from rankfall.tasks.base import EVALUATION, TRAINING, Draws, philox

# Known answers of Philox-4x32-10 as its authors publish them: counter, key, result.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def draws(seeds: list[int], steps: list[int], purpose: int = TRAINING) -> Draws:
    return Draws(torch.tensor(seeds), torch.tensor(steps), purpose, torch.float64)


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_known_answers(counter: tuple[int, ...], key: tuple[int, ...], answer: tuple[int, ...]) -> None:
    words = philox(tuple(torch.tensor([c]) for c in counter), tuple(torch.tensor([k]) for k in key))
    assert tuple(int(word) for word in words) == answer


def test_numbers_do_not_depend_on_who_else_draws() -> None:
    together = draws([3, 7, 2**40 + 1], [0, 5, 2**33]).normal(1, 4, 5)
    alone = draws([2**40 + 1], [5]).normal(1, 4, 5)
    assert torch.equal(together[2, 1], alone[0, 0])


def test_seeds_steps_channels_and_purposes_differ() -> None:
    base = draws([0], [0]).normal(0, 64)
    others = [
        draws([1], [0]).normal(0, 64),
        draws([2**32], [0]).normal(0, 64),
        draws([0], [1]).normal(0, 64),
        draws([0], [0]).normal(1, 64),
        draws([0], [0], EVALUATION).normal(0, 64),
    ]
    assert all((base - other).abs().min() > 0 for other in others)


def test_normal_moments() -> None:
    x = draws([11], list(range(50))).normal(0, 4000).flatten()
    # 200,000 numbers: standard errors 0.0022, 0.0032, 0.0055, 0.022; four of each allowed.
    assert abs(float(x.mean())) < 0.009
    assert abs(float(x.var()) - 1) < 0.013
    assert abs(float((x**3).mean())) < 0.035
    assert abs(float((x**4).mean()) - 3) < 0.09


def test_neighbours_are_uncorrelated() -> None:
    x = draws([5], list(range(100))).normal(0, 400)[0]
    products = [(x[:, :-lag] * x[:, lag:]).mean() for lag in (1, 2, 3, 100, 200)] + [(x[:-1] * x[1:]).mean()]
    assert max(abs(float(p)) for p in products) < 4 / 30_000**0.5
